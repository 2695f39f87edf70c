"""Paths that begin at the home folder. Only a shell expands `~`: cdfd would take it for a folder of that name in the working directory."""

from cdfd.errors import ConfigError

NOT_EXPANDED = "`~` is not expanded"
HOME_HINT = "write the full path or ${HOME}/…; in a shell, leave the quotes out"


def begins_at_home(path: str) -> bool:
    """Whether a path is `~`, or begins with `~/`. A folder of that name is `./~`."""
    return path == "~" or path.startswith("~/")


def check_home(path: str) -> None:
    """Refuse a path that begins with `~`.

    Raises:
        ConfigError: it does.
    """
    if begins_at_home(path):
        raise ConfigError(NOT_EXPANDED, path=path, hint=f"{HOME_HINT[0].upper()}{HOME_HINT[1:]}")
