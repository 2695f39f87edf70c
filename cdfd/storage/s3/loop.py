"""One event loop for all S3 clients of a process, in a thread of its own.

A client belongs to the event loop that created it. cdfd uses its clients from several loops (the daemon's, those of the Python API) and from
worker threads without one. So all requests run in this loop, and their results are passed to the callers.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import finalize

from cdfd.errors import StorageError

T = TypeVar("T")
_CLOSE_SECONDS = 2.0


@dataclass(eq=False)
class RequestLoop:
    """The thread of the loop, and the clients to close in it. It starts with the first request and ends with the process."""

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _closing: dict[Callable[[], Awaitable[None]], None] = field(default_factory=dict, init=False)
    _ended: bool = field(default=False, init=False)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work`; from any thread. StorageError while the process ends."""
        with self._lock:
            if self._ended:
                work.close()
                raise StorageError("the process is ending")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="cdfd-s3", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, for a caller in another loop. Cancelling the caller cancels the work."""
        return await asyncio.wrap_future(self.submit(work))

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register a function to call in the loop before it ends, once."""
        self._closing[close] = None

    def close_with(self, owner: object, close: Callable[[], Awaitable[None]]) -> None:
        """The same, and call it as soon as `owner` is gone, which `close` must not refer to."""
        self.on_close(close)
        finalize(owner, self._close_early, close).atexit = False

    def _close_early(self, close: Callable[[], Awaitable[None]]) -> None:
        # The garbage collector may call this anywhere, also in a thread that has the lock.
        loop = self._loop
        if loop is None or self is not _current:
            self._closing.pop(close, None)
            return
        work = self._close_now(close)
        try:
            asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # the loop was closed meanwhile
            work.close()

    async def _close_now(self, close: Callable[[], Awaitable[None]]) -> None:
        await close()
        self._closing.pop(close, None)

    def close(self) -> None:
        """Stop the thread and cancel its tasks."""
        with self._lock:
            self._ended = True
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        # A server that does not respond must not keep the process alive, so the wait is bounded and the thread is a daemon.
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), loop).result(_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_SECONDS)
        if not thread.is_alive():
            loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for close in list(self._closing):
            await close()
        # aiohttp closes its sockets one iteration of the loop later.
        await asyncio.sleep(0)


_current: RequestLoop | None = None
_lock = threading.Lock()


def request_loop() -> RequestLoop:
    """The process's loop."""
    global _current
    with _lock:
        if _current is None:
            _current = RequestLoop()
            atexit.register(_current.close)
        return _current


def _forget() -> None:
    # A forked child inherits the loop's objects, but not its thread.
    global _current, _lock
    if _current is not None:
        atexit.unregister(_current.close)
    _current, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
