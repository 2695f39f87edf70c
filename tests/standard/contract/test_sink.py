"""The contract of every `Sink`.

To add an implementation, add a subclass of `Place` to `PLACES`: a destination on which sinks are opened and closed.
"""

import asyncio
import itertools
import json
import sqlite3
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import SinkError, UnsupportedError
from cdfd.model.columns import VersionColumns, constant_type
from cdfd.model.control import EMPTY, Control, Pause, Resnapshot
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.base import Sink
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.files.formats import JsonLines, Parquet
from cdfd.sinks.files.sink import FilesSink
from cdfd.sinks.files.trevni import Trevni
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
from cdfd.sinks.kafka.destination import Destination, MakeProducer
from cdfd.sinks.kafka.settings import Topics
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from cdfd.sinks.ledger.ledger import app_id
from cdfd.storage.location import open_storage
from cdfd.trevni import read_table
from tests.support.axes import under_test
from tests.support.docs import sqlite_sink
from tests.support.kafka.encoders import encoders
from tests.support.kafka.reading import read_topic, wait_for_markers
from tests.support.kafka.shared import SharedBroker
from tests.support.memory_sink import Delivered, MemorySink


def lines(batch: pa.RecordBatch) -> bytes:
    return b"".join(json.dumps(row, default=str).encode() + b"\n" for row in batch.to_pylist())


class Place(ABC):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    async def open(self) -> Sink:
        """A new sink on what earlier ones delivered here."""

    @abstractmethod
    def delivered(self) -> list[int]:
        """Column `n` of all committed rows, in the order of delivery."""

    def seen(self) -> list[int]:
        """As `delivered`, while a delivery is open."""
        return self.delivered()

    def wait_for_row(self, n: int) -> None:
        """Wait until a row of the open delivery has left the process, if the sink sends rows before the commit."""
        return


class MemoryPlace(Place):
    def __init__(self, folder: Path) -> None:
        self.committed: list[Delivered] = []

    async def open(self) -> Sink:
        return MemorySink(self.committed)

    def delivered(self) -> list[int]:
        return [n for delivery in self.committed for batch in delivery.batches for n in batch["n"].to_pylist()]


class JsonLinesPlace(Place):
    async def open(self) -> Sink:
        return await FilesSink.open(self.folder / "orders", JsonLines(lines))

    def delivered(self) -> list[int]:
        files = sorted((self.folder / "orders").glob("*.jsonl"))
        return [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()]


class ParquetPlace(Place):
    async def open(self) -> Sink:
        return await FilesSink.open(self.folder / "orders", Parquet(), fsync=False)

    def delivered(self) -> list[int]:
        files = sorted((self.folder / "orders").glob("*.parquet"))
        return [n for file in files for n in pq.ParquetFile(file).read().column("n").to_pylist()]


class SqlitePlace(Place):
    """The sink that `docs/extending.md` shows."""

    made: ClassVar[ModuleType] = sqlite_sink.module()

    async def open(self) -> Sink:
        sink: Sink = self.made.SqliteSink(str(self.folder / "orders.db"))
        return sink

    def delivered(self) -> list[int]:
        with closing(sqlite3.connect(self.folder / "orders.db")) as database:
            texts = database.execute("SELECT row FROM changes ORDER BY rowid").fetchall()
        return [json.loads(text)["n"] for (text,) in texts]


class KafkaPlace(Place):
    """A topic of one partition, of whose records the test sees what a reader of committed ones does."""

    make_producer: ClassVar[MakeProducer]
    broker: SharedBroker

    def __init__(self, folder: Path) -> None:
        self.pipeline = f"contract-{uuid.uuid4().hex[:8]}"

    async def open(self) -> Sink:
        connection = {"bootstrap_servers": [self.broker.bootstrap_servers]}
        destination = Destination(
            connection, self.pipeline, "orders", f"{self.pipeline}.orders", True, Topics(partitions=1)
        )
        return await KafkaSink.open(destination, type(self).make_producer, encoders("flat", ["n"]))

    def delivered(self) -> list[int]:
        wait_for_markers(self.broker.bootstrap_servers, f"{self.pipeline}.orders")
        return self.seen()

    def seen(self) -> list[int]:
        return self._rows(committed=True)

    def wait_for_row(self, n: int) -> None:
        deadline = time.monotonic() + 60
        while n not in self._rows(committed=False):
            assert time.monotonic() < deadline, f"row {n} was not sent"

    def _rows(self, *, committed: bool) -> list[int]:
        records = read_topic(self.broker.bootstrap_servers, f"{self.pipeline}.orders", committed=committed)
        return [json.loads(record.value or b"")["n"] for record in records]


