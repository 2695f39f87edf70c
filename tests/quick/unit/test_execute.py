"""Execution of plans: rows in order over files, versions and threads, and a position to resume from."""

import asyncio
import io
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.delta.types.schema import Primitive, StructField, StructType, TableSchema
from cdfd.errors import DataError, LogError, MissingColumnError, MissingFileError
from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import change_schema
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.plan.row_options import RowOptions
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import Shape
from cdfd.runtime.tasks import iterate_in_thread
from cdfd.scan.execute import Execution
from cdfd.scan.table_files import TableFiles
from tests.support.memory_storage import MemoryStorage

SCHEMA = TableSchema(StructType((StructField("n", Primitive("long")),)))
OLD = TableSchema(StructType((StructField("m", Primitive("long")), StructField("n", Primitive("long")))))


def execution(files: dict[str, Sequence[int] | bytes], **more: Any) -> Execution:
    storage = MemoryStorage("memory://t")
    for path, rows in files.items():
        buffer = io.BytesIO()
        if not isinstance(rows, bytes):
            pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), buffer)
        asyncio.run(storage.put(path, rows if isinstance(rows, bytes) else buffer.getvalue()))
    return Execution(TableFiles(storage, lambda root: storage), **more)


def plan(version: int, *paths: str, schema: TableSchema | None = None) -> ChangePlan:
    scans = tuple(FileScan(path, "insert", {}, 0, schema=schema) for path in paths)
    return ChangePlan(version, 1_000 + version, SCHEMA, scans, "files")


def rows(batches: Iterator[ChangeBatch]) -> list[tuple[int, int, int]]:
    """(version, ordinal, value), as the rows come; a batch is of one version."""
    listing = []
    for batch in batches:
        assert batch.rows.schema.equals(change_schema(batch.schema.arrow))
        for row in batch.rows.to_pylist():
            assert row["_commit_version"] == batch.plan.version
            assert row["_commit_timestamp"].timestamp() == (1_000 + batch.plan.version) / 1000
            listing.append((row["_commit_version"], row["_change_ordinal"], row["n"]))
    return listing


FILES: dict[str, Sequence[int] | bytes] = {"a": range(5), "b": range(10, 13), "c": [], "d": range(20, 27)}
PLANS = [plan(3, "a", "b"), plan(4), plan(5, "c", "d"), plan(6, "b")]
EXPECTED = [
    *((3, at, value) for at, value in enumerate([0, 1, 2, 3, 4, 10, 11, 12])),
    *((5, at, value) for at, value in enumerate(range(20, 27))),
    *((6, at, value) for at, value in enumerate(range(10, 13))),
]


@pytest.mark.parametrize("workers", [1, 2, 5])
class TestOrder:
    @pytest.mark.parametrize("batch_rows", [1, 3, 1_000])
    @pytest.mark.parametrize("slow", [False, True])
    def test_over_files_versions_and_batches(self, workers: int, batch_rows: int, slow: bool) -> None:
        made = execution(FILES, workers=workers, batch_rows=batch_rows, slow_consumer=slow)
        assert rows(made.batches(PLANS)) == EXPECTED

    def test_plans_without_scans_have_no_rows(self, workers: int) -> None:
        assert rows(execution({}, workers=workers).batches([])) == []
        assert rows(execution({}, workers=workers).batches([plan(1)])) == []

    @pytest.mark.parametrize(("part", "ordinal"), [(0, 0), (1, 5), (2, 8)])
    def test_reading_begins_at_any_position(self, workers: int, part: int, ordinal: int) -> None:
        """A scan's index and the number of rows before it are where a delivery begins."""
        actual = execution(FILES, workers=workers).batches(PLANS, Position("t", 3, part, ordinal=ordinal))
        assert rows(actual) == EXPECTED[ordinal:]

    def test_an_error_comes_after_the_rows_before_it(self, workers: int) -> None:
        broken = execution(FILES | {"c": b"PAR1"}, workers=workers).batches(PLANS)
        before: list[ChangeBatch] = []
        with pytest.raises(DataError) as caught:
            collect(broken, before)
        assert rows(iter(before)) == EXPECTED[:8]
        error = caught.value
        assert (error.table, error.version, error.path) == ("memory://t", 5, "c")

    def test_so_does_one_of_planning(self, workers: int) -> None:
        def plans() -> Iterator[ChangePlan]:
            yield from PLANS[:2]
            raise LogError("no further")

        actual = execution(FILES, workers=workers).batches(plans())
        before: list[ChangeBatch] = []
        with pytest.raises(LogError, match="no further"):
            collect(actual, before)
        assert rows(iter(before)) == EXPECTED[:8]

    def test_a_version_without_the_columns_names_itself(self, workers: int) -> None:
        """The table's doing, not the configuration's: a writer dropped `m`."""
        actual = execution(FILES, workers=workers, select=lambda schema: schema.present(["M"])).batches(
            [replace(PLANS[0], schema=OLD), PLANS[2]]
        )
        before: list[ChangeBatch] = []
        with pytest.raises(MissingColumnError, match=r"none of the columns M.*The columns are: n") as caught:
            collect(actual, before)
        assert [batch.schema.names for batch in before] == [("m",)] * len(before)
        assert (caught.value.table, caught.value.version, caught.value.exit_code) == ("memory://t", 5, 1)


