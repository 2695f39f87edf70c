"""Deliveries to Kafka, without a broker: which records a transaction has, and what a failed step leaves."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdfd.config.parser import parse
from cdfd.errors import DataError, FencedError, SinkError
from cdfd.model.control import Control, Pause
from cdfd.sinks.base import ReopenSinkError
from cdfd.sinks.jobs import Delivered, Job
from cdfd.sinks.kafka.connector import KafkaConnector
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.progress.topics import ExistingTopic
from cdfd.sinks.kafka.records.murmur2 import partitions
from cdfd.sinks.kafka.settings import KafkaSettings
from cdfd.sinks.kafka.transactions import parts
from cdfd.sinks.kafka.transactions import sink as transactions
from cdfd.sinks.kafka.transactions.delivery import KafkaDelivery
from cdfd.sinks.kafka.transactions.sink import KafkaSink, prepare
from cdfd.sinks.kafka.transactions.writer import CHUNK_ROWS, Chunk
from tests.support.change_rows import Row, change_rows
from tests.support.kafka.encoders import encoders
from tests.support.kafka.recording_producer import LIMIT, Recorded, RecordingProducer, Sent
from tests.support.kafka.sinking import Place, at, deliver, rows, version

JOB: dict[str, str | int] = {"id": "a"}
PAUSED = Control(Pause("p", 1))


def recorded(
    *,
    progress: Progress | None = None,
    kind: str = "flat",
    partitions: int = 1,
    key: str = "id",
    **settings: Any,
) -> Recorded:
    return Recorded(Place("nowhere:1", "shop", **settings).destination, progress, kind, partitions, key)


def documents(values: list[bytes | None]) -> list[Any]:
    return [json.loads(value) for value in values if value is not None]


def ids(sent: Sent) -> list[int]:
    return [document["id"] for document in documents(sent.values)]


async def begun(table: Recorded, batch: pa.RecordBatch) -> KafkaDelivery:
    """A delivery whose first chunk is sent."""
    sent = threading.Event()
    table.producer.after_send = sent.set
    delivery = await table.sink.begin(at(0))
    await delivery.write(batch)
    assert await asyncio.to_thread(sent.wait, 30)
    return delivery


def hold_up(producer: RecordingProducer) -> tuple[threading.Event, threading.Event]:
    """Makes `send` wait. Returns the event that it sets, and the one that it waits for."""
    sending, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        sending.set()
        assert go_on.wait(30)

    producer.before_send = wait
    return sending, go_on


async def held_up(table: Recorded, chunks: int) -> tuple[KafkaDelivery, threading.Event]:
    """A delivery of some chunks whose first one waits in `send` for the event."""
    sending, go_on = hold_up(table.producer)
    delivery = await table.sink.begin(at(0))
    for number in range(chunks):
        await delivery.write(rows(number))
    assert await asyncio.to_thread(sending.wait, 30)
    return delivery, go_on


class TestTransaction:
    async def test_rows_and_position_are_in_one_transaction(self) -> None:
        table = recorded()
        await deliver(table.sink, rows(1, 2))
        await deliver(table.sink, rows(3, version=1))
        assert table.producer.calls == ["begin", "send", "send", "commit"] * 2
        for transaction, expected in zip(table.producer.committed, ([1, 2], [3]), strict=True):
            of_rows, of_position = transaction
            assert (of_rows.topic, ids(of_rows)) == ("shop.orders", expected)
            assert (of_position.topic, of_position.partitions) == ("_cdfd_progress.shop", (0,))
            assert of_position.keys == [b'{"pipeline":"shop","table":"orders"}']
        assert [progress.position for progress in table.stored] == [at(1), at(2)]
        assert await table.sink.last_position() == at(2)

    async def test_last_rows_wait_for_the_position(self) -> None:
        table = recorded()
        await deliver(table.sink, rows(1))
        assert [sent.more for sent in table.producer.committed[0]] == [True, True]

    async def test_rows_of_at_least_once_wait_for_nothing(self) -> None:
        table = recorded(delivery="at_least_once", transactions_topic="transactions")
        delivery = await table.sink.begin(at(1))
        await delivery.start_version(version(1))
        await delivery.write(rows(1, version=1))
        await delivery.commit(at(2))
        (sent,) = table.producer.committed
        assert [(each.topic, each.more) for each in sent] == [("shop.orders", False), ("transactions", False)]
        assert not table.stored

    async def test_position_without_rows_is_committed(self) -> None:
        table = recorded()
        await deliver(table.sink)
        assert table.producer.calls == ["begin", "send", "commit"]
        assert table.stored == [Progress(at(1))]

    async def test_durations_of_both_stages_are_reported(self) -> None:
        durations: list[tuple[str, float]] = []
        place = Place("nowhere:1", "shop")
        table = Recorded(place.destination, stage=lambda name, seconds: durations.append((name, seconds)))
        await deliver(table.sink, rows(1))
        assert [name for name, _ in durations] == ["encode", "send"]
        assert all(0 <= seconds < 60 for _, seconds in durations)

    async def test_only_a_delivery_without_rows_keeps_the_position(self) -> None:
        table = recorded()
        delivery = await table.sink.begin(at(0))
        await delivery.write(rows())
        await delivery.commit(at(0))
        assert table.stored == [Progress(at(0))]
        delivery = await table.sink.begin(at(0))
        await delivery.write(rows(1))
        with pytest.raises(SinkError, match="cannot lead to"):
            await delivery.commit(at(0))

    async def test_records_have_the_current_time(self) -> None:
        table = recorded()
        before = time.time_ns() // 1_000_000
        await deliver(table.sink, rows(1))
        after = time.time_ns() // 1_000_000
        assert all(before <= sent.timestamp <= after for sent in table.producer.committed[0])

    @pytest.mark.parametrize(
        "call",
        [
            lambda delivery: delivery.start_version(version(1)),
            lambda delivery: delivery.resume_version(version(1), {}),
            lambda delivery: delivery.write(rows(1)),
            lambda delivery: delivery.hold_version(version(1)),
            lambda delivery: delivery.commit_control(PAUSED),
            lambda delivery: delivery.commit(at(2)),
        ],
    )
    async def test_delivery_that_has_ended_takes_no_call(self, call: Callable[[KafkaDelivery], Any]) -> None:
        table = recorded()
        delivery = await table.sink.begin(at(0))
        await delivery.commit(at(1))
        with pytest.raises(SinkError, match="the delivery has ended"):
            await call(delivery)
        assert len(table.producer.committed) == 1


class TestChunks:
    async def test_small_versions_are_sent_together(self) -> None:
        table = recorded()
        delivery = await table.sink.begin(at(1))
        for number in (1, 2, 3):
            await delivery.start_version(version(number))
            await delivery.write(rows(number, version=number))
        await delivery.commit(at(4))
        (of_rows,) = table.producer.sent("shop.orders")
        assert ids(of_rows) == [1, 2, 3]

    async def test_each_chunk_is_sent_when_it_is_full(self) -> None:
        table = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1)
        delivery = await table.sink.begin(at(0))
        for number in range(5):
            await delivery.write(rows(number))
        await delivery.commit(at(1))
        assert [ids(sent) for sent in table.producer.sent("shop.orders")] == [[0], [1], [2], [3], [4]]
        assert table.producer.calls.count("begin") == 1
        assert [sent.more for sent in table.producer.sent("shop.orders")] == [False] * 5

    async def test_snapshot_rows_are_encoded_apart_from_changes(self) -> None:
        table = recorded(kind="debezium")
        delivery = await table.sink.begin(at(1))
        for number, origin in ((1, "files"), (2, "snapshot"), (3, "files")):
            await delivery.start_version(version(number, origin=origin))
            await delivery.write(rows(number, version=number))
        await delivery.commit(at(4))
        assert [document["op"] for document in documents(table.producer.values("shop.orders"))] == ["c", "r", "c"]

    @pytest.mark.parametrize(("phase", "operation"), [("snapshot", "r"), ("stream", "c")])
    async def test_rows_without_version_are_of_the_position(self, phase: str, operation: str) -> None:
        table = recorded(kind="debezium")
        delivery = await table.sink.begin(at(1, phase=phase))
        await delivery.write(rows(1, version=1))
        await delivery.commit(at(2))
        assert [document["op"] for document in documents(table.producer.values("shop.orders"))] == [operation]

    async def test_the_first_and_the_last_row_of_a_snapshot_are_marked(self) -> None:
        """In two deliveries: only the second one leads to changes."""
        table = recorded(kind="debezium")
        live = rows(*range(6), version=1)
        first = await table.sink.begin(at(1, phase="snapshot"))
        for batch in (live[:2], live[2:3]):
            await first.write(batch)
        await first.commit(at(1, phase="snapshot", part=1, ordinal=3))
        second = await table.sink.begin(at(1, phase="snapshot", part=1, ordinal=3))
        for batch in (live[3:4], live[4:]):
            await second.write(batch)
        await second.commit(at(2))
        third = await table.sink.begin(at(2))
        await third.start_version(version(2))
        await third.write(rows(6, version=2))
        await third.commit(at(3))
        events = documents(table.producer.values("shop.orders"))
        assert [event["source"]["snapshot"] for event in events] == [
            *("first", "true", "true", "true", "true", "last"),
            "false",
        ]
        assert [event["op"] for event in events] == ["r"] * 6 + ["c"]

    @pytest.mark.parametrize("keyed", [True, False])
    async def test_the_end_of_a_version_counts_events(self, keyed: bool) -> None:
        """An update is one, but two where its key changes."""
        table = recorded(kind="debezium", keyed=keyed, event_key=("id",) if keyed else (), transactions_topic="shop.tx")
        delivery = await table.sink.begin(at(1))
        await delivery.start_version(version(1))
        kinds = ["insert", "update_preimage", "update_postimage", "update_preimage", "update_postimage"]
        numbered = zip(kinds, (1, 2, 2, 3, 4), strict=True)
        await delivery.write(change_rows([Row(kind, 1, number, "a") for kind, number in numbered]))
        await delivery.commit(at(2))
        _, end = documents(table.producer.values("shop.tx"))
        events = documents(table.producer.values("shop.orders"))
        assert (end["event_count"], sum(end["rows"].values())) == (4 if keyed else 3, 5)
        assert len(events) == end["event_count"]

    @pytest.mark.parametrize(("time", "events"), [("connect", 1), ("iso", 2)])
    async def test_keys_of_counted_events_have_the_form_of_the_format(self, time: str, events: int) -> None:
        """Two times of one millisecond are one key, if keys have milliseconds."""
        config = parse(
            "pipeline: shop\ntables: [{uri: /t, name: orders, topic: shop.orders, key: [at]}]\nsink:\n  kind: kafka\n"
            f"  bootstrap_servers: nowhere:1\n  topics: {{transactions: true}}\n  format: {{envelope: debezium, time: {time}}}\n"
        )
        assert isinstance(config.sink, KafkaSettings)
        destination = KafkaConnector(config, config.sink).destination(config.listed[0])
        table = Recorded(destination, kind=config.sink.format.choice, key="at")
        batch = change_rows([Row(kind, 1, 1, "a") for kind in ("update_preimage", "update_postimage")])
        instants = pa.array([1_000, 1_001], pa.timestamp("us", "UTC"))
        batch = pa.RecordBatch.from_arrays([instants, *batch.columns[1:]], ["at", *batch.schema.names[1:]])
        delivery = await table.sink.begin(at(1))
        await delivery.start_version(version(1))
        await delivery.write(batch)
        await delivery.commit(at(2))
        assert destination.transactions_topic is not None
        _, end = documents(table.producer.values(destination.transactions_topic))
        assert len(documents(table.producer.values("shop.orders"))) == events
        assert end["event_count"] == events

    async def test_rows_of_a_snapshot_on_demand_are_marked(self) -> None:
        table = recorded(kind="debezium")
        delivery = await table.sink.begin(at(1))
        assert isinstance(delivery, KafkaDelivery)
        delivery.hold_version(version(0, origin="snapshot"))
        await delivery.write(rows(1, version=0))
        await delivery.commit_control(PAUSED)
        (event,) = documents(table.producer.values("shop.orders"))
        assert (event["op"], event["source"]["snapshot"]) == ("r", "incremental")

    def test_batches_of_another_schema_are_another_group(self) -> None:
        chunk = Chunk()
        other = pa.RecordBatch.from_pydict({"x": [1]})
        for number, batch in enumerate((rows(1), rows(2, version=1), other, rows(3, version=3))):
            chunk.add(batch, snapshot=False, version=number)
        groups = chunk.groups
        assert [(group.oldest, group.version, len(group.batches)) for group in groups] == [
            (0, 1, 2),
            (2, 2, 1),
            (3, 3, 1),
        ]

    def test_large_batch_is_a_group_of_its_own(self) -> None:
        large = rows(*range(100))
        chunk = Chunk(large.nbytes)
        chunk.add(rows(1), snapshot=False, version=1)
        chunk.add(large, snapshot=False, version=1)
        assert chunk.full
        assert len(chunk.groups) == 2

    def test_many_rows_fill_a_chunk_whatever_their_size(self) -> None:
        chunk = Chunk(1 << 40)
        chunk.add(rows(*range(CHUNK_ROWS - 1)), snapshot=False, version=1)
        assert not chunk.full
        chunk.add(rows(1), snapshot=False, version=1)
        assert chunk.full

    def test_many_side_records_fill_a_chunk(self) -> None:
        chunk = Chunk()
        while not chunk.full:
            chunk.side_records["t"].append(None)  # type: ignore[arg-type]
            assert len(chunk.side_records["t"]) <= CHUNK_ROWS
        assert chunk.side_records


class TestRun:
    async def test_run_of_versions_is_one_group(self) -> None:
        table = recorded(schema_topic="schemas")
        delivery = await table.sink.begin(at(1))
        assert delivery.takes_runs
        batch = pa.concat_batches([rows(number, version=number) for number in (1, 2, 3)])
        for number in (1, 2, 3):
            await delivery.start_version(version(number))
        await delivery.write(batch)
        await delivery.commit(at(4))
        (sent,) = table.producer.sent("shop.orders")
        assert ids(sent) == [1, 2, 3]
        assert [document["version"] for document in documents(table.producer.values("schemas"))] == [1]

    @pytest.mark.parametrize(("numbers", "named"), [([2], 2), ([2, 3], None)])
    async def test_error_names_the_version_if_it_is_one(self, numbers: list[int], named: int | None) -> None:
        table = recorded()
        table.producer.failing = {"send"}
        delivery = await table.sink.begin(at(2))
        batch = pa.concat_batches([rows(number, version=number) for number in numbers])
        for number in numbers:
            await delivery.start_version(version(number))
        await delivery.write(batch)
        with pytest.raises(SinkError) as error:
            await delivery.commit(at(numbers[-1] + 1))
        assert (error.value.table, error.value.version) == ("orders", named)

    async def test_versions_that_are_counted_are_not_taken_as_a_run(self) -> None:
        table = recorded(transactions_topic="transactions")
        assert not (await table.sink.begin(at(1))).takes_runs


class TestSideRecords:
    async def test_schema_is_sent_once(self) -> None:
        table = recorded(schema_topic="schemas")
        for number in (0, 1):
            delivery = await table.sink.begin(at(number))
            await delivery.start_version(version(number))
            await delivery.commit(at(number + 1))
        assert table.producer.calls == ["begin", "send", "send", "commit", "begin", "send", "commit"]
        (sent,) = table.producer.sent("schemas")
        assert sent.partitions == (0,)
        assert [document["version"] for document in documents(sent.values)] == [0]
        assert [progress.announced for progress in table.stored] == [True, True]

    @pytest.mark.parametrize("by", ["operator", "snapshot"])
    async def test_schema_is_sent_again_after_the_position_moved(self, by: str) -> None:
        """Versions that change the schema may be skipped."""
        table = recorded(schema_topic="schemas", progress=Progress(at(1), announced=True))
        to = at(9) if by == "operator" else at(9, phase="snapshot")
        if by == "operator":
            await table.sink.set_control(PAUSED)
            await table.sink.set_control(PAUSED, to)
        else:
            delivery = await table.sink.begin(at(1))
            await delivery.commit(to)
        delivery = await table.sink.begin(to)
        await delivery.start_version(version(9))
        await delivery.commit(at(10))
        assert [document["version"] for document in documents(table.producer.values("schemas"))] == [9]

    async def test_begin_and_end_are_sent_for_each_version(self) -> None:
        table = recorded(transactions_topic="transactions")
        delivery = await table.sink.begin(at(1))
        for number in (1, 2):
            await delivery.start_version(version(number))
            await delivery.write(rows(*range(number), version=number))
        await delivery.commit(at(3))
        actual = documents(table.producer.values("transactions"))
        assert [(each["version"], each["status"], each["event_count"]) for each in actual] == [
            (1, "BEGIN", None),
            (1, "END", 1),
            (2, "BEGIN", None),
            (2, "END", 2),
        ]

    async def test_part_of_a_version_is_counted_with_those_before(self) -> None:
        table = recorded(transactions_topic="transactions")
        for position, following in ((at(1), at(1, 1)), (at(1, 1), at(2))):
            delivery = await table.sink.begin(position)
            await delivery.start_version(version(1))
            await delivery.write(rows(1, 2, version=1))
            await delivery.commit(following)
        actual = documents(table.producer.values("transactions"))
        assert [(each["status"], each["event_count"]) for each in actual] == [("BEGIN", None), ("END", 4)]
        assert [dict(progress.counts) for progress in table.stored] == [{"insert": 2}, {}]

    async def test_version_that_is_started_again_begins_once(self) -> None:
        table = recorded(transactions_topic="transactions", progress=Progress(at(1, 1), {"insert": 7}))
        delivery = await table.sink.begin(at(1, 1))
        for number in (1, 1, 2, 2):
            await delivery.start_version(version(number))
            await delivery.write(rows(1, version=number))
        await delivery.commit(at(3))
        actual = documents(table.producer.values("transactions"))
        assert [(each["version"], each["status"], each["event_count"]) for each in actual] == [
            (1, "END", 9),
            (2, "BEGIN", None),
            (2, "END", 2),
        ]

    async def test_version_of_many_producers_ends_with_the_rows_of_all(self) -> None:
        table = recorded(transactions_topic="transactions", progress=Progress(at(1)))
        delivery = await table.sink.begin(at(1))
        delivery.resume_version(version(1), {"insert": 5, "delete": 1})
        await delivery.commit(at(2))
        (end,) = documents(table.producer.values("transactions"))
        assert (end["status"], end["event_count"]) == ("END", 6)

    @pytest.mark.parametrize(
        ("delivered", "count"),
        [
            ([Delivered({"update_preimage": 1, "update_postimage": 1}, b"1"), Delivered({}, b"0")], 1),
            ([Delivered({"update_preimage": 1, "update_postimage": 1}, b"1"), Delivered({})], 1),
            ([Delivered({}), Delivered({})], 0),
            ([Delivered({"update_preimage": 1, "update_postimage": 1}), Delivered({"insert": 1}, b"1")], 3),
        ],
        ids=["first attempt", "found again", "without rows", "by an earlier release"],
    )
    async def test_job_ends_with_the_events_of_its_parts(self, delivered: list[Delivered], count: int) -> None:
        table = recorded(transactions_topic="transactions", event_key=("id",), progress=Progress(at(1), job=JOB))
        await table.sink.finish_job(version(1), at(1), Job("a", 1, "stream", 2, 1, "d", 0), delivered)
        (end,) = documents(table.producer.values("transactions"))
        assert (end["status"], end["event_count"]) == ("END", count)

    async def test_oversized_side_record_fails_the_delivery(self) -> None:
        table = recorded(schema_topic="schemas")
        delivery = await table.sink.begin(at(1))
        await delivery.start_version(version(1, fields=["x" * LIMIT]))
        with pytest.raises(SinkError, match=r"for topic schemas is too large: the limit of topic shop\.orders holds"):
            await delivery.commit(at(2))

    async def test_chunk_of_a_snapshot_announces_the_schema(self) -> None:
        table = recorded(schema_topic="schemas", transactions_topic="transactions", progress=Progress(at(5), job=JOB))
        for number in (1, 2):
            chunk = await table.sink.begin_chunk(at(5), version(4))
            await chunk.write(rows(number, version=4))
            await chunk.commit_control(PAUSED)
        assert [document["version"] for document in documents(table.producer.values("schemas"))] == [4]
        assert not table.producer.sent("transactions")
        assert table.stored == [Progress(at(5), announced=True, job=JOB, control=PAUSED)] * 2
        assert table.sink.control == PAUSED


class TestProgress:
    async def test_job_ends_when_the_position_advances(self) -> None:
        table = recorded(progress=Progress(at(1), backfill={"start": 3}))
        for following, job in ((at(1), JOB), (at(1), None), (at(2), None)):
            delivery = await table.sink.begin(at(1))
            await delivery.commit(following, job)
        assert [dict(progress.job) for progress in table.stored] == [JOB, JOB, {}]
        assert [dict(progress.backfill) for progress in table.stored] == [{"start": 3}] * 3

    async def test_a_record_beyond_the_limit_names_the_topic_that_has_the_limit(self) -> None:
        table = recorded()
        delivery = await table.sink.begin(at(1))
        with pytest.raises(SinkError, match=r"for topic _cdfd_progress\.shop is too large") as error:
            await delivery.commit(at(2), {"id": "x" * LIMIT})
        assert error.value.hint is not None
        assert error.value.hint.startswith("Raise max.message.bytes of topic shop.orders")

    @pytest.mark.parametrize(("semantics", "stored"), [("exactly_once", True), ("at_least_once", False)])
    def test_control_is_stored_if_there_are_progress_records(self, semantics: str, stored: bool) -> None:
        assert recorded(delivery=semantics).sink.stores_control == stored

    async def test_a_backfill_moves_the_position_and_is_stored_with_it(self) -> None:
        table = recorded(progress=Progress(at(9), {"insert": 1}, job=JOB))
        table.sink.move_to(at(2), {"start": 2})
        assert await table.sink.last_position() == at(2)
        delivery = await table.sink.begin(at(2))
        await delivery.commit(at(3))
        assert table.stored == [Progress(at(3), backfill={"start": 2})]

    async def test_control_can_move_the_position(self) -> None:
        table = recorded(progress=Progress(at(1), {"insert": 1}, job=JOB))
        await table.sink.set_control(PAUSED)
        await table.sink.set_control(PAUSED, at(7))
        assert table.stored == [
            Progress(at(1), {"insert": 1}, job=JOB, control=PAUSED),
            Progress(at(7), control=PAUSED),
        ]
        assert await table.sink.last_position() == at(7)

    @pytest.mark.parametrize(
        ("progress", "counts"),
        [
            (None, None),
            (Progress(at(1), {"insert": 2}, job=JOB), {"insert": 2}),
            (Progress(at(1), job={"id": "b"}), None),
        ],
    )
    def test_part_is_delivered_if_its_job_is_in_the_record(
        self, progress: Progress | None, counts: dict[str, int] | None
    ) -> None:
        assert parts.counts_of(progress, "a") == counts


class TestPartitions:
    async def test_partition_is_that_of_the_key(self) -> None:
        table = recorded(partitions=5)
        await deliver(table.sink, rows(*range(20)))
        (sent,) = table.producer.sent("shop.orders")
        assert list(sent.partitions) == partitions(pa.array(sent.keys, pa.large_binary()), 5).tolist()
        assert len(set(sent.partitions)) > 1

    async def test_rows_without_keys_take_the_next_partition_at_each_send(self) -> None:
        table = recorded(partitions=3, keyed=False)
        for number in range(4):
            await deliver(table.sink, rows(1, 2, version=number))
        assert [sent.partitions for sent in table.producer.sent("shop.orders")] == [(1, 1), (2, 2), (0, 0), (1, 1)]


class TestOversized:
    async def test_oversized_record_fails_the_delivery(self) -> None:
        table = recorded()
        with pytest.raises(SinkError, match=r"a record of \d+ bytes, with key .*1.*, is too large") as error:
            await deliver(table.sink, rows(1, note="x" * LIMIT))
        assert error.value.version == 0
        assert table.sink.context.writer.oversized == 0
        assert not table.producer.committed

    async def test_oversized_record_is_skipped_and_counted(self) -> None:
        table = recorded(oversized="skip")
        await deliver(table.sink, pa.concat_batches([rows(1, note="x" * LIMIT), rows(2)]))
        assert [ids(sent) for sent in table.producer.sent("shop.orders")] == [[2]]
        assert table.sink.context.writer.oversized == 1
        assert not table.producer.sent("shop.orders.dlq")

    async def test_is_described_in_the_dead_letter_topic(self) -> None:
        table = recorded(oversized="dlq")
        delivery = await table.sink.begin(at(3))
        await delivery.start_version(version(3))
        await delivery.write(rows(1, version=3, note="x" * LIMIT))
        await delivery.commit(at(4))
        (sent,) = table.producer.sent("shop.orders.dlq")
        (document,) = documents(sent.values)
        assert sent.keys == [document["key"].encode()]
        assert (sent.partitions, document["version"], document["limit"]) == ((0,), 3, LIMIT)
        assert document["size"] > LIMIT
        assert document["topic"] == "shop.orders"
        assert table.sink.context.writer.oversized == 1

    async def test_a_long_key_is_cut_in_the_dead_letter_topic(self) -> None:
        table = recorded(oversized="dlq", key="note")
        await deliver(table.sink, rows(1, note="x" * 2 * LIMIT))
        (sent,) = table.producer.sent("shop.orders.dlq")
        (document,) = documents(sent.values)
        assert sent.keys == [None]
        assert document["key"] == '{"note":"' + "x" * (LIMIT // 8 - 9)

    @pytest.mark.parametrize(("oversized", "warnings"), [("skip", 2), ("dlq", 1)])
    async def test_warning_is_logged_for_each_skipped_record_or_for_the_first_of_a_dead_letter_topic(
        self, oversized: Any, warnings: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        table = recorded(oversized=oversized)
        await deliver(table.sink, pa.concat_batches([rows(1, note="x" * LIMIT), rows(2, note="x" * LIMIT)]))
        assert table.sink.context.writer.oversized == 2
        assert sum("is too large" in record.message for record in caplog.records) == warnings


class TestFailure:
    async def test_delivery_that_failed_is_not_committed(self) -> None:
        table = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1)
        table.producer.failing = {"send"}
        delivery = await table.sink.begin(at(0))
        await delivery.write(rows(1))
        with pytest.raises(SinkError, match=r"cannot deliver to topic shop\.orders"):  # noqa: PT012 # either
            await delivery.write(rows(2))  # the send may have failed by now, or not yet
            await delivery.commit(at(1))
        with pytest.raises(SinkError, match="the delivery has failed"):
            await delivery.commit(at(1))
        await delivery.abort()
        assert table.producer.calls == ["begin", "send", "abort"], "no step follows one that failed"
        assert not table.producer.committed

    async def test_delivery_can_begin_again_after_an_abort(self) -> None:
        table = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1)
        delivery = await begun(table, rows(1))
        await delivery.abort()
        await deliver(table.sink, rows(2))
        assert [ids(sent) for sent in table.producer.sent("shop.orders")] == [[2]]
        assert table.producer.calls == ["begin", "send", "abort", "begin", "send", "send", "commit"]

    async def test_sink_is_unusable_after_a_commit_without_answer(self) -> None:
        table = recorded()
        table.producer.failing = {"commit"}
        delivery = await table.sink.begin(at(0))
        with pytest.raises(SinkError, match="cannot commit"):
            await delivery.commit(at(1))
        with pytest.raises(SinkError, match="the delivery has failed"):
            await delivery.commit(at(1))
        await delivery.abort()
        with pytest.raises(SinkError, match="outcome of the last commit is unknown"):
            await table.sink.last_position()

    async def test_no_chunk_is_sent_after_one_that_cannot_be_encoded(self) -> None:
        table = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1)
        delivery, go_on = await held_up(table, 1)
        await delivery.write(pa.RecordBatch.from_pydict({"id": [1]}))
        await delivery.write(rows(2))
        go_on.set()
        with pytest.raises(DataError, match="change rows have to end in"):
            await delivery.commit(at(1))
        await asyncio.to_thread(table.wait_for_threads)
        await delivery.abort()
        assert table.producer.calls == ["begin", "send", "abort"]

    async def test_abort_after_a_commit_does_nothing(self) -> None:
        table = recorded()
        delivery = await table.sink.begin(at(0))
        await delivery.write(rows(1))
        await delivery.commit(at(1))
        await delivery.abort()
        assert "abort" not in table.producer.calls
        assert await table.sink.last_position() == at(1)

    async def test_cancelled_commit_that_succeeds_counts(self) -> None:
        table = recorded()
        sending, go_on = hold_up(table.producer)
        delivery = await table.sink.begin(at(0))
        await delivery.write(rows(1))
        commit = asyncio.create_task(delivery.commit(at(1)))
        assert await asyncio.to_thread(sending.wait, 30)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        abort = asyncio.create_task(delivery.abort())
        go_on.set()
        await abort
        assert "abort" not in table.producer.calls
        assert await table.sink.last_position() == at(1)

    async def test_abort_does_not_wait_for_a_broker_that_hangs(self, caplog: pytest.LogCaptureFixture) -> None:
        table = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1, closing_timeout=0.01)
        delivery, go_on = await held_up(table, 1)
        await delivery.abort()
        await table.sink.close()
        go_on.set()
        assert [record.getMessage() for record in caplog.records] == [
            "Kafka does not answer: not waiting for the current delivery to end"
        ]
        with pytest.raises(SinkError, match="Open a new sink"):
            await table.sink.last_position()

    @pytest.mark.parametrize(
        "call",
        [
            lambda delivery: delivery.write(rows(4)),
            lambda delivery: delivery.commit_control(PAUSED),
            lambda delivery: delivery.commit(at(1)),
        ],
    )
    async def test_delivery_is_not_continued_after_a_cancelled_call(
        self, call: Callable[[KafkaDelivery], Coroutine[Any, Any, None]]
    ) -> None:
        table = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1)
        delivery, go_on = await held_up(table, 3)
        calling = asyncio.create_task(call(delivery))
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        go_on.set()
        with pytest.raises(SinkError, match="the delivery has failed"):
            await delivery.write(rows(5))
        await delivery.abort()

    async def test_no_chunk_is_sent_after_an_abort(self) -> None:
        table = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1)
        delivery, go_on = await held_up(table, 3)
        abort = asyncio.create_task(delivery.abort())
        await asyncio.sleep(0)
        go_on.set()
        await abort
        assert table.producer.calls == ["begin", "send", "abort"]

    async def test_closed_sink_aborts_its_delivery(self) -> None:
        table = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1)
        delivery = await begun(table, rows(1))
        await table.sink.close()
        assert table.producer.calls == ["begin", "send", "abort", "close"]
        with pytest.raises(SinkError, match="the delivery has ended"):
            await delivery.commit(at(1))
        with pytest.raises(SinkError, match="the sink is closed"):
            await table.sink.begin(at(0))


class _Topics:
    """In place of the cluster's topics. `before` is called when they are asked for."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before

    def close(self) -> None:
        pass

    def find(self, names: list[str]) -> dict[str, ExistingTopic]:
        self._before()
        return {}

    def ensure(self, topics: list[Any], _: object) -> dict[str, ExistingTopic]:
        return {topic.name: ExistingTopic(topic.name, 1, {"cleanup.policy": "delete"}, frozenset()) for topic in topics}


