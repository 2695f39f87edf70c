"""Data files of a target: threads encode them, and one is stored while the next one is encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdfd.delta.types.arrow_types import from_arrow
from cdfd.errors import DataError, SinkError, StorageError
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.scan.parquet.writer import DataFileWriter
from cdfd.sinks.delta import data_files
from cdfd.sinks.delta.columns import Columns, columns_of_new
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaDelivery, DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from tests.support.faulty_storage import FaultyStorage

SCHEMA = pa.schema({"n": pa.int64(), "day": pa.string(), "text": pa.string()})
START, END = Position("T", 0), Position("T", 1)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "GROUP_BYTES", 2000)


def batches(count: int, days: int) -> list[pa.RecordBatch]:
    random = np.random.default_rng(days)
    return [
        pa.record_batch(
            [
                np.arange(first, first + 50),
                [f"day {number}" for number in random.integers(0, days, 50)],
                [f"text {number}" for number in random.integers(0, 10**9, 50)],
            ],
            schema=SCHEMA,
        )
        for first in range(0, 50 * count, 50)
    ]


@pytest.mark.parametrize("file_bytes", [1, 8000, 1 << 20])
@pytest.mark.parametrize("days", [1, 3, 8])
def test_the_rows_alone_decide_the_files(monkeypatch: pytest.MonkeyPatch, days: int, file_bytes: int) -> None:
    columns = columns_of_new(from_arrow(SCHEMA), ("day",), follow=False)
    lots = batches(20 if file_bytes == 1 else 60, days)

    def files(cores: int) -> list[tuple[object, ...]]:
        monkeypatch.setattr(data_files, "CORES", cores)
        made = DataFiles(columns, SCHEMA, "snappy", file_bytes)
        written = [each for batch in lots for each in made.write(batch)]
        written += made.finish()
        return [(file.partition, file.rows, file.stats, data.to_pybytes()) for file, data in written]

    one = files(1)
    assert files(4) == one
    assert len(one) >= days
    rows = [number for *_, data in one for number in pq.read_table(pa.BufferReader(data))["n"].to_pylist()]
    assert sorted(rows) == list(range(sum(batch.num_rows for batch in lots)))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_an_empty_string_is_no_partition_value(kind: pa.DataType) -> None:
    """Its text in the log is that of null, unless the column cannot have a null."""

    def partitions(partition_by: str, *, nullable: bool) -> list[object]:
        schema = pa.schema([pa.field("n", pa.int64()), pa.field("day", kind, nullable)])
        files = DataFiles(Columns(from_arrow(schema), (partition_by,)), schema, "snappy", 1 << 20)
        rows = pa.record_batch([[1, 2], pa.array(["a", ""], kind)], schema=schema)
        return [file.partition for file, _ in [*files.write(rows), *files.finish()]]

    with pytest.raises(DataError, match="the empty string in column 'day', by which the target is partitioned"):
        partitions("day", nullable=True)
    assert partitions("n", nullable=True) == [("1",), ("2",)]
    assert partitions("day", nullable=False) == [("a",), ("",)]


@pytest.mark.parametrize("kind", [pa.string(), pa.null()])
def test_a_partition_column_that_rows_lack_is_null(kind: pa.DataType) -> None:
    """The source has dropped it, and `on_missing_column` is `keep`; or no value has a type yet."""
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("day", kind), pa.field("hour", pa.int64())])
    for partition_by, partition in [(("day",), (None,)), (("day", "hour"), (None, "5"))]:
        rows = pa.record_batch({"n": [1, 2], "hour": [5, 5]})
        files = DataFiles(Columns(from_arrow(schema), partition_by), rows.schema, "snappy", 1 << 20)
        (written,) = [*files.write(rows), *files.finish()]
        assert (written[0].partition, written[0].rows) == (partition, 2)


@pytest.mark.parametrize(
    ("wrap", "value"),
    [
        (lambda kind: kind, lambda value: value),
        (pa.list_, lambda value: [value]),
        (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
        (lambda kind: pa.struct([("s", kind)]), lambda value: {"s": value}),
    ],
    ids=["struct", "list", "map", "nested"],
)
def test_a_nested_field_may_be_spelled_in_another_case(
    wrap: Callable[[pa.DataType], pa.DataType], value: Callable[[object], object]
) -> None:
    table = pa.schema([("v", wrap(pa.struct([("a", pa.int64()), ("b", pa.string())])))])
    kind = wrap(pa.struct([("A", pa.int32()), ("b", pa.string_view())]))
    rows = pa.record_batch({"v": pa.array([value({"A": 2, "b": "z"}), None], kind)})
    files = DataFiles(Columns(from_arrow(table)), rows.schema, "snappy", 1 << 20)
    ((_, data),) = [*files.write(rows), *files.finish()]
    assert pq.read_table(pa.BufferReader(data))["v"].to_pylist() == [value({"a": 2, "b": "z"}), None]


async def open_sink(storage: Storage, file_bytes: int) -> DeltaSink:
    target = Target(storage, "cdfd/shop/orders", Layout(("day",)), SystemClock(), owner=1)
    return await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=file_bytes))


async def deliver_into(delivery: DeltaDelivery) -> None:
    for batch in batches(60, 3):
        await delivery.write(batch)
    await delivery.commit(END)


async def deliver(sink: DeltaSink) -> None:
    delivery = await sink.begin(START)
    try:
        await deliver_into(delivery)
    except BaseException:
        await delivery.abort()
        raise


async def check_delivered_again(folder: Path) -> None:
    """The failed delivery left no rows, and another one delivers each row once."""
    sink = await open_sink(LocalStorage(folder, sync=False), 8000)
    assert await sink.last_position() in (None, START)
    await deliver(sink)
    assert sorted(DeltaTable(folder).to_pyarrow_table()["n"].to_pylist()) == list(range(3000))


@pytest.mark.parametrize("failing", [1, 5, 20])
async def test_a_row_group_that_cannot_be_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    groups = 0

    class Failing(DataFileWriter):
        def write(self, rows: pa.Table) -> None:
            nonlocal groups
            groups += 1
            if groups == failing:
                raise pa.ArrowInvalid("a value that cannot be encoded")
            super().write(rows)

    with monkeypatch.context() as patched:
        patched.setattr(data_files, "DataFileWriter", Failing)
        sink = await open_sink(LocalStorage(tmp_path, sync=False), 8000)
        with pytest.raises(pa.ArrowInvalid):
            await deliver(sink)
    await check_delivered_again(tmp_path)


@pytest.mark.parametrize("failing", [1, 2, 7])
async def test_a_file_that_cannot_be_stored(tmp_path: Path, failing: int) -> None:
    files = 0

    async def fail(method: str, path: str) -> None:
        nonlocal files
        if path.endswith(".parquet"):
            files += 1
            if files == failing:
                raise StorageError("the connection was reset", retriable=True)

    sink = await open_sink(FaultyStorage(LocalStorage(tmp_path, sync=False), before=fail), 8000)
    with pytest.raises(SinkError, match="write a data file"):
        await deliver(sink)
    await check_delivered_again(tmp_path)


async def test_an_abort_ends_the_storing_of_a_file(tmp_path: Path) -> None:
    storing = asyncio.Event()

    async def hang(method: str, path: str) -> None:
        if path.endswith(".parquet"):
            storing.set()
            await asyncio.Event().wait()

    sink = await open_sink(FaultyStorage(LocalStorage(tmp_path, sync=False), before=hang), 8000)
    delivery = await sink.begin(START)
    writing = asyncio.create_task(deliver_into(delivery))
    await asyncio.wait_for(storing.wait(), 30)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await delivery.abort()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await check_delivered_again(tmp_path)
