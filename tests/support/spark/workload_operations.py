"""Operations of random workloads on their tables. An operation is one action of a user of delta-spark."""

import os
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import types as t

from tests.support.spark.workload import FEED, Workload
from tests.support.spark.workload_values import MAPPED_NAMES, TYPES, quoted

# Types to which a type may be widened.
WIDER = {
    "tinyint": ["SMALLINT", "INT", "DOUBLE", "DECIMAL(10, 0)"],
    "smallint": ["INT", "BIGINT", "DOUBLE"],
    "int": ["BIGINT", "DOUBLE", "DECIMAL(12, 2)"],
    "bigint": ["DECIMAL(20, 0)"],
    "float": ["DOUBLE"],
    "decimal(6,2)": ["DECIMAL(8, 2)", "DECIMAL(10, 4)", "DECIMAL(30, 5)"],
    "date": ["TIMESTAMP_NTZ"],
}
GROWING = ["w0", "w1", "w2", "w3", "w4", "w5", "wa.element", "ws.x"]


def append(work: Workload) -> None:
    writer = work.rows(work.fresh(40)).write.format("delta").mode("append").option("userMetadata", "by the oracle")
    if work.random.random() < 0.3:
        writer = writer.option("maxRecordsPerFile", 7)
    if work.random.random() < 0.3:  # what is written twice counts once
        work.batch += work.random.randint(0, 1)
        writer = writer.option("txnAppId", "oracle").option("txnVersion", work.batch)
    writer.save(work.path)


def insert(work: Workload) -> None:
    """Some columns; the others are null."""
    fields = work.written()
    chosen = [one for one in fields if one.name in ("id", "n", *work.partitions) or work.random.random() < 0.5]
    names = ", ".join(quoted(one.name) for one in chosen)
    work.rows(work.fresh(12), chosen).createOrReplaceTempView("inserted")
    work.sql(f"INSERT INTO {work.sql_name} ({names}) SELECT {names} FROM inserted")


def update(work: Workload) -> None:
    changes = work.random.choice(["n = n + 1", "s = 'up'", "s = s", "s = NULL, n = id % 100", "id = id"])
    where = work.random.choice(["", f"WHERE {work.some()}", "WHERE id < 0", f"WHERE {work.some()}"])
    work.sql(f"UPDATE {work.sql_name} SET {changes} {where}")


def update_nested(work: Workload) -> None:
    """A column of any type, set to null."""
    names = [one.name for one in work.written() if one.name not in ("id", *work.partitions)]
    work.sql(f"UPDATE {work.sql_name} SET {quoted(work.random.choice(names))} = NULL WHERE {work.some()}")


def move(work: Workload) -> None:
    """Rows that change partition: their two images are in different folders."""
    names = [name for name in work.partitions if name not in work.computed]
    if names:
        work.sql(f"UPDATE {work.sql_name} SET {work.random.choice(names)} = NULL WHERE {work.some()}")


def delete(work: Workload) -> None:
    work.sql(f"DELETE FROM {work.sql_name} WHERE {work.random.choice([work.some(), work.some(), 'id < 0'])}")


def delete_partition(work: Workload) -> None:
    """No file is read for this where there are partitions."""
    work.sql(f"DELETE FROM {work.sql_name} WHERE {next(iter(work.partitions), 'id')} IS NULL")


def delete_all(work: Workload) -> None:
    work.sql(f"DELETE FROM {work.sql_name}")


def truncate(work: Workload) -> None:
    work.sql(f"TRUNCATE TABLE {work.sql_name}")


def merge(work: Workload) -> None:
    _merge(work, "")


def merge_evolving(work: Workload) -> None:
    """The source has a column more."""
    _merge(work, "WITH SCHEMA EVOLUTION")


