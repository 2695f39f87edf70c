"""Names under which state is found again, and hashes that must not change: `golden/names.json` has them."""

import json
from collections.abc import Iterator

import pyarrow as pa

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.daemon.membership.shard import owner
from cdfd.deliver.path_ranges import MOST_RANGES
from cdfd.delta.types import schema as schemas
from cdfd.delta.types.schema import Primitive, StructField
from cdfd.encode.encoding import EncodedRows
from cdfd.encode.formats import EncoderOptions, FormatChoice, encoding_of, keys_of
from cdfd.encode.records import Origin
from cdfd.log.entry import parse_and_digest
from cdfd.model.control import Control
from cdfd.model.refinement import BUCKET_BYTES, MOST_BUCKETS
from cdfd.plan.shape.masks import Mask
from cdfd.sinks.base import connector
from cdfd.sinks.kafka.connector import KafkaConnector
from cdfd.sinks.kafka.progress.records import key_of, signals_key
from cdfd.sinks.kafka.records.murmur2 import partitions
from cdfd.sinks.kafka.signals import KafkaSignals
from cdfd.sinks.kafka.transactions import parts
from cdfd.sinks.ledger.ledger import app_id
from cdfd.spark import upsert
from cdfd.spark.engine import queries
from cdfd.spark.source import partitioning
from tests.support.schemas import Catalog
from tests.support.upgrade.rows import KEYS

_KAFKA = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:9092", "oversized": "dlq"}
_TABLES = [
    {"uri": "/lake/sales/orders/", "key": ["id"]},
    {"uri": "s3://lake/Order.Lines/"},
    {"uri": "file:///lake/order%5Flines"},
    {"uri": "/lake/items", "name": "items-1", "topic": "stock.items"},
]


def configured(**sections: object) -> Settings:
    """Settings of a pipeline with a table of each kind of name."""
    return parse(json.dumps({"pipeline": "golden", "tables": _TABLES, "sink": _KAFKA, **sections}), {})


def names() -> dict[str, str]:
    """All names, by what they are."""
    return dict([*_of_tables(), *_of_kafka(), *_of_topics(), *_of_stores(), *_of_found_tables(), *_hashes(), *_keys()])


def names_file() -> bytes:
    """The names as their golden file has them."""
    return json.dumps(names(), indent=1, ensure_ascii=False).encode() + b"\n"


def _of_tables() -> Iterator[tuple[str, str]]:
    for table in configured().listed:
        yield f"table name of {table.uri}", table.name
        yield f"topic of {table.uri}", table.topic
        yield f"appId of {table.uri}", app_id("golden", table.name)


def _of_kafka() -> Iterator[tuple[str, str]]:
    config = configured()
    sink, table = connector(config), config.listed[0]
    assert isinstance(sink, KafkaConnector)
    roles = {
        "table": None,
        "part": parts.role(3),
        "backfill": "backfill",
        "named backfill": "backfill.may",
        "part of a backfill": parts.role(3, "backfill.may"),
    }
    for what, role in roles.items():
        place = sink.destination(table, role)
        yield f"kafka: transactional id of a {what}", place.transactional_id
        yield f"kafka: key of a {what}", key_of(place.pipeline, place.delivery_name).decode()
    yield "kafka: topic of positions", sink.destination(table).progress.name
    yield "kafka: dead-letter topic", sink.destination(table).dlq_topic
    yield "kafka: key of signals", signals_key("golden", "").decode()
    yield "kafka: key of signals of a shard", signals_key("golden", "2").decode()
    for reader in ("", "2"):
        signals = KafkaSignals({}, "golden", config.sink.topics, reader, _announce, 1)  # type: ignore[attr-defined]
        yield f"kafka: topic of signals, reader {reader!r}", signals.topic
        yield f"kafka: consumer group of signals, reader {reader!r}", signals._group
        signals.close()


async def _announce(records: object) -> None: ...


