"""The records of a Kafka sink, and their topics. The contract of all sinks covers positions and aborted deliveries."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.partitioner.default import murmur2

from cdfd.delta.types.schema_change import SchemaChange, compare
from cdfd.encode.formats import EncodingName, EnvelopeName, FormatChoice
from cdfd.encode.registered import Registration
from cdfd.errors import MissingColumnError, SchemaChangedError, SinkError
from cdfd.model.columns import VersionColumns, constant_type
from cdfd.model.position import Position
from cdfd.sinks.kafka.client import kafka_python, librdkafka
from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry
from cdfd.sinks.kafka.destination import MakeProducer
from cdfd.sinks.kafka.progress.positions import check, move_position
from cdfd.sinks.kafka.settings import Topics
from cdfd.sinks.kafka.transactions.delivery import KafkaDelivery
from cdfd.sinks.kafka.transactions.writer import CHUNK_BYTES
from tests.support.axes import under_test
from tests.support.change_rows import TIME, Row, change_rows
from tests.support.kafka.reading import wait_for_markers
from tests.support.kafka.shared import SharedBroker
from tests.support.kafka.sinking import PRODUCERS, Place, Read, at, deliver, documents, ids, rows, version
from tests.support.protobuf import message_type
from tests.support.schema_registry import Registry, serving

SENT_AT_ONCE = rows(13, note="x" * CHUNK_BYTES)
"""A row that does not wait in the delivery for others."""


@pytest.fixture(params=under_test("producer", PRODUCERS))
def producer(request: pytest.FixtureRequest) -> MakeProducer:
    return PRODUCERS[request.param]


@pytest.fixture
def servers(broker: SharedBroker) -> str:
    return broker.bootstrap_servers


class TestPartitions:
    async def test_keys_go_where_javas_producers_send_them(
        self, producer: MakeProducer, servers: str, name: str, read: Read
    ) -> None:
        place = Place(servers, name, partitions=5)
        async with place.sink(producer=producer) as sink:
            await deliver(sink, rows(*range(1000)), rows(*range(1000, 1010)))
        records = read(place.topic, at_least=1010)
        assert sorted(ids(records)) == list(range(1010))
        for record in records:
            assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 5

    async def test_each_key_keeps_its_order(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, partitions=3)
        async with place.sink() as sink:
            for number in range(4):
                batches = [rows(*range(40), version=number, note=f"{number}.{part}") for part in range(3)]
                await deliver(sink, *batches)
        notes: dict[int, list[str]] = {}
        for document in documents(read(place.topic, at_least=480)):
            notes.setdefault(document["id"], []).append(document["note"])
        expected = [f"{number}.{part}" for number in range(4) for part in range(3)]
        assert notes == dict.fromkeys(range(40), expected)

    async def test_without_keys_all_partitions_are_used_in_turn(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, partitions=3, keyed=False)
        async with place.sink() as sink:
            for number in range(6):
                await deliver(sink, rows(number, number + 100))
        records = read(place.topic, at_least=12)
        assert {record.key for record in records} == {None}
        by_partition = [[n for n in ids(records) if (n % 100) % 3 == turn] for turn in range(3)]
        actual = [ids([record for record in records if record.partition == number]) for number in range(3)]
        assert sorted(actual) == sorted(by_partition)

    async def test_records_have_the_time_of_their_delivery(self, servers: str, name: str) -> None:
        """That of their commit may be long past, so that a retention takes them at once, or yet to come, which brokers refuse."""
        now = time.time_ns() // 1_000_000
        late = replace(version(5).plan, timestamp_ms=now + 7_200_000)

        place = Place(servers, name)
        async with place.sink() as sink:
            for number, commit in ((3, version(3)), (4, version(4)), (5, replace(version(5), plan=late))):
                delivery = await sink.begin(at(number))
                await delivery.start_version(commit)
                await delivery.write(rows(number))
                await delivery.commit(at(number + 1))
        consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
        try:
            consumer.assign([TopicPartition(place.topic, 0)])
            consumer.seek_to_beginning()
            actual: list[int] = []
            while len(actual) < 3:
                actual += [record.timestamp for some in consumer.poll(100).values() for record in some]
        finally:
            consumer.close()
        assert now <= min(actual) <= max(actual) < now + 3_600_000


class TestTombstones:
    @pytest.mark.parametrize(
        ("config", "setting", "expected"),
        [
            ({"cleanup.policy": "compact"}, "auto", True),
            ({}, "auto", False),
            ({}, "always", True),
            ({"cleanup.policy": "compact"}, "never", False),
        ],
    )
    async def test_follow_deletes(
        self, servers: str, name: str, read: Read, config: dict[str, str], setting: Any, expected: bool
    ) -> None:
        place = Place(servers, name, topics=Topics(partitions=1, config=config), tombstones=setting)
        async with place.sink() as sink:
            await deliver(sink, rows(1), rows(1, kind="delete", version=1))
        records = read(place.topic, at_least=2)
        assert [record.value is None for record in records] == [False, False, True][: 3 if expected else 2]
        assert {record.key for record in records} == {b'{"id":1}'}

    async def test_a_key_that_changes_is_deleted_and_inserted(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, tombstones="always")
        async with place.sink() as sink:
            # The images come in two batches.
            await deliver(
                sink,
                change_rows([Row("update_preimage", 4, 1, "old")]),
                change_rows([Row("update_postimage", 4, 2, "new")], first=1),
            )
        old, tombstone, new = read(place.topic, at_least=3)
        assert (old.key, tombstone.key, new.key) == (b'{"id":1}', b'{"id":1}', b'{"id":2}')
        assert tombstone.value is None
        assert [json.loads(each.value or b"")["_change_type"] for each in (old, new)] == ["delete", "insert"]
        assert dict(old.headers) == {"__cdfd.newkey": b'{"id":2}'}
        assert dict(new.headers) == {"__cdfd.oldkey": b'{"id":1}'}

    async def test_a_pre_image_that_ends_a_delivery_is_not_kept_for_the_next_one(
        self, servers: str, name: str, read: Read
    ) -> None:
        place = Place(servers, name)
        async with place.sink() as sink:
            dropped = await sink.begin(at(0))
            images = [*(Row("insert", 0, n) for n in range(5000)), Row("update_preimage", 0, 13)]
            await dropped.write(change_rows(images))
            await dropped.write(rows(*range(5000)))
            await dropped.write(change_rows(images))
            read(place.topic, at_least=1, committed=False)
            await dropped.abort()
            await deliver(sink, change_rows([Row("update_preimage", 0, 1)]))
            await deliver(sink, rows(2))
        assert ids(read(place.topic, at_least=2)) == [1, 2]


class TestOversized:
    CONFIG = Topics(partitions=1, config={"max.message.bytes": "20000"})

    async def deliver(self, place: Place, producer: MakeProducer) -> int:
        async with place.sink(producer=producer) as sink:
            large = os.urandom(30_000).hex()
            delivery = await sink.begin(at(7))
            await delivery.start_version(version(7))
            await delivery.write(rows(1, version=7))
            await delivery.write(change_rows([Row("insert", 7, 2, large), Row("insert", 7, 3)], first=1))
            await delivery.commit(at(8))
            return sink.context.writer.oversized

    def test_fail(self, producer: MakeProducer, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, topics=self.CONFIG)
        with pytest.raises(SinkError) as raised:
            asyncio.run(self.deliver(place, producer))
        told = str(raised.value)
        for part in ('key {"id":2}', "version 7", "table orders", place.topic, "limit is 20000", "sink.oversized"):
            assert part in told
        assert not raised.value.retriable
        assert read(place.topic) == []
        assert asyncio.run(place.stored_position()) is None

    def test_skip(
        self, producer: MakeProducer, servers: str, name: str, read: Read, caplog: pytest.LogCaptureFixture
    ) -> None:
        place = Place(servers, name, topics=self.CONFIG, oversized="skip")
        assert asyncio.run(self.deliver(place, producer)) == 1
        assert ids(read(place.topic, at_least=2)) == [1, 3]
        assert 'key {"id":2}' in caplog.text
        assert asyncio.run(place.stored_position()) == at(8)

    def test_dead_letters(self, producer: MakeProducer, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, topics=self.CONFIG, oversized="dlq")
        assert asyncio.run(self.deliver(place, producer)) == 1
        assert ids(read(place.topic, at_least=2)) == [1, 3]
        (letter,) = read(f"{place.topic}.dlq", at_least=1)
        assert letter.key == b'{"id":2}'
        told = json.loads(letter.value or b"")
        assert told.pop("size") > 30_000
        assert told == {
            "reason": "the record is larger than the topic takes",
            "pipeline": name,
            "table": "orders",
            "topic": place.topic,
            "version": 7,
            "key": '{"id":2}',
            "limit": 20_000,
        }

    @pytest.mark.parametrize("codec", ["uncompressed", "gzip", "lz4"])
    def test_limits_hold_for_the_codec_of_the_topic(
        self, producer: MakeProducer, servers: str, name: str, read: Read, codec: str
    ) -> None:
        """The broker compresses again what has another codec, or nothing at all."""
        config = Topics(partitions=1, config={"max.message.bytes": "20000", "compression.type": codec})
        place = Place(servers, name, topics=config, oversized="dlq", compression="gzip" if codec == "lz4" else "lz4")

        async def deliver_notes() -> int:
            async with place.sink(producer=producer) as sink:
                delivery = await sink.begin(at(7))
                await delivery.start_version(version(7))
                sizes = range(19_700, 20_000, 10)
                notes = [*(os.urandom(size // 2).hex() for size in sizes), "a" * 100_000]
                for number, note in enumerate(notes):
                    await delivery.write(change_rows([Row("insert", 7, number, note)], first=number))
                await delivery.commit(at(8))
                return sink.context.writer.oversized

        oversized = asyncio.run(deliver_notes())
        assert oversized > 0 or codec != "uncompressed"
        assert len(read(place.topic, at_least=31 - oversized)) == 31 - oversized
        if oversized:
            assert len(read(f"{place.topic}.dlq", at_least=oversized)) == oversized

    async def test_a_dead_letter_is_in_the_transaction(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, topics=self.CONFIG, oversized="dlq")
        async with place.sink() as sink:
            delivery = await sink.begin(at(0))
            await delivery.write(rows(1, note=os.urandom(30_000).hex()))
            read(f"{place.topic}.dlq", at_least=1, committed=False)
            await delivery.abort()
            await deliver(sink, rows(2))
        assert read(f"{place.topic}.dlq") == []


class TestSideTopics:
    def place(self, servers: str, name: str) -> Place:
        return Place(servers, name, schema_topic=f"{name}.schema", transactions_topic=f"{name}.transactions")

    def told(self, read: Read, name: str, count: int) -> list[tuple[str, str, Any]]:
        events = documents(read(f"{name}.transactions", at_least=count))
        return [(each["status"], each["id"], each.get("rows")) for each in events]

    async def test_versions_begin_and_end(self, servers: str, name: str, read: Read) -> None:
        place = self.place(servers, name)
        async with place.sink() as sink:
            delivery = await sink.begin(at(4))
            await delivery.start_version(version(4))
            await delivery.write(rows(1, 2, version=4))
            await delivery.write(rows(3, version=4, kind="delete"))
            await delivery.start_version(version(5))
            await delivery.start_version(version(6))
            await delivery.write(rows(4, version=6))
            await delivery.commit(at(7))
        none = {"insert": 0, "update_preimage": 0, "update_postimage": 0, "delete": 0}
        assert self.told(read, name, 6) == [
            ("BEGIN", "4", None),
            ("END", "4", none | {"insert": 2, "delete": 1}),
            ("BEGIN", "5", None),
            ("END", "5", none),
            ("BEGIN", "6", None),
            ("END", "6", none | {"insert": 1}),
        ]
        assert ids(read(place.topic, at_least=4)) == [1, 2, 3, 4]

    async def test_a_version_in_parts_ends_with_the_counts_of_all(self, servers: str, name: str, read: Read) -> None:
        place = self.place(servers, name)
        steps = [
            (at(4), at(4, 1, ordinal=2)),
            (at(4, 1, ordinal=2), at(4, 2, ordinal=4)),
            (at(4, 2, ordinal=4), at(5)),
        ]
        for number, (position, following) in enumerate(steps):
            async with place.sink() as sink:
                dropped = await sink.begin(position)
                await dropped.start_version(version(4))
                await dropped.write(SENT_AT_ONCE)
                read(place.topic, at_least=3 * number + 1, committed=False)
                await dropped.abort()
                delivery = await sink.begin(position)
                await delivery.start_version(version(4))
                await delivery.write(rows(2 * number, 2 * number + 1, version=4))
                await delivery.commit(following)
        begin, end = self.told(read, name, 2)
        assert begin == ("BEGIN", "4", None)
        assert end[:2] == ("END", "4")
        assert end[2]["insert"] == 6
        assert ids(read(place.topic, at_least=6)) == list(range(6))

    async def test_the_schema_is_told_first_and_when_it_changes(self, servers: str, name: str, read: Read) -> None:
        wider = ("id", "note", "city")
        change = compare(version(0).plan.schema, version(0, fields=wider).plan.schema)
        assert isinstance(change, SchemaChange)

        place = self.place(servers, name)
        async with place.sink() as sink:
            start = await sink.begin(at(4))
            await start.commit(at(4))
        for number in range(4, 8):
            async with place.sink() as sink:
                delivery = await sink.begin(at(number))
                actual = version(number) if number < 6 else version(number, fields=wider)
                if number == 6:
                    actual = version(number, fields=wider, change=change)
                await delivery.start_version(actual)
                await delivery.commit(at(number + 1))
        first, second = documents(read(f"{name}.schema", at_least=2))
        assert (first["version"], first["changes"]) == (4, None)
        assert (second["version"], second["changes"]["added"]) == (6, ["city"])
        assert [field["name"] for field in second["schema"]["fields"]] == list(wider)

    @pytest.mark.parametrize("change", ["nothing", "topic", "schema topic", "created again"])
    async def test_the_schema_is_told_again_where_the_topic_has_none_of_the_table(
        self, servers: str, name: str, read: Read, admin: KafkaAdminClient, change: str
    ) -> None:
        place, told = self.place(servers, name), f"{name}.schema"
        for number in (4, 5, 6):
            if number == 5 and change == "topic":
                place.destination = replace(place.destination, topic=f"{name}.new")
            elif number == 5 and change == "schema topic":
                told = f"{name}.new.schema"
                place.destination = replace(place.destination, schema_topic=told)
            elif number == 5 and change == "created again":
                admin.delete_topics([told])
            async with place.sink() as sink:
                delivery = await sink.begin(at(number))
                await delivery.start_version(version(number))
                await delivery.commit(at(number + 1))
        expected = {"nothing": [4], "topic": [4, 5], "schema topic": [5], "created again": [5]}[change]
        actual = documents(read(told, at_least=len(expected)))
        assert [each["version"] for each in actual] == expected
        assert actual[-1]["topic"] == place.topic

    async def test_they_may_be_compacted(self, servers: str, name: str, read: Read, create: Any) -> None:
        create(f"{name}.schema", cleanup_policy="compact")

        place = self.place(servers, name)
        async with place.sink() as sink:
            delivery = await sink.begin(at(0))
            await delivery.start_version(version(0))
            await delivery.commit(at(1))
        (record,) = read(f"{name}.schema", at_least=1)
        assert record.key == b'{"table":"orders"}'

    async def test_a_schema_that_is_too_large_is_not_left_out(self, servers: str, name: str) -> None:
        place = self.place(servers, name)
        fields = [os.urandom(20).hex() for _ in range(40_000)]
        async with place.sink() as sink:
            delivery = await sink.begin(at(0))
            await delivery.start_version(version(0, fields=fields))
            with pytest.raises(SinkError, match=f"for topic {name}.schema is too large"):
                await delivery.commit(at(1))


class TestAtLeastOnce:
    async def test_rows_without_transactions_and_positions(
        self, producer: MakeProducer, servers: str, name: str, read: Read
    ) -> None:
        place = Place(servers, name, delivery="at_least_once")
        for number in (5, 9):
            async with place.sink(producer=producer) as sink:
                assert (await sink.last_position(), sink.lost_position) == (None, None)
                delivery = await sink.begin(at(number))
                await delivery.write(rows(number))
                await delivery.commit(at(number + 1))
                assert await sink.last_position() == at(number + 1)
                await deliver(sink, rows(number + 1))
        assert ids(read(place.topic, at_least=4)) == [5, 6, 9, 10]
        records = read(place.topic)
        assert [record.offset for record in records] == [0, 1, 2, 3], "there are marks of transactions"
        with pytest.raises(TimeoutError):
            read(place.destination.progress.name, timeout=0.5)
        assert await place.stored_position() is None

    async def test_what_was_aborted_may_be_there(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, delivery="at_least_once")
        async with place.sink() as sink:
            delivery = await sink.begin(at(0))
            await delivery.write(rows(*range(5000)))
            read(place.topic, at_least=5000)
            await delivery.abort()
            await deliver(sink, rows(*range(5000)))
        assert ids(read(place.topic, at_least=10_000)) == [*range(5000), *range(5000)]


class TestClose:
    async def test_closing_ends_the_transaction_of_rows_that_were_sent(
        self, producer: MakeProducer, servers: str, name: str, read: Read
    ) -> None:
        """Until then, no reader of committed records gets past it."""
        place = Place(servers, name)
        async with place.sink(producer=producer) as sink:
            delivery = await sink.begin(at(0))
            await delivery.write(SENT_AT_ONCE)
            read(place.topic, at_least=1, committed=False)
        assert wait_for_markers(servers, place.topic)
        assert read(place.topic) == []


class TestFormats:
    @pytest.mark.parametrize("keyed", [True, False])
    @pytest.mark.parametrize("kind", ["flat", "debezium", "avro", "arrow", "cloudevents"])
    def test_each_once(self, servers: str, name: str, read: Read, kind: Any, keyed: bool) -> None:
        async def scenario(url: str) -> None:
            registry = SchemaRegistry(url)
            place = Place(servers, name, partitions=2, keyed=keyed)
            async with place.sink(kind=kind, registration=Registration(registry)) as sink:
                await deliver(sink, rows(*range(20)), rows(20))
                await deliver(sink, rows(21, kind="delete", version=1))
            registry.close()
            records = read(place.topic, at_least=2)
            if kind == "arrow":
                tables = [pa.ipc.open_stream(record.value).read_all() for record in records]
                assert sorted(n for table in tables for n in table["id"].to_pylist()) == list(range(22))
                assert {record.key for record in records} == {None}
                return
            assert len(records) == 22
            assert all((record.key is not None) == keyed for record in records)
            if kind == "avro":
                assert all((record.value or b"")[:1] == b"\0" for record in records)
            elif kind == "debezium":
                assert sorted((d["after"] or d["before"])["id"] for d in documents(records)) == list(range(22))
            else:
                assert sorted(ids(records)) == list(range(22))
            if kind == "cloudevents":
                assert all(dict(record.headers)["ce_specversion"] == b"1.0" for record in records)

        with serving() as registry:
            asyncio.run(scenario(registry.url))

    @pytest.mark.parametrize("envelope", ["flat", "debezium"])
    @pytest.mark.parametrize("encoding", ["connect_json", "json_schema", "avro", "protobuf"])
    def test_each_encoding_once(
        self, servers: str, name: str, read: Read, envelope: EnvelopeName, encoding: EncodingName
    ) -> None:
        """Confluent's deserializers read values from the topic, with the schemas that are in the registry."""

        async def scenario(registry: Registry) -> None:
            client = SchemaRegistry(registry.url)
            place = Place(servers, name, partitions=2)
            choice = FormatChoice(envelope, encoding)
            async with place.sink(kind=choice, registration=Registration(client)) as sink:
                await deliver(sink, rows(*range(20)), rows(20))
                await deliver(sink, rows(21, kind="delete", version=1))
            client.close()
            records = read(place.topic, at_least=22)
            actual = [deserialized(encoding, registry, place.topic, record.value or b"") for record in records]
            if envelope == "debezium":
                assert sorted(event["op"] for event in actual) == ["c"] * 21 + ["d"]
                actual = [event["after"] or event["before"] for event in actual]
            assert sorted(int(row["id"]) for row in actual) == list(range(22))

        with serving() as registry:
            asyncio.run(scenario(registry))


