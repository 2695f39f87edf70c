"""A thread for calls that block, whose results are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from cdfd.errors import SinkError

T = TypeVar("T")


class Worker:
    """Does one piece of work after the other, in the order in which they were given.

    Its thread starts with the first of them. A process that ends does not wait for it: a broker that hangs must not keep a daemon from
    ending.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closed = False

    def submit(self, work: Callable[[], T], done: Future[T] | None = None) -> Future[T]:
        """Have it done after all that was given before, whether or not somebody waits for it.

        Args:
            work: what to do.
            done: gets the result and is returned; a new one where None.

        Raises:
            SinkError: it was closed.
        """
        if self._closed:
            raise SinkError("the sink is closed", hint="Open the sink anew")
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        done = Future() if done is None else done
        self._work.put((work, done))
        return done

    def close(self) -> None:
        """Let the thread end after what it has been given."""
        self._closed = True
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                done.set_exception(error)
            else:
                done.set_result(result)
                del result
            del item, work, done


async def finished(work: Future[T], timeout: float | None = None) -> T:
    """The result of work. Whoever waits may be cancelled; the work goes on.

    Raises:
        TimeoutError: after so many seconds; the work goes on, too.
    """
    done = asyncio.wrap_future(work)
    # Somebody who no longer waits does not want to be told either.
    done.add_done_callback(lambda future: future.cancelled() or future.exception())
    await asyncio.wait((done,), timeout=timeout)
    if not done.done():
        raise TimeoutError
    return done.result()
