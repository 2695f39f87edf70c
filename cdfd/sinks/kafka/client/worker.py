"""A thread for blocking calls, with awaitable results."""

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial, wraps
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Concatenate, ParamSpec, TypeVar

from cdfd.errors import SinkError
from cdfd.runtime.ordered_pool import yield_if_long
from cdfd.runtime.tasks import wait_for_end

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS = 10.0
"""Time without a call after which a worker's thread ends. Starting a thread takes a tenth of a millisecond."""


@dataclass(eq=False)
class Worker:
    """Runs calls one after the other, in the order of `submit`.

    The first call starts the thread, which ends after a while without calls: a daemon has two workers for each table, and most are idle. A
    process exits without waiting for the thread, so that a broker that hangs cannot block the exit of a daemon.

    Attributes:
        name: of the thread.
        idle: seconds without a call after which the thread ends. The next call starts another one.
        yields: whether it is for calls of large versions, and lets other threads go first.
    """

    name: str
    idle: float = IDLE_SECONDS
    yields: bool = field(default=False, kw_only=True)
    _work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = field(default_factory=SimpleQueue, init=False)
    _thread: Thread | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)
    _closed: bool = field(default=False, init=False)

    def submit(self, work: Callable[[], T], done: Future[T] | None = None) -> Future[T]:
        """Run a call after all earlier ones, even if the caller does not wait for it.

        Args:
            work: the call.
            done: receives the result and is returned; None: a new future.

        Raises:
            SinkError: the worker is closed.
            RuntimeError: the system allows no more threads.
        """
        if self._closed:
            raise SinkError("the sink is closed", hint="Open a new sink")
        done = Future() if done is None else done
        with self._lock:
            if self._thread is None:
                thread = Thread(target=self._run, name=self.name, daemon=True)
                thread.start()  # before anything changes: a call that could not be submitted must not run later
                self._thread = thread
            self._work.put((work, done))
        return done

    def close(self) -> None:
        """End the thread after all submitted calls."""
        self._closed = True
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            work, done = item
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                done.set_exception(error)
            else:
                done.set_result(result)
                del result
            del item, work, done
            if self.yields:
                yield_if_long()

    def _next(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        """The next call; None if the thread has to end."""
        try:
            return self._work.get(timeout=self.idle)
        except Empty:
            with self._lock:
                if self._work.empty():
                    self._thread = None
                    return None
            return self._work.get()


def in_worker(work: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Let a blocking method run in the object's `_worker`. A cancelled wait does not cancel the call."""

    @wraps(work)
    async def run(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return await wait_for_result(self._worker.submit(partial(work, self, *args, **options)))

    return run


async def wait_for_result(work: Future[T], timeout: float | None = None) -> T:
    """Wait for the result of a call. A cancelled wait does not cancel the call.

    Raises:
        TimeoutError: after `timeout` seconds; the call continues.
    """
    if work.done():
        return work.result()
    done = await wait_for_end(work, timeout)
    if not done.done():
        raise TimeoutError
    return done.result()