def deserialized(encoding: str, registry: Registry, topic: str, value: bytes) -> dict[str, Any]:
    if encoding == "connect_json":
        payload: dict[str, Any] = json.loads(value)["payload"]
        return payload
    client, context = SchemaRegistryClient({"url": registry.url}), SerializationContext(topic, MessageField.VALUE)
    if encoding == "avro":
        return dict(AvroDeserializer(client)(value, context))
    if encoding == "json_schema":
        return dict(JSONDeserializer(None, schema_registry_client=client)(value, context))
    kind = message_type(registry.schemas[int.from_bytes(value[1:5], "big")])
    message = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)(value, context)
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True) | {
        field.name: None for field in kind.DESCRIPTOR.fields if field.has_presence and not message.HasField(field.name)
    }


class TestLargeAndSmall:
    def test_many_rows_in_bounded_memory(self, producer: MakeProducer, servers: str, name: str) -> None:
        """As records the rows take 150 MB; no more than a few batches of them may be held at a time."""
        size, count = 5_000, 60
        notes = pa.array([os.urandom(200).hex() for _ in range(size)])
        columns = {
            "id": pa.array(range(size), pa.int64()),
            "note": notes,
            "_change_type": constant_type("insert", size),
        }
        batch = VersionColumns(0, TIME).complete(pa.record_batch(columns), 0)

        async def scenario() -> int:
            place = Place(servers, name, partitions=2)
            async with place.sink(producer=producer) as sink:
                delivery = await sink.begin(at(0))
                before, most = pa.total_allocated_bytes(), 0

                async def deliver() -> None:
                    for _ in range(count):
                        await delivery.write(batch)
                    await delivery.commit(at(1))

                delivering = asyncio.create_task(deliver())
                while not delivering.done():
                    most = max(most, pa.total_allocated_bytes() - before)
                    await asyncio.sleep(0.002)
                await delivering
            return most

        most = asyncio.run(scenario())
        assert most < 36 << 20
        consumer = KafkaConsumer(bootstrap_servers=servers)
        try:
            ends = consumer.end_offsets([TopicPartition(f"{name}.orders", number) for number in (0, 1)])
        finally:
            consumer.close()
        assert sum(ends.values()) == size * count + 2, "all rows, and the mark of one transaction in each partition"

    async def test_many_versions_of_a_row(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, transactions_topic=f"{name}.transactions")
        async with place.sink() as sink:
            delivery = await sink.begin(at(0))
            for number in range(3000):
                await delivery.start_version(version(number))
                await delivery.write(rows(number, version=number))
            await delivery.commit(at(3000))
        assert ids(read(place.topic, at_least=3000)) == list(range(3000))
        told = documents(read(f"{name}.transactions", at_least=6000))
        assert [(each["status"], each["id"]) for each in told] == [
            (status, str(number)) for number in range(3000) for status in ("BEGIN", "END")
        ]

    async def test_columns_that_change_between_small_batches(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name)
        async with place.sink() as sink:
            wider = rows(2).add_column(2, "city", pa.array(["Bern"]).dictionary_encode())
            other = rows(3).add_column(2, "city", pa.array(["Rome"]).dictionary_encode())
            await deliver(sink, rows(1), wider, other, rows(4))
        actual = [(each["id"], each.get("city")) for each in documents(read(place.topic, at_least=4))]
        assert actual == [(1, None), (2, "Bern"), (3, "Rome"), (4, None)]

    async def test_a_snapshot_and_its_end_are_told_apart(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name)
        async with place.sink(kind="debezium") as sink:
            delivery = await sink.begin(at(3, phase="snapshot"))
            await delivery.start_version(version(3, origin="snapshot"))
            await delivery.write(rows(1))
            await delivery.commit(at(4))
            await deliver(sink, rows(2))
        assert [each["op"] for each in documents(read(place.topic, at_least=2))] == ["r", "c"]