def _of_topics() -> Iterator[tuple[str, str]]:
    """The topics of the daemon itself."""
    for prefix in ("", "shop."):
        topics = {"prefix": prefix, "transactions": True}
        config = configured(
            sink=_KAFKA | {"topics": topics}, heartbeat={"interval": "1s"}, controls={"notifications": True}
        )
        for topic, key in config.sink.side_topics("golden").items():
            yield f"kafka: {key} with prefix {prefix!r}", topic
        yield f"kafka: heartbeat.topic with prefix {prefix!r}", config.own_topics.heartbeats
        yield f"kafka: controls.notifications with prefix {prefix!r}", config.own_topics.notifications
        yield f"kafka: topic of a table with prefix {prefix!r}", config.listed[0].topic


def _of_stores() -> Iterator[tuple[str, str]]:
    for kind in ("files", "delta"):
        config = configured(sink={"kind": kind, "path": "/out/"})
        for table in config.listed:
            yield f"{kind}: place of {table.uri}", connector(config).dataset(table)[1]
    spark = configured(engine={"kind": "spark", "spark": {"checkpoint": "s3://state/"}})
    yield "spark: checkpoint of a table", queries.location(spark, spark.listed[0])
    yield "spark: columns of a copy", f"{upsert.VERSION}, {upsert.ORDINAL}, {upsert._DELETED}"


def _of_found_tables() -> Iterator[tuple[str, str]]:
    """Tables that a pattern finds."""
    for template in ({}, {"name": "{parent}.{table}", "topic": "all.{path}"}):
        config = configured(tables=[{"discover": "/lake/*/*", **template}])
        (discovery,) = config.discoveries
        settings = discovery.table_at(("sales", "orders")).with_key({})
        yield f"discovery {template or 'without templates'}", f"{settings.name} -> {settings.topic}"


def _hashes() -> Iterator[tuple[str, str]]:
    entry = b'{"commitInfo":{"timestamp":1}}\n{"txn":{"appId":"a","version":1}}\n'
    yield "digest of a log entry", parse_and_digest(len, entry)[1]
    yield "digest of a log entry in chunks", parse_and_digest(list, [entry[:9], entry[9:]])[1]
    snapshots = (Control(snapshots=count).begin("ops-7", "").snapshot for count in (0, 1, 4096))
    yield "first ordinals of re-snapshots", " ".join(str(snapshot.ordinal) for snapshot in snapshots if snapshot)
    sizes = BUCKET_BYTES, MOST_BUCKETS, MOST_RANGES, partitioning.LEAST_BYTES, partitioning.MOST_BYTES
    yield "sizes of buckets, ranges and partitions", " ".join(map(str, (*sizes, partitioning.TARGET_PARTITIONS)))
    yield "shards of tables", " ".join(str(owner(f"table_{number}", 7)) for number in range(20))
    column = StructField("country", Primitive("string"))
    mask = Mask("hmac_sha256", key=b"0123456789abcdef").applied(column)
    yield "masked by hmac_sha256", json.dumps(mask(pa.array(["de", None, ""])).to_pylist())


def _keys() -> Iterator[tuple[str, str]]:
    """Keys of records in each format that has other ones, the partition that they are in, and the subjects of their schemas."""
    for column in KEYS.schema.names[:-4]:
        make_keys = keys_of(FormatChoice(), EncoderOptions(Origin("golden", "orders", "T", "orders"), (column,)))
        assert make_keys is not None
        keys = make_keys(KEYS)
        where = partitions(keys, 12).tolist()
        placed = [f"{key.decode()}@{part}" for key, part in zip(keys.to_pylist(), where, strict=True)]
        yield f"key {column}", " ".join(placed)
    known, avro = Catalog(), FormatChoice("flat", "avro")
    options = EncoderOptions(Origin("golden", "orders", "T", "orders"), registration=known.registration)
    EncodedRows(encoding_of(avro, options, "key"), "orders.Key")(KEYS)
    EncodedRows(encoding_of(avro, options, "value"), "orders.Value")(KEYS)
    yield from ((f"avro subject {subject}", schema) for subject, schema in known.subjects)
    yield "delta schema", schemas.serialize(schemas.from_arrow(KEYS.select(KEYS.schema.names[:-4]).schema))
