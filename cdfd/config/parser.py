"""A configuration file to settings."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from cdfd.config.document import read
from cdfd.config.environment import add_aws, resolve
from cdfd.config.problems import ConfigProblems, Problem
from cdfd.config.settings import FOLDER, Settings
from cdfd.config.validation_errors import file_settings, validation_problems
from cdfd.errors import ConfigError


def load(
    path: str | Path, environ: Mapping[str, str] | None = None, folder: str | os.PathLike[str] | None = None
) -> Settings:
    """Read a configuration file.

    Args:
        environ: the process's environment where it is None.
        folder: base of relative paths; None: the file's folder, or the working directory for a pipe or a device.

    Raises:
        ConfigError: the file cannot be read.
        ConfigProblems: everything that is wrong in it.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration: {error.strerror}", path=str(path)) from error
    except ValueError:
        raise ConfigError("the configuration is not UTF-8 text", path=ascii(str(path))[1:-1]) from None
    return parse(text, environ, str(path), folder_of(path) if folder is None else os.path.abspath(folder))


def folder_of(path: str | Path) -> str:
    """The base of relative paths in a configuration file."""
    return os.path.dirname(os.path.abspath(path)) if os.path.isfile(path) else os.getcwd()


def parse(
    text: str, environ: Mapping[str, str] | None = None, name: str = "<text>", folder: str | None = None
) -> Settings:
    """Settings from the text of a configuration file.

    Args:
        environ: the process's environment where it is None.
        name: stands for the file in errors.
        folder: where relative paths in it begin; they stay as they are where it is None.

    Raises:
        ConfigProblems: everything that is wrong in it.
    """
    environ = os.environ if environ is None else environ
    try:
        root, minor_problems = read(text)
    except ConfigProblems as error:
        raise error.within(path=name) from None
    resolved = resolve(root, environ, file_settings, folder)
    resolved.problems += minor_problems
    add_aws(resolved, environ)
    problems: list[Problem] = resolved.problems
    try:
        settings = Settings.model_validate(resolved.data, context={FOLDER: folder})
    except ValidationError as error:
        problems = problems + validation_problems(error, resolved)
    if problems:
        # Outside the handler, so that pydantic's error, which has all values, does not become the context of ours.
        raise ConfigProblems(problems, name)
    return settings