class TestTopicCreatedAgain:
    """Another client deletes the topic and creates it again: its id is new, and its rows are gone."""

    @pytest.fixture
    def again(self, admin: KafkaAdminClient, create: Callable[..., str]) -> Callable[[str], None]:
        def again(topic: str) -> None:
            admin.delete_topics([topic])
            create(topic, 2)

        return again

    @pytest.mark.parametrize("client", list(PRODUCERS))
    async def test_while_the_table_is_delivered(
        self,
        client: str,
        servers: str,
        name: str,
        read: Read,
        again: Callable[[str], None],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(kafka_python, "METADATA_SECONDS", 0.0)
        monkeypatch.setattr(librdkafka, "LOOKUP_SECONDS", 0.0)
        producer = PRODUCERS[client]
        place = Place(servers, name)
        async with place.sink(producer=producer) as sink:
            await deliver(sink, rows(1))
            again(place.topic)
            with pytest.raises(SinkError, match="was deleted and created again") as raised:
                await deliver(sink, rows(2))
            assert raised.value.retriable
        assert "created again" not in caplog.text
        async with place.sink(producer=producer) as sink:
            assert f"topic {place.topic} was deleted and has been created again" in caplog.text
            assert "before version 1. `cdfd ctl snapshot orders`" in caplog.text
            assert await sink.last_position() == at(1)
            await deliver(sink, rows(2))
        assert ids(read(place.topic, at_least=1)) == [2]
        assert len(read(place.topic)) == 1

    async def test_while_it_is_not(
        self,
        producer: MakeProducer,
        servers: str,
        name: str,
        again: Callable[[str], None],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        place = Place(servers, name)
        async with place.sink(producer=producer) as sink:
            await deliver(sink, rows(1))
        await move_position(place.destination, producer, at(7))
        again(place.topic)
        async with place.sink(producer=producer) as sink:
            assert "has been created again: it may lack the rows before version 7" in caplog.text
            await deliver(sink, rows(2))
        caplog.clear()
        async with place.sink(producer=producer):
            assert "created again" not in caplog.text

    async def test_another_topic_is_no_loss(self, servers: str, name: str, create: Any, caplog: Any) -> None:
        async with Place(servers, name).sink() as sink:
            await deliver(sink, rows(1))
        async with Place(servers, name, topic=create(f"{name}.renamed")).sink() as sink:
            await deliver(sink, rows(2))
        assert "created again" not in caplog.text


class TestByHand:
    @staticmethod
    async def becomes(place: Place, expected: Position | None) -> None:
        """A broker acknowledges a commit before its marker is in all partitions, and only then do readers see the records."""
        async with asyncio.timeout(30):
            while await place.stored_position() != expected:
                await asyncio.sleep(0.05)

    async def test_positions_are_shown_and_moved(self, producer: MakeProducer, servers: str, name: str) -> None:
        place = Place(servers, name)
        assert await place.stored_position() is None
        await move_position(place.destination, producer, at(7))
        await self.becomes(place, at(7))
        async with place.sink() as sink:
            assert await sink.last_position() == at(7)
            await deliver(sink, rows(7))
            await self.becomes(place, at(8))
            await move_position(place.destination, producer, None)
            with pytest.raises(SinkError):
                await deliver(sink, rows(8))
        await self.becomes(place, None)
        async with place.sink() as sink:
            assert await sink.last_position() is None

    async def test_a_check_writes_nothing(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name, partitions=3)
        assert await check(place.destination) == f"ok, will be created: {name}.orders, _cdfd_progress.{name}"
        with pytest.raises(TimeoutError):
            read(place.topic, timeout=0.5)
        async with place.sink():
            pass
        assert await check(place.destination) == f"ok, topic {name}.orders has 3 partitions"


async def write_and_commit(delivery: KafkaDelivery) -> None:
    for _ in range(20):
        await delivery.write(rows(*range(5000)))
    await delivery.commit(at(1))


class TestFailures:
    async def test_rows_that_cannot_be_encoded_leave_a_sink_that_goes_on(
        self, servers: str, name: str, read: Read
    ) -> None:
        place = Place(servers, name)
        async with place.sink() as sink:
            delivery = await sink.begin(at(0))
            await delivery.write(SENT_AT_ONCE)
            read(place.topic, at_least=1, committed=False)
            await delivery.write(rows(14).drop_columns(["id"]))
            with pytest.raises(SchemaChangedError) as raised:
                await delivery.commit(at(1))
            assert raised.value.table == "orders"
            with pytest.raises(SinkError, match="has failed"):
                await delivery.commit(at(1))
            await delivery.abort()
            await deliver(sink, rows(1))
        assert ids(read(place.topic, at_least=1)) == [1]

    async def test_what_fails_behind_a_write_is_raised_by_a_later_call(
        self, servers: str, name: str, read: Read
    ) -> None:
        place = Place(servers, name)
        async with place.sink() as sink:
            delivery = await sink.begin(at(0))
            await delivery.write(SENT_AT_ONCE)
            read(place.topic, at_least=1, committed=False)
            await delivery.write(rows(*range(5000)).drop_columns(["id"]))
            with pytest.raises(MissingColumnError, match="no column 'id'"):
                await write_and_commit(delivery)
            with pytest.raises(SinkError, match="has failed"):
                await delivery.write(rows(13))
            await delivery.abort()
            await deliver(sink, rows(1))
        assert ids(read(place.topic, at_least=1)) == [1]

    async def test_a_cancelled_commit_counts_or_does_not(self, servers: str, name: str, read: Read) -> None:
        place = Place(servers, name)
        expected: list[int] = []
        for number in range(12):
            async with place.sink() as sink:
                position = await sink.last_position() or at(0)
                delivery = await sink.begin(position)
                await delivery.write(rows(number))
                committing = asyncio.create_task(delivery.commit(position.after_version()))
                await asyncio.sleep(0.002 * number)
                committing.cancel()
                await asyncio.gather(committing, return_exceptions=True)
                await delivery.abort()
                if await sink.last_position() == position.after_version():
                    expected.append(number)
                await deliver(sink, rows(100 + number))
                expected.append(100 + number)
        assert ids(read(place.topic, at_least=len(expected))) == expected

    @pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
    async def test_opening_can_be_given_up(
        self, servers: str, name: str, seconds: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        """At any moment; and it does not fence the next sink then."""
        with caplog.at_level(logging.WARNING, "cdfd"):
            place = Place(servers, name)
            opening = asyncio.create_task(place.open())
            await asyncio.sleep(seconds)
            opening.cancel()
            (outcome,) = await asyncio.gather(opening, return_exceptions=True)
            if not isinstance(outcome, BaseException):
                await outcome.close()
            async with place.sink() as sink:
                await deliver(sink, rows(0))
        # Clients warn of their own accord, for example if the machine is slow.
        assert [record.getMessage() for record in caplog.records if record.name.startswith("cdfd")] == []


async def test_a_position_is_lost_if_the_topic_has_records(
    servers: str, name: str, producer: MakeProducer, admin: KafkaAdminClient
) -> None:
    """Neither a first start nor one after a reset says so."""
    place = Place(servers, name)
    async with place.sink(producer=producer) as sink:
        assert sink.lost_position is None
    async with place.sink(producer=producer) as sink:
        assert sink.lost_position is None
        await deliver(sink, rows(1))
    async with place.sink(producer=producer) as sink:
        assert sink.lost_position is None
    await move_position(place.destination, producer, None)
    async with place.sink(producer=producer) as sink:
        assert (await sink.last_position(), sink.lost_position) == (None, None)
    admin.delete_topics([place.destination.progress.name])
    async with place.sink(producer=producer) as sink:
        assert sink.lost_position is not None
        assert sink.lost_position.startswith(f"topic {place.topic} has records, but")
    # Of a topic that several tables have, the records may be those of another one.
    async with Place(servers, name, shared=True).sink(producer=producer) as sink:
        assert (await sink.last_position(), sink.lost_position) == (None, None)
