"""Creation of tables of random workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as t

from tests.support.spark.workload_values import quoted

if TYPE_CHECKING:
    from tests.support.spark.workload import Workload


def create(work: Workload) -> None:
    """The table, by the profile's way. Afterwards it has rows more often than not."""
    columns = work.declared()
    properties = work.properties()
    CREATIONS[work.profile.creation](work, columns, properties)


def _clauses(work: Workload, properties: dict[str, str]) -> str:
    listed = ", ".join(f"'{name}' = '{setting}'" for name, setting in properties.items())
    partitions = f"PARTITIONED BY ({', '.join(work.partitions)})" if work.partitions else ""
    clustering = "CLUSTER BY (id, n)" if work.profile.clustered else ""
    return f"USING delta {partitions} {clustering}" + (f" TBLPROPERTIES ({listed})" if listed else "")


def _fields(work: Workload, columns: list[tuple[str, str]]) -> list[t.StructField]:
    """As Spark's types: by asking its parser."""
    declared = ", ".join(f"{quoted(name)}: {kind}" for name, kind in columns)
    return list(work.sql(f"SELECT CAST(NULL AS STRUCT<{declared}>) AS r").schema["r"].dataType)


def _by_sql(
    work: Workload, columns: list[tuple[str, str]], properties: dict[str, str], path: str | None = None
) -> None:
    declared = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
    work.sql(f"CREATE TABLE delta.{quoted(path or work.path)} ({declared}) {_clauses(work, properties)}")
    if work.random.random() < 0.8:
        _append(work, path or work.path)


def _by_builder(work: Workload, columns: list[tuple[str, str]], properties: dict[str, str]) -> None:
    """Only the Scala API lets a table without a name have columns that compute themselves."""
    tables = work.spark._jvm.io.delta.tables.DeltaTable
    session = work.spark._jsparkSession
    builder = tables.create(session).location(work.path)
    for name, kind in columns:
        builder = builder.addColumn(name, kind)
    computed = {
        "pk": ("BIGINT", lambda column: column.generatedAlwaysAsIdentity(5, 3)),
        "g": ("STRING", lambda column: column.generatedAlwaysAs("concat(s, '-', CAST(n AS STRING))")),
        "half": ("BIGINT", lambda column: column.generatedAlwaysAs("CAST(id / 2 AS BIGINT)")),
    }
    if not work.partitions and work.random.random() < 0.5:
        builder = builder.addColumn("made", "TIMESTAMP")
        computed["day"] = ("DATE", lambda column: column.generatedAlwaysAs("CAST(made AS DATE)"))
        work.partitions["day"] = "DATE"
    for name, (kind, made) in computed.items():
        builder = builder.addColumn(made(tables.columnBuilder(session, name).dataType(kind)).build())
    for name, setting in properties.items():
        builder = builder.property(name, setting)
    builder.partitionedBy(_array(work, list(work.partitions))).execute()
    work.computed += computed
    _append(work, work.path)


def _array(work: Workload, names: list[str]) -> object:
    array = work.spark._sc._gateway.new_array(work.spark._jvm.java.lang.String, len(names))
    for at, name in enumerate(names):
        array[at] = name
    return array


def _append(work: Workload, path: str) -> None:
    fields = [field for field in work.spark.read.format("delta").load(path).schema if field.name not in work.computed]
    work.rows(work.fresh(40), fields).write.format("delta").mode("append").save(path)


def _by_dataframe(work: Workload, columns: list[tuple[str, str]], properties: dict[str, str]) -> None:
    rows = work.rows(work.fresh(40), _fields(work, columns))
    writer = rows.write.format("delta").partitionBy(*work.partitions)
    for name, setting in properties.items():
        writer = writer.option(name, setting)
    writer.save(work.path)


def _by_select(work: Workload, columns: list[tuple[str, str]], properties: dict[str, str]) -> None:
    work.rows(work.fresh(40), _fields(work, columns)).createOrReplaceTempView("selected")
    work.sql(f"CREATE TABLE {work.sql_name} {_clauses(work, properties)} AS SELECT * FROM selected")


def _by_conversion(work: Workload, columns: list[tuple[str, str]], properties: dict[str, str]) -> None:
    """Version 0 is the conversion; the properties come with the next."""
    inner = [field for field in _fields(work, columns) if field.name not in work.partitions]
    folders = {name: kind for name, kind in work.partitions.items() if kind in ("STRING", "INT", "DATE")} or {
        "p0": "STRING"
    }
    work.partitions = folders
    fields = inner + [
        t.StructField(name, {"STRING": t.StringType(), "INT": t.IntegerType(), "DATE": t.DateType()}[kind])
        for name, kind in folders.items()
    ]
    work.rows([*work.fresh(40), *work.fresh(2), work.next_id], fields).write.partitionBy(*folders).parquet(work.path)
    work.next_id += 1
    work.sql(
        f"CONVERT TO DELTA parquet.{quoted(work.path)} PARTITIONED BY ({', '.join(f'{n} {k}' for n, k in folders.items())})"
    )
    listed = ", ".join(f"'{name}' = '{setting}'" for name, setting in properties.items())
    work.sql(f"ALTER TABLE {work.sql_name} SET TBLPROPERTIES ({listed})")


def _by_clone(work: Workload, columns: list[tuple[str, str]], properties: dict[str, str]) -> None:
    """The files of the clone's first version are those of another table."""
    origin = str(work.folder / "or igin")
    _by_sql(work, columns, properties, origin)
    _append(work, origin)
    work.sql(f"DELETE FROM delta.{quoted(origin)} WHERE {work.some()}")
    work.sql(f"CREATE TABLE {work.sql_name} SHALLOW CLONE delta.{quoted(origin)}")


CREATIONS = {
    "sql": _by_sql,
    "dataframe": _by_dataframe,
    "select": _by_select,
    "builder": _by_builder,
    "convert": _by_conversion,
    "clone": _by_clone,
}
