"""Standard output of a command."""

import os
import sys

from cdfd.errors import StorageError
from cdfd.escaping import for_terminal

NAME = "standard output"
"""How errors name it."""


def write(text: str) -> None:
    """Write to standard output and flush it, so that an error is reported here and not when Python exits."""
    if sys.stdout is None:
        raise StorageError("standard output is closed")
    try:
        sys.stdout.write(for_terminal(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise StorageError(f"cannot write: {error.strerror or error}", path=NAME) from error


def drop_output() -> None:
    """Redirect standard output to the null device, because Python flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