class KafkaPythonPlace(KafkaPlace):
    make_producer = KafkaPythonProducer


class LibrdkafkaPlace(KafkaPlace):
    make_producer = LibrdkafkaProducer


class TrevniPlace(Place):
    async def open(self) -> Sink:
        return await FilesSink.open(self.folder / "orders", Trevni(), fsync=False)

    def delivered(self) -> list[int]:
        files = sorted((self.folder / "orders").glob("*.trv"))
        return [n for file in files for n in read_table(file)["n"].to_pylist()]


class DeltaPlace(Place):
    """A changelog, which delta-rs reads."""

    @property
    def table(self) -> Path:
        return self.folder / "orders"

    async def open(self) -> Sink:
        target = Target(open_storage(str(self.table)), app_id("shop", "orders"), Layout(), SystemClock())
        return await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1 << 20))

    def delivered(self) -> list[int]:
        if not self.table.exists():
            return []
        numbers, table = list[int](), DeltaTable(self.table)
        for version in range(table.version() + 1):
            entry = (self.table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
            adds = [each["add"]["path"] for line in entry if "add" in (each := json.loads(line))]
            assert set(adds) <= {Path(uri).name for uri in table.file_uris()}
            numbers += [n for path in adds for n in pq.ParquetFile(self.table / path).read().column("n").to_pylist()]
        return numbers


PLACES = [
    *(MemoryPlace, JsonLinesPlace, ParquetPlace, TrevniPlace, SqlitePlace, DeltaPlace),
    *under_test("producer", [KafkaPythonPlace, LibrdkafkaPlace]),
]


@pytest.fixture(params=PLACES, ids=lambda place: place.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place: Place = request.param(tmp_path)
    if isinstance(place, KafkaPlace):
        place.broker = request.getfixturevalue("broker")
    return place


@asynccontextmanager
async def open_sink(place: Place) -> AsyncIterator[Sink]:
    sink = await place.open()
    try:
        yield sink
    finally:
        await sink.close()


def rows(*n: int) -> pa.RecordBatch:
    batch = pa.record_batch({"n": pa.array(n, pa.int64()), "_change_type": constant_type("insert", len(n))})
    return VersionColumns(0, 0).complete(batch, 0)


def many(n: int) -> pa.RecordBatch:
    """So many equal rows that a sink which sends rows before the commit sends these."""
    return rows(*[n] * 5000)


def at(version: int, part: int = 0, phase: str = "stream", ordinal: int = 0) -> Position:
    return Position("T", version, part, phase, ordinal)


async def deliver(sink: Sink, position: Position, following: Position, *batches: pa.RecordBatch) -> None:
    delivery = await sink.begin(position)
    for batch in batches:
        await delivery.write(batch)
    await delivery.commit(following)


class TestPositions:
    async def test_nothing_was_ever_delivered(self, place: Place) -> None:
        for _ in range(2):
            async with open_sink(place) as sink:
                assert await sink.last_position() is None
        assert place.delivered() == []

    async def test_it_is_there_after_each_commit_and_for_the_next_sink(self, place: Place) -> None:
        for version in range(7, 10):
            async with open_sink(place) as sink:
                await deliver(sink, at(version), at(version + 1), rows(version))
                assert await sink.last_position() == at(version + 1)
            async with open_sink(place) as sink:
                assert await sink.last_position() == at(version + 1)
        assert place.delivered() == [7, 8, 9]

    async def test_all_kinds_of_steps(self, place: Place) -> None:
        steps = [
            at(5, 0, "snapshot"),
            at(5, 3, "snapshot", 300),
            at(5, 12_345_678, "snapshot", 99_999_999_999),
            at(6),  # the snapshot's end
            at(7),
            at(8),  # no rows in 7
            at(8, 2, ordinal=17),
            at(9),
            at(14),  # several versions at once
            at(20, 4, ordinal=3),
            at(20, 5, ordinal=4),
            at(21, 0, "snapshot"),  # a new snapshot, because files were gone
            at(22),
            at(2**62),
        ]

        for n, (position, following) in enumerate(itertools.pairwise(steps)):
            async with open_sink(place) as sink:
                assert await sink.last_position() == (position if n else None)
                await deliver(sink, position, following, *([] if position == at(7) else [rows(n)]))
        async with open_sink(place) as sink:
            assert await sink.last_position() == steps[-1]
        assert place.delivered() == [n for n in range(len(steps) - 1) if steps[n] != at(7)]

    @pytest.mark.parametrize("first", [at(0), at(3, 2, ordinal=8), at(3, 2, "snapshot", 8)])
    async def test_any_beginning_and_versions_without_rows(self, place: Place, first: Position) -> None:
        async with open_sink(place) as sink:
            await deliver(sink, first, at(4))
            await deliver(sink, at(4), at(5), rows())
            assert await sink.last_position() == at(5)
        async with open_sink(place) as sink:
            assert await sink.last_position() == at(5)
            await deliver(sink, at(5), at(6), rows(5))
        assert place.delivered() == [5]

    @pytest.mark.parametrize(
        "wrong",
        [at(6), at(8), at(7, 1), at(7, 0, "snapshot"), at(7, 0, ordinal=1), Position("another", 7)],
    )
    async def test_only_where_it_stands(self, place: Place, wrong: Position) -> None:
        async with open_sink(place) as sink:
            await deliver(sink, at(6), at(7), rows(6))
            with pytest.raises(SinkError, match="cannot begin"):
                await sink.begin(wrong)
            await deliver(sink, at(7), at(8), rows(7))
        async with open_sink(place) as sink:
            with pytest.raises(SinkError, match="cannot begin"):
                await sink.begin(wrong if wrong != at(8) else at(7))
        assert place.delivered() == [6, 7]

    @pytest.mark.parametrize("following", [at(5), at(6), at(6, 0, "snapshot"), Position("another", 9)])
    async def test_only_forward(self, place: Place, following: Position) -> None:
        async with open_sink(place) as sink:
            delivery = await sink.begin(at(6))
            await delivery.write(rows(6))
            with pytest.raises(SinkError, match="cannot lead to"):
                await delivery.commit(following)
            await delivery.abort()
            assert await sink.last_position() is None
            await deliver(sink, at(6), at(7), rows(6))
        assert place.delivered() == [6]

    async def test_a_start_is_durable_before_there_is_a_row(self, place: Place) -> None:
        async with open_sink(place) as sink:
            delivery = await sink.begin(at(6))
            await delivery.commit(at(6))
        async with open_sink(place) as sink:
            assert await sink.last_position() == at(6)
            await deliver(sink, at(6), at(7), rows(6))
        assert place.delivered() == [6]

    async def test_changes_can_be_given_up_for_the_snapshot_of_their_version(self, place: Place) -> None:
        async with open_sink(place) as sink:
            await deliver(sink, at(6), at(7), rows(6))
            await deliver(sink, at(7), at(7, 0, "snapshot"))
        async with open_sink(place) as sink:
            assert await sink.last_position() == at(7, 0, "snapshot")
            await deliver(sink, at(7, 0, "snapshot"), at(8), rows(7))
            await deliver(sink, at(8), at(8, 1, ordinal=1), rows(8))
            delivery = await sink.begin(at(8, 1, ordinal=1))
            with pytest.raises(SinkError, match="cannot lead to"):
                await delivery.commit(at(8, 0, "snapshot"))
        assert place.delivered() == [6, 7, 8]


class TestDeliveries:
    async def test_many_batches_in_order(self, place: Place) -> None:
        async with open_sink(place) as sink:
            await deliver(sink, at(0), at(1), rows(1, 2), rows(), rows(3), rows(*range(4, 2000)))
            await deliver(sink, at(1), at(2), rows(2000))
        assert place.delivered() == list(range(1, 2001))

    async def test_nothing_is_seen_before_the_commit(self, place: Place) -> None:
        async with open_sink(place) as sink:
            delivery = await sink.begin(at(0))
            await delivery.write(many(1))
            place.wait_for_row(1)
            assert place.seen() == []
            assert await sink.last_position() is None
            await delivery.commit(at(1))
            assert place.delivered() == [1] * 5000

    async def test_an_aborted_delivery_never_was(self, place: Place) -> None:
        async with open_sink(place) as sink:
            for batches in (0, 2):
                delivery = await sink.begin(at(0))
                for _ in range(batches):
                    await delivery.write(many(13))
                    place.wait_for_row(13)
                await delivery.abort()
                assert await sink.last_position() is None
            await deliver(sink, at(0), at(1), rows(0))
            delivery = await sink.begin(at(1))
            await delivery.write(rows(13))
            await delivery.abort()
            await deliver(sink, at(1), at(2), rows(1))
        assert place.delivered() == [0, 1]

    async def test_closing_aborts(self, place: Place) -> None:
        async with open_sink(place) as sink:
            await deliver(sink, at(0), at(1), rows(0))
            left = await sink.begin(at(1))
            await left.write(many(13))
            place.wait_for_row(13)
        with pytest.raises(SinkError):
            await left.write(rows(13))
        with pytest.raises(SinkError):
            await left.commit(at(2))
        await left.abort()
        async with open_sink(place) as sink:
            assert await sink.last_position() == at(1)
        assert place.delivered() == [0]

    async def test_a_closed_sink_refuses(self, place: Place) -> None:
        sink = await place.open()
        await sink.close()
        await sink.close()
        with pytest.raises(SinkError, match="closed"):
            await sink.begin(at(0))
        with pytest.raises(SinkError, match="closed"):
            await sink.last_position()

    async def test_one_at_a_time(self, place: Place) -> None:
        async with open_sink(place) as sink:
            delivery = await sink.begin(at(0))
            with pytest.raises(SinkError, match="has not ended"):
                await sink.begin(at(0))
            await delivery.write(rows(0))
            await delivery.commit(at(1))
        assert place.delivered() == [0]

    async def test_what_has_ended_takes_nothing(self, place: Place) -> None:
        async with open_sink(place) as sink:
            committed = await sink.begin(at(0))
            await committed.write(rows(0))
            await committed.commit(at(1))
            aborted = await sink.begin(at(1))
            await aborted.abort()
            current = await sink.begin(at(1))
            for ended in (committed, aborted):
                await ended.abort()  # for a `finally`
                with pytest.raises(SinkError, match="has ended"):
                    await ended.write(rows(13))
                with pytest.raises(SinkError, match="has ended"):
                    await ended.commit(at(2))
            await current.write(rows(1))
            await current.commit(at(2))
            assert await sink.last_position() == at(2)
        assert place.delivered() == [0, 1]

    async def test_a_cancelled_write_can_be_aborted(self, place: Place) -> None:
        async with open_sink(place) as sink:
            delivery = await sink.begin(at(0))
            writing = asyncio.create_task(delivery.write(rows(*range(50_000))))
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await delivery.abort()
            await deliver(sink, at(0), at(1), rows(0))
        assert place.delivered() == [0]


@pytest.mark.parametrize("place", [KafkaPythonPlace, LibrdkafkaPlace], indirect=True, ids=lambda place: place.__name__)
class TestRuns:
    """Sinks that take rows of several versions at once."""

    versions = tuple(Version(ChangePlan(each, 0, TableSchema(StructType(())), (), "files"), "T") for each in range(4))

    async def test_in_order_with_single_versions(self, place: Place) -> None:
        async with open_sink(place) as sink:
            delivery = await sink.begin(at(0))
            assert delivery.takes_runs
            for version in self.versions[:2]:
                await delivery.start_version(version)
            await delivery.write(rows(1, 2, 3))
            await delivery.start_version(self.versions[2])
            await delivery.write(rows(4))
            await delivery.start_version(self.versions[3])
            await delivery.write(rows(*range(5, 10_000)))
            place.wait_for_row(9_999)
            assert place.seen() == []
            await delivery.commit(at(4))
            assert await sink.last_position() == at(4)
        assert place.delivered() == [*range(1, 10_000)]


@pytest.mark.parametrize("place", [SqlitePlace], indirect=True, ids=lambda place: place.__name__)
async def test_a_sink_that_declares_no_ability_refuses_each(place: Place) -> None:
    async with open_sink(place) as sink:
        delivery = await sink.begin(at(0))
        assert (sink.stores_control, sink.takes_job(at(0)), delivery.takes_runs) == (False, False, False)
        assert (sink.control, sink.job, sink.backfill) == (EMPTY, None, None)
        with pytest.raises(UnsupportedError, match="stores no requests"):
            await sink.set_control(EMPTY)
        with pytest.raises(UnsupportedError, match="parts of versions"):
            await sink.begin_job(version(0), at(0), 2, 1, "0f")
        with pytest.raises(UnsupportedError, match="backfills"):
            sink.move_to(at(0))


CONTROLLED = [each for each in PLACES if each is not SqlitePlace]
"""Places of sinks that store the control of a table. The sink of the page does not."""


@pytest.mark.parametrize("place", CONTROLLED, indirect=True, ids=lambda place: place.__name__)
class TestControl:
    """Sinks that store the control of a table with its position."""

    async def test_it_is_there_for_the_next_sink_and_after_other_deliveries(self, place: Place) -> None:
        control = Control(Pause("a", 7), snapshots=2, recent=("a",))
        async with controlled(place) as sink:
            assert sink.stores_control
            assert sink.control == EMPTY
            await deliver(sink, at(0), at(1), rows(0))
            await sink.set_control(control)
            assert await sink.last_position() == at(1)
        async with controlled(place) as sink:
            assert sink.control == control
            await deliver(sink, at(1), at(2), rows(1))
            await deliver(sink, at(2), at(3))
        async with controlled(place) as sink:
            assert (sink.control, await sink.last_position()) == (control, at(3))
        assert place.delivered() == [0, 1]

    async def test_chunks_leave_the_position_and_come_with_their_control(self, place: Place) -> None:
        first = EMPTY.begin("a", "")
        async with controlled(place) as sink:
            await deliver(sink, at(0), at(5), rows(0))
            await sink.set_control(first)
        for number in range(3):
            async with controlled(place) as sink:
                await deliver_chunk(sink, at(5), number)
                assert await sink.last_position() == at(5)
            async with controlled(place) as sink:
                assert (await sink.last_position(), progress(sink).next) == (at(5), number + 1)
        async with controlled(place) as sink:
            await deliver(sink, at(5), at(6), rows(9))
            assert progress(sink).next == 3
        assert place.delivered() == [0, 100, 101, 102, 9]

    async def test_an_aborted_chunk_leaves_nothing(self, place: Place) -> None:
        async with controlled(place) as sink:
            await deliver(sink, at(0), at(5), rows(0))
            await sink.set_control(EMPTY.begin("a", ""))
            chunk = await sink.begin_chunk(at(5), version(4))
            await chunk.write(many(13))
            place.wait_for_row(13)
            await chunk.abort()
            await deliver_chunk(sink, at(5), 0)
        assert place.delivered() == [0, 100]

    async def test_a_move_forward(self, place: Place) -> None:
        async with controlled(place) as sink:
            await deliver(sink, at(0), at(5), rows(0))
            await sink.set_control(Control(recent=("a",)), at(9))
            assert await sink.last_position() == at(9)
        async with controlled(place) as sink:
            assert (sink.control, await sink.last_position()) == (Control(recent=("a",)), at(9))
            await deliver(sink, at(9), at(10), rows(1))
        assert place.delivered() == [0, 1]

    async def test_a_move_without_another_control(self, place: Place) -> None:
        control = Control(recent=("a",))
        async with controlled(place) as sink:
            await deliver(sink, at(0), at(5), rows(0))
            await sink.set_control(control)
            await sink.set_control(control, at(9))
        async with controlled(place) as sink:
            assert (sink.control, await sink.last_position()) == (control, at(9))


def version(number: int) -> Version:
    return Version(ChangePlan(number, 0, TableSchema(StructType(())), (), "snapshot"), "T")


def progress(sink: Sink) -> Resnapshot:
    assert sink.control.snapshot is not None
    return sink.control.snapshot


@asynccontextmanager
async def controlled(place: Place) -> AsyncIterator[Sink]:
    async with open_sink(place) as sink:
        assert sink.stores_control
        yield sink


async def deliver_chunk(sink: Sink, position: Position, number: int) -> None:
    state = progress(sink)
    chunk = await sink.begin_chunk(position, version(position.version - 1))
    await chunk.write(rows(100 + number))
    following = replace(state, next=number + 1, ordinal=state.ordinal + 1, rows=state.rows + 1)
    await chunk.commit_control(replace(sink.control, snapshot=following))
