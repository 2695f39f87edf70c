"""Work in threads whose results come in order, with a bound on what waits.

Decoding Parquet, filtering and encoding release the GIL, so a second core is worth having; but rows have an order, and memory has an end.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Generic, NoReturn, TypeVar
from weakref import WeakSet

from cdfd.errors import CdfdError

A = TypeVar("A")
B = TypeVar("B")

Task = Callable[[], Iterator[B]]


class _End:
    """Closes a lane; carries what its task raised."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Lane(Generic[B]):
    """One task's results, at most `depth` of them waiting."""

    def __init__(self, task: Task[B], depth: int) -> None:
        self.task = task
        self.results: queue.Queue[B | _End] = queue.Queue(depth)
        self.stopped = False

    def run(self) -> None:
        end = _End()
        try:
            for result in () if self.stopped else self.task():
                self.results.put(result)
                if self.stopped:
                    return
        except BaseException as error:  # noqa: BLE001 - handed on to whoever reads the lane, and raised there
            end = _End(error)
        self.results.put(end)

    def stop(self) -> None:
        self.stopped = True
        # Room for the one put that may be waiting, after which `run` sees that it was stopped.
        with contextlib.suppress(queue.Empty):
            while True:
                self.results.get_nowait()


class _Road(Generic[B]):
    """Threads that run lanes, and the lanes under way, in order.

    The threads are daemons: an iterator that nobody finishes must not keep the process from ending. They are stopped before the
    interpreter goes, all the same, because Arrow's code in them must not outlive it.
    """

    open: ClassVar[WeakSet[_Road[Any]]] = WeakSet()

    def __init__(self, workers: int, depth: int) -> None:
        self.lanes: deque[_Lane[B]] = deque()
        self._depth = depth
        self._jobs: queue.SimpleQueue[_Lane[B] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name="cdfd-read", daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()
        _Road.open.add(self)

    def start(self, task: Task[B]) -> None:
        lane = _Lane(task, self._depth)
        self.lanes.append(lane)
        self._jobs.put(lane)

    def close(self) -> None:
        for lane in self.lanes:
            lane.stop()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        _Road.open.discard(self)

    def _work(self) -> None:
        while (lane := self._jobs.get()) is not None:
            lane.run()


@atexit.register
def _close_all() -> None:
    for road in list(_Road.open):
        road.close()


def _with_error(tasks: Iterable[Callable[[], A]]) -> Iterator[Callable[[], A]]:
    """The tasks; an error that ends them is one more task, so that it is raised where it belongs: after the results of those before it."""
    try:
        yield from tasks
    except CdfdError as error:
        yield partial(_raise, error)


def _raise(error: CdfdError) -> NoReturn:
    raise error


def in_order(tasks: Iterable[Task[B]], *, workers: int, depth: int = 8) -> Iterator[B]:
    """The results of all tasks, those of the first task first, while `workers` tasks run at a time.

    At most `workers * (depth + 1)` results wait. The first error ends it, after all results that come before it. Closing the iterator
    stops the tasks that run. A single task runs in the calling thread: nothing could overlap.
    """
    source = _with_error(tasks)
    head = list(islice(source, 2))
    if len(head) < 2 or workers < 2:
        for task in chain(head, source):
            yield from task()
        return
    road = _Road[B](workers, depth)
    try:
        for task in head:
            road.start(task)
        while road.lanes:
            for task in islice(source, workers - len(road.lanes)):
                road.start(task)
            lane = road.lanes[0]
            while not isinstance(result := lane.results.get(), _End):
                yield result
            road.lanes.popleft()
            if result.error is not None:
                raise result.error
    finally:
        road.close()


def mapped(function: Callable[[A], B], items: Iterable[A], *, workers: int, ahead: int = 1) -> Iterator[B]:
    """`function` of each item, in order, `workers` at a time and at most `workers + ahead` done or under way.

    The first error ends it, after all results that come before it.
    """
    with contextlib.ExitStack() as closing:
        # A generator over threads of its own must not outlive this one.
        if (close := getattr(items, "close", None)) is not None:
            closing.callback(close)
        if workers < 2:
            yield from map(function, items)
        else:
            yield from _mapped_in_threads(function, items, workers, ahead)


def _mapped_in_threads(function: Callable[[A], B], items: Iterable[A], workers: int, ahead: int) -> Iterator[B]:
    waiting: deque[Future[B]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="cdfd-encode") as pool:
        try:
            for task in _with_error(partial(function, item) for item in items):
                waiting.append(pool.submit(task))
                while len(waiting) >= workers + ahead or (waiting and waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
