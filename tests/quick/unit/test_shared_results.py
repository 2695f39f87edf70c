"""Tasks that several readers run: once, if they are near each other, and in bounded memory."""

import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest

from cdfd.errors import DataError
from cdfd.runtime.shared_results import RUN_BYTES, CutOffError, Reader, SharedResults

LENGTH = 20


class Tasks:
    """Tasks that count how often they run, and how many of their results are made."""

    def __init__(self) -> None:
        self.runs = self.made = self.closed = 0

    def task(self, name: str, length: int = LENGTH) -> Callable[[], Iterator[str]]:
        def run() -> Iterator[str]:
            self.runs += 1
            try:
                for number in range(length):
                    self.made += 1
                    yield f"{name}{number}"
            finally:
                self.closed += 1

        return run


def expected(name: str, length: int = LENGTH) -> list[str]:
    return [f"{name}{number}" for number in range(length)]


def shared(limit: int = 1 << 30) -> SharedResults[str]:
    return SharedResults(lambda _: 1000, limit)


def test_a_task_runs_once_for_readers_that_want_it() -> None:
    results, tasks = shared(), Tasks()
    with results.reader("t") as one, results.reader("t") as two, results.reader("other") as other:
        assert list(one.results("a", tasks.task("a"))) == expected("a")
        assert results.size == RUN_BYTES + 1000 * LENGTH
        assert list(two.results("a", tasks.task("a"))) == expected("a")
        assert results.size == 0
        assert (tasks.runs, tasks.closed) == (1, 1)
        assert list(other.results("a", tasks.task("a"))) == expected("a")
        assert (tasks.runs, results.size) == (2, 0)


def test_readers_in_step_keep_no_more_than_the_distance_between_them() -> None:
    results, tasks = shared(), Tasks()
    with results.reader("t") as one, results.reader("t") as two:
        first, second = one.results("a", tasks.task("a")), two.results("a", tasks.task("a"))
        for _ in range(LENGTH):
            assert next(first) == next(second)
            assert results.size <= RUN_BYTES + 2 * 1000
        assert list(first) == list(second) == []
    assert tasks.made == LENGTH


def test_a_reader_that_is_too_far_behind_is_cut_off() -> None:
    results, tasks = shared(limit=RUN_BYTES + 5000), Tasks()
    with results.reader("t") as fast, results.reader("t") as slow:
        behind = slow.results("a", tasks.task("a"))
        assert next(behind) == "a0"
        assert list(fast.results("a", tasks.task("a"))) == expected("a")
        assert results.size <= RUN_BYTES + 5000
        with pytest.raises(CutOffError):
            list(behind)
        assert tasks.runs == 1
        # The one that went ahead does not want the task any more: so nothing is kept for it.
        assert list(slow.results("a", tasks.task("a"))) == expected("a")
        assert results.size == 0


def test_a_reader_that_ends_early_leaves_the_task_to_the_others() -> None:
    results, tasks = shared(), Tasks()
    with results.reader("t") as one, results.reader("t") as two:
        first = one.results("a", tasks.task("a"))
        assert next(first) == "a0"
        first.close()  # type: ignore[attr-defined]  # it is a generator
        assert tasks.closed == 0
        assert list(two.results("a", tasks.task("a"))) == expected("a")
        assert (tasks.runs, tasks.closed, results.size) == (1, 1, 0)


def test_nothing_waits_for_a_reader_that_is_gone() -> None:
    results, tasks = shared(), Tasks()
    with results.reader("t") as one:
        with results.reader("t"):
            first = one.results("a", tasks.task("a"))
            next(first)
            first.close()  # type: ignore[attr-defined]  # it is a generator
            assert results.size > 0
        assert (results.size, tasks.closed) == (0, 1)


def test_each_reader_meets_an_error_itself() -> None:
    results = shared()

    def failing() -> Iterator[str]:
        yield "a0"
        raise DataError("damaged")

    with results.reader("t") as one, results.reader("t") as two:
        first = one.results("a", failing)
        second = two.results("a", failing)
        assert next(first) == next(second) == "a0"
        with pytest.raises(DataError):
            next(first)
        with pytest.raises(CutOffError):
            next(second)
        assert results.size == 0


def test_a_reader_that_holds_a_result_does_not_block_another_one() -> None:
    results, tasks = shared(), Tasks()
    with results.reader("t") as slow, results.reader("t") as fast:
        held = slow.results("a", tasks.task("a"))
        next(held)
        actual: list[str] = []
        thread = threading.Thread(target=lambda: actual.extend(fast.results("a", tasks.task("a"))))
        thread.start()
        thread.join(30)
        assert actual == expected("a")
        assert list(held) == expected("a")[1:]


@pytest.mark.parametrize("seed", range(50))
def test_readers_in_any_order_get_every_result(seed: int) -> None:
    random, tasks = Random(seed), Tasks()
    limit = random.choice((RUN_BYTES, RUN_BYTES + 3000, 1 << 30))
    results = shared(limit)
    names = [f"n{number}." for number in range(6)]
    with results.reader("t") as one, results.reader("t") as two, results.reader("t") as three:
        reading = {reader: read_all(reader, tasks, names) for reader in (one, two, three)}
        actual: dict[Reader[str], list[str]] = {reader: [] for reader in reading}
        while reading:
            reader = random.choice(list(reading))
            for _ in range(random.choice((1, 1, 30))):
                result = next(reading[reader], None)
                if result is None:
                    del reading[reader]
                    break
                actual[reader].append(result)
            assert results.size <= max(limit, RUN_BYTES)
    whole = [result for name in names for result in expected(name)]
    assert list(actual.values()) == [whole] * 3
    assert tasks.closed == tasks.runs
    assert results.size == 0


def read_all(reader: Reader[str], tasks: Tasks, names: list[str]) -> Iterator[str]:
    """All tasks one after the other, by itself where it is cut off."""
    for name in names:
        done = 0
        try:
            for result in reader.results(name, tasks.task(name)):
                yield result
                done += 1
        except CutOffError:
            yield from list(tasks.task(name)())[done:]
