"""A copy that `apply_changes` keeps equals the table that its changes are of, whatever is repeated, restarted or killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kafka import KafkaProducer
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as sql

import cdfd
from cdfd.errors import ConfigError
from cdfd.spark.topics import Upsert, apply_changes, read_changes
from tests.support.kafka.daemon_process import until
from tests.support.kafka.fixtures import broker, name, needs_broker, pipeline
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.reading import read_topic
from tests.support.spark.workload import settings

__all__ = ["broker", "name", "needs_broker", "pipeline"]

Change = tuple[int, str | None, str, int, int]
"""id, note, change type, version, ordinal"""

TIME = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def made(spark: SparkSession) -> Callable[..., DataFrame]:
    def changes(*rows: Change) -> DataFrame:
        schema = "id INT, note STRING, _change_type STRING, _commit_version LONG, _change_ordinal LONG"
        return spark.createDataFrame(list(rows), schema).selectExpr(
            *("id", "note", "_change_type", "_commit_version"),
            f"TIMESTAMP'{TIME:%Y-%m-%dT%H:%M:%SZ}' + make_interval(0, 0, 0, cast(_commit_version AS INT)) _commit_timestamp",
            "_change_ordinal",
        )

    return changes


def copied(spark: SparkSession, target: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(target).drop("_cdfd_version", "_cdfd_ordinal")
    return sorted(map(tuple, frame.collect()), key=repr)


def version(spark: SparkSession, target: str) -> int:
    return int(spark.sql(f"DESCRIBE HISTORY delta.`{target}` LIMIT 1").collect()[0]["version"])


FIRST: Sequence[Change] = [
    (1, "a", "insert", 1, 0),
    (2, "b", "insert", 1, 1),
    (3, "c", "insert", 1, 2),
    (1, "a", "update_preimage", 2, 0),
    (1, "A", "update_postimage", 2, 1),
    (2, "b", "delete", 3, 0),
    # A key that changes, as the formats without keys have it: images of two keys.
    (3, "c", "update_preimage", 4, 0),
    (4, "c", "update_postimage", 4, 1),
]


def test_the_last_change_of_each_key_counts(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path
) -> None:
    target = f"{tmp_path}/copy"
    shuffled = Random(1).sample(FIRST, len(FIRST))
    apply_changes(made(*shuffled), target, ["id"])
    assert copied(spark, target) == [(1, "A"), (4, "c")]
    before = spark.read.format("delta").load(target).collect()
    # The same again, and what is older, change nothing.
    apply_changes(made(*FIRST, *FIRST), target, ["id"])
    apply_changes(made((1, "old", "update_postimage", 1, 9), (4, "c", "delete", 4, 0)), target, ["id"])
    assert sorted(spark.read.format("delta").load(target).collect()) == sorted(before)
    # SET id = id + 3: 4 has a new row before its old one is gone.
    shifted = [
        (1, "A", "update_preimage", 5, 0),
        (4, "A", "update_postimage", 5, 1),
        (4, "c", "update_preimage", 5, 2),
        (7, "c", "update_postimage", 5, 3),
    ]
    for part in (shifted[:2], shifted[2:]):
        apply_changes(made(*part), target, ["id"])
    assert copied(spark, target) == [(4, "A"), (7, "c")]


def test_a_row_that_is_deleted_does_not_come_back(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path
) -> None:
    target, deleted = f"{tmp_path}/copy", f"{tmp_path}/deleted"
    for restart in (False, True):
        upsert = Upsert(target, ("id",), deleted=deleted, remembered=timedelta(seconds=50))
        if not restart:
            upsert(made(*FIRST), 0)
        upsert(made((2, "b", "insert", 1, 1), (3, "c", "insert", 1, 2)), 1)
        assert copied(spark, target) == [(1, "A"), (4, "c")]
    upsert(made((2, "again", "insert", 9, 0)), 2)
    assert copied(spark, target) == [(1, "A"), (2, "again"), (4, "c")]
    # Long after, at times that are looked at now and then, it is forgotten.
    upsert(made((5, None, "insert", 100, 0), (5, None, "delete", 101, 0)), 99)
    assert [row.id for row in spark.read.format("delta").load(deleted).collect()] == [5]


def test_deleted_keys_are_remembered_after_their_type_is_widened(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path
) -> None:
    target, deleted = f"{tmp_path}/copy", f"{tmp_path}/deleted"
    widening = {"delta.enableTypeWidening": "true"}
    Upsert(target, ("id",), properties=widening, deleted=deleted)(made(*FIRST))
    upsert = Upsert(target, ("id",), evolve_schema=True, deleted=deleted)
    id_of = sql.expr("IF(id = 9, 3000000000, id)").alias("id")

    def wide(*rows: Change) -> DataFrame:
        return made(*rows).select(id_of, *made().columns[1:])

    upsert(wide((9, "i", "insert", 5, 0), (1, "A", "delete", 5, 1)))
    upsert(wide((9, "i", "delete", 6, 0)))
    upsert(wide((9, "i", "insert", 5, 0), (2, "b", "insert", 1, 1)))
    assert copied(spark, target) == [(4, "c")]


WIDER = [
    ("DECIMAL(10,2)", "DECIMAL(12,4)", "1.2567"),
    ("FLOAT", "DOUBLE", "1.23456789012"),
    ("INT", "DOUBLE", "1.5"),
    ("DATE", "TIMESTAMP_NTZ", "'2026-01-31 12:30:00'"),
    ("ARRAY<STRUCT<x: FLOAT>>", "ARRAY<STRUCT<x: DOUBLE>>", "array(named_struct('x', 0.1D))"),
]


@pytest.mark.parametrize(("narrow", "wide", "value"), WIDER)
def test_a_copy_that_would_round_wider_values_is_refused(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, narrow: str, wide: str, value: str
) -> None:
    target = f"{tmp_path}/copy"

    def rows(kind: str, text: str, at: int) -> DataFrame:
        return made((1, None, "insert", at, 0)).withColumn("note", sql.expr(f"CAST({text} AS {kind})"))

    apply_changes(rows(narrow, "NULL", 1), target, ["id"])
    for evolve in (False, True):
        with pytest.raises(ConfigError, match="in the copy, which rounds"):
            apply_changes(rows(wide, value, 2), target, ["id"], evolve_schema=evolve)
    if narrow in ("INT", "DATE"):
        return
    spark.sql(f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES (delta.enableTypeWidening = true)")
    apply_changes(rows(wide, value, 2), target, ["id"], evolve_schema=True)
    assert copied(spark, target) == [tuple(rows(wide, value, 2).select("id", "note").collect()[0])]


def test_values_that_do_not_fit_the_copy_are_errors_in_any_session(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path
) -> None:
    """A session with the policy of older Sparks stored other values, or null."""
    target, policy = f"{tmp_path}/copy", {"spark.sql.storeAssignmentPolicy": "LEGACY"}
    apply_changes(made((1, None, "insert", 1, 0)).withColumn("note", sql.lit(7)), target, ["id"])
    with settings(spark, policy):
        for value in (sql.lit(2**32 + 8), sql.lit("x")):
            with pytest.raises(Exception, match=r"TASK_WRITE_FAILED|CAST"):
                apply_changes(made((1, None, "insert", 2, 0)).withColumn("note", value), target, ["id"])
        assert copied(spark, target) == [(1, 7)]
        apply_changes(made((1, None, "insert", 2, 0)).withColumn("note", sql.lit(8)), target, ["id"])
        assert spark.conf.get("spark.sql.storeAssignmentPolicy") == "LEGACY"
    assert copied(spark, target) == [(1, 8)]


@pytest.mark.parametrize("evolve", [False, True])
def test_columns_of_type_void_are_left_out(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, evolve: bool
) -> None:
    target = f"{tmp_path}/copy"
    upsert = Upsert(target, ("id",), evolve_schema=evolve)
    void = made(*FIRST).withColumn("odd", sql.lit(None))
    upsert(void)
    upsert(void)
    assert copied(spark, target) == [(1, "A"), (4, "c")]
    apply_changes(made((4, "d", "insert", 8, 0)).withColumn("odd", sql.lit(1)), target, ["id"], evolve_schema=True)
    assert copied(spark, target) == [(1, "A", None), (4, "d", 1)]
    apply_changes(made((4, "e", "insert", 9, 0)).withColumn("odd", sql.lit(None)), target, ["id"])
    assert copied(spark, target) == [(1, "A", None), (4, "e", None)]
    with pytest.raises(ConfigError, match="key column 'odd' is a void"):
        apply_changes(void, target, ["odd"])


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize("void", ["null", "named_struct('odd', null)"])
def test_void_fields_of_structs_are_left_out(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, evolve: bool, void: str
) -> None:
    target = f"{tmp_path}/copy"
    changes = made(*FIRST).withColumn("note", sql.expr(f"named_struct('v', note, 'a.b', {void})"))
    for _ in range(2):
        apply_changes(changes, target, ["id"], evolve_schema=evolve)
        assert copied(spark, target) == [(1, ("A",)), (4, ("c",))]
    typed = made((4, "d", "insert", 8, 0)).withColumn("note", sql.expr("named_struct('v', note, 'a.b', 1)"))
    apply_changes(typed, target, ["id"], evolve_schema=True)
    later = made((4, "e", "insert", 9, 0)).withColumn("note", sql.expr("named_struct('v', note, 'a.b', null)"))
    apply_changes(later, target, ["id"])
    assert copied(spark, target) == [(1, ("A", None)), (4, ("e", None))]


@pytest.mark.parametrize(
    ("name", "partition_by", "error"),
    [
        ("{}/copy", ["day"], "PARTITION_COLUMN_NOT_FOUND.*`day`"),
        ("no_schema.copy", [], "SCHEMA_NOT_FOUND.*`no_schema`"),
    ],
)
def test_error_of_a_copy_that_cannot_be_created(
    made: Callable[..., DataFrame], tmp_path: Path, name: str, partition_by: Sequence[str], error: str
) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        apply_changes(made(*FIRST), name.format(tmp_path), ["id"], partition_by=partition_by)
    assert "delta-spark" not in str(caught.value)


def test_error_of_a_session_without_delta_spark(
    made: Callable[..., DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_session = DataFrameWriter.format
    monkeypatch.setattr(DataFrameWriter, "format", lambda writer, name: of_session(writer, f"no-{name}"))
    with pytest.raises(ConfigError, match=r"DATA_SOURCE_NOT_FOUND.*session needs delta-spark"):
        apply_changes(made(*FIRST), f"{tmp_path}/copy", ["id"])


@pytest.mark.parametrize("key", ["a.b", "price (EUR)", ".*", "["])
def test_names_that_the_session_takes_for_patterns(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, key: str
) -> None:
    target, deleted = f"{tmp_path}/copy", f"{tmp_path}/deleted"
    with settings(spark, {"spark.sql.parser.quotedRegexColumnNames": "true"}):
        upsert = Upsert(target, (key,), deleted=deleted)
        upsert(made(*FIRST).withColumnRenamed("id", key))
        upsert(made((4, "c", "delete", 8, 0)).withColumnRenamed("id", key))
    assert copied(spark, target) == [(1, "A")]


@pytest.mark.parametrize("case_sensitive", ["true", "false"])
def test_a_copy_spells_its_columns_in_another_case(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, case_sensitive: str
) -> None:
    """Delta has no two columns whose names differ only in case, whatever the session says."""
    target, deleted = f"{tmp_path}/copy", f"{tmp_path}/deleted"
    Upsert(target, ("id",), deleted=deleted)(made(*FIRST))
    renamed = made((1, None, "delete", 8, 0), (4, "d", "insert", 8, 1)).withColumnsRenamed({"id": "ID", "note": "Note"})
    with settings(spark, {"spark.sql.caseSensitive": case_sensitive}):
        Upsert(target, ("ID",), deleted=deleted)(renamed)
    assert copied(spark, target) == [(4, "d")]


def test_a_reserved_column_is_refused(made: Callable[..., DataFrame], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="_cdfd_rank"):
        apply_changes(made(*FIRST).withColumn("_cdfd_rank", sql.lit(7)), f"{tmp_path}/copy", ["id"])


def test_names_that_spark_replaces_in_sql(spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path) -> None:
    """MERGE is a text, in which Spark puts variables of the environment of its driver."""
    changes, target = made(*FIRST).withColumnRenamed("note", "${env:HOME}"), f"{tmp_path}/copy"
    for apply in (lambda: apply_changes(changes, target, ["id"]), lambda: Upsert(target, ("id",))(changes)):
        with pytest.raises(ConfigError, match=r"Spark would replace `\$\{env:HOME\}` in SQL"):
            apply()
    with settings(spark, {"spark.sql.variable.substitute": "false"}):
        apply_changes(changes, target, ["id"])
    assert copied(spark, target) == [(1, "A"), (4, "c")]


@pytest.mark.parametrize("remembers", [False, True])
def test_a_key_that_is_null(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, remembers: bool
) -> None:
    """It is a key as any other one, also where earlier batches had none."""
    target = f"{tmp_path}/copy"
    upsert = Upsert(target, ("id",), deleted=f"{tmp_path}/deleted" if remembers else None)
    upsert(made(*FIRST), 0)
    upsert(made((None, "n", "insert", 5, 0), (1, "A", "delete", 5, 1)), 1)
    assert copied(spark, target) == [(4, "c"), (None, "n")]
    upsert(made((None, "n", "update_preimage", 6, 0), (None, "N", "update_postimage", 6, 1)), 2)
    assert copied(spark, target) == [(4, "c"), (None, "N")]
    upsert(made((None, "N", "delete", 7, 0)), 3)
    if remembers:
        upsert(made((None, "n", "insert", 5, 0), (1, "a", "insert", 1, 0)), 4)
    assert copied(spark, target) == [(4, "c")]


@pytest.mark.parametrize("remembers", [False, True])
def test_a_batch_without_rows_creates_the_copy_and_commits_nothing_more(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, remembers: bool
) -> None:
    target = f"{tmp_path}/copy"
    upsert = Upsert(target, ("id",), deleted=f"{tmp_path}/deleted" if remembers else None)
    for batch in range(2):
        upsert(made(*FIRST).limit(0), batch)
    assert version(spark, target) == 0
    upsert(made(*FIRST), 2)
    assert copied(spark, target) == [(1, "A"), (4, "c")]


@pytest.mark.parametrize("remembers", [False, True])
def test_a_batch_is_written_as_few_files(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, remembers: bool
) -> None:
    """Whatever the number of partitions of a shuffle, which is 200 by default."""
    partitions, cached = "spark.sql.shuffle.partitions", "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
    before = spark.conf.get(partitions), spark.conf.get(cached)
    spark.conf.set(partitions, "20")
    try:
        upsert = Upsert(f"{tmp_path}/copy", ("id",), deleted=f"{tmp_path}/deleted" if remembers else None)
        upsert(made(*((number, "a", "insert", 1, number) for number in range(100))))
        assert spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}/copy`").collect()[0]["numFiles"] <= 2
        assert spark.conf.get(cached) == before[1]
    finally:
        spark.conf.set(partitions, before[0])
    assert len(copied(spark, f"{tmp_path}/copy")) == 100


@pytest.mark.parametrize("most", [1_000, 1])
@pytest.mark.parametrize("kind", ["BIGINT", "DATE", "STRING", "TIMESTAMP"])
def test_keys_of_each_type_find_their_rows(
    spark: SparkSession,
    made: Callable[..., DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    most: int,
) -> None:
    """As literals of MERGE's condition, of all keys or of the least and the greatest one; times are none of them."""
    monkeypatch.setattr("cdfd.spark.upsert._MOST_KEYS", most)
    keys = {
        "BIGINT": ["-9223372036854775808L", "0L", "9223372036854775807L"],
        "DATE": ["DATE'0001-01-01'", "DATE'2026-03-29'", "DATE'+12000-12-31'"],
        "STRING": ["''", "'a\\'b\\\\n ? :x {changes}'", "'Ünï\U0001f600'"],
        "TIMESTAMP": ["TIMESTAMP'0001-01-01 00:00:00'", "TIMESTAMP'2026-10-25 00:30:00.000001'"],
    }[kind]
    key = f"element_at(array({', '.join(keys)}), id)"
    target = f"{tmp_path}/copy"
    upsert = Upsert(target, ("id",), deleted=f"{tmp_path}/deleted")
    rows = [(number + 1, "a", "insert", 1, number) for number in range(len(keys))]
    upsert(made(*rows).withColumn("id", sql.expr(key)), 0)
    upsert(
        made(*((*row[:1], "b", "update_postimage", 2, row[4]) for row in rows[1:]), rows[0]).withColumn(
            "id", sql.expr(key)
        ),
        1,
    )
    deletes = [(*row[:2], "delete", 3, row[4]) for row in rows[:-1]]
    upsert(made(*deletes).withColumn("id", sql.expr(key)), 2)
    upsert(made(*rows).withColumn("id", sql.expr(key)), 3)
    assert spark.read.format("delta").load(target).select("note", "_cdfd_version").collect() == [("b", 2)]
    (merge,) = spark.sql(f"DESCRIBE HISTORY delta.`{target}` LIMIT 1").collect()
    predicate = merge.operationParameters["predicate"]
    assert (" IN (" in predicate or ">=" in predicate) == (kind != "TIMESTAMP"), predicate


