"""Threads that encode data files. All tables of a process share them, one for each core. Arrow releases the GIL meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from cdfd.scan.execute import cores

T = TypeVar("T")

CORES = cores()
"""Calls that run at the same time, at most."""


def submit(call: Callable[[], T], *, here: bool = False) -> Future[T]:
    """Make a call in one of the threads.

    Args:
        call: takes its arguments from a closure.
        here: make it in the calling thread instead. Its error is raised at once.
    """
    if not here:
        return _threads().submit(call)
    done: Future[T] = Future()
    done.set_result(call())
    return done


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES, "cdfd-delta")
