"""The Delta tables into which `apply_changes` writes: a path or URI if their name contains `/`, otherwise a name in the catalog."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StructType,
    TimestampNTZType,
)

from cdfd.errors import ConfigError
from cdfd.spark.records.records import quoted, types_in

_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
"""Characters that a Parquet column cannot have without column mapping."""

_LACKS_DELTA: Final = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG")
"""Conditions of errors of a session without delta-spark."""

_ASSIGNMENT: Final = "spark.sql.storeAssignmentPolicy"
_REPLACED: Final = {
    # Values that do not fit are errors, not others or null.
    _ASSIGNMENT: ("legacy", "ANSI"),
    # Names of columns would be patterns.
    "spark.sql.parser.quotedRegexColumnNames": ("true", "false"),
    # Delta has no two columns whose names differ only in case.
    "spark.sql.caseSensitive": ("true", "false"),
}
"""Settings with a value that does not suit MERGE, in lower case, and the value that does."""
_MATERIALIZE_SOURCE: Final = "spark.databricks.delta.merge.materializeSource"
_STATE_PARTITIONS: Final = "spark.databricks.delta.snapshotPartitions"
_DEFAULT_STATE_PARTITIONS: Final = 50


def create_table(empty: DataFrame, target: str, partition_by: Sequence[str], properties: Mapping[str, str]) -> None:
    """Create a table without rows, unless it exists.

    Raises:
        ConfigError: the session has no delta-spark, or cannot create the table.
    """
    names = (name for each in types_in(empty.schema) if isinstance(each, StructType) for name in each.names)
    needs_mapping = any(not _FORBIDDEN.isdisjoint(name) for name in names)
    mapping = {"delta.columnMapping.mode": "name"} if needs_mapping else {}
    writer = empty.write.format("delta").mode("ignore").options(**(mapping | dict(properties)))
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    try:
        if _is_path(target):
            writer.save(target)
        else:
            writer.saveAsTable(target)
    except (AnalysisException, Py4JJavaError) as error:
        # Of classic Spark, the JVM's text: PySpark fails to format the errors of delta-spark.
        java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        text = str(error if java is None else java.getMessage())
        lacks_delta = any(name in text for name in _LACKS_DELTA)
        if isinstance(error, Py4JJavaError) and not lacks_delta:
            raise
        hint = "The session needs delta-spark, as its extension and its catalog" if lacks_delta else None
        raise ConfigError(f"Spark cannot create the copy: {text:.500}", table=target, hint=hint) from error


def read_table(spark: SparkSession, target: str) -> DataFrame:
    """The rows of a table."""
    return spark.read.format("delta").load(target) if _is_path(target) else spark.table(target)


def widen_table(rows: DataFrame, target: str) -> None:
    """Write the table at a path again with wider types, if those of `rows` do not fit. MERGE would cast values to the old types."""
    stored = read_table(rows.sparkSession, target)
    widened = stored.unionByName(rows.limit(0))
    if [field.dataType for field in widened.schema] != [field.dataType for field in stored.schema]:
        widened.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(target)


def check_types(rows: DataFrame, stored: Mapping[str, DataType], target: str, *, evolves: bool) -> None:
    """Refuse rows that MERGE would round to the types of a table: only values that are too large are errors of its own.

    Args:
        rows: the rows.
        stored: the types of the table's columns, by names in lower case.
        target: the table.
        evolves: whether MERGE evolves the schema. In a table with type widening, it then widens types itself, but not integers to others.

    Raises:
        ConfigError: a column of the table has such a type.
    """
    for field in rows.schema:
        name, kind = field.name, stored.get(field.name.lower())
        losses = set[bool]() if kind is None else set(_losses(field.dataType, kind))
        if kind is None or not losses or (losses == {True} and evolves and _has_widening(rows, target)):
            continue
        wider = field.dataType.simpleString()
        raise ConfigError(
            f"column {name!r:.200} is {kind.simpleString():.200} in the copy, which rounds the {wider:.200} of the changes",
            table=target,
            hint=f"Set delta.enableTypeWidening of the copy to true, and run ALTER TABLE ... ALTER COLUMN ... TYPE {wider:.200}",
        )


def _losses(rows: DataType, stored: DataType) -> Iterator[bool]:
    """For each type within a type of rows that is rounded to the stored one: whether evolution of schemas widens it."""
    match rows, stored:
        case StructType(), StructType():
            by_name = {field.name.lower(): field.dataType for field in stored}
            for field in rows:
                if (kind := by_name.get(field.name.lower())) is not None:
                    yield from _losses(field.dataType, kind)
        case ArrayType(), ArrayType():
            yield from _losses(rows.elementType, stored.elementType)
        case MapType(), MapType():
            yield from _losses(rows.keyType, stored.keyType)
            yield from _losses(rows.valueType, stored.valueType)
        case DecimalType(), DecimalType() if rows.scale > stored.scale:
            yield True
        case (DoubleType(), FloatType()) | (TimestampNTZType(), DateType()):
            yield True
        case (DecimalType() | FloatType() | DoubleType(), IntegralType()) if getattr(rows, "scale", 1):
            yield False


def _has_widening(rows: DataFrame, target: str) -> bool:
    properties = rows.sparkSession.sql(f"SHOW TBLPROPERTIES {identifier(target)}").collect()
    return any(each["key"] == "delta.enableTypeWidening" and each["value"] == "true" for each in properties)


def identifier(target: str) -> str:
    """The name of a table in SQL."""
    return f"delta.{quoted(target)}" if _is_path(target) else target


def _is_path(target: str) -> bool:
    return "/" in target


def check_absolute(name: str, target: str) -> None:
    """Refuse a relative path, at which MERGE finds no table.

    Args:
        name: of the argument, for the message.
        target: its value.

    Raises:
        ConfigError: the path is relative.
    """
    if _is_path(target) and not target.startswith("/") and ":/" not in target:
        raise ConfigError(
            f"`{name}` is a relative path",
            path=target.rstrip("/"),
            hint="Give an absolute path or a URI: Delta requires it",
        )


_sharing: Final = Lock()
_users: Final = Counter[SparkSession]()
_before: Final = dict[SparkSession, dict[str, str | None]]()


@contextmanager
def merge_settings(spark: SparkSession) -> Iterator[None]:
    """Settings with which MERGE is fast and loses no value, in the session within the block.

    A stream has a session of its own, but with Spark Connect: there, the session stays as it is, because other threads may write in it.
    DataFrames that several threads apply share a session. The first one makes the settings, and the last one restores them.

    Raises:
        ConfigError: a session of Spark Connect would lose values.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        if str(spark.conf.get(_ASSIGNMENT, None)).lower() == "legacy":
            raise ConfigError(
                f"{_ASSIGNMENT} is LEGACY, which stores values that do not fit as others or null", hint="Set it to ANSI"
            )
        yield
        return
    with _sharing:
        if not _users[spark]:
            # The rows are stored. Delta would store them once more.
            settings = {_MATERIALIZE_SOURCE: "none"}
            for name, (unfit, value) in _REPLACED.items():
                if str(spark.conf.get(name, None)).lower() == unfit:
                    settings[name] = value
            if spark.conf.get(_STATE_PARTITIONS, None) is None:
                # A task for each core reads the log of a Delta table, unless the session says how many. By default there are 50 tasks for
                # each of about six jobs of a MERGE, which take more time than the rows of a small batch.
                settings[_STATE_PARTITIONS] = str(min(context.defaultParallelism, _DEFAULT_STATE_PARTITIONS))
            _before[spark] = {name: spark.conf.get(name, None) for name in settings}
            for name, value in settings.items():
                spark.conf.set(name, value)
        _users[spark] += 1
    try:
        yield
    finally:
        with _sharing:
            _users[spark] -= 1
            if not _users[spark]:
                del _users[spark]
                for name, old in _before.pop(spark).items():
                    if old is None:
                        spark.conf.unset(name)
                    else:
                        spark.conf.set(name, old)
