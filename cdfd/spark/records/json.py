"""Records in JSON: plain rows (flat, cloudevents), or Debezium's envelope.

Spark's `from_json` reads types that it supports exactly. It reads all other types as text, which Spark then casts:

| type                              | read as                                   | then                     |
|-----------------------------------|-------------------------------------------|--------------------------|
| long                              | text, for it may stand in quotes          | cast                     |
| date, timestamp, timestamp_ntz    | text, for `from_json` rounds and guesses  | cast                     |
| map, but with keys that follow    | map with keys of text                     | keys cast                |
| map with nested or binary keys    | pairs, arrays of two texts                | each text read by itself |
| all others                        | themselves                                |                          |

Records of JSON Schema have the frame of a registry in front, and are the same JSON, except for variants and maps with other keys than text.

A record that does not fit the schema is an error with its topic, partition and offset.
"""

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from cdfd.errors import UnsupportedError
from cdfd.spark.records.envelope import IMAGE, change_cells, event_fields, explode, image_type, images_of
from cdfd.spark.records.records import (
    KAFKA_NAMES,
    ROW,
    VALUE,
    check_row,
    known_only,
    row_type,
    strict_cast,
    types_in,
)

_FRAME: Final = 5
_CORRUPT: Final = "_cdfd_corrupt"
_DOCUMENT: Final = "_document"
_AS_TEXT: Final = (LongType, DateType, TimestampType, TimestampNTZType)
_TEXT: Final = StringType()
_UNKNOWN: Final = "_unknown"


def json_rows(records: DataFrame, schema: StructType, *, strict: bool) -> DataFrame:
    """Decode records with one row each.

    Args:
        records: see `cdfd.spark.records.records`.
        schema: of the table.
        strict: whether a column that is not in the schema is an error. Fields of structs are not checked.
    """
    kind = row_type(schema)
    document = sql.col(_DOCUMENT)
    unknown = _unknown(sql.col(VALUE).cast("string"), kind.names) if strict else sql.lit(None)
    parsed = records.select(*KAFKA_NAMES, unknown.alias(_UNKNOWN), _parse(wire_type(kind).fields))
    made = parsed.select(*KAFKA_NAMES, _UNKNOWN, document, _struct(kind, document).alias(ROW))
    good = document.getField(_CORRUPT).isNull()
    row = check_row(sql.col(ROW), kind, "no change row in JSON with the columns of this schema", good)
    row = known_only(row, kind, sql.col(_UNKNOWN)) if strict else row
    return made.select(*KAFKA_NAMES, row.alias(ROW))


def envelope_rows(records: DataFrame, schema: StructType, *, strict: bool) -> DataFrame:
    """Decode records with one Debezium event each. An update becomes two rows, its images. The arguments are those of `json_rows`."""
    image = wire_type(schema)
    text = sql.col(VALUE).cast("string")
    newer = sql.coalesce(sql.get_json_object(text, "$.after"), sql.get_json_object(text, "$.before"))
    unknown = _unknown(newer, schema.names) if strict else sql.lit(None)
    read = records.select(*KAFKA_NAMES, unknown.alias(_UNKNOWN), _parse(event_fields(image)))
    event = sql.col(_DOCUMENT)
    before, after, corrupt = (event.getField(name) for name in ("before", "after", _CORRUPT))
    wrong = "no event in JSON with the columns of this schema"
    images = images_of(event, before, after, image, wrong, corrupt.isNull())
    if strict:
        images = known_only(images, image_type(image), sql.col(_UNKNOWN))
    row = sql.col(IMAGE).getField("row")
    cells = [decode(field.dataType, row.getField(field.name)).alias(field.name) for field in schema]
    return explode(read, images).select(*KAFKA_NAMES, sql.struct(*cells, *change_cells()).alias(ROW))


def unframe(records: DataFrame, schema: StructType) -> DataFrame:
    """Records without a registry's frame: a zero byte, and the schema's id in four bytes.

    Raises:
        UnsupportedError: a column has another form in JSON Schema.
    """
    for field in schema:
        if any(isinstance(each, VariantType) or _has_other_keys(each) for each in types_in(field.dataType)):
            raise UnsupportedError(
                f"column {field.name}: {field.dataType.simpleString():.200} cannot be read from JSON Schema",
                hint="Omit the column with `columns`, or deliver the table in the format arrow or avro",
            )
    value = sql.col(VALUE)
    framed = sql.substring(value, 1, 1) == sql.lit(b"\0")
    return records.select(*KAFKA_NAMES, sql.when(framed, sql.expr(f"substring({VALUE}, {_FRAME + 1})")).alias(VALUE))


