"""A deadline for blocking calls of stores that do not give up by themselves: mounts of networks, and file systems of fsspec."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cdfd.errors import StorageError
from cdfd.runtime.tasks import wait_for_end

T = TypeVar("T")

DEADLINE_SECONDS, SLOW_SECONDS = 60.0, 600.0
"""Seconds that a call may take, as with S3; and those for a listing or a write, which may be of very many objects or bytes."""

_silent: dict[str, Future[None]] = {}
"""The end of a call that was given up, by the location's URI."""


async def limit_call(uri: str, doing: str, path: str, work: Callable[[], T]) -> T:
    """The result of a blocking call, made in a worker thread.

    Args:
        uri: of the store.
        doing: read, list, stat, write or delete.
        path: of the object, for the error.
        work: the call.

    Raises:
        StorageError: there is no answer in time. The call may still take effect.
    """
    ended: Future[None] = Future()

    def call() -> T:
        try:
            return work()
        finally:
            ended.set_result(None)

    seconds = SLOW_SECONDS if doing in ("list", "write") else DEADLINE_SECONDS
    silent = _silent.get(uri)
    try:
        async with asyncio.timeout(seconds):
            if silent is not None:
                await wait_for_end(silent)
                _silent.pop(uri, None)
            silent = ended
            return await asyncio.to_thread(call)
    except TimeoutError:
        # The thread stays, because file systems do not notice that a connection is half open. Other calls wait for it: each retry of a
        # table would leave one more.
        _silent[uri] = silent or ended
        raise StorageError(
            f"cannot {doing}: no answer; gave up after {seconds:g} seconds",
            path=path,
            hint="Check the network and the store",
            retriable=True,
        ) from None