async def test_opening_that_was_given_up_fences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    producers: list[RecordingProducer] = []

    def wait() -> None:
        asked.set()
        assert go_on.wait(30)

    def make(settings: Any) -> RecordingProducer:
        producers.append(RecordingProducer(settings))
        producers[0].after_close = closed.set
        return producers[0]

    monkeypatch.setattr("cdfd.sinks.kafka.transactions.sink.TopicAdmin", lambda *_, **__: _Topics(wait))
    opening = asyncio.create_task(
        KafkaSink.open(Place("nowhere:1", "shop").destination, make, encoders("flat", ["id"]))
    )
    assert await asyncio.to_thread(asked.wait, 30)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    go_on.set()
    assert await asyncio.to_thread(closed.wait, 30)
    assert producers[0].calls == ["close"]


def test_a_producer_that_failed_prepares_nothing() -> None:
    """A standby then closes it and connects again, with any client."""
    table = recorded()
    table.producer.failing.add("init")
    with pytest.raises(SinkError, match="cannot start transactions"):
        table.producer.init_transactions()
    with pytest.raises(SinkError, match="cannot start transactions"):
        table.producer.prepare([])


class TestParts:
    """Attempts whose sink is always fenced."""

    @pytest.mark.parametrize(
        ("timeout", "what", "retriable"),
        [
            (0.0, "was not delivered within 0 s, and Kafka aborted its transaction", False),
            (60.0, "3 other attempts took over a part", True),
        ],
    )
    async def test_it_gives_up(
        self, timeout: float, what: str, retriable: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waited = 0

        async def wait(*_: object) -> None:
            nonlocal waited
            waited += 1

        async def write(_: KafkaDelivery) -> dict[str, int]:
            raise FencedError("another process has taken over")

        monkeypatch.setattr(parts, "_wait_for_other_attempt", wait)
        table = recorded(transaction_timeout=timeout)
        with pytest.raises(SinkError, match=what) as caught:
            await parts.deliver(table.destination, partial(nullcontext, table.sink), "a", at(1), write)
        assert (caught.value.version, caught.value.retriable) == (1, retriable)
        assert waited == (3 if retriable else 0)


async def test_a_topic_that_is_created_again_within_a_transaction_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, topic_id = Recorded(Place("nowhere:1", "shop").destination, chunk_bytes=1), "a"
    writer = table.sink.context.writer
    writer._facts = replace(writer._facts, id=topic_id)
    monkeypatch.setattr(table.producer, "topic_id", lambda _: topic_id)
    delivery = await begun(table, rows(1))
    topic_id = "b"
    with pytest.raises(ReopenSinkError, match="was deleted and created again"):
        await delivery.commit(at(1))
    assert not table.producer.committed


class Away:
    """A cluster that cannot be reached."""

    def find(self, names: list[str]) -> None:
        raise SinkError("the cluster is away")


def test_connections_of_a_sink_that_cannot_be_prepared_are_closed() -> None:
    closed = list[bool]()
    before: Future[Any] = Future()
    before.set_result(SimpleNamespace(admin=Away(), close=lambda: closed.append(True)))
    with pytest.raises(SinkError, match="the cluster is away"):
        prepare(recorded().destination, RecordingProducer, before)
    assert closed == [True]


@pytest.mark.parametrize("failed", [False, True])
def test_producer_of_an_opening_that_is_cancelled_is_closed(failed: bool) -> None:
    table, opening = recorded(), Future[Any]()
    if failed:
        opening.set_exception(SinkError("the cluster is away"))
    else:
        opening.set_result((SimpleNamespace(producer=table.producer), None, None))
    transactions._close_unused(opening)
    assert table.producer.calls == ([] if failed else ["close"])
