"""Work in threads whose results come in order, with a bound on what waits.

Decoding Parquet, filtering and encoding release the GIL, so a second core is worth having; but rows have an order, and memory has an end.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, TypeVar, cast

A = TypeVar("A")
B = TypeVar("B")

Task = Callable[[], Iterator[B]]


class _End:
    """Closes a lane; carries what its task raised."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Lane(Generic[B]):
    """One task's results, at most `depth` of them waiting."""

    def __init__(self, depth: int) -> None:
        self.results: queue.Queue[B | _End] = queue.Queue(depth)
        self.stopped = False

    def run(self, task: Task[B]) -> None:
        end = _End()
        try:
            for result in task():
                self.results.put(result)
                if self.stopped:
                    return
        except BaseException as error:  # noqa: BLE001 - handed on to whoever reads the lane, and raised there
            end = _End(error)
        self.results.put(end)

    def stop(self) -> None:
        self.stopped = True
        # Room for the one put that may be waiting, after which `run` sees that it was stopped.
        while True:
            try:
                self.results.get_nowait()
            except queue.Empty:
                return


def in_order(tasks: Iterable[Task[B]], *, workers: int, depth: int = 2) -> Iterator[B]:
    """The results of all tasks, those of the first task first, while `workers` tasks run at a time.

    At most `workers * (depth + 1)` results wait. The first error ends it, after all results that come before it. Closing the iterator
    stops the tasks that run. A single task runs in the calling thread: nothing could overlap.
    """
    source = iter(tasks)
    head = list(islice(source, 2))
    if len(head) < 2 or workers < 2:
        for task in head:
            yield from task()
        for task in source:
            yield from task()
        return
    lanes: deque[_Lane[B]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="cdfd-read") as pool:

        def start(task: Task[B]) -> None:
            lane = _Lane[B](depth)
            lanes.append(lane)
            pool.submit(lane.run, task)

        try:
            for task in head:
                start(task)
            while lanes:
                if len(lanes) < workers:
                    for task in source:
                        start(task)
                        if len(lanes) >= workers:
                            break
                lane = lanes[0]
                while not isinstance(result := lane.results.get(), _End):
                    yield result
                lanes.popleft()
                if result.error is not None:
                    raise result.error
        finally:
            for lane in lanes:
                lane.stop()


def mapped(function: Callable[[A], B], items: Iterable[A], *, workers: int, ahead: int = 2) -> Iterator[B]:
    """`function` of each item, in order, `workers` at a time and at most `workers + ahead` done or under way."""
    if workers < 2:
        yield from map(function, items)
        return
    waiting: deque[Future[B]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="cdfd-encode") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                while len(waiting) >= workers + ahead or (waiting and waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            # A generator over threads of its own must not outlive this one.
            close = getattr(items, "close", None)
            if close is not None:
                cast(Callable[[], None], close)()
