"""Sinks in Kafka tests: rows, versions and deliveries of a table whose columns are an id and a note."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.schema_change import SchemaChange
from cdfd.delta.types.schema_string import parse
from cdfd.encode.formats import FormatChoice
from cdfd.encode.registered import Registration
from cdfd.model.plan import ChangePlan, Origin
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
from cdfd.sinks.kafka.destination import Destination, MakeProducer
from cdfd.sinks.kafka.progress.positions import read_progress
from cdfd.sinks.kafka.settings import Topics
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from tests.support.change_rows import TIME, Row, change_rows
from tests.support.kafka.encoders import encoders
from tests.support.kafka.reading import Record

PRODUCERS: dict[str, MakeProducer] = {"kafka-python": KafkaPythonProducer, "librdkafka": LibrdkafkaProducer}
TABLE_ID = "0b1c"


class Place:
    """A table's topics in a cluster.

    Args:
        servers: of the cluster.
        name: of the pipeline; names of topics begin with it.
        partitions: of the topic of the rows, where it is not there.
        settings: of the `Destination`.
    """

    def __init__(self, servers: str, name: str, *, table: str = "orders", partitions: int = 1, **settings: Any) -> None:
        self.destination = Destination(
            **{
                "connection": {"bootstrap_servers": [servers]},
                "pipeline": name,
                "table": table,
                "topic": f"{name}.{table}",
                "keyed": True,
                "topics": Topics(partitions=partitions),
            }
            | settings
        )

    @property
    def topic(self) -> str:
        return self.destination.topic

    async def stored_position(self) -> Position | None:
        progress = await read_progress(self.destination)
        return None if progress is None else progress.position

    async def open(
        self,
        *,
        producer: MakeProducer = KafkaPythonProducer,
        kind: str | FormatChoice = "flat",
        registration: Registration | None = None,
    ) -> KafkaSink:
        key = ["id"] if self.destination.keyed else []
        return await KafkaSink.open(self.destination, producer, encoders(kind, key, registration))

    @asynccontextmanager
    async def sink(self, **options: Any) -> AsyncIterator[KafkaSink]:
        sink = await self.open(**options)
        try:
            yield sink
        finally:
            await sink.close()


def at(version: int, part: int = 0, phase: Any = "stream", ordinal: int = 0) -> Position:
    return Position(TABLE_ID, version, part, phase, ordinal)


def rows(*ids: int, version: int = 0, kind: str = "insert", note: str | None = None) -> pa.RecordBatch:
    return change_rows([Row(kind, version, number, note) for number in ids])


def version(
    number: int, *, origin: Origin = "files", change: SchemaChange | None = None, fields: Sequence[str] = ("id", "note")
) -> Version:
    listed = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in fields]
    schema = TableSchema(parse(json.dumps({"type": "struct", "fields": listed})), ())
    return Version(ChangePlan(number, TIME + number, schema, (), origin), TABLE_ID, change)


async def deliver(sink: KafkaSink, *batches: pa.RecordBatch, following: Position | None = None) -> None:
    """A delivery from where the sink stands, by default of one version."""
    position = await sink.last_position() or at(0)
    delivery = await sink.begin(position)
    for batch in batches:
        await delivery.write(batch)
    await delivery.commit(following or position.after_version())


def ids(records: Sequence[Record]) -> list[int]:
    """Of flat records, without tombstones."""
    return [json.loads(record.value)["id"] for record in records if record.value is not None]


def documents(records: Sequence[Record]) -> list[Any]:
    return [json.loads(record.value or b"null") for record in records]


Read = Callable[..., list[Record]]
