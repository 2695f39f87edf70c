"""Shared by all commands: global options and common parameters."""

from copy import copy
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cdfd.runtime.output import write


class GlobalOptions:
    """The global options."""

    names = ("debug", "log_format", "log_level")
    debug = False
    log_format = "auto"
    log_level = "info"

    @classmethod
    def set(cls, _: Any, option: Any, value: Any) -> None:
        """Set a given option, and apply it to the logs."""
        if value:
            setattr(cls, option.name, value)
            cls.apply()

    @classmethod
    def apply(cls) -> None:
        """Apply the options to the logs."""
        from cdfd.runtime import logs

        logs.set_up(cls.log_format, "debug" if cls.debug else cls.log_level)


class Group(TyperGroup):
    """Commands that also take the global options: `cdfd --debug run` and `cdfd run --debug` are the same."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option `--help` of the group itself."""
        option: Any = super().get_help_option(ctx)
        option.callback = _show_help
        return option

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, with the global options."""
        command = super().get_command(ctx, cmd_name)
        parameters: list[Any] = [] if command is None else command.params
        for argument in parameters:
            if argument.param_type_name == "argument":
                # Typer would write `{TABLE}...` and `TABLE <list[str]>`.
                argument.metavar = argument.metavar or argument.name.upper()
                argument.get_usage_pieces = partial(_usage, argument)
                argument.display_type_rich = lambda ctx: ""
        if command is not None:
            help_option: Any = command.get_help_option(ctx)
            help_option.callback = _show_help
        if command is not None and not any(option.name in GlobalOptions.names for option in command.params):
            for option in ctx.find_root().command.params:
                if option.name in GlobalOptions.names:
                    # After the command's name it overrides the one before the name.
                    after = copy(option)
                    after.default, after.expose_value, after.callback = None, False, GlobalOptions.set
                    command.params.append(after)
        return command


def _show_help(ctx: Any, _: Any, value: bool) -> None:
    """Instead of Typer's function, which does not catch errors of the output."""
    if value and not ctx.resilient_parsing:
        write(f"{ctx.get_help()}\n")
        ctx.exit()


def _usage(argument: Any, _: Any) -> list[str]:
    text = argument.metavar + "..." * (argument.nargs == -1)
    return [text if argument.required else f"[{text}]"]


TABLE = Annotated[str, typer.Argument(metavar="TABLE", help="Path or URI of a Delta table.")]
CONFIG = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration file.")]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SHARD = Annotated[
    str | None,
    typer.Option(
        "--shard",
        envvar="CDFD_SHARD",
        metavar="N/COUNT",
        help="Only the tables of this shard: 0/5 is the first of five. A pod's name may stand for N.",
    ),
]
SINK = Annotated[
    str | None, typer.Option("--sink", metavar="NAME", help="One of `sinks`, if the configuration has several.")
]
ROOTS = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-root",
        metavar="URI",
        help="Allow absolute file paths (clones) and symbolic links to lead here; repeatable.",
    ),
]
PREFIXES = Annotated[
    list[str] | None,
    typer.Option(
        "--path-prefix",
        metavar="PREFIX=URI",
        help="Read absolute file paths that begin with PREFIX at URI: dbfs:/mnt/lake=s3://lake. Repeatable.",
    ),
]


CATALOG_OPTIONS = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-option",
        metavar="NAME=VALUE",
        help="An option of the catalog of a table uc://… or glue://…, such as endpoint=https://catalog.example, "
        "token_file=PATH or s3.region=eu-west-1. Repeatable.",
    ),
]
_SECRETS = ("token", "client_secret", "secret_access_key", "session_token")


def parse_pairs(option: str, texts: list[str] | None, expected: str) -> dict[str, str]:
    """The values of a repeatable option `NAME=VALUE`, by name."""
    pairs = [text.partition("=") for text in texts or ()]
    if not all(name and value for name, _, value in pairs):
        raise typer.BadParameter(f"expected {expected}", param_hint=option)
    return {name: value for name, _, value in pairs}


def catalog_options(texts: list[str] | None) -> dict[str, str] | None:
    """The options of a catalog; None if there are none. Other users of a machine see a command line, so secrets are refused there."""
    option = "--catalog-option"
    options = parse_pairs(option, texts, "NAME=VALUE, such as endpoint=https://catalog.example")
    for name in options:
        if name.lower().rpartition(".")[2] in _SECRETS:
            raise typer.BadParameter(
                f"{name} is a secret: give {name}_file, or the variable UC_TOKEN", param_hint=option
            )
    return options or None


def _size(text: str) -> int:
    from cdfd.config import values  # few commands take a size

    try:
        return values.size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


LOG_LINE = Annotated[
    int | None,
    typer.Option(
        "--max-log-line",
        metavar="SIZE",
        parser=_size,
        help="Limit of a line of a log entry or of a checkpoint in JSON, which is held in memory. Default: 128MiB.",
    ),
]
NAME = Annotated[str, typer.Argument(metavar="NAME", help="Name of a table in the configuration.")]


def column_names(text: str | None) -> tuple[str, ...] | None:
    """Names of columns with commas between them; None: all columns."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def choose_allocator() -> None:
    """For a command that reads rows. It comes before the imports of the command."""
    from cdfd.runtime import allocator

    allocator.choose()
