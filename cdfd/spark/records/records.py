"""The common part of all topic formats: the columns of records, the schema of rows, and errors about invalid records.

The decoder of a format takes records with the columns `KAFKA_NAMES` and `VALUE`, and makes rows with the columns `KAFKA_NAMES` and `ROW`: a
struct of the table's columns and the change columns. Of a tombstone, `VALUE` and the topic are null. Spark may evaluate expressions before
it leaves tombstones out. So a tombstone has no row, and is no error.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cdfd.delta.types import datatypes
from cdfd.delta.types.schema_string import parse, serialize
from cdfd.errors import ConfigError
from cdfd.model.columns import CHANGE_ORDINAL, CHANGE_TYPE, CHANGE_TYPES, COMMIT_TIMESTAMP, COMMIT_VERSION

CHANGE_FIELDS: Final = (
    StructField(CHANGE_TYPE, StringType()),
    StructField(COMMIT_VERSION, LongType()),
    StructField(COMMIT_TIMESTAMP, TimestampType()),
    StructField(CHANGE_ORDINAL, LongType()),
)
CHANGE_NAMES: Final = tuple(field.name for field in CHANGE_FIELDS)
TYPE_NAMES: Final[tuple[str, ...]] = tuple(CHANGE_TYPES.to_pylist())

KAFKA_NAMES: Final = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")
VALUE: Final = "_kafka_value"
ROW: Final = "_row"

_SUBSTITUTE: Final = "spark.sql.variable.substitute"
_VARIABLE: Final = re.compile(r"\$\{\S+?\}", re.ASCII)

UNKNOWN_HINT: Final = (
    "If the column is new, restart the query with the current schema; if it was dropped or renamed, set "
    "unknown_columns='ignore'"
)


def types_in(kind: DataType) -> Iterator[DataType]:
    """A type, and the types within it at any depth."""
    yield kind
    match kind:
        case StructType():
            for field in kind:
                yield from types_in(field.dataType)
        case ArrayType():
            yield from types_in(kind.elementType)
        case MapType():
            yield from types_in(kind.keyType)
            yield from types_in(kind.valueType)


def row_type(schema: StructType) -> StructType:
    """The struct of change rows of a table with a schema."""
    return StructType([*schema.fields, *CHANGE_FIELDS])


def table_type(schema_string: str) -> StructType:
    """A schema of Delta's log in Spark's types: without columns of type void, all nullable, and without metadata except comments.

    Raises:
        LogError: the schema is invalid.
        UnsupportedError: cdfd does not support one of its types.
    """

    def plain(child: datatypes.StructField) -> datatypes.StructField:
        # Spark moves collations from the metadata into the types.
        kept = {name: value for name, value in child.metadata.items() if name in ("comment", "__COLLATIONS")}
        return replace(child, metadata=kept)

    struct = datatypes.map_fields(datatypes.without_void(parse(schema_string)), plain)
    assert isinstance(struct, datatypes.StructType)
    return StructType.fromJson(json.loads(serialize(struct))).toNullable()


def check_columns(schema: StructType) -> None:
    """`ConfigError` if a table's column has the name of an additional column of rows."""
    taken = {name.lower() for name in (*CHANGE_NAMES, *KAFKA_NAMES)}
    wrong = [name for name in schema.names if name.lower() in taken]
    if wrong:
        raise ConfigError(
            f"the table has a column {wrong[0]!r:.200}, which is also the name of an additional column",
            hint=f"Give the other columns in `columns`; reserved names are {', '.join((*CHANGE_NAMES, *KAFKA_NAMES))}",
        )


def chosen(schema: StructType, columns: Sequence[str]) -> StructType:
    """Some columns of a schema, in order. `ConfigError` if one is missing."""
    by_name = {field.name: field for field in schema}
    for name in columns:
        if name not in by_name:
            raise ConfigError(
                f"the schema has no column {name!r:.200}", hint=f"It has {', '.join(list(by_name)[:50])}"[:1000]
            )
    return StructType([by_name[name] for name in columns])


def quoted(name: str) -> str:
    """A column's name in Spark's expressions."""
    return "`" + name.replace("`", "``") + "`"


def check_sql(spark: SparkSession, texts: Iterable[str]) -> None:
    """`ConfigError` if Spark would replace a part of SQL, such as `${env:HOME}` in the name of a column, by the value of a variable."""
    match = next(filter(None, map(_VARIABLE.search, texts)), None)
    if match and str(spark.conf.get(_SUBSTITUTE, "true")).lower() == "true":
        raise ConfigError(
            f"Spark would replace `{match[0]:.200}` in SQL, which is in the name of a column",
            hint=f"Set {_SUBSTITUTE} to false in the session",
        )


def refusal(*what: str | Column) -> Column:
    """An expression of type null that raises an error about the current record, unless that is a tombstone."""
    topic, partition, offset = (sql.col(name).cast("string") for name in KAFKA_NAMES[:3])
    place = (sql.lit("cdfd: topic "), topic, sql.lit(", partition "), partition, sql.lit(", offset "), offset)
    error = sql.raise_error(sql.concat(*place, sql.lit(": "), *(sql.lit(part) for part in what)))
    return sql.when(topic.isNotNull(), error)


def check_row(row: Column, kind: StructType, what: str, *further: Column) -> Column:
    """The row, if it has all change columns and all further conditions are true; otherwise an error about the record."""
    there = [row.getField(name).isNotNull() for name in CHANGE_NAMES]
    return when_all([*there, row.getField(CHANGE_TYPE).isin(*TYPE_NAMES), *further], row, refusal(what).cast(kind))


def known_only(row: Column, kind: DataType, unknown: Column | str) -> Column:
    """The row, if all columns of its record are in the schema; otherwise an error about the record.

    Args:
        row: the decoded record.
        kind: its type.
        unknown: an unknown column, or null.
    """
    named = sql.lit(unknown)
    wrong = refusal("it has ", named, ", which the schema does not have. ", UNKNOWN_HINT).cast(kind)
    return sql.when(named.isNotNull(), wrong).otherwise(row)


def when_all(conditions: Iterable[Column], value: Column, otherwise: Column) -> Column:
    """`value` if all conditions are true; `otherwise` if one is false or null."""
    condition_of_all = sql.lit(True)
    for condition in conditions:
        condition_of_all = condition_of_all & condition
    return sql.when(condition_of_all, value).otherwise(otherwise)


def strict_cast(cell: Column, kind: DataType) -> Column:
    """Cast a value. Null stays null. An invalid value is an error about the record."""
    # Spark evaluates the value a second time only if it is null or invalid.
    wrong = refusal(f"a value is not a {kind.simpleString()}").cast(kind)
    return sql.coalesce(cell.try_cast(kind), sql.when(cell.isNotNull(), wrong))