def _merge(work: Workload, evolution: str) -> None:
    r = work.random
    fields = work.written()
    if evolution:
        fields = [*fields, t.StructField(_new_name(work), t.IntegerType())]
    work.rows(sorted({*work.fresh(8), *work.known(14)}), fields).createOrReplaceTempView("source")
    names = [quoted(one.name) for one in fields]
    some = [name for name in names if name != "`id`" and r.random() < 0.6] or ["`n`"]
    sets = ", ".join(f"{'' if evolution else 't.'}{name} = s.{name}" for name in (some if r.random() < 0.5 else names))
    inserted = f"INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    plain = not work.computed
    clauses = [
        (0.4, "WHEN MATCHED AND t.n > 7 THEN DELETE"),
        (0.4, f"WHEN MATCHED AND s.n > 3 THEN UPDATE SET {sets}"),
        (0.6, f"WHEN MATCHED THEN UPDATE SET {'*' if plain and r.random() < 0.5 else sets}"),
        (0.4, f"WHEN NOT MATCHED AND s.id % 2 = 0 THEN {inserted}"),
        (0.5, f"WHEN NOT MATCHED THEN {'INSERT *' if plain and r.random() < 0.5 else inserted}"),
        (0.4, "WHEN NOT MATCHED BY SOURCE AND t.n = 3 THEN UPDATE SET t.s = 'orphan'"),
        (0.3, "WHEN NOT MATCHED BY SOURCE AND t.n = 4 THEN DELETE"),
        (0.1, "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET t.n = t.n + 1"),
    ]
    chosen = [clause for chance, clause in clauses if r.random() < chance] or [clauses[2][1]]
    on = r.choice(["s.id = t.id", "s.id = t.id", "s.id = t.id AND t.n < 8", "s.id = t.id AND 1 = 0"])
    work.sql(f"MERGE {evolution} INTO {work.sql_name} t USING source s ON {on} " + " ".join(chosen))


def optimize(work: Workload) -> None:
    where = ""
    if work.partitions and work.random.random() < 0.3:
        where = f"WHERE {next(iter(work.partitions))} IS NOT NULL"
    work.sql(f"OPTIMIZE {work.sql_name} {where}")


def optimize_full(work: Workload) -> None:
    work.sql(f"OPTIMIZE {work.sql_name} FULL" if work.profile.clustered else f"OPTIMIZE {work.sql_name}")


def z_order(work: Workload) -> None:
    work.sql(f"OPTIMIZE {work.sql_name} ZORDER BY (id, n)")


def reorg(work: Workload) -> None:
    work.sql(f"REORG TABLE {work.sql_name} APPLY (PURGE)")


def rearrange(work: Workload) -> None:
    """Other files with the same rows, said to be no change."""
    rows = work.spark.read.format("delta").load(work.path).repartition(2)
    rows.write.format("delta").mode("overwrite").option("dataChange", "false").save(work.path)


def restore(work: Workload) -> None:
    newest = work.version()
    if newest:
        work.sql(
            f"RESTORE TABLE {work.sql_name} TO VERSION AS OF {work.random.randint(max(0, newest - 4), newest - 1)}"
        )


def overwrite(work: Workload) -> None:
    work.rows(work.fresh(20)).write.format("delta").mode("overwrite").save(work.path)


def overwrite_partitions(work: Workload) -> None:
    writer = work.rows(work.fresh(20)).write.format("delta").mode("overwrite")
    writer.option("partitionOverwriteMode", "dynamic").save(work.path)


def replace_where(work: Workload) -> None:
    least = work.random.randint(0, work.next_id)
    ids = work.fresh(12)
    writer = work.rows(ids).write.format("delta").mode("overwrite")
    writer.option("replaceWhere", f"id >= {least}").save(work.path)


def overwrite_schema(work: Workload) -> None:
    """One column less, one more."""
    fields = [
        one for one in work.written() if one.name in ("id", "n", "s", *work.partitions) or work.random.random() < 0.8
    ]
    fields.append(t.StructField(_new_name(work), t.StringType()))
    writer = work.rows(work.fresh(15), fields).write.format("delta").mode("overwrite").partitionBy(*work.partitions)
    writer.option("overwriteSchema", "true").save(work.path)


