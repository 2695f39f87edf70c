"""Errors of cdfd in Spark's messages: Spark adds the traceback of Python, which is short here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from cdfd.errors import CdfdError

P = ParamSpec("P")
T = TypeVar("T")


def short_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Leave the inside of cdfd out of the traceback of its errors, which name table, version and file."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except CdfdError as error:
            raise error.with_traceback(None) from None

    return call


def short_errors_of_rows(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """As `short_errors`, for what an iterator raises."""

    @wraps(function)
    def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from function(*args, **kwargs)
        except CdfdError as error:
            raise error.with_traceback(None) from None

    return iterate
