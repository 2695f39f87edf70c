"""A seeded life of a Delta table, written by delta-spark: what the oracle's tests run against.

Everything random comes from the seed: the same seed gives the same operations on the same rows, whatever the names of the files are.
A seed's remainder decides which feature a table is surely about (`PROFILES`); the others join by chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from tests.support.spark.workload_values import MAPPED_NAMES, PARTITIONS, PLAIN_NAMES, TYPES, frame, quoted, value

FEED = "delta.enableChangeDataFeed"
REFUSALS = (PySparkException, Py4JJavaError)  # the latter where PySpark does not know the class
FASTER = {  # tables of a few rows: what Spark compiles for them runs once
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
READING = FASTER | {"spark.sql.files.minPartitionNum": "1"}  # few tasks; how files are written is left as it is
DELETION_VECTORS = {"delta.enableDeletionVectors": "true"}
WIDENING = {"delta.enableTypeWidening": "true"}
COMMIT_TIMESTAMPS = {"delta.enableInCommitTimestamps": "true"}
ROW_TRACKING = {"delta.enableRowTracking": "true"}
MULTI_PART = {"spark.databricks.delta.checkpoint.partSize": "2"}
V2_CHECKPOINTS = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"}


@dataclass(frozen=True, slots=True)
class Profile:
    """The features that a random table is certain to have.

    Attributes:
        properties: with which it is created.
        operations: that are certain to be among the random ones.
        creation: `sql`, `dataframe`, `select`, `builder` (with generated and identity columns), `convert` (from Parquet files) or `clone`.
        feed: whether the change data feed is on at first.
        partitioned: None leaves it to chance.
        clustered: liquid clustering.
        widening: columns whose types may grow.
        conf: of the session.
    """

    properties: dict[str, str] = field(default_factory=dict)
    operations: tuple[str, ...] = ()
    creation: str = "sql"
    feed: bool = True
    partitioned: bool | None = None
    clustered: bool = False
    widening: bool = False
    conf: dict[str, str] = field(default_factory=dict)


@contextmanager
def settings(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    """A session as these settings say, and afterwards as it was."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, setting in wanted.items():
        spark.conf.set(name, setting)
    try:
        yield
    finally:
        for name, setting in before.items():
            if setting is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, setting)


def name_of(error: Exception) -> str:
    """How delta-spark names what it refuses."""
    if isinstance(error, PySparkException) and (condition := error.getCondition()):
        return str(condition)
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString())[:300]
    return f"{type(error).__name__}: {str(error)[:300]}"


def mapping(mode: str) -> dict[str, str]:
    return {"delta.columnMapping.mode": mode}


PROFILES: dict[str, Profile] = {
    "plain": Profile(operations=("merge", "update", "truncate", "append", "stream")),
    "vectors": Profile(DELETION_VECTORS, ("delete", "merge", "restore", "reorg", "drop_vectors")),
    "mapping-name": Profile(mapping("name"), ("rename_column", "drop_column", "merge", "delete")),
    "mapping-id": Profile(mapping("id") | DELETION_VECTORS, ("add_column", "merge", "rename_column", "update")),
    "computed": Profile(creation="builder", operations=("insert", "merge", "update", "restore")),
    "partitioned": Profile(
        partitioned=True, operations=("move", "delete_partition", "overwrite_partitions", "replace_where", "merge")
    ),
    "widening": Profile(WIDENING, ("widen", "update", "widen", "merge", "move_column"), widening=True),
    "commit-timestamps": Profile(COMMIT_TIMESTAMPS, ("clock_back", "merge", "overwrite"), "select"),
    "commit-timestamps-later": Profile(operations=("commit_timestamps", "clock_back", "update", "merge")),
    "v2-checkpoints": Profile(V2_CHECKPOINTS | DELETION_VECTORS, ("merge", "delete", "checkpoint", "update_nested")),
    "multi-part": Profile(
        {"delta.checkpointInterval": "2"},
        ("merge", "z_order", "checkpoint", "delete_all"),
        "dataframe",
        conf=MULTI_PART,
    ),
    "clustered": Profile(ROW_TRACKING, ("optimize_full", "merge", "recluster", "optimize"), clustered=True),
    "clone": Profile(creation="clone", operations=("update", "delete", "merge", "optimize")),
    "convert": Profile(creation="convert", partitioned=True, operations=("map_columns", "merge", "rearrange")),
    "feed-later": Profile(feed=False, operations=("update", "switch_feed", "merge", "switch_feed", "properties")),
    "schemas": Profile(
        operations=(
            *("overwrite_schema", "merge_schema", "add_nested", "replace_table"),
            *("merge_evolving", "constrain", "vacuum"),
        )
    ),
}


