"""The executor of a daemon's event loop: threads for calls that block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 4096
"""Limit of threads. It is far beyond need, so that tables with a store that hangs cannot block another table."""
IDLE_SECONDS = 10.0
"""Time without a call after which a thread ends."""

_Work = tuple[Callable[[], Any], "Future[Any]"]


class _Member:
    """A thread of the executor, and its next call."""

    def __init__(self, first: _Work) -> None:
        self.inbox: SimpleQueue[_Work | None] = SimpleQueue()
        self.inbox.put(first)
        self.thread: Thread | None = None


class Threads(ThreadPoolExecutor):
    """An executor whose threads start on demand, and end if there is nothing to do.

    `ThreadPoolExecutor` keeps all threads that it ever started: hundreds after the start of hundreds of tables. asyncio requires a subclass.
    Here the thread that became free last gets the next call. If all took turns, a few calls a second would keep hundreds of threads alive.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)  # it starts no thread, because `submit` is ours
        self._mutex = Lock()
        self._members: set[_Member] = set()
        self._free: dict[_Member, None] = {}  # the one that became free last is the last one
        self._waiting: deque[_Work] = deque()
        self._ended = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call in a thread; see `Executor`.

        Raises:
            RuntimeError: the executor is shut down, or the system allows no thread at all. While there are others, the call waits for them.
        """
        done: Future[T] = Future()
        work = (partial(fn, *args, **kwargs), done)
        with self._mutex:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._free:
                self._free.popitem()[0].inbox.put(work)
            elif len(self._members) < MOST:
                member = _Member(work)
                member.thread = Thread(target=self._run, args=(member,), name="cdfd-call", daemon=True)
                self._members.add(member)
                try:
                    member.thread.start()
                except (RuntimeError, MemoryError):
                    self._members.discard(member)
                    if not self._members:
                        raise
                    self._waiting.append(work)  # all others are busy, and the first that is free takes it
            else:
                self._waiting.append(work)
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all threads after their calls; see `Executor`."""
        with self._mutex:
            self._ended = True
            members = list(self._members)
            cancelled = list(self._waiting) if cancel_futures else []
            for work in cancelled:
                self._waiting.remove(work)
            for member in self._free:
                member.inbox.put(None)
            self._free.clear()
        for _, done in cancelled:
            done.cancel()
        if wait:
            for member in members:
                if member.thread is not None:
                    member.thread.join()

    def _run(self, member: _Member) -> None:
        while (item := self._next(member)) is not None:
            work, done = item
            if done.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                    self._finish(member)
                    done.set_exception(error)
                else:
                    self._finish(member)
                    done.set_result(result)
                    del result
            else:
                self._finish(member)
            del item, work, done
        with self._mutex:
            self._members.discard(member)

    def _finish(self, member: _Member) -> None:
        """A thread is free. Said before the result is, because the caller's next call can then use this thread."""
        with self._mutex:
            if self._waiting:
                member.inbox.put(self._waiting.popleft())
            elif self._ended:
                member.inbox.put(None)
            else:
                self._free[member] = None

    def _next(self, member: _Member) -> _Work | None:
        """The next call; None if the thread has to end."""
        try:
            return member.inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._mutex:
                if member in self._free:
                    del self._free[member]
                    self._members.discard(member)  # now, so that the next call may start another one
                    return None
            return member.inbox.get()  # it comes at this moment
