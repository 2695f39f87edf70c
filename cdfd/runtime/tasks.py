"""Tasks of the event loop that run side by side, blocking iterators for it, and a loop for blocking functions.

Cancellation is asyncio's: it comes once, and the clean-up that follows may await. Scopes of anyio would cancel each await of a delivery that
is being aborted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

logger = logging.getLogger("cdfd.daemon")

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def in_thread(work: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a blocking function run in a worker thread of the event loop."""

    @wraps(work)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(work, *args, **options)

    return run


async def wait_for_end(work: Future[T], timeout: float | None = None) -> asyncio.Future[T]:
    """Wait until work in another thread has ended, or `timeout` seconds. A cancelled wait does not cancel the work."""
    done = asyncio.wrap_future(work)
    # Retrieve the exception, so that asyncio does not log it after a cancelled wait, or if the caller asks `work` itself.
    done.add_done_callback(lambda future: future.cancelled() or future.exception())
    await asyncio.wait((done,), timeout=timeout)
    return done


@asynccontextmanager
async def first_done(*works: Awaitable[Any]) -> AsyncIterator[list[asyncio.Future[Any]]]:
    """Wait until one of several awaitables is done. The block sees which. The others are cancelled, and have ended after the block."""
    futures: list[asyncio.Future[Any]] = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        yield futures
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)


async def beside(*works: Coroutine[Any, Any, None]) -> None:
    """Run several coroutines until one of them ends. Raises its error; of several errors, that of the coroutine that is named first."""
    async with first_done(*works) as tasks:
        pass
    for task in tasks:
        if not task.cancelled():
            task.result()


async def unless_set(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`; None if `event` came first."""
    async with first_done(work, event.wait()) as (task, _):
        result: T | None = task.result() if task.done() else None
        return result


@asynccontextmanager
async def background(name: str, work: Coroutine[Any, Any, object]) -> AsyncIterator[asyncio.Task[object]]:
    """Run `work`, which only observes, in a task until the block ends. An unexpected error ends only the task, and is logged at once.

    Args:
        name: of the task, for the log.
        work: runs until it is cancelled.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _report(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the task %r ended unexpectedly", task.get_name(), exc_info=error)


async def iterate_in_thread(
    items: Iterator[T], share: Callable[[T], float] = lambda _: 1.0, waited: Callable[[float], object] = lambda _: None
) -> AsyncGenerator[T, None]:
    """The items of a blocking iterator, fetched in a worker thread. The iterator is closed at the end, so use `aclosing`.

    Args:
        items: the iterator.
        share: of a switch to the thread that an item fills: items are fetched together until they fill one, or end. An error that comes
            takes the place of those that were fetched with it.
        waited: receives the seconds of each wait for the thread.
    """

    def fetch() -> tuple[list[T], bool]:
        """The next items, and whether they are the last ones."""
        fetched, filled = [], 0.0
        for item in items:
            fetched.append(item)
            filled += share(item)
            if filled >= 1:
                return fetched, False
        return fetched, True

    fetched: asyncio.Future[tuple[list[T], bool]] | None = None
    loop = asyncio.get_running_loop()
    ended = False
    try:
        while not ended:
            began = time.perf_counter()
            fetched = loop.run_in_executor(None, fetch)
            # A thread cannot be cancelled, and an iterator that it runs cannot be closed.
            batch, ended = await asyncio.shield(fetched)
            waited(time.perf_counter() - began)
            for item in batch:
                yield item
    finally:
        if fetched is not None:
            await asyncio.wait((fetched,))
        close = getattr(items, "close", None)
        if close is not None and not ended:
            await loop.run_in_executor(None, close)


class _OneThreadLoop(asyncio.SelectorEventLoop):
    """Runs blocking functions itself, instead of in worker threads."""

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """The function is one callback of the loop, after those that wait already."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if not future.cancelled():
                try:
                    future.set_result(func(*args))
                except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                    future.set_exception(error)

        self.call_soon(run)
        return future


class LoopThread:
    """An event loop in its own thread, so that the blocking API also works inside a running loop (a notebook).

    Args:
        local: whether the work reads local files alone, and waits for nothing else. The loop's thread then runs blocking functions, too: to
            hand them to other threads took half the time of reading a small table.
    """

    def __init__(self, *, local: bool = False) -> None:
        self._process = os.getpid()
        self._loop = _OneThreadLoop() if local else asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cdfd-log", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
        """Wait for `work`."""

        async def awaited() -> T:
            return await work

        future = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        try:
            return future.result()
        finally:
            # After Ctrl-C, the work must end too.
            future.cancel()

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread, and the worker threads of its loop. A fork has none of them."""
        if os.getpid() != self._process:
            return
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def run_blocking(work: Coroutine[Any, Any, T], *, local: bool = False) -> T:
    """Wait for `work`, also where a loop runs already (a notebook). `local` is as for `LoopThread`."""
    with LoopThread(local=local) as loop:
        return loop.run(work)
