"""An ordered worker pool: tasks run in threads, results come in the order of the tasks, and a bounded number of results waits.

Decoding Parquet, filtering and encoding release the GIL, so more threads use more cores. Rows must stay in order, and memory is limited.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

from cdfd.errors import CdfdError

A = TypeVar("A")
B = TypeVar("B")

Task = Callable[[], Iterator[B]]


@dataclass(frozen=True, slots=True)
class Inline(Generic[B]):
    """A task that the consumer's thread runs when it is its turn: so short that handing its results over takes longer."""

    task: Task[B]

    def __call__(self) -> Iterator[B]:
        """The results."""
        return self.task()


@dataclass(frozen=True, slots=True)
class After(Generic[B]):
    """A task that depends on an earlier one, which sets `ready` at its end: no thread waits for it until then."""

    ready: Future[Any]
    task: Task[B]

    def __call__(self) -> Iterator[B]:
        """The results."""
        return self.task()


_thread = threading.local()


def runs_beside_others() -> bool:
    """Whether this is a task that other tasks can run beside: the only task of all runs in the calling thread."""
    return getattr(_thread, "is_worker", False)


YIELD_SECONDS = 0.1
"""Processor time after which a thread is one of a large version."""
YIELD_NICE = 5
"""How much nicer such a thread is than the main one. It gets a third of the processor that a thread of a small version gets."""


def yield_if_long() -> None:
    """Let other threads go first from now on, once the calling thread has computed for long: small versions do not wait for large ones."""
    if sys.platform == "linux" and time.thread_time() > YIELD_SECONDS and not getattr(_thread, "yields", False):
        _thread.yields = True
        nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + YIELD_NICE
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