def test_rows_that_died_with_an_executor_are_stored_again(
    spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, stored, attempts = Upsert._merge, list[int](), list[Any]()

    def rows() -> list[Any]:
        """Those of batches: Delta gives its own a name."""
        return [each for each in spark.sparkContext._jsc.getPersistentRDDs().values() if each.name() is None]

    def losing(upsert: Upsert, *arguments: Any) -> None:
        stored.append(len(rows()))
        attempts.append(arguments)
        if len(attempts) < 3:
            for each in rows():
                each.unpersist(True)
        merge(upsert, *arguments)

    monkeypatch.setattr(Upsert, "_merge", losing)
    Upsert(f"{tmp_path}/copy", ("id",))(made(*FIRST))
    assert len(attempts) == 3
    assert copied(spark, f"{tmp_path}/copy") == [(1, "A"), (4, "c")]
    assert stored == [1, 1, 1]
    assert not rows()  # a batch that is applied frees its own
    attempts.clear()
    monkeypatch.setattr("cdfd.spark.upsert._ATTEMPTS", 2)
    with pytest.raises(Py4JJavaError, match="CHECKPOINT"):
        Upsert(f"{tmp_path}/other", ("id",))(made(*FIRST))


def test_a_copy_that_is_there(spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path) -> None:
    target = f"{tmp_path}/copy"
    changes = made(*FIRST)
    apply_changes(changes, target, ["id"], properties={"delta.enableChangeDataFeed": "true"}, partition_by=["note"])
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target}`").collect()[0]
    assert detail["partitionColumns"] == ["note"]
    assert detail["properties"]["delta.enableChangeDataFeed"] == "true"
    more = changes.withColumn("odd", changes.id + 1)
    with pytest.raises(ConfigError, match="no column 'odd'"):
        apply_changes(more, target, ["id"])
    later = made((7, "x", "insert", 9, 0)).selectExpr("*", "1 AS odd", "named_struct('a', 1) AS s")
    apply_changes(later, target, ["id"], evolve_schema=True)
    assert copied(spark, target) == [(1, "A", None, None), (4, "c", None, None), (7, "x", 1, (1,))]
    deeper = made((7, "y", "update_postimage", 10, 0)).selectExpr("*", "2 AS odd", "named_struct('a', 1, 'b', 2) AS s")
    apply_changes(deeper, target, ["id"], evolve_schema=True)
    assert copied(spark, target)[-1] == (7, "y", 2, (1, 2))
    spark.range(1).write.format("delta").save(f"{tmp_path}/other")
    with pytest.raises(ConfigError, match="no column"):
        apply_changes(changes, f"{tmp_path}/other", ["id"])


def test_names_that_parquet_does_not_have(spark: SparkSession, made: Callable[..., DataFrame], tmp_path: Path) -> None:
    changes = made(*FIRST).withColumnsRenamed({"id": "the `key`", "note": "a.b; c"})
    apply_changes(changes, f"{tmp_path}/copy", ["the `key`"])
    apply_changes(changes, f"{tmp_path}/copy", ["the `key`"])
    assert copied(spark, f"{tmp_path}/copy") == [(1, "A"), (4, "c")]


def test_a_copy_in_the_catalog(spark: SparkSession, made: Callable[..., DataFrame]) -> None:
    try:
        apply_changes(made(*FIRST), "default.copy_of_orders", ["id"])
        apply_changes(made(*FIRST, (9, "n", "insert", 5, 0)), "default.copy_of_orders", ["id"])
        assert spark.table("default.copy_of_orders").count() == 3
    finally:
        spark.sql("DROP TABLE IF EXISTS default.copy_of_orders")


def test_wrong_arguments(made: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path) -> None:
    changes = made(*FIRST)
    target = f"{tmp_path}/copy"
    for wrong, told in (
        ((changes, target, []), "is empty"),
        ((changes, "copies/orders", ["id"]), "`target` is a relative path"),
        ((changes, target, "id"), "is empty"),
        ((changes, target, ["ident"]), "no column 'ident'"),
        ((changes.drop("_change_ordinal"), target, ["id"]), "no column _change_ordinal"),
        ((changes.selectExpr("*", "map(1, 2) AS m"), target, ["m"]), "cannot be compared"),
    ):
        with pytest.raises(ConfigError, match=told):
            apply_changes(*wrong)  # type: ignore[arg-type]
    assert not os.path.exists(target)


class Failing:
    """Applies batches, and then fails, as where a driver dies between the MERGE and the commit of the checkpoint."""

    def __init__(self, upsert: Upsert, failures: int) -> None:
        self.upsert = upsert
        self.failures = failures
        self.applied: list[int] = []

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.upsert(batch, batch_id)
        self.applied.append(batch_id)
        if len(self.applied) <= self.failures:
            raise RuntimeError("told to fail")


def changes_of(spark: SparkSession, pipeline: Pipeline, format: str = "flat") -> DataFrame:
    return read_changes(
        spark,
        pipeline.topic,
        bootstrap_servers=pipeline.servers,
        format=format,  # type: ignore[arg-type]
        table=pipeline.uri,
        streaming=True,
        options={"maxOffsetsPerTrigger": "60"},
    )


def source(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    rows = cdfd.snapshot(pipeline.uri).read_all()
    listed = rows.select(rows.schema.names[:-4]).to_pylist()
    return sorted((tuple(row.values()) for row in listed), key=repr)


def catch_up(spark: SparkSession, pipeline: Pipeline, target: str, checkpoint: str, format: str = "flat") -> None:
    for _ in range(2):
        query = apply_changes(
            changes_of(spark, pipeline, format),
            target,
            ["id"],
            checkpoint=checkpoint,
            trigger={"availableNow": True},
            evolve_schema=True,
        )
        assert query is not None
        try:
            assert query.awaitTermination(200)
        except PySparkException as error:
            # Spark 4.1.1 fails once where the first batch is one that was not ticked off, behind doing that: SPARK-55271.
            if "Option.get()" not in str(error):
                raise
        else:
            return


def write(pipeline: Pipeline, format: str, seed: int, versions: int) -> None:
    """A table that changes at random, and all of it in its topic, by the real daemon."""
    topics = {"prefix": f"{pipeline.name}.", "partitions": 3, "transactions": True}
    sink = {"kind": "kafka", "bootstrap_servers": pipeline.servers, "topics": topics, "format": format}
    pipeline.configure(sink=sink)
    with pipeline.writing(seed, pause=0.005) as writing, pipeline.daemon() as daemon:
        until(lambda: writing.table.version >= versions)
        writing.stop()
        daemon.wait_for("at version")
        until(lambda: ended(pipeline, writing.table.version))
        daemon.stop()


def ended(pipeline: Pipeline, version: int) -> bool:
    """Whether all of a version is delivered."""
    try:
        told = [
            json.loads(record.value or b"{}") for record in read_topic(pipeline.direct, f"{pipeline.name}.transactions")
        ]
    except TimeoutError:
        return False
    return any(each.get("status") == "END" and each["id"] == str(version) for each in told)


@pytest.mark.parametrize("format", ["flat", "arrow"])
def test_a_copy_equals_its_source(spark: SparkSession, pipeline: Pipeline, format: str, tmp_path: Path) -> None:
    """Repeated batches and a restart of the query do not change the copy."""
    target, checkpoint = f"{tmp_path}/copy", f"{tmp_path}/checkpoint"
    write(pipeline, format, 7, 20)
    failing = Failing(Upsert(target, ("id",), evolve_schema=True, deleted=f"{checkpoint}/cdfd-deleted"), 2)
    for _ in range(2):
        stream = changes_of(spark, pipeline, format).writeStream.foreachBatch(failing)
        query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        with pytest.raises(PySparkException, match="told to fail"):
            query.awaitTermination(300)
    assert failing.applied == [0, 0]
    # Created and merged into. The repeated MERGE finds no row that is older.
    (repeated,) = spark.sql(f"DESCRIBE HISTORY delta.`{target}` LIMIT 1").collect()
    assert repeated["version"] == 2
    counts = ("Inserted", "Updated", "Deleted")
    assert [repeated["operationMetrics"][f"numTargetRows{count}"] for count in counts] == ["0", "0", "0"]
    catch_up(spark, pipeline, target, checkpoint, format)
    assert copied(spark, target) == source(pipeline)
    newest = version(spark, target)
    catch_up(spark, pipeline, target, checkpoint, format)
    assert version(spark, target) == newest


def test_repeats_in_the_topic(spark: SparkSession, pipeline: Pipeline, tmp_path: Path) -> None:
    """As `at_least_once` and `cdfd backfill` leave them: whatever comes again, in whatever order, is known already."""
    target, checkpoint = f"{tmp_path}/copy", f"{tmp_path}/checkpoint"
    write(pipeline, "flat", 11, 20)
    catch_up(spark, pipeline, target, checkpoint)
    records = read_topic(pipeline.direct, pipeline.topic)
    with KafkaProducer(bootstrap_servers=pipeline.direct) as producer:
        for record in Random(3).sample(records, len(records) // 2):
            producer.send(pipeline.topic, record.value, record.key, partition=record.partition)
    catch_up(spark, pipeline, target, checkpoint)
    assert copied(spark, target) == source(pipeline)


def test_a_driver_that_is_killed(spark: SparkSession, pipeline: Pipeline, tmp_path: Path) -> None:
    target, checkpoint = f"{tmp_path}/copy", f"{tmp_path}/checkpoint"
    write(pipeline, "flat", 13, 20)
    command = [
        sys.executable,
        "-m",
        "tests.support.spark.copier",
        pipeline.servers,
        pipeline.topic,
        pipeline.uri,
        target,
        checkpoint,
    ]
    copier = subprocess.Popen(command, cwd=Path(__file__).parents[3], start_new_session=True)
    try:
        until(lambda: (tmp_path / "copy" / "_delta_log" / f"{2:020}.json").exists() or copier.poll() is not None, 300)
        assert copier.poll() is None
    finally:
        os.killpg(copier.pid, signal.SIGKILL)  # its JVM, too
        copier.wait(30)
    catch_up(spark, pipeline, target, checkpoint)
    assert copied(spark, target) == source(pipeline)