def replace_table(work: Workload) -> None:
    work.rows(work.fresh(15)).createOrReplaceTempView("replacing")
    partitions = f"PARTITIONED BY ({', '.join(work.partitions)})" if work.partitions else ""
    work.sql(
        f"CREATE OR REPLACE TABLE {work.sql_name} USING delta {partitions} "
        f"TBLPROPERTIES ('{FEED}' = 'true') AS SELECT *, 1 AS {_new_name(work)} FROM replacing"
    )


def merge_schema(work: Workload) -> None:
    kind = work.random.choice([t.LongType(), t.ArrayType(t.StringType()), t.TimestampNTZType(), t.DecimalType(9, 4)])
    rows = work.rows(work.fresh(9), [*work.written(), t.StructField(_new_name(work), kind)])
    rows.write.format("delta").mode("append").option("mergeSchema", "true").save(work.path)


def add_column(work: Workload) -> None:
    name = _new_name(work)
    if "delta.columnMapping.mode" in work.profile.properties and work.random.random() < 0.5:
        name = f"{work.random.choice(MAPPED_NAMES)} {name}"
    place = work.random.choice(["", "FIRST", "AFTER id"])
    work.sql(f"ALTER TABLE {work.sql_name} ADD COLUMNS ({quoted(name)} {work.random.choice(TYPES)} {place})")


def add_nested(work: Workload) -> None:
    """A field more in a struct; where there is none, a struct."""
    structs = [one.name for one in work.written() if isinstance(one.dataType, t.StructType)]
    if structs:
        name = f"{quoted(structs[0])}.{_new_name(work)} INT"
    else:
        name = f"{_new_name(work)} STRUCT<x: BIGINT, y: STRING>"
    work.sql(f"ALTER TABLE {work.sql_name} ADD COLUMNS ({name})")


def rename_column(work: Workload) -> None:
    if (name := _loose(work)) is not None:
        work.sql(f"ALTER TABLE {work.sql_name} RENAME COLUMN {quoted(name)} TO {_new_name(work)}")


def drop_column(work: Workload) -> None:
    if (name := _loose(work)) is not None:
        work.sql(f"ALTER TABLE {work.sql_name} DROP COLUMN {quoted(name)}")


def move_column(work: Workload) -> None:
    if (name := _loose(work)) is not None:
        work.sql(f"ALTER TABLE {work.sql_name} ALTER COLUMN {quoted(name)} FIRST")


def widen(work: Workload) -> None:
    schema = work.schema()
    for name in work.random.sample(GROWING, len(GROWING)):
        kinds = WIDER.get(_type(schema, name), [])
        if kinds:
            work.sql(f"ALTER TABLE {work.sql_name} ALTER COLUMN {name} TYPE {work.random.choice(kinds)}")
            return


def _type(schema: t.StructType, name: str) -> str:
    column, _, inner = name.partition(".")
    if column not in schema.names:
        return ""
    kind = schema[column].dataType
    if isinstance(kind, t.ArrayType) and inner:
        kind = kind.elementType
    elif isinstance(kind, t.StructType):
        kind = kind[inner].dataType if inner in kind.names else t.NullType()
    return kind.simpleString()


