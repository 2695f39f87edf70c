"""The Delta tables into which `apply_changes` writes: a path or URI if their name contains `/`, otherwise a name in the catalog."""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cdfd.errors import ConfigError
from cdfd.spark.records.records import quoted, types_in

_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
"""Characters that a Parquet column cannot have without column mapping."""


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
    except AnalysisException as error:
        raise ConfigError(
            # Without its text: Spark fails to format the errors of delta-spark.
            f"Spark cannot create the copy: {error.getCondition()}",
            table=target,
            hint="The session needs delta-spark, as its extension and its catalog",
        ) from error


def read_table(spark: SparkSession, target: str) -> DataFrame:
    """The rows of a table."""
    return spark.read.format("delta").load(target) if _is_path(target) else spark.table(target)


def widen_table(rows: DataFrame, target: str) -> None:
    """Write the table at a path again with wider types, if those of `rows` do not fit. MERGE would cast values to the old types."""
    stored = read_table(rows.sparkSession, target)
    widened = stored.unionByName(rows.limit(0))
    if [field.dataType for field in widened.schema] != [field.dataType for field in stored.schema]:
        widened.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(target)


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