@dataclass(frozen=True, slots=True)
class Step:
    """An operation, delta-spark's error if it refused, and the table's version afterwards."""

    operation: str
    refusal: str | None
    version: int

    def __str__(self) -> str:
        return f"{self.version}:{self.operation}" + (f"!{self.refusal}" if self.refusal else "")


@dataclass(slots=True)
class Workload:
    """One table and its random operations; `live` runs them.

    Attributes:
        spark: the writer's session; its settings stay as they were.
        folder: for the table and further files of the workload.
        seed: decides everything.
        partitions: names of the partition columns, whose values are few.
        computed: names of generated and identity columns, which the workload never writes.
    """

    spark: SparkSession
    folder: Path
    seed: int
    partitions: dict[str, str] = field(default_factory=dict)
    computed: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    random: random.Random = field(default_factory=random.Random)
    next_id: int = 0
    batch: int = 0

    @property
    def kind(self) -> str:
        return list(PROFILES)[self.seed % len(PROFILES)]

    @property
    def profile(self) -> Profile:
        return PROFILES[self.kind]

    @property
    def path(self) -> str:
        """A folder whose name is not its URI, now and then."""
        return str(self.folder / ("t" if self.seed % 3 else "ta ble%20ü+"))

    @property
    def sql_name(self) -> str:
        return f"delta.{quoted(self.path)}"

    @property
    def allowed_roots(self) -> list[str]:
        """Where files of the table may be besides its own folder."""
        return [str(self.folder)] if self.profile.creation == "clone" else []

    def live(self, count: int) -> None:
        """Make the table, then do what its profile says and `count` random things, in random order."""
        self.random.seed(self.seed)
        timestamps = {"spark.sql.parquet.outputTimestampType": self.random.choice(["INT96", "TIMESTAMP_MICROS"])}
        with settings(self.spark, FASTER | self.profile.conf | timestamps):
            self._live(count)

    def _live(self, count: int) -> None:
        from tests.support.spark.workload_creation import create
        from tests.support.spark.workload_operations import OPERATIONS

        create(self)
        self.steps.append(Step(f"create by {self.profile.creation}", None, self.version()))
        weights = {name: weight for name, (weight, _) in OPERATIONS.items()}
        for operation in self._chosen(weights, count):
            refusal = None
            try:
                OPERATIONS[operation][1](self)
            except REFUSALS as error:
                refusal = name_of(error)
            self.steps.append(Step(operation, refusal, self.version()))

    def sql(self, statement: str) -> DataFrame:
        return self.spark.sql(statement)

    def version(self) -> int:
        return max(int(entry.stem) for entry in Path(self.path, "_delta_log").glob("*.json") if entry.stem.isdigit())

    def schema(self) -> t.StructType:
        """The columns there are now; all of them may be null, as far as values go."""
        return self.spark.read.format("delta").load(self.path).schema

    def written(self) -> list[t.StructField]:
        """The columns that a writer gives values for."""
        return [field for field in self.schema() if field.name not in self.computed]

    def fresh(self, most: int) -> list[int]:
        """Ids that no row has had."""
        count = self.random.randint(0, most)
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    def known(self, most: int) -> list[int]:
        """Ids that rows have had."""
        return self.random.sample(range(self.next_id), min(self.next_id, most))

    def rows(self, ids: list[int], fields: list[t.StructField] | None = None) -> DataFrame:
        """Random rows with these ids: of the columns that are written, or of `fields`."""
        chosen = self.written() if fields is None else fields
        columns: dict[str, list[object]] = {}
        for one in chosen:
            if one.name == "id":
                columns["id"] = list(ids)
            elif one.name in self.partitions:
                few = PARTITIONS[self.partitions[one.name]]
                columns[one.name] = [self.random.choice(few) for _ in ids]
            elif one.name == "n":
                columns["n"] = [self.random.randint(0, 9) for _ in ids]
            else:
                columns[one.name] = [value(self.random, one.dataType) for _ in ids]
        schema = t.StructType([t.StructField(one.name, one.dataType) for one in chosen])
        return frame(self.spark, schema, columns)

    def some(self) -> str:
        """A predicate that holds for some rows."""
        divisor = self.random.randint(2, 7)
        return self.random.choice(
            [f"id % {divisor} = {self.random.randrange(divisor)}", f"n = {self.random.randint(0, 9)}", "n > 6"]
        )

    def declared(self) -> list[tuple[str, str]]:
        """Random columns: name and SQL type."""
        r = self.random
        names = MAPPED_NAMES if "delta.columnMapping.mode" in self.profile.properties else PLAIN_NAMES
        kinds = r.sample(TYPES, r.randint(3, 8))
        weird = r.sample(names, 2)
        columns = [("id", "BIGINT"), ("n", "INT"), ("s", "STRING")]
        columns += [(weird.pop() if weird and r.random() < 0.3 else f"c{at}", kind) for at, kind in enumerate(kinds)]
        if self.profile.widening:
            columns += [
                ("w0", "TINYINT"),
                ("w1", "SMALLINT"),
                ("w2", "FLOAT"),
                ("w3", "DECIMAL(6, 2)"),
                ("w4", "DATE"),
                ("w5", "INT"),
            ]
            columns += [("wa", "ARRAY<SMALLINT>"), ("ws", "STRUCT<x: INT, y: STRING>")]
        partitioned = self.profile.partitioned
        if not self.profile.clustered and (r.random() < 0.35 if partitioned is None else partitioned):
            for at, kind in enumerate(r.sample(list(PARTITIONS), r.randint(1, 2))):
                self.partitions[f"p{at}"] = kind
        return columns + list(self.partitions.items())

    def properties(self) -> dict[str, str]:
        """The properties with which the table is created."""
        r = self.random
        properties: dict[str, str] = {FEED: "true"} if self.profile.feed else {}
        if r.random() < 0.4:
            properties["delta.checkpointInterval"] = str(r.randint(1, 4))
        for chance, more in (
            (0.35, DELETION_VECTORS),
            (0.1, mapping("name")),
            (0.1, V2_CHECKPOINTS),
            (0.15, COMMIT_TIMESTAMPS),
            (0.15, ROW_TRACKING),
            (0.1, {"delta.checkpoint.writeStatsAsStruct": "true", "delta.checkpoint.writeStatsAsJson": "false"}),
            (0.1, {"delta.dataSkippingNumIndexedCols": "0"}),
            (0.1, {"delta.randomizeFilePrefixes": "true"}),
        ):
            if r.random() < chance:
                properties |= more
        return properties | self.profile.properties

    def _chosen(self, weights: dict[str, int], count: int) -> Iterator[str]:
        """Profile's operations in their order, random ones between them; the first is one that brings rows."""
        sure = list(self.profile.operations)
        slots = sorted(self.random.sample(range(count + len(sure)), len(sure)))
        for at in range(count + len(sure)):
            if slots and at == slots[0]:
                slots.pop(0)
                yield sure.pop(0)
            else:
                yield self.random.choices(list(weights), list(weights.values()))[0]
