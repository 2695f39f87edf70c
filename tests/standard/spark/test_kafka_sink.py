"""`format("cdfd-kafka")`: the records that the embedded engine delivers, each once, whatever is run again."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.streaming.listener import StreamingQueryProgress

from cdfd.config.parser import load
from cdfd.spark.engine.queries import source_options
from tests.support.commands import cdfd as command
from tests.support.kafka.daemon_process import configure
from tests.support.kafka.delivering import contents
from tests.support.kafka.reading import Record, read_topic, without_processing_time
from tests.support.kafka.shared import SharedBroker
from tests.support.sampling import sample
from tests.support.schema_registry import serving
from tests.support.spark.workload import settings

pytestmark = pytest.mark.usefixtures("registered")

WITHIN = 120  # seconds until a query counts as stuck

COLUMNS = """
    id BIGINT NOT NULL, v STRING, amount DECIMAL(12, 2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, raw BINARY, small TINYINT,
    tags ARRAY<STRING>, sizes MAP<STRING, INT>, address STRUCT<street: STRING NOT NULL, number: INT>, doc VARIANT
"""
ROW = """
    SELECT id, concat('v', id), CAST(id / 7 AS DECIMAL(12, 2)), timestamp_micros(1767225600000000+id), timestamp_ntz'2026-01-02 03:04:05.678',
    date_add(date'2026-01-01', CAST(id AS INT)), CAST(concat('b', id) AS BINARY), CAST(id % 100 AS TINYINT),
    IF(id % 3 = 0, NULL, array('x', NULL, concat(id))), IF(id % 4 = 0, NULL, map('a', CAST(id AS INT), 'b', NULL)),
    named_struct('street', 'Elm', 'number', IF(id % 5 = 0, NULL, CAST(id AS INT))), parse_json(concat('{{"n":', id, ',"s":[1,null]}}'))
    FROM range({}, {}, 1, {})
"""


@pytest.fixture(scope="module")
def rich(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with columns of many types, and changes of all kinds: updates of keys, too."""
    folder = str(tmp_path_factory.mktemp("lake") / "orders")
    spark.sql(
        f"CREATE TABLE delta.`{folder}` ({COLUMNS}) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    spark.sql(f"INSERT INTO delta.`{folder}` {ROW.format(0, 40, 3)}")
    spark.sql(f"UPDATE delta.`{folder}` SET v = 'x', tags = array() WHERE id % 2 = 0")
    spark.sql(f"DELETE FROM delta.`{folder}` WHERE id < 10")
    spark.sql(f"UPDATE delta.`{folder}` SET id = id + 1000 WHERE id > 35")
    return folder


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Versions 1 to 4 with ten rows each, of two files."""
    folder = str(tmp_path_factory.mktemp("lake") / "plain")
    spark.sql(f"CREATE TABLE delta.`{folder}` (id BIGINT, v STRING) USING delta")
    for first in range(0, 40, 10):
        insert(spark, folder, first)
    return folder


@pytest.fixture
def plain(written: str, tmp_path: Path) -> str:
    """A copy of it, for one test."""
    return str(shutil.copytree(written, tmp_path / "orders"))


def insert(spark: SparkSession, table: str, first: int) -> None:
    spark.sql(f"INSERT INTO delta.`{table}` SELECT id, 'a' FROM range({first}, {first + 10}, 1, 2)")


def ids(records: Sequence[Record]) -> Counter[int]:
    return Counter(json.loads(record.value)["id"] for record in records if record.value is not None)


class Sink:
    """A topic, and what writes to it."""

    def __init__(self, spark: SparkSession, broker: SharedBroker, name: str, table: str, folder: Path) -> None:
        self.spark, self.name, self.table, self.folder = spark, name, table, folder
        self.servers = broker.bootstrap_servers
        self.topic = f"{name}.orders"
        self.options = {
            "pipeline": name,
            "uri": table,
            "topic": self.topic,
            "key": "id",
            "kafka.bootstrap.servers": self.servers,
            "topics.partitions": "2",
        }

    def stream(self, rows: DataFrame | None = None, **options: object) -> list[StreamingQueryProgress]:
        """Write the available rows, from the checkpoint on. Returns the query's progress."""
        if rows is None:
            rows = self.spark.readStream.format("cdfd").option("startingVersion", 0).load(self.table)
        written = rows.writeStream.format("cdfd-kafka").options(**self.options | options)
        query = written.option("checkpointLocation", str(self.folder / "cp")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WITHIN)
        finally:
            query.stop()
        return query.recentProgress

    def forget_commit(self) -> None:
        """Leave the checkpoint as if Spark had died after the executors' last commit and before its own."""
        newest = max((self.folder / "cp" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)

    def read(self, at_least: int = 0) -> list[Record]:
        return read_topic(self.servers, self.topic, at_least=at_least)


@pytest.fixture
def sink(spark: SparkSession, broker: SharedBroker, name: str, plain: str, tmp_path: Path) -> Sink:
    return Sink(spark, broker, name, plain, tmp_path)


@pytest.mark.parametrize("form", sample(["flat", "debezium", "cloudevents", "avro"], 2))
def test_the_records_of_the_embedded_engine(
    spark: SparkSession, broker: SharedBroker, name: str, rich: str, tmp_path: Path, form: str
) -> None:
    with serving() as registry:
        told: Mapping[str, Any] = {"format": form}
        if form == "avro":
            told |= {"schema_registry": {"url": registry.url}}
        config = configure(tmp_path, name, broker.bootstrap_servers, [{"uri": rich}], sink=told)
        assert command("backfill", "-c", config, "orders", "--from", "earliest").code == 0
        embedded = read_topic(broker.bootstrap_servers, f"{name}.orders", at_least=1)
        read = spark.read.format("cdfd").option("startingVersion", 0).option("key", "id")
        seen = embedded
        for packed in (False, True):
            rows = read.option("packed", packed).load(rich)
            rows.coalesce(1).write.format("cdfd-kafka").option("config", str(config)).mode("append").save()
            everything = read_topic(broker.bootstrap_servers, f"{name}.orders", at_least=len(seen) + len(embedded))
            places = {(record.partition, record.offset) for record in seen}
            on_spark = [record for record in everything if (record.partition, record.offset) not in places]
            # A changed key is a delete and an insert. Only packed rows tell that they are one update.
            expected = embedded if packed else [without_keys(record) for record in embedded]
            assert contents(on_spark) == contents(expected)
            assert in_order(on_spark) == in_order(expected)
            seen = everything


def without_keys(record: Record) -> Record:
    return record._replace(headers=tuple(each for each in record.headers if not each[0].endswith("key")))


@pytest.mark.parametrize("form", sample(["debezium", "flat"], 1))
def test_shaped_records_of_the_embedded_engine(
    spark: SparkSession, broker: SharedBroker, name: str, rich: str, tmp_path: Path, form: str
) -> None:
    table = {
        "uri": rich,
        "key": ["id"],
        "where": "small < 30 AND address.number IS NOT NULL OR v = 'x'",
        "columns": ["id", {"name": "v", "as": "value"}, "amount", "raw"],
        "mask": {
            "id": {"method": "hmac_sha256", "hmac_key": "sixteen letters!"},
            "raw": {"method": "truncate", "length": 1},
        },
        "exclude_change_types": ["delete"],
        "headers": {"amount": "amount", "letter": "v"},
    }
    config = configure(tmp_path, name, broker.bootstrap_servers, [table], sink={"format": form})
    assert command("backfill", "-c", config, "orders", "--from", "earliest").code == 0
    embedded = read_topic(broker.bootstrap_servers, f"{name}.orders", at_least=1)
    settings = load(config, {})
    source = source_options(settings, settings.listed[0]) | {"startingVersion": "0"}
    read, seen = spark.read.format("cdfd"), len(embedded)
    # Either the source shapes the rows, or the sink does.
    shaped = read.options(**{key: value for key, value in source.items() if key != "maxBytesPerTrigger"}).load(rich)
    whole = spark.read.format("cdfd").option("startingVersion", 0).option("key", "id").load(rich)
    for rows, told in ((whole, {}), (shaped, {"shaped": "true"})):
        rows.coalesce(1).write.format("cdfd-kafka").options(config=str(config), **told).mode("append").save()
        everything = read_topic(broker.bootstrap_servers, f"{name}.orders", at_least=seen + len(embedded))
        seen = len(everything)
        assert contents(everything) == Counter(
            {record: count * (seen // len(embedded)) for record, count in contents(embedded).items()}
        )
    assert seen == 3 * len(embedded)


def in_order(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [
        (record.partition, record.key, without_processing_time(record.value), tuple(sorted(record.headers)))
        for record in records
    ]


class TestStream:
    def test_a_batch_that_is_run_again_is_not_delivered_again(self, sink: Sink) -> None:
        sink.stream()
        everything = Counter(range(40))
        assert ids(sink.read()) == everything
        sink.forget_commit()
        insert(sink.spark, sink.table, 40)
        # In Spark 4.1, a run over what is available ends with what was begun before.
        sink.stream()
        assert set(ids(sink.read()).values()) == {1}
        sink.stream()
        assert ids(sink.read(50)) == Counter(range(50))

    # The rows of one small partition come with the plan, and those of two by reference.
    @pytest.mark.parametrize("options", [{}, {"maxPartitionBytes": 1}], ids=["planned", "by reference"])
    def test_packed_rows_are_counted_and_delivered_once(self, sink: Sink, options: dict[str, object]) -> None:
        feed = sink.spark.readStream.format("cdfd").option("startingVersion", 0).options(**options)
        sink.stream(feed.load(sink.table))
        sink.forget_commit()
        packed = feed.option("packed", "true").load(sink.table)
        sink.stream(packed)
        insert(sink.spark, sink.table, 40)
        progress = sink.stream(packed)
        assert [each.numInputRows for each in progress] == [10]
        assert ids(sink.read(at_least=50)) == Counter(range(50))

    def test_a_batch_that_is_cut_in_another_way_is_an_error(self, sink: Sink) -> None:
        rows = sink.spark.readStream.format("cdfd").option("startingVersion", 0).load(sink.table)
        sink.stream(rows.repartition(2, "id"))
        sink.forget_commit()
        with pytest.raises(StreamingQueryException, match="was delivered with"):
            sink.stream(rows.coalesce(1))
        assert ids(sink.read()) == Counter(range(40))

    def test_an_older_checkpoint_is_an_error(self, sink: Sink) -> None:
        sink.stream(topic=sink.topic)
        insert(sink.spark, sink.table, 40)
        sink.stream()
        sink.forget_commit()
        for folder in ("commits", "offsets"):
            for path in (sink.folder / "cp" / folder).glob("*1*"):
                path.unlink()
        sink.forget_commit()
        with pytest.raises(StreamingQueryException, match=r"batch 0 of query .* is over"):
            sink.stream()

    def test_a_snapshot_is_told_as_one(self, sink: Sink) -> None:
        rows = sink.spark.readStream.format("cdfd").load(sink.table)
        sink.stream(rows, format="debezium")
        insert(sink.spark, sink.table, 40)
        sink.stream(rows, format="debezium")
        operations = Counter(json.loads(record.value or b"{}")["op"] for record in sink.read(50))
        assert operations == {"r": 40, "c": 10}

    def test_a_snapshot_is_one_if_the_session_names_the_checkpoint(self, sink: Sink) -> None:
        rows = sink.spark.readStream.format("cdfd").load(sink.table)
        with settings(sink.spark, {"spark.sql.streaming.checkpointLocation": str(sink.folder)}):
            query = (
                rows.writeStream.format("cdfd-kafka")
                .options(**sink.options, format="debezium")
                .queryName(sink.topic)
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(WITHIN)
        operations = Counter(json.loads(record.value or b"{}")["op"] for record in sink.read(40))
        assert operations == {"r": 40}


class TestBatch:
    def test_a_job_with_a_name_is_written_once(self, sink: Sink) -> None:
        rows = sink.spark.read.format("cdfd").option("startingVersion", 0).load(sink.table)
        for job, expected in (("june", 40), ("june", 40), ("july", 80)):
            rows.write.format("cdfd-kafka").options(**sink.options, job=job).mode("append").save()
            assert len(sink.read(expected)) == expected


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"fromat": "avro"}, 'unknown key, did you mean "format"'),
            ({"kafka.bootstrap.servers": ""}, "bootstrap_servers"),
            ({"key": "nr"}, "nr"),
        ],
    )
    def test_options(self, sink: Sink, options: dict[str, str], said: str) -> None:
        rows = sink.spark.read.format("cdfd").option("startingVersion", 0).load(sink.table)
        with pytest.raises(PySparkException, match=said):
            rows.write.format("cdfd-kafka").options(**sink.options | options).mode("append").save()

    @pytest.mark.parametrize(
        ("change", "mode", "said"),
        [
            (lambda rows: rows.drop("_change_ordinal"), "append", "there is no column _change_ordinal"),
            (lambda rows: rows, "overwrite", "cannot be overwritten"),
        ],
    )
    def test_what_is_written(self, sink: Sink, change: Callable[[DataFrame], DataFrame], mode: str, said: str) -> None:
        rows = sink.spark.read.format("cdfd").option("startingVersion", 0).load(sink.table)
        with pytest.raises(PySparkException, match=said):
            change(rows).write.format("cdfd-kafka").options(**sink.options).mode(mode).save()

    @pytest.mark.parametrize(
        "change",
        [
            lambda rows: rows.withColumn("more", lit(1)),
            lambda rows: rows.select(rows[0].alias("_packed_rows", metadata={})),
        ],
    )
    def test_packed_rows_that_were_changed(self, sink: Sink, change: Callable[[DataFrame], DataFrame]) -> None:
        rows = sink.spark.read.format("cdfd").option("startingVersion", 0).option("packed", "true").load(sink.table)
        with pytest.raises(PySparkException, match="packed rows were changed"):
            change(rows).write.format("cdfd-kafka").options(**sink.options).mode("append").save()

    def test_packed_rows_of_another_table(self, sink: Sink, tmp_path: Path) -> None:
        other = str(tmp_path / "other")
        sink.spark.range(3).write.format("delta").save(other)
        rows = sink.spark.read.format("cdfd").option("startingVersion", 0).option("packed", "true").load(other)
        with pytest.raises(PySparkException, match="another table than the sink's `uri`"):
            rows.write.format("cdfd-kafka").options(**sink.options).mode("append").save()

    def test_a_schema_of_packed_rows(self, sink: Sink) -> None:
        read = sink.spark.read.format("cdfd").option("packed", "true").schema("id BIGINT")
        with pytest.raises(PySparkException, match="packed rows have their own schema"):
            read.load(sink.table).count()
