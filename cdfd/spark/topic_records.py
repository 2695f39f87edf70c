"""What all formats of our topics have in common: the columns that records come with, the schema of rows, and how a wrong record is told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from pyspark.sql import Column, DataFrame
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

from cdfd.changes.columns import CHANGE_ORDINAL, CHANGE_TYPE, CHANGE_TYPES, COMMIT_TIMESTAMP, COMMIT_VERSION
from cdfd.delta.datatypes import without_void
from cdfd.delta.schema_string import parse, serialize
from cdfd.errors import ConfigError

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

UNKNOWN_HINT: Final = (
    "If the column is new, start the query anew, with the schema of now; if it was dropped or renamed, say "
    "unknown_columns='ignore'"
)


class Decoder(Protocol):
    """Makes change rows of the records of one format."""

    def rows(self, records: DataFrame) -> DataFrame:
        """The rows of records, none of which is a tombstone.

        Args:
            records: the columns `KAFKA_NAMES`, and `VALUE`, never null.

        Returns:
            The columns `KAFKA_NAMES`, and `ROW`: a struct of the table's columns and the change columns.
        """


def row_type(schema: StructType) -> StructType:
    """The struct of change rows of a table with that schema."""
    return StructType([*schema.fields, *CHANGE_FIELDS])


def table_type(schema_string: str) -> StructType:
    """A schema as Delta's log has it, as Spark's: columns of type void left out, everything nullable, no metadata but comments.

    Raises:
        LogError: it is broken.
        UnsupportedError: it has a type that cdfd does not read.
    """
    document = json.loads(serialize(without_void(parse(schema_string))))
    struct = plain_type(StructType.fromJson(document))
    assert isinstance(struct, StructType)
    return struct


def plain_type(kind: DataType) -> DataType:
    """The type with everything nullable, and without metadata, which belong to the table that they come from."""
    match kind:
        case StructType():
            fields = [StructField(field.name, plain_type(field.dataType), True, _comment(field)) for field in kind]
            return StructType(fields)
        case ArrayType():
            return ArrayType(plain_type(kind.elementType), True)
        case MapType():
            return MapType(plain_type(kind.keyType), plain_type(kind.valueType), True)
    return kind


def _comment(field: StructField) -> dict[str, str]:
    return {name: text for name, text in field.metadata.items() if name == "comment"}


def check_columns(schema: StructType) -> None:
    """`ConfigError` where a table's columns cannot be told from those that rows have beside them."""
    taken = {name.lower() for name in (*CHANGE_NAMES, *KAFKA_NAMES)}
    wrong = [name for name in schema.names if name.lower() in taken]
    if wrong:
        raise ConfigError(
            f"the table has a column {wrong[0]!r:.200}, which is what change rows call one of theirs",
            hint=f"Name the other columns in `columns`; theirs are {', '.join((*CHANGE_NAMES, *KAFKA_NAMES))}",
        )


def chosen(schema: StructType, columns: Sequence[str]) -> StructType:
    """Some columns of a schema, in that order. `ConfigError` where there is none of a name."""
    known = {field.name: field for field in schema}
    for name in columns:
        if name not in known:
            raise ConfigError(
                f"the schema has no column {name!r:.200}", hint=f"It has {', '.join(list(known)[:50])}"[:1000]
            )
    return StructType([known[name] for name in columns])


def quoted(name: str) -> str:
    """A column's name in Spark's expressions."""
    return "`" + name.replace("`", "``") + "`"


def refusal(*what: str | Column) -> Column:
    """An error, of the type null, that names the record at hand and says what is wrong with it."""
    topic, partition, offset = (sql.col(name).cast("string") for name in KAFKA_NAMES[:3])
    place = (sql.lit("cdfd: topic "), topic, sql.lit(", partition "), partition, sql.lit(", offset "), offset)
    return sql.raise_error(sql.concat(*place, sql.lit(": "), *(sql.lit(part) for part in what)))


def checked(row: Column, kind: StructType, what: str, *further: Column) -> Column:
    """The row, where it has all change columns and the further conditions hold; else an error that names the record."""
    there = [row.getField(name).isNotNull() for name in CHANGE_NAMES]
    return when_all([*there, row.getField(CHANGE_TYPE).isin(*TYPE_NAMES), *further], row, refusal(what).cast(kind))


def known_only(row: Column, kind: DataType, unknown: Column | str) -> Column:
    """The row, where its record has no column that the schema lacks; else an error that names the record and that column.

    Args:
        row: what is made of the record.
        kind: its type.
        unknown: such a column, or null.
    """
    named = sql.lit(unknown)
    wrong = refusal("it has ", named, ", which the schema does not have. ", UNKNOWN_HINT).cast(kind)
    return sql.when(named.isNotNull(), wrong).otherwise(row)


def when_all(conditions: Iterable[Column], value: Column, otherwise: Column) -> Column:
    """The value where all conditions are true; where one is false or null, the other."""
    found = sql.lit(True)
    for condition in conditions:
        found = found & condition
    return sql.when(found, value).otherwise(otherwise)


def strict_cast(cell: Column, kind: DataType) -> Column:
    """The value in another type; null stays null; an error that names the record where it is none of that type."""
    # The value is only looked at a second time where it is null, or wrong.
    wrong = refusal(f"a value is no {kind.simpleString()}").cast(kind)
    return sql.coalesce(cell.try_cast(kind), sql.when(cell.isNotNull(), wrong))
