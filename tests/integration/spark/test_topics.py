"""`read_changes` returns the records of the daemon's sink, in every format, as the rows of `cdfd.changes`."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from kafka import KafkaProducer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import cdfd
from cdfd.encode.debezium import DebeziumEncoder
from cdfd.encode.formats import FormatChoice
from cdfd.encode.records import Origin
from cdfd.encode.registered import Registration
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry
from cdfd.spark.records.records import CHANGE_NAMES, KAFKA_NAMES
from cdfd.spark.topics import apply_changes, read_changes
from tests.support.kafka.fixtures import admin, broker, create, name, needs_broker, topic
from tests.support.kafka.shared import SharedBroker
from tests.support.kafka.sinking import Place, rows
from tests.support.schema_registry import Registry, serving
from tests.support.schemas import AVRO, BatchEncoder
from tests.support.spark.topics import deliver, expected, write_rich

__all__ = ["admin", "broker", "create", "name", "needs_broker", "topic"]

Rows = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def rich(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("rich") / "rich")
    write_rich(spark, uri)
    return uri


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving() as server:
        yield server


@pytest.fixture
def register(registry: Registry) -> Iterator[SchemaRegistry]:
    client = SchemaRegistry(registry.url)
    yield client
    client.close()


@pytest.fixture
def read(spark: SparkSession, broker: SharedBroker) -> Callable[..., DataFrame]:
    def changes(topic: str, **options: Any) -> DataFrame:
        return read_changes(spark, topic, bootstrap_servers=broker.bootstrap_servers, **options)

    return changes


def of_sink(kind: str) -> str | FormatChoice:
    """A format by its word, or by an envelope and an encoding."""
    return FormatChoice(*kind.split()) if " " in kind else kind  # type: ignore[arg-type]


def of_reader(kind: str) -> str | Mapping[str, str]:
    """The same for `read_changes`."""
    return dict(zip(("envelope", "encoding"), kind.split(), strict=True)) if " " in kind else kind


def in_order(rows: Rows) -> list[str]:
    """As texts: a NaN equals no other."""
    return [repr(row) for row in sorted(rows, key=lambda row: (row["_commit_version"], row["_change_ordinal"]))]


def collected(changes: DataFrame) -> list[str]:
    return in_order(changes.toArrow().to_pylist())


@pytest.mark.parametrize("kind", ["flat", "cloudevents", "debezium", "arrow", "avro", "debezium avro"])
def test_every_type_comes_back_exactly(
    kind: str,
    rich: str,
    broker: SharedBroker,
    name: str,
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    place = Place(broker.bootstrap_servers, name, partitions=2)
    deliver(place, cdfd.changes(rich), of_sink(kind), registration=Registration(register))
    options = {"registry": registry.url} if "avro" in kind else {}
    changes = read(place.topic, format=of_reader(kind), table=rich, **options)
    assert collected(changes) == in_order(expected(rich))


@pytest.mark.parametrize("envelope", ["flat", "cloudevents", "debezium"])
def test_json_behind_the_id_of_its_schema_comes_back_exactly(
    envelope: str,
    rich: str,
    broker: SharedBroker,
    name: str,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    """But for numbers that JSON Schema does not have, which are null, and columns that have other forms."""
    place = Place(broker.bootstrap_servers, name, partitions=2)
    format = {"envelope": envelope, "encoding": "json_schema"}
    deliver(place, cdfd.changes(rich), FormatChoice(**format), registration=Registration(register))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="column by_number"):
        read(place.topic, format=format, table=rich)
    left_out = {"by_number", "by_day", "by_bytes", "by_struct", "nest"}
    columns = [column for column in cdfd.changes(rich).schema.names if column not in {*left_out, *CHANGE_NAMES}]
    changes = read(place.topic, format=format, table=rich, columns=columns)
    rows = [{key: value for key, value in row.items() if key not in left_out} for row in expected(rich)]
    for row in rows:
        row |= {key: None for key in "fd" if row[key] is not None and not math.isfinite(row[key])}
    assert collected(changes) == in_order(rows)


def test_subject_by_record(
    rich: str,
    broker: SharedBroker,
    name: str,
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    place = Place(broker.bootstrap_servers, name)
    cloudevents = FormatChoice("cloudevents", "avro")
    deliver(place, cdfd.changes(rich), cloudevents, registration=Registration(register, "topic_record"))
    settings = {"url": registry.url, "subject": "topic_record"}
    changes = read(place.topic, format={"envelope": "cloudevents", "encoding": "avro"}, table=rich, registry=settings)
    assert collected(changes) == in_order(expected(rich))


@pytest.mark.parametrize("kind", ["avro", "debezium avro"])
def test_avro_tells_its_schema_itself(
    kind: str,
    rich: str,
    broker: SharedBroker,
    name: str,
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    place = Place(broker.bootstrap_servers, name)
    deliver(place, cdfd.changes(rich), of_sink(kind), registration=Registration(register))
    changes = read(place.topic, format=of_reader(kind), registry=registry.url)
    # Avro has ints of one width.
    wider = expected(rich)
    assert collected(changes) == in_order(wider)
    assert dict(changes.dtypes)["b"] == "int"


@pytest.mark.parametrize("kind", ["flat", "debezium", "arrow", "avro", "debezium avro"])
def test_columns_of_type_void_are_left_out(
    kind: str,
    broker: SharedBroker,
    name: str,
    tmp_path: Path,
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2], "s": [{"a": "x"}, None]}))
    [entry] = (tmp_path / "t" / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            struct = json.loads(action["metaData"]["schemaString"])
            struct["fields"].append({"name": "nothing", "type": "void", "nullable": True, "metadata": {}})
            action["metaData"]["schemaString"] = json.dumps(struct)
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
    table = str(tmp_path / "t")
    place = Place(broker.bootstrap_servers, name)
    rows = cdfd.changes(table)
    assert "nothing" in rows.schema.names
    deliver(place, rows, of_sink(kind), registration=Registration(register))
    options = {"registry": registry.url} if "avro" in kind else {}
    actual = read(place.topic, format=of_reader(kind), table=table, **options).toArrow()
    assert "nothing" not in actual.schema.names
    assert sorted(actual["id"].to_pylist()) == [1, 2]


def test_longs_in_quotes(rich: str, broker: SharedBroker, name: str, read: Callable[..., DataFrame]) -> None:
    place = Place(broker.bootstrap_servers, name)
    deliver(place, cdfd.changes(rich), "flat", longs_as_strings=True)
    assert collected(read(place.topic, table=rich)) == in_order(expected(rich))


@pytest.mark.parametrize("kind", ["flat", "arrow", "avro"])
def test_variants(
    kind: str,
    spark: SparkSession,
    broker: SharedBroker,
    name: str,
    tmp_path: Path,
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    table = f"{tmp_path}/t"
    spark.sql(f"CREATE TABLE delta.`{table}` (id INT, v VARIANT, many ARRAY<STRUCT<w: VARIANT>>) USING delta")
    document = '{"a":[1,2.5,null],"b":"x"}'
    spark.sql(
        f"""INSERT INTO delta.`{table}` SELECT 1, parse_json('{document}'), array(named_struct('w', parse_json('"text"')), null)
        UNION ALL SELECT 2, null, null"""
    )
    place = Place(broker.bootstrap_servers, name)
    deliver(place, cdfd.changes(table), kind, registration=Registration(register))
    options = {"registry": registry.url} if "avro" in kind else {}
    actual = read(place.topic, format=of_reader(kind), table=table, **options)
    assert dict(actual.dtypes)["v"] == "variant"
    texts = actual.selectExpr("id", "to_json(v) v", "many[0].w::string w", "size(many) n").orderBy("id").collect()
    assert [tuple(row) for row in texts] == [(1, document, "text", 2), (2, None, None, None)]


def test_rows_of_earlier_schemas(
    spark: SparkSession,
    broker: SharedBroker,
    name: str,
    tmp_path: Path,
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    """Each version is delivered in its own schema; what is read is in the newest."""
    table = f"{tmp_path}/t"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id INT, s STRUCT<a: INT>) USING delta TBLPROPERTIES (delta.enableTypeWidening = true)"
    )
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (1, named_struct('a', 1))")
    before = cdfd.changes(table).read_all()
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (note STRING, s.b DATE)")
    spark.sql(f"ALTER TABLE delta.`{table}` ALTER COLUMN id TYPE BIGINT")
    spark.sql(
        f"INSERT INTO delta.`{table}` VALUES (9007199254740993, named_struct('a', 2, 'b', DATE'2026-01-31'), 'x')"
    )
    after = cdfd.changes(table, 4).read_all()
    wanted = in_order(expected(table))
    for kind in ("flat", "debezium", "arrow", "avro", "debezium avro"):
        place = Place(broker.bootstrap_servers, f"{name}-{kind.replace(' ', '-')}", keyed=False)
        for written in (before, after):
            deliver(place, written.to_reader(), of_sink(kind), registration=Registration(register))
        options = {"registry": registry.url} if "avro" in kind else {}
        assert collected(read(place.topic, format=of_reader(kind), table=table, **options)) == wanted, kind


def simple(*ids: int, version: int = 0, kind: str = "insert") -> pa.RecordBatchReader:
    batch = rows(*ids, version=version, kind=kind)
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


SIMPLE = "id BIGINT, note STRING"


def test_from_where_to_where(broker: SharedBroker, name: str, read: Callable[..., DataFrame]) -> None:
    place = Place(broker.bootstrap_servers, name)
    deliver(place, simple(1, 2, 3))
    actual = read(place.topic, schema=SIMPLE, columns=["note", "id"], kafka_columns=True)
    assert actual.columns == ["note", "id", *CHANGE_NAMES, *KAFKA_NAMES]
    offsets = {row.id: row._kafka_offset for row in actual.collect()}
    assert {row._kafka_topic for row in actual.collect()} == {place.topic}
    part = read(place.topic, schema=SIMPLE, starting={0: offsets[2]}, ending={0: offsets[3]})
    assert [row.id for row in part.collect()] == [2]
    assert read(place.topic, schema=SIMPLE, starting=datetime(2100, 1, 1, tzinfo=UTC)).count() == 0
    assert read(place.topic, schema=SIMPLE, ending=datetime(2001, 1, 1, tzinfo=UTC)).count() == 0
    assert read(place.topic, schema=SIMPLE, starting=datetime(2001, 1, 1, tzinfo=UTC)).count() == 3


def test_records_that_are_not_committed_are_no_rows(
    broker: SharedBroker, name: str, read: Callable[..., DataFrame]
) -> None:
    place = Place(broker.bootstrap_servers, name)
    deliver(place, simple(1, 2))
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(place.topic, b"not JSON at all")
    producer.flush()
    open_transaction = read(place.topic, schema=SIMPLE).collect()
    producer.abort_transaction()
    producer.close()
    for read_rows in (open_transaction, read(place.topic, schema=SIMPLE).collect()):
        assert sorted((row._change_type, row.id) for row in read_rows) == [("insert", 1), ("insert", 2)]


@pytest.mark.parametrize("kind", ["flat", "cloudevents", "debezium", "arrow", "avro", "debezium avro"])
def test_tombstones_are_no_rows_whatever_is_asked(
    kind: str,
    spark: SparkSession,
    broker: SharedBroker,
    name: str,
    tmp_path: Path,
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    """Spark pushes what it infers from a question below the filter that leaves tombstones out."""
    place = Place(broker.bootstrap_servers, name, tombstones="always", keyed=kind != "arrow")
    for changed in (simple(1, 2), simple(1, version=1, kind="delete")):
        deliver(place, changed, of_sink(kind), registration=Registration(register))
    if kind == "arrow":
        # The format has none. A producer of one's own may write some.
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send(place.topic, None, key=b"1").get(60)
    options = {"registry": registry.url} if "avro" in kind else {"schema": SIMPLE}
    changes = read(place.topic, format=of_reader(kind), **options)
    assert changes.count() == 3
    assert sorted(tuple(row) for row in changes.select("id", "_change_type").collect()) == [
        (1, "delete"),
        (1, "insert"),
        (2, "insert"),
    ]
    assert [row.id for row in changes.where("_change_type = 'delete' AND id IS NOT NULL").collect()] == [1]
    assert changes.where("id IS NULL").count() == 0
    assert {row[0]: row[1] for row in changes.groupBy("id").count().collect()} == {1: 2, 2: 1}
    stream = read(place.topic, format=of_reader(kind), streaming=True, **options)
    target = str(tmp_path / "copy")
    query = apply_changes(
        stream, target, ["id"], checkpoint=str(tmp_path / "checkpoint"), trigger={"availableNow": True}
    )
    assert query is not None
    assert query.awaitTermination(120)
    assert [row.id for row in spark.read.format("delta").load(target).collect()] == [2]


GOOD = {"id": 1, "note": "x", "_change_type": "insert", "_commit_version": 1}
GOOD |= {"_commit_timestamp": "2026-01-31T12:00:00.000000Z", "_change_ordinal": 0}
EVENT = {"before": None, "after": {"id": 1, "note": "x"}, "op": "c", "source": {"ts_ms": 1, "commit_version": 1}}
WRONG: Sequence[tuple[str, bytes]] = [
    ("flat", b"not JSON at all"),
    ("flat", b""),
    ("flat", b"null"),
    ("flat", json.dumps(EVENT).encode()),
    ("flat", json.dumps(GOOD | {"_change_type": "upsert"}).encode()),
    ("flat", json.dumps(GOOD | {"id": "a number"}).encode()),
    ("flat", json.dumps(GOOD | {"id": 1.5}).encode()),
    ("flat", json.dumps(GOOD | {"id": 9223372036854775808}).encode()),
    ("flat", json.dumps(GOOD | {"_commit_timestamp": "yesterday"}).encode()),
    ("flat", json.dumps(GOOD)[:-1].encode()),
    ("debezium", json.dumps(GOOD).encode()),
    ("debezium", json.dumps(EVENT).encode()),
    ("debezium", b"{"),
    ("arrow", json.dumps(GOOD).encode()),
    ("arrow", b""),
    ("avro", json.dumps(GOOD).encode()),
    ("avro", b"\0\0\0\0\x63rest"),
    ("avro", b"\0\0\0\0\x01\xff"),
]


def test_a_wrong_record_is_named(
    broker: SharedBroker,
    name: str,
    create: Callable[..., str],
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    create(name)
    register.register(f"{name}-value", BatchEncoder(AVRO, rows(1).schema, f"{name}.Value").schema)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for _, value in WRONG:
            producer.send(name, value)
    for offset, (kind, value) in enumerate(WRONG):
        options = {"registry": registry.url} if "avro" in kind else {}
        actual = read(
            name, format=of_reader(kind), schema=SIMPLE, starting={0: offset}, ending={0: offset + 1}, **options
        )
        with pytest.raises(PySparkException, match=f"topic {name}, partition 0, offset {offset}: ") as told:
            # One column, and not that which is wrong: nothing is looked at less for it.
            actual.select("note").collect()
        assert value.decode("latin-1") not in str(told.value).splitlines()[0] or not value


def test_a_wrong_event_in_avro_is_named(
    broker: SharedBroker,
    name: str,
    create: Callable[..., str],
    registry: Registry,
    register: SchemaRegistry,
    read: Callable[..., DataFrame],
) -> None:
    create(name)
    shape = DebeziumEncoder(Origin("bench", name, "id", name)).shape(rows(1).schema)
    number = register.register(f"{name}-value", AVRO(shape).schema, "AVRO")
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for frame in (number + 1000, number):
            producer.send(name, b"\0" + frame.to_bytes(4, "big") + b"\xff")
    for offset in range(2):
        asked = {"schema": SIMPLE, "registry": registry.url, "starting": {0: offset}, "ending": {0: offset + 1}}
        with pytest.raises(PySparkException, match=f"topic {name}, partition 0, offset {offset}: "):
            read(name, format=of_reader("debezium avro"), **asked).select("note").collect()


def test_a_stream_goes_on_where_it_was(
    spark: SparkSession, broker: SharedBroker, name: str, tmp_path: Path, read: Callable[..., DataFrame]
) -> None:
    place = Place(broker.bootstrap_servers, name, keyed=False)
    for kind in ("flat", "arrow"):
        place = Place(broker.bootstrap_servers, f"{name}-{kind.replace(' ', '-')}", keyed=False)
        for ids in ((1, 2), (3, 4, 5)):
            deliver(place, simple(*ids, version=ids[0]), kind)
            changes = read(place.topic, format=of_reader(kind), schema=SIMPLE, streaming=True)
            query = (
                changes.writeStream.format("parquet")
                .option("checkpointLocation", f"{tmp_path}/{kind}-checkpoint")
                .trigger(availableNow=True)
                .start(f"{tmp_path}/{kind}")
            )
            assert query.awaitTermination(60)
        assert sorted(row.id for row in spark.read.parquet(f"{tmp_path}/{kind}").collect()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "given nowhere"),
        ({"schema": SIMPLE, "table": "/t"}, "by `schema` and `table`"),
        ({"schema": "id NUMBER OF THINGS"}, "not a schema"),
        ({"schema": "id INT, _change_type STRING"}, "_change_type"),
        ({"schema": SIMPLE, "columns": ["nope"]}, "no column 'nope'"),
        ({"schema": SIMPLE, "format": "xml"}, "no format 'xml'"),
        ({"schema": SIMPLE, "format": "avro"}, "schema registry"),
        ({"schema": SIMPLE, "registry": "http://localhost:1"}, "schema registry"),
        ({"schema": SIMPLE, "starting": "tomorrow"}, "`starting` is 'tomorrow'"),
        ({"schema": SIMPLE, "starting": datetime(2026, 1, 1)}, "without a zone"),  # noqa: DTZ001 -- that is what is wrong
        ({"schema": SIMPLE, "streaming": True, "ending": {0: 1}}, "no end"),
        ({"schema": SIMPLE, "options": {"subscribe": "x"}}, "'subscribe', which has an argument of its own"),
        ({"schema": SIMPLE, "options": {"kafka.isolation.level": "read_uncommitted"}}, "read_committed"),
        ({"schema": "m MAP<BINARY, VARIANT>"}, "from JSON"),
        ({"format": "avro", "registry": {"url": "http://localhost:1", "user": "x"}}, "registry`: user"),
        ({"format": {"encoding": "protobuf"}, "schema": SIMPLE}, "does not read the encoding protobuf"),
        (
            {"format": {"encoding": "connect_json"}, "schema": SIMPLE},
            "or read records of Spark's Kafka source by `from_json`",
        ),
        ({"format": {"envelope": "debezium", "encoding": "arrow"}}, "in the envelope debezium"),
        ({"format": {"encoding": "json_schema", "binary": "hex"}}, "`binary: hex`"),
        ({"format": {"encoding": "thrift"}}, "`encoding` of `format` is 'thrift'"),
        ({"format": {"encodings": "avro"}}, "`format` has no key 'encodings'"),
    ],
)
def test_wrong_arguments(read: Callable[..., DataFrame], options: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, UnsupportedError)) as error:
        read("a-topic", **options)
    assert told in str(error.value)


def test_a_subject_that_is_not_there(read: Callable[..., DataFrame], registry: Registry) -> None:
    with pytest.raises(ConfigError, match="no subject elsewhere-value"):
        read("elsewhere", format="avro", registry={"url": registry.url, "username": "u", "password": "secret"})