def _unknown(document: Column, names: Sequence[str]) -> Column:
    """The first name in a JSON object that is not in `names`, and whose value is not null; null if there is none.

    Columns of type void, which Spark's schemas of tables leave out, are nulls.
    """
    others = sql.array_except(sql.json_object_keys(document), sql.array(*map(sql.lit, names)))

    def has_value(name: Column) -> Column:
        # Not by a path, which cannot have every name.
        return sql.try_element_at(sql.from_json(document, "map<string, string>"), name).isNotNull()

    return sql.get(sql.filter(others, has_value), sql.lit(0))


def wire_type(kind: DataType) -> Any:
    """The type with which `from_json` reads values of a type.

    Raises:
        UnsupportedError: a variant in a map whose keys have no text form cannot be read.
    """
    match kind:
        case StructType():
            return StructType([StructField(field.name, wire_type(field.dataType)) for field in kind])
        case ArrayType():
            return ArrayType(wire_type(kind.elementType))
        case MapType() if _is_named(kind.keyType):
            return MapType(_TEXT, wire_type(kind.valueType))
        case MapType():
            if isinstance(kind.keyType, VariantType) or isinstance(kind.valueType, VariantType):
                raise UnsupportedError(
                    f"{kind.simpleString()} cannot be read from JSON, which does not distinguish its variants from text",
                    hint="Omit the column with `columns`, or deliver the table in the format arrow or avro",
                )
            return ArrayType(ArrayType(_TEXT))
    return _TEXT if isinstance(kind, _AS_TEXT) else kind


def decode(kind: DataType, cell: Column) -> Column:
    """Convert a value from its `wire_type`."""
    if _is_exact(kind):
        return cell
    match kind:
        case VariantType():
            # A JSON null is a null of the table, as in other formats, not a null variant.
            return sql.when(~sql.is_variant_null(cell), cell)
        case StructType():
            return _struct(kind, cell)
        case ArrayType():
            return sql.transform(cell, lambda element: decode(kind.elementType, element))
        case MapType() if _is_named(kind.keyType):
            if not isinstance(kind.keyType, StringType):
                cell = sql.transform_keys(cell, lambda key, _value: strict_cast(key, kind.keyType))
            if _is_exact(kind.valueType):
                return cell
            return sql.transform_values(cell, lambda _key, value: decode(kind.valueType, value))
        case MapType():
            return sql.map_from_entries(sql.transform(cell, lambda pair: _entry(kind, pair)))
    return strict_cast(cell, kind)


def _parse(fields: list[StructField]) -> Column:
    """The parsed record. If a part cannot be read, it is null, and `_CORRUPT` has the whole text."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    kind = StructType([*fields, StructField(_CORRUPT, _TEXT)])
    return sql.from_json(sql.col(VALUE).cast("string"), kind, options).alias(_DOCUMENT)


def _struct(kind: StructType, cell: Column) -> Column:
    cells = [decode(field.dataType, cell.getField(field.name)).alias(field.name) for field in kind]
    return sql.when(cell.isNotNull(), sql.struct(*cells))


def _entry(kind: MapType, pair: Column) -> Column:
    key = _from_text(kind.keyType, sql.get(pair, sql.lit(0)))
    value = _from_text(kind.valueType, sql.get(pair, sql.lit(1)))
    return sql.struct(key.alias("key"), value.alias("value"))


def _from_text(kind: DataType, text: Column) -> Column:
    """Convert the JSON text of a value, without its quotes."""
    match kind:
        case StringType():
            return text
        case BinaryType():
            return sql.unbase64(text)
        case StructType() | ArrayType() | MapType():
            return decode(kind, sql.from_json(text, wire_type(kind), {"mode": "FAILFAST"}))
    return strict_cast(text, kind)


def _is_exact(kind: DataType) -> bool:
    """Whether `from_json` reads values of the type exactly."""
    return not any(isinstance(each, (*_AS_TEXT, VariantType)) or _has_other_keys(each) for each in types_in(kind))


def _has_other_keys(kind: DataType) -> bool:
    """Whether it is a map whose keys are not text."""
    return isinstance(kind, MapType) and not isinstance(kind.keyType, StringType)


def _is_named(kind: DataType) -> bool:
    """Whether a map with keys of this type is a JSON object."""
    return not isinstance(kind, (StructType, ArrayType, MapType, BinaryType, VariantType))