def collect(batches: Iterator[ChangeBatch], into: list[ChangeBatch]) -> None:
    for batch in batches:
        into.append(batch)


class TestMissing:
    def test_missing_file_ends_the_reading_and_is_named(self) -> None:
        with pytest.raises(MissingFileError) as caught:
            rows(execution(FILES).batches([plan(7, "a", "gone")]))
        error = caught.value
        assert (error.table, error.version, error.path) == ("memory://t", 7, "gone")

    def test_or_is_gone_over(self) -> None:
        told: list[MissingFileError] = []
        actual = rows(execution(FILES, on_missing=told.append).batches([plan(7, "gone", "b"), plan(8, "b")]))
        assert [value for _, _, value in actual] == [10, 11, 12] * 2
        assert [(error.version, error.path) for error in told] == [(7, "gone")]


class TestColumns:
    def test_of_a_scan_with_a_schema_of_its_own(self) -> None:
        """Rows that a version deletes while it replaces the schema."""
        (batch,) = execution(FILES).batches([plan(1, "b", schema=OLD)])
        assert batch.schema == OLD
        assert batch.rows.schema.names[:2] == ["m", "n"]

    def test_columns_are_chosen_by_name_whatever_their_case(self) -> None:
        """Those that the version has, whatever their case; where it has none of them, that is an error."""
        assert OLD.present(["N", "later"]).names == ("n",)
        assert OLD.present(["n", "m"]).names == ("n", "m")


def test_only_the_last_batch_of_a_version_may_be_empty() -> None:
    """It says which ordinal follows, also if all rows of the version are left out."""
    some = RowOptions(shape=Shape(where=parse_filter("n < 2")))
    actual = execution({"a": [1, 5, 1, 5], "b": [6]}, rows=some, batch_rows=1).batches([plan(3, "a"), plan(4, "b")])
    counts = [(batch.plan.version, batch.rows.num_rows, batch.following) for batch in actual]
    assert counts == [(3, 1, 1), (3, 1, 3), (3, 0, 4), (4, 0, 1)]


def test_files_are_read_one_after_the_other_for_a_slow_consumer() -> None:
    paths: list[str] = []

    def open_input_file(path: str, size: int | None = None) -> Any:
        paths.append(path)
        return read(path, size)

    slow = execution({path: range(9) for path in "abc"}, workers=2, batch_rows=3, slow_consumer=True)
    storage = slow.files.storage
    read, storage.open_input_file = storage.open_input_file, open_input_file  # type: ignore[method-assign]
    with closing(slow.batches([plan(3, "a", "b", "c")])) as batches:
        for _ in range(3):
            next(batches)
        assert paths == ["a"]
        next(batches)
        assert paths == ["a", "b"]


def test_as_many_threads_as_there_are_cores() -> None:
    assert 1 <= execution({}).threads <= (os.cpu_count() or 1)
    assert execution({}, workers=7).threads == 7


class TestInThread:
    async def test_items_come_in_order_from_other_threads(self) -> None:
        def items() -> Iterator[tuple[int, bool]]:
            for number in range(5):
                yield number, threading.current_thread() is threading.main_thread()

        assert ([item async for item in iterate_in_thread(items())]) == [(number, False) for number in range(5)]

    def test_an_error_comes_through(self) -> None:
        def items() -> Iterator[int]:
            yield 1
            raise DataError("two")

        actual: list[int] = []

        async def collected() -> None:
            async for item in iterate_in_thread(items()):
                actual.append(item)

        with pytest.raises(DataError, match="two"):
            asyncio.run(collected())
        assert actual == [1]

    async def test_items_that_share_a_switch_are_fetched_with_the_end_that_follows(self) -> None:
        closed = list[bool]()

        def items() -> Iterator[int]:
            try:
                yield from (1, 2, 10, 11, 3)
            finally:
                closed.append(threading.current_thread() is threading.main_thread())

        waits = list[float]()
        share = {1: 1.0, 2: 0.5, 10: 0.5}
        actual = [item async for item in iterate_in_thread(items(), lambda item: share.get(item, 0.1), waits.append)]
        assert actual == [1, 2, 10, 11, 3]
        assert len(waits) == 3
        assert closed == [False]

    async def test_closed_before_its_end(self) -> None:
        closed = list[bool]()

        def items() -> Iterator[int]:
            try:
                yield from (1, 2, 3)
            finally:
                closed.append(threading.current_thread() is threading.main_thread())

        async with aclosing(iterate_in_thread(items(), lambda _: 0.5)) as iterated:
            assert await anext(iterated) == 1
        assert closed == [False]

    async def test_cancelled_while_an_item_is_made(self) -> None:
        """The iterator's thread cannot be stopped. The task waits for it, and then closes the iterator."""
        making, go_on, closed = threading.Event(), threading.Event(), threading.Event()

        def items() -> Iterator[int]:
            try:
                making.set()
                go_on.wait(30)
                yield 1
                yield 2
            finally:
                closed.set()

        async def reading() -> None:
            async with aclosing(iterate_in_thread(items())) as iterated:
                async for _ in iterated:
                    pass

        task = asyncio.create_task(reading())
        await asyncio.to_thread(making.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed.is_set()