class _End:
    """The last item of a task's queue. It carries the error that ended the task, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _QueuedTask(Generic[B]):
    """One task and its results that wait for the consumer, each with its size."""

    def __init__(self, task: Task[B]) -> None:
        self.task = task
        self.results: deque[tuple[B | _End, int]] = deque()
        self.stopped = False
        self.ended = False


class _OrderedPool(Generic[B]):
    """Worker threads, and the tasks that were started, in order. Results wait that fit into `room` together.

    The threads are daemons, so an iterator that is never finished does not keep the process alive. They are still stopped before the
    interpreter exits, because Arrow's code must not run in them after that.
    """

    open: ClassVar[WeakSet[_OrderedPool[Any]]] = WeakSet()

    def __init__(self, workers: int, room: int, size_of: Callable[[B], int]) -> None:
        self.started: deque[_QueuedTask[B] | Inline[B]] = deque()
        self._room, self._size_of = room, size_of
        self._changed = threading.Condition()
        self._jobs: queue.SimpleQueue[_QueuedTask[B] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name="cdfd-read", daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()
        _OrderedPool.open.add(self)

    def start(self, task: Task[B]) -> None:
        if isinstance(task, Inline):
            self.started.append(task)
            return
        queued = _QueuedTask(task)
        self.started.append(queued)
        if isinstance(task, After):
            task.ready.add_done_callback(lambda _: self._jobs.put(queued))
        else:
            self._jobs.put(queued)

    def take(self, oldest: _QueuedTask[B], until: Callable[[], bool]) -> B | _End | None:
        """The next result of the oldest task; None if `until` is true before there is one."""
        with self._changed:
            while not oldest.results:
                if until():
                    return None
                self._changed.wait()
            result, size = oldest.results.popleft()
            self._room += size
            self._changed.notify_all()
        return result

    def pop(self) -> None:
        """Remove the oldest task. The one after it becomes the oldest."""
        with self._changed:
            self.started.popleft()
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            for queued in self.started:
                if isinstance(queued, _QueuedTask):
                    queued.stopped = True
                    queued.results.clear()
            self._changed.notify_all()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        _OrderedPool.open.discard(self)

    def _work(self) -> None:
        _thread.is_worker = True
        while (queued := self._jobs.get()) is not None:
            self._run(queued)

    def _run(self, queued: _QueuedTask[B]) -> None:
        end = _End()
        try:
            for result in () if queued.stopped else queued.task():
                self._put(queued, result, self._size_of(result))
                if queued.stopped:
                    return
                yield_if_long()
        except BaseException as error:  # noqa: BLE001 - the consumer of the results raises it
            end = _End(error)
        queued.ended = True
        self._put(queued, end, 0)

    def _put(self, queued: _QueuedTask[B], result: B | _End, size: int) -> None:
        with self._changed:
            # The consumer waits for the oldest task: there is always room for one of its results, and for an end.
            while 0 < size > self._room and not queued.stopped and (queued.results or queued is not self.started[0]):
                self._changed.wait()
            queued.results.append((result, size))
            self._room -= size
            self._changed.notify_all()


@atexit.register
def _close_all() -> None:
    for pool in list(_OrderedPool.open):
        pool.close()


def _with_error(tasks: Iterable[Callable[[], A]]) -> Iterator[Callable[[], A]]:
    """The tasks. An error that ends the iterable becomes one more task, so that it is raised after all results before it."""
    try:
        yield from tasks
    except CdfdError as error:
        failed: Future[A] = Future()
        failed.set_exception(error)
        yield failed.result


def run_in_order(
    tasks: Iterable[Task[B]],
    *,
    workers: int,
    ahead: int = 0,
    room: int = 4,
    size_of: Callable[[B], int] = lambda _: 1,
) -> Iterator[B]:
    """The results of all tasks, in the order of the tasks, while `workers` tasks run at a time.

    A worker whose task has ended begins the next one, as long as at most `workers + ahead` tasks are begun and not taken to their end. The
    results that wait fit into `room` by `size_of`, but for one of the oldest task. Each worker may have one more. The first error is raised
    after all results that come before it. Closing the iterator stops the running tasks. A single task runs in the calling thread, because
    nothing could run beside it.

    A thread is always free for a task that was not `ready` before: of the tasks that follow it, at most `workers - 1` have not ended.
    """
    source = _with_error(tasks)
    head = list(islice(source, 2))
    if len(head) < 2 or workers < 2:
        for task in chain(head, source):
            yield from task()
        return
    pool = _OrderedPool[B](workers, room, size_of)
    source_ended = False

    def wants_more() -> bool:
        # One more than run, so that no worker waits for the consumer.
        if source_ended or len(pool.started) >= workers + ahead:
            return False
        return sum(not isinstance(each, _QueuedTask) or not each.ended for each in pool.started) <= workers

    try:
        for task in head:
            pool.start(task)
        while pool.started:
            while wants_more():
                if (more := next(source, None)) is None:
                    source_ended = True
                else:
                    pool.start(more)
            oldest = pool.started[0]
            if isinstance(oldest, Inline):
                yield from oldest()
                pool.pop()
                continue
            result = pool.take(oldest, wants_more)
            if isinstance(result, _End):
                pool.pop()
                if result.error is not None:
                    raise result.error
            elif result is not None:
                yield result
    finally:
        pool.close()


def map_in_order(function: Callable[[A], B], items: Iterable[A], *, workers: int) -> Iterator[B]:
    """`function` of each item, in order: `workers` run at a time, and at most `workers + 1` are finished or running.

    The first error is raised after all results that come before it.
    """
    with contextlib.ExitStack() as closing:
        # A generator with threads of its own must not outlive this one.
        if (close := getattr(items, "close", None)) is not None:
            closing.callback(close)
        if workers < 2:
            yield from map(function, items)
        else:
            waiting: deque[Future[B]] = deque()
            with ThreadPoolExecutor(workers, thread_name_prefix="cdfd-encode") as pool:
                try:
                    for task in _with_error(partial(function, item) for item in items):
                        waiting.append(pool.submit(task))
                        while len(waiting) > workers or (waiting and waiting[0].done()):
                            yield waiting.popleft().result()
                    while waiting:
                        yield waiting.popleft().result()
                finally:
                    for future in waiting:
                        future.cancel()
