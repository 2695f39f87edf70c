"""Results come in order, not too many wait, errors come where they belong, and no thread outlives its reader."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from cdfd.errors import DataError, LogError
from cdfd.runtime.ordered_pool import YIELD_NICE, YIELD_SECONDS, After, Inline, map_in_order, run_in_order

Task = Callable[[], Iterator[int]]
PATIENCE = 30.0
"""Seconds after which a test that waits has failed; none takes them."""


def counting(start: int, count: int) -> Task:
    return lambda: iter(range(start, start + count))


def failing(start: int, count: int, error: Exception | None = None) -> Task:
    def run() -> Iterator[int]:
        yield from range(start, start + count)
        raise error or DataError(f"after {count}")

    return run


class Results(list[int]):
    def take(self, results: Iterator[int]) -> None:
        """Keeps what comes before an error."""
        for result in results:
            self.append(result)


@pytest.fixture(autouse=True)
def new_threads() -> Iterator[Callable[[], list[str]]]:
    """Gives the names of threads that were not there before the test, and expects none after it. A process keeps some, as that of S3."""
    before = set(threading.enumerate())

    def new() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in before]

    yield new
    assert new() == []


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
class TestInOrder:
    @pytest.mark.parametrize("tasks", [0, 1, 2, 3, 20])
    def test_results_come_in_the_order_of_tasks(self, workers: int, tasks: int) -> None:
        work = [counting(number * 100, number % 4) for number in range(tasks)]
        expected = [number * 100 + at for number in range(tasks) for at in range(number % 4)]
        assert list(run_in_order(work, workers=workers)) == expected

    def test_however_late_the_first_is(self, workers: int) -> None:
        """The first task waits until the second has begun, where two run at a time."""
        begun = threading.Event()

        def first() -> Iterator[int]:
            if workers > 1:
                assert begun.wait(PATIENCE)
            yield 1

        def second() -> Iterator[int]:
            begun.set()
            yield 2

        assert list(run_in_order([first, second, counting(3, 2)], workers=workers)) == [1, 2, 3, 4]

    @pytest.mark.parametrize("at", [0, 1, 5, 9])
    def test_an_error_comes_after_all_results_before_it(self, workers: int, at: int) -> None:
        work = [counting(number * 10, 2) for number in range(10)]
        work[at] = failing(at * 10, 1)
        actual = Results()
        with pytest.raises(DataError, match="after 1"):
            actual.take(run_in_order(work, workers=workers))
        assert actual == [number * 10 + step for number in range(at) for step in range(2)] + [at * 10]

    @pytest.mark.parametrize("at", [0, 1, 2, 6])
    def test_so_does_the_error_that_ends_the_tasks(self, workers: int, at: int) -> None:
        """The results of all tasks before the error are returned first."""

        def work() -> Iterator[Task]:
            yield from (counting(number * 10, 2) for number in range(at))
            raise LogError("no more plans")

        actual = Results()
        with pytest.raises(LogError, match="no more plans"):
            actual.take(run_in_order(work(), workers=workers))
        assert actual == [number * 10 + step for number in range(at) for step in range(2)]

    def test_errors_that_are_not_ours_are_not_swallowed(self, workers: int) -> None:
        with pytest.raises(ZeroDivisionError):
            list(run_in_order([counting(0, 1), failing(1, 1, ZeroDivisionError()), counting(2, 1)], workers=workers))

    @pytest.mark.parametrize("taken", [0, 1, 3])
    def test_closing_early_ends_everything(self, workers: int, taken: int) -> None:
        closed = []

        def endless() -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.append(True)

        started = []

        def work() -> Iterator[Task]:
            while True:
                started.append(True)
                yield endless

        results = run_in_order(work(), workers=workers)
        for _ in range(taken):
            assert next(results) == 1
        results.close()  # type: ignore[attr-defined]
        assert len(closed) <= len(started) <= max(workers, 2)
        if taken:
            assert closed

    def test_tasks_are_not_asked_for_before_they_can_run(self, workers: int) -> None:
        asked = []

        def work() -> Iterator[Task]:
            for number in range(100):
                asked.append(number)
                yield counting(number, 1)

        results = run_in_order(work(), workers=workers)
        assert next(results) == 0
        assert len(asked) <= workers + 1
        results.close()  # type: ignore[attr-defined]


class TestBound:
    def test_tasks_wait_while_their_results_are_not_taken(self) -> None:
        """Results that have room wait for the consumer, and one of the oldest task. Each worker has one more in hand."""
        made, taken, most = 0, list[int](), 0
        full, lock = threading.Event(), threading.Lock()

        def producing(number: int) -> Task:
            def run() -> Iterator[int]:
                nonlocal made, most
                for _ in range(50):
                    with lock:
                        made += 1
                        # The consumer may be about to append one.
                        most = max(most, made - len(taken) - 1)
                        if made == 1 + 3 + 3:
                            full.set()
                    yield number

            return run

        results = run_in_order([producing(number) for number in range(3)], workers=3, room=3)
        taken.append(next(results))
        assert full.wait(PATIENCE)
        taken.extend(results)
        assert taken == [0] * 50 + [1] * 50 + [2] * 50
        assert most <= 3 + 1 + 3

    def test_results_are_weighed(self) -> None:
        made: list[int] = []
        full = threading.Event()

        def weighing() -> Iterator[int]:
            for size in (2, 3, 4, 1, 50, 60):
                made.append(size)
                if size == 1:
                    full.set()
                yield size

        def waiting() -> Iterator[int]:
            assert full.wait(PATIENCE)
            yield 0

        results = run_in_order([waiting, weighing], workers=2, room=9, size_of=lambda size: size)
        assert next(results) == 0
        # The first three fill the room.
        assert made == [2, 3, 4, 1]
        # There is room for one of the oldest task, however large it is.
        assert list(results) == [2, 3, 4, 1, 50, 60]

    def test_the_next_task_begins_while_the_oldest_one_runs(self) -> None:
        begun: list[int] = []
        all_begun = threading.Event()

        def oldest() -> Iterator[int]:
            yield 0
            # The workers of the others are free again, and again.
            assert all_begun.wait(PATIENCE)
            yield 0

        def short(number: int) -> Task:
            def run() -> Iterator[int]:
                begun.append(number)
                if number == 5:
                    all_begun.set()
                yield number

            return run

        results = run_in_order([oldest, *map(short, range(1, 9))], workers=2, ahead=4, room=100)
        assert list(results) == [0, 0, *range(1, 9)]

    def test_workers_at_a_time(self) -> None:
        running: list[int] = []
        most = 0
        lock = threading.Lock()

        def task() -> Iterator[int]:
            nonlocal most
            with lock:
                running.append(1)
                most = max(most, len(running))
            yield from range(3)
            with lock:
                running.pop()

        assert len(list(run_in_order([task] * 30, workers=3))) == 90
        assert most <= 3
        assert len(list(run_in_order([task] * 30, workers=3, ahead=5))) == 90
        assert most <= 3

    @pytest.mark.parametrize("ahead", [1, 2])
    def test_a_worker_does_not_wait_for_an_earlier_task(self, ahead: int) -> None:
        begun = [threading.Event() for _ in range(6)]

        def task(number: int) -> Iterator[bool]:
            begun[number].set()
            # The first task has to wait for as many tasks as may be begun before its results are taken.
            yield begun[1 + ahead].wait(PATIENCE) if number == 0 else True

        results = run_in_order([partial(task, number) for number in range(6)], workers=2, ahead=ahead)
        assert next(results)
        assert not any(each.is_set() for each in begun[2 + ahead :])
        assert list(results) == [True] * 5


@pytest.mark.parametrize("workers", [1, 2, 4])
class TestMapped:
    def test_mapped_values_come_in_their_order(self, workers: int) -> None:
        assert list(map_in_order(lambda n: n * n, range(100), workers=workers)) == [n * n for n in range(100)]

    def test_mapping_of_no_values_has_none(self, workers: int) -> None:
        assert list(map_in_order(lambda n: n, [], workers=workers)) == []

    def test_an_error_comes_after_all_results_before_it(self, workers: int) -> None:
        def function(n: int) -> int:
            if n == 5:
                raise DataError("five")
            return n

        actual = Results()
        with pytest.raises(DataError, match="five"):
            actual.take(map_in_order(function, range(100), workers=workers))
        assert actual == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("count", [0, 1, 7])
    def test_so_does_the_error_that_ends_the_items(self, workers: int, count: int) -> None:
        def items() -> Iterator[int]:
            yield from range(count)
            raise LogError("no more")

        actual = Results()
        with pytest.raises(LogError, match="no more"):
            actual.take(map_in_order(lambda n: n, items(), workers=workers))
        assert actual == list(range(count))

    def test_items_are_taken_as_results_are(self, workers: int) -> None:
        taken = []

        def items() -> Iterator[int]:
            for number in range(100):
                taken.append(number)
                yield number

        results = map_in_order(lambda n: n, items(), workers=workers)
        assert next(results) == 0
        assert len(taken) <= workers + 1
        results.close()  # type: ignore[attr-defined]

    def test_closing_closes_the_items(self, workers: int) -> None:
        """They may come from threads of their own."""
        items = run_in_order([counting(0, 50), counting(50, 50)], workers=2)
        results = map_in_order(lambda n: n, items, workers=workers)
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
        del results
        assert next(items, None) is None


def test_an_iterator_that_nobody_finishes_does_not_keep_the_process() -> None:
    program = (
        "from cdfd.runtime.ordered_pool import run_in_order\n"
        "results = run_in_order([lambda: iter(range(10**9))] * 3, workers=2)\n"
        "print(next(results), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"0\n", b"")


def test_inline_tasks_run_in_the_thread_of_the_consumer_and_in_order() -> None:
    def named(number: int) -> Iterator[tuple[int, bool]]:
        yield number, threading.current_thread() is threading.main_thread()

    tasks = [Inline(partial(named, number)) if number % 3 else partial(named, number) for number in range(9)]
    assert list(run_in_order(tasks, workers=2)) == [(number, number % 3 > 0) for number in range(9)]


def test_an_error_of_an_inline_task_comes_after_the_results_before_it(new_threads: Callable[[], list[str]]) -> None:
    results = Results()
    with pytest.raises(DataError):
        results.take(run_in_order([counting(0, 3), Inline(failing(3, 2)), counting(9, 1)], workers=2))
    assert results == [0, 1, 2, 3, 4]
    assert not new_threads()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_threads_that_compute_for_long_let_others_go_first() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def compute(seconds: float) -> Iterator[int]:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        yield priority()
        yield priority()

    own = priority()
    results = list(run_in_order([partial(compute, 0.0), partial(compute, 1.5 * YIELD_SECONDS)], workers=2))
    assert results == [own, own, own, own + YIELD_NICE]
    assert priority() == own


def test_no_thread_waits_for_what_a_task_depends_on() -> None:
    """The first task ends once the third one has begun, although two run at a time and the second one depends on the first."""
    begun, ready = threading.Event(), Future[int]()

    def first() -> Iterator[int]:
        assert begun.wait(PATIENCE)
        yield 1
        ready.set_result(2)

    def third() -> Iterator[int]:
        begun.set()
        yield 3

    work: list[Task] = [first, After(ready, lambda: iter([ready.result()])), third]
    assert list(run_in_order(work, workers=2, ahead=1)) == [1, 2, 3]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("ahead", [0, 1])
def test_tasks_that_depend_on_others_come_in_order(workers: int, ahead: int) -> None:
    """Each of them has more results than may wait."""

    def earlier(number: int, ready: Future[int]) -> Iterator[int]:
        yield from range(number, number + 20)
        ready.set_result(number + 20)

    def later(ready: Future[int]) -> Iterator[int]:
        yield from range(ready.result(), ready.result() + 20)

    work: list[Task] = []
    for version in range(0, 1000, 200):
        several = [Future[int]() for _ in range(version // 200)]
        work += [partial(earlier, version + 40 * place, ready) for place, ready in enumerate(several)]
        work += [After(ready, partial(later, ready)) for ready in several]
        work.append(counting(version + 180, 20))
    expected = [
        number
        for version in range(0, 1000, 200)
        for first in (
            *range(version, version + version // 5, 40),
            *range(version + 20, version + version // 5, 40),
            version + 180,
        )
        for number in range(first, first + 20)
    ]
    assert list(run_in_order(work, workers=workers, ahead=ahead)) == expected


def test_a_reader_that_ends_before_a_task_is_ready() -> None:
    ready = Future[int]()
    results: Any = run_in_order([counting(0, 20), After(ready, counting(20, 1)), counting(30, 20)], workers=2, ahead=1)
    assert next(results) == 0
    results.close()
    ready.set_result(1)
