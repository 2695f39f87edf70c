"""Keys of a store that Spark's options name: executors get them with the reader, and nothing else has them.

Without a JVM: the objects that Spark gets from the source, the sink and the engine, over a table in S3.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from cdfd.config.parser import parse
from cdfd.deliver.assignment import Assignment
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.spark.engine.engine import pack
from cdfd.spark.engine.kafka_sink import CdfdKafka
from cdfd.spark.engine.sink_options import SinkOptions
from cdfd.spark.source.packed import unpack
from cdfd.spark.source.reading import ChangePartition, change_rows, open_table
from cdfd.spark.source.source import CdfdSource
from cdfd.storage.location import open_storage
from tests.support import lake
from tests.support.s3.server import Server

KEY_ID, SECRET, PASSWORD = "key-id-of-this-test", "s3cret-of-this-test", "passw0rd-of-this-test"


@pytest.fixture
def uri(moto_server: Server, bucket: str) -> str:
    async def made() -> None:
        storage = open_storage(f"s3://{bucket}/orders", moto_server.options())
        writer = TableWriter(storage, lake.SCHEMA, clock=lake.manual_clock())
        await writer.create()
        await writer.insert(lake.rows(1, 2))
        await writer.insert(lake.rows(3))

    lake.run(made())
    return f"s3://{bucket}/orders"


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every log line of a test, of libraries too."""
    with caplog.at_level(logging.DEBUG):
        yield
    assert has_none(caplog.text)


def has_none(*places: object) -> bool:
    texts = [each if isinstance(each, bytes) else str(each).encode() for each in places]
    return not any(secret.encode() in text for secret in (KEY_ID, SECRET, PASSWORD) for text in texts)


def storage(server: Server) -> dict[str, str]:
    return {
        "storage.endpoint_url": server.url,
        "storage.region": "us-east-1",
        "storage.allow_http": "true",
        "storage.access_key_id": KEY_ID,
        "storage.secret_access_key": SECRET,
    }


def source(server: Server, uri: str, **options: str) -> CdfdSource:
    return CdfdSource({"path": uri, **storage(server), **options})


def test_a_batch(moto_server: Server, uri: str) -> None:
    actual = source(moto_server, uri, maxPartitionBytes="1")
    schema = actual.schema()
    reader = actual.reader(schema)
    partitions = reader.partitions()
    assert len(partitions) == 2
    assert sum(batch.num_rows for each in partitions for batch in reader.read(each)) == 3
    assert has_none(schema.json(), repr(actual._options), repr(actual), repr(reader), open_table(actual._options))
    for partition in partitions:
        assert has_none(repr(partition), vars(partition), pickle.dumps(partition))
    # Executors open the store with the reader's options: here they are, so the search finds them.
    assert not has_none(pickle.dumps(reader))


def test_packed_rows(moto_server: Server, uri: str) -> None:
    actual = source(moto_server, uri, startingVersion="0", packed="true")
    reader = actual.reader(actual.schema())
    rows = [batch for each in reader.partitions() for batch in reader.read(each)]
    assert has_none(*(batch.serialize().to_pybytes() for batch in rows))
    references = list[ChangePartition]()

    def read(portion: ChangePartition) -> Iterator[pa.RecordBatch]:
        references.append(portion)
        return change_rows(portion, actual._options, open_table(actual._options))

    assert sum(batch.num_rows for batch in unpack(rows, read)) == 3
    assert references


def test_a_stream(moto_server: Server, uri: str) -> None:
    actual = source(moto_server, uri, startingVersion="0", maxVersionsPerTrigger="2")
    reader = actual.streamReader(actual.schema())
    try:
        at = reader.initialOffset()
        while (end := reader.latestOffset()) != at:
            assert has_none(json.dumps(at), json.dumps(end))
            for partition in reader.partitions(at, end):
                assert has_none(repr(partition), vars(partition), pickle.dumps(partition))
                assert sum(batch.num_rows for batch in reader.read(partition)) > 0
            reader.commit(end)
            at = end
        assert at["version"] == 3
        assert has_none(repr(reader))
    finally:
        reader.stop()


