"""The threads of a daemon for blocking calls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 4096
"""Limit of threads. It is far beyond need, so that tables with a store that hangs cannot block another table."""
IDLE_SECONDS = 10.0
"""Time without a call after which a thread ends."""

_Work = tuple[Callable[[], Any], "Future[Any]"]


class Threads(ThreadPoolExecutor):
    """An executor whose threads start on demand, and end if there is nothing to do.

    `ThreadPoolExecutor` keeps all threads that it ever started: hundreds after the start of hundreds of tables. asyncio requires a subclass.

    Args:
        most: limit of threads.
        idle: seconds without a call after which a thread ends.
    """

    def __init__(self, most: int = MOST, idle: float = IDLE_SECONDS) -> None:
        super().__init__(max_workers=1)  # it starts no thread, because `submit` is ours
        self._most = most
        self._seconds = idle
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._mutex = Lock()
        self._running: set[Thread] = set()
        self._free = 0  # threads that wait for work, less the calls that wait for one of them
        self._ended = False

    @property
    def count(self) -> int:
        """Number of threads."""
        return len(self._running)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call in a thread; see `Executor`.

        Raises:
            RuntimeError: the executor is shut down.
        """
        done: Future[T] = Future()
        with self._mutex:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._work.put((partial(fn, *args, **kwargs), done))
            self._free -= 1
            if self._free < 0 and len(self._running) < self._most:
                self._free += 1
                thread = Thread(target=self._run, name="cdfd-call", daemon=True)
                self._running.add(thread)
                thread.start()
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all threads after their calls; see `Executor`."""
        with self._mutex:
            self._ended = True
            threads = list(self._running)
        if cancel_futures:
            self._cancel()
        for _ in threads:
            self._work.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def _cancel(self) -> None:
        try:
            while (item := self._work.get_nowait()) is not None:
                item[1].cancel()
        except Empty:
            return

    def _run(self) -> None:
        while (item := self._next()) is not None:
            work, done = item
            if done.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                    self._finish()
                    done.set_exception(error)
                else:
                    self._finish()
                    done.set_result(result)
                    del result
            else:
                self._finish()
            del item, work, done
        with self._mutex:
            self._running.discard(current_thread())

    def _finish(self) -> None:
        """This thread is free. Said before the result is, because the caller's next call can then use this thread."""
        with self._mutex:
            self._free += 1

    def _next(self) -> _Work | None:
        """The next call; None if the thread has to end."""
        try:
            return self._work.get(timeout=self._seconds)
        except Empty:
            with self._mutex:
                if self._free > 0:
                    self._free -= 1
                    self._running.discard(current_thread())  # now, so that the next call may start another one
                    return None
            return self._work.get()  # a call counts on this thread
