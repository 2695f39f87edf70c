"""Planning ahead: batches of planned versions, in order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from cdfd.delta.types.schema import StructType, TableSchema
from cdfd.errors import LogError
from cdfd.log.stream import version_batches
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.version import Version
from tests.support.lake import run


def planned(number: int, files: int = 1) -> Version:
    scans = [FileScan(str(file), "insert", {}, 1) for file in range(files)]
    return Version(ChangePlan(number, 0, TableSchema(StructType(())), scans, "files"), "T")


def numbers(batch: list[Version]) -> list[int]:
    return [version.plan.version for version in batch]


class Source:
    """Versions of so many files; what the planning of one does is up to the test."""

    def __init__(self, count: int, error: Exception | None = None, files: int = 1) -> None:
        self.count = count
        self.error = error
        self.files = files
        self.planned = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def versions(self) -> AsyncIterator[Version]:
        for number in range(self.count):
            await asyncio.sleep(0)
            await self.gate.wait()
            self.planned += 1
            yield planned(number, self.files)
        if self.error is not None:
            raise self.error


async def settled() -> None:
    for _ in range(500):
        await asyncio.sleep(0)


async def test_in_order_and_all_of_them() -> None:
    source = Source(1000)
    actual = []
    async for batch in version_batches(source.versions(), max_versions=7):
        assert 0 < len(batch) <= 7 + 1
        actual += numbers(batch)
        if len(actual) % 3 == 0:
            await asyncio.sleep(0)
    assert actual == list(range(1000))


async def test_one_at_the_tip_and_more_while_the_consumer_is_busy() -> None:
    source = Source(100)
    source.gate.clear()
    async with contextlib.aclosing(version_batches(source.versions(), max_versions=10)) as ready:
        for number in range(3):
            asyncio.get_running_loop().call_soon(source.gate.set)
            assert numbers(await anext(ready)) == [number]
            source.gate.clear()
        source.gate.set()
        await settled()
        assert len(await anext(ready)) > 5


@pytest.mark.parametrize("limit", [1, 2, 64])
async def test_it_never_plans_further_ahead(limit: int) -> None:
    source = Source(200)
    delivered = 0
    async for batch in version_batches(source.versions(), max_versions=limit):
        await settled()
        # Those that wait, and the one that waits for room.
        assert source.planned <= delivered + len(batch) + limit + 1
        delivered += len(batch)
    assert delivered == 200


@pytest.mark.parametrize(("files", "expected"), [(0, 50), (1, 40), (10, 4), (39, 2), (40, 1), (1000, 1)])
async def test_nor_than_so_many_files(files: int, expected: int) -> None:
    source = Source(100, files=files)
    delivered = 0
    async for batch in version_batches(source.versions(), max_versions=50, max_files=40):
        await settled()
        assert source.planned <= delivered + len(batch) + expected + 1
        delivered += len(batch)
    assert delivered == 100


@pytest.mark.parametrize("error", [LogError("broken"), ZeroDivisionError("a mistake of ours")], ids=repr)
@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_an_error_comes_after_all_that_was_before_it(error: Exception, count: int) -> None:
    """Whatever it is: an error that planning keeps to itself would leave the consumer waiting for ever."""
    actual: list[int] = []

    async def consume() -> None:
        async for batch in version_batches(Source(count, error).versions(), max_versions=10):
            actual.extend(numbers(batch))

    with pytest.raises(type(error), match=str(error.args[0])):
        run(consume())
    assert actual == list(range(count))


async def test_closing_ends_the_planning() -> None:
    source = Source(1000)
    async with contextlib.aclosing(version_batches(source.versions(), max_versions=10)) as ready:
        await anext(ready)
        await settled()
    planned = source.planned
    await settled()
    assert source.planned == planned
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_that_was_still_to_come_does_not_hide_that_of_the_consumer() -> None:
    async def consume(source: Source) -> None:
        async with contextlib.aclosing(version_batches(source.versions())) as ready:
            await anext(ready)
            await settled()
            raise KeyError("the consumer's")

    with pytest.raises(KeyError, match="the consumer's"):
        await consume(Source(3, LogError("broken")))


async def test_a_consumer_that_is_cancelled_while_it_waits() -> None:
    source = Source(3)
    source.gate.clear()
    async with contextlib.aclosing(version_batches(source.versions())) as ready:
        waiting = asyncio.ensure_future(anext(ready))
        await settled()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