@pytest.mark.parametrize(
    "change",
    [
        {"path": "s3://no-bucket-of-this-test/orders"},
        {"storage.endpoint_url": "http://127.0.0.1:9"},
        {"storage.secret_acess_key": SECRET},
        {"storage.allow_http": SECRET},
        {"startingVersion": "99"},
    ],
)
def test_errors(change: dict[str, str], moto_server: Server, uri: str) -> None:
    options = {"path": uri, **storage(moto_server), "storage.retry_timeout": "1s", **change}
    with pytest.raises(CdfdError) as caught:
        CdfdSource(options).reader(CdfdSource(options).schema()).partitions()
    assert has_none(caught.value, repr(caught.value), *caught.value.args)


def test_the_sink() -> None:
    options = {
        "pipeline": "shop",
        "uri": "s3://lake/orders",
        "bootstrap_servers": "k:9092",
        "security.protocol": "SASL_SSL",
        "security.mechanism": "PLAIN",
        "security.username": "u",
        "security.password": "${PASSWORD_OF_THIS_TEST}",
        "storage.s3.access_key_id": KEY_ID,
        "storage.s3.secret_access_key": SECRET,
    }
    parsed = SinkOptions.parse(options, {"PASSWORD_OF_THIS_TEST": PASSWORD})
    assert parsed.config.storage.options("s3://lake/orders")["secret_access_key"] == SECRET
    assert has_none(parsed, repr(parsed), repr(parsed.sink), repr(parsed.config))


def test_the_start_that_a_checkpoint_in_the_store_has(moto_server: Server, uri: str) -> None:
    """The sink reads it with the keys of its options, and then tells live rows from inserts."""
    actual = source(moto_server, uri, columns="id,_commit_version,_change_type,_change_ordinal,_commit_timestamp")
    reader = actual.streamReader(actual.schema())
    offset = reader.initialOffset()
    reader.stop()
    checkpoint = uri.replace("/orders", "/checkpoint")
    store = open_storage(checkpoint, moto_server.options())
    lines = ["v1", '{"batchWatermarkMs":0}', json.dumps(offset)]
    lake.run(store.put_if_absent("offsets/0", "\n".join(lines).encode()))
    conf = {
        "pipeline": "shop",
        "uri": uri,
        "bootstrap_servers": "k:9092",
        "format": "debezium",
        "checkpointlocation": checkpoint,
        "storage.s3.endpoint_url": moto_server.url,
        "storage.s3.region": "us-east-1",
        "storage.s3.access_key_id": KEY_ID,
        "storage.s3.secret_access_key": SECRET,
    }
    writer = CdfdKafka(conf).streamWriter(actual.schema(), overwrite=False)
    assert writer.out.options.snapshot == 2
    assert has_none(repr(writer), writer.out.options)


def test_the_engine_and_backfill(moto_server: Server, uri: str) -> None:
    """Tasks are items of a data source. They have splits; the keys are in the function, as with any task of Spark."""
    s3 = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "region": "us-east-1"}
    document = {
        "pipeline": "shop",
        "tables": [{"uri": uri, "name": "orders"}],
        "sink": {"kind": "kafka", "bootstrap_servers": "k:9092"},
        "storage": {"s3": s3},
    }
    config = parse(json.dumps(document), {})
    actual = source(moto_server, uri)
    for partition in actual.reader(actual.schema()).partitions():
        assert isinstance(partition, ChangePartition)
        for number, part in enumerate(partition.splits):
            version = Version(part.plan, "T")
            for role in (None, "backfill"):
                assignment = Assignment.of(config, "orders", version, Position("T", part.plan.version), role)
                assert has_none(repr(assignment), pack((number, part)), pickle.dumps((number, part)))
                assert not has_none(pickle.dumps(assignment))