def map_columns(work: Workload) -> None:
    _set(work, {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"})


def properties(work: Workload) -> None:
    """A commit without files."""
    settings = [
        {"delta.appendOnly": "false"},
        {"delta.checkpointInterval": "2"},
        {"delta.checkpointPolicy": "v2"},
        {"delta.checkpointPolicy": "classic"},
        {"delta.enableDeletionVectors": "true"},
        {"delta.enableDeletionVectors": "false"},
        {"delta.enableRowTracking": "true"},
        {"delta.logRetentionDuration": "interval 60 days"},
    ]
    _set(work, work.random.choice(settings))


def commit_timestamps(work: Workload) -> None:
    _set(work, {"delta.enableInCommitTimestamps": "true"})


def switch_feed(work: Workload) -> None:
    on = work.sql(f"SHOW TBLPROPERTIES {work.sql_name}").filter(f"key = '{FEED}'").collect()
    _set(work, {FEED: "false" if on and on[0].value == "true" else "true"})


def constrain(work: Workload) -> None:
    work.sql(f"ALTER TABLE {work.sql_name} ADD CONSTRAINT k{work.version()} CHECK (id >= 0 OR id IS NULL)")


def recluster(work: Workload) -> None:
    if work.profile.clustered:
        work.sql(f"ALTER TABLE {work.sql_name} CLUSTER BY {work.random.choice(['(s)', '(n)', 'NONE'])}")


def drop_vectors(work: Workload) -> None:
    work.sql(f"ALTER TABLE {work.sql_name} DROP FEATURE deletionVectors")


def checkpoint(work: Workload) -> None:
    """One now, whatever the interval."""
    log = work.spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.forTable(work.spark._jsparkSession, work.path).checkpoint()


def vacuum(work: Workload) -> None:
    """Nothing is old enough to go."""
    work.sql(f"VACUUM {work.sql_name} {work.random.choice(['LITE', '', 'RETAIN 200 HOURS'])}")


def stream(work: Workload) -> None:
    folder = work.folder / f"stream{work.version()}"
    rows = work.rows(work.fresh(20))
    rows.write.parquet(f"{folder}/in")
    streamed = work.spark.readStream.schema(rows.schema).parquet(f"{folder}/in").writeStream.format("delta")
    query = streamed.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start(work.path)
    query.awaitTermination()


def clock_back(work: Workload) -> None:
    """A log entry older than the one before it, as clocks that differ leave them; and once in a while one of the same millisecond."""
    newest = work.version()
    if newest:
        log = Path(work.path, "_delta_log")
        before = (log / f"{newest - 1:020}.json").stat().st_mtime_ns
        at = before - work.random.choice([0, 5_000_000_000])
        os.utime(log / f"{newest:020}.json", ns=(at, at))


def _set(work: Workload, settings: dict[str, str]) -> None:
    listed = ", ".join(f"'{name}' = '{setting}'" for name, setting in settings.items())
    work.sql(f"ALTER TABLE {work.sql_name} SET TBLPROPERTIES ({listed})")


def _new_name(work: Workload) -> str:
    work.batch += 1
    return f"new{work.batch}"


def _loose(work: Workload) -> str | None:
    """A column that nothing else depends on."""
    tied = ("id", "n", "s", "made", *work.partitions)
    names = [one.name for one in work.written() if one.name not in tied]
    return work.random.choice(names) if names else None


# How often, and what.
OPERATIONS: dict[str, tuple[int, Callable[[Workload], None]]] = {
    "append": (5, append),
    "insert": (2, insert),
    "update": (4, update),
    "update_nested": (1, update_nested),
    "move": (1, move),
    "delete": (4, delete),
    "delete_partition": (1, delete_partition),
    "delete_all": (1, delete_all),
    "truncate": (1, truncate),
    "merge": (6, merge),
    "merge_evolving": (1, merge_evolving),
    "optimize": (2, optimize),
    "optimize_full": (1, optimize_full),
    "z_order": (1, z_order),
    "reorg": (1, reorg),
    "rearrange": (1, rearrange),
    "restore": (2, restore),
    "overwrite": (1, overwrite),
    "overwrite_partitions": (1, overwrite_partitions),
    "replace_where": (2, replace_where),
    "overwrite_schema": (1, overwrite_schema),
    "replace_table": (1, replace_table),
    "merge_schema": (1, merge_schema),
    "add_column": (2, add_column),
    "add_nested": (1, add_nested),
    "rename_column": (1, rename_column),
    "drop_column": (1, drop_column),
    "move_column": (1, move_column),
    "widen": (1, widen),
    "map_columns": (1, map_columns),
    "properties": (2, properties),
    "commit_timestamps": (1, commit_timestamps),
    "switch_feed": (1, switch_feed),
    "constrain": (1, constrain),
    "recluster": (1, recluster),
    "drop_vectors": (1, drop_vectors),
    "checkpoint": (1, checkpoint),
    "vacuum": (1, vacuum),
    "stream": (1, stream),
    "clock_back": (2, clock_back),
}
