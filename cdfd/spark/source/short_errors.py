"""Errors of cdfd in Spark's messages: Spark adds the traceback of Python, which is short here."""

from contextlib import ContextDecorator

from cdfd.errors import CdfdError


class ShortErrors(ContextDecorator):
    """Leaves the inside of cdfd out of the traceback of its errors, which name table, version and file. For a block or a function."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, CdfdError):
            error.__cause__ = error.__traceback__ = None
