"""Records in Avro with Confluent's frame: a zero byte, the schema's id in four bytes, and the row.

Spark's `from_avro` (`spark-avro`, a jar that is not part of Spark) reads each record with its own schema, which
the registry tells when the reading begins. Rows of older schemas are conformed to the one that is asked for: fields by name, those that are
missing null, narrower numbers widened.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from cdfd.delta.types.datatypes import MAX_PRECISION
from cdfd.delta.types.schema_string import MAX_DEPTH
from cdfd.errors import DataError, SchemaChangedError
from cdfd.spark.records.records import (
    CHANGE_NAMES,
    KAFKA_NAMES,
    ROW,
    VALUE,
    checked,
    known_only,
    refusal,
    row_type,
    strict_cast,
)

_FRAME: Final = 5
_PRIMITIVES: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "bytes": BinaryType(),
}
_LOGICAL: Final[Mapping[str, DataType]] = {
    "date": DateType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-micros": TimestampNTZType(),
}


@dataclass(frozen=True, slots=True)
class AvroFrames:
    """Records with one row each.

    Attributes:
        schema: of the table.
        versions: all Avro schemas of records, by id.
        strict: whether a column or field that is not in the schema is an error.
    """

    schema: StructType
    versions: Mapping[int, str]
    strict: bool

    def rows(self, records: DataFrame) -> DataFrame:
        """As `Decoder.rows`."""
        value, number = sql.col(VALUE), sql.col("_schema")
        framed = (sql.length(value) > _FRAME) & (sql.substring(value, 1, 1) == sql.lit(b"\0"))
        number_text = sql.conv(sql.hex(sql.substring(value, 2, 4)), 16, 10)
        known = records.select(*KAFKA_NAMES, VALUE, sql.when(framed, number_text.cast("long")).alias("_schema"))
        payload = sql.expr(f"substring({VALUE}, {_FRAME + 1})")
        read = known.select(
            *(*KAFKA_NAMES, "_schema"),
            *(
                sql.when(number == each, from_avro(payload, text, {"mode": "PERMISSIVE"})).alias(f"_record_{each}")
                for each, text in self.versions.items()
            ),
        )
        made = read.select(*KAFKA_NAMES, "_schema", self._row(number).alias("_decoded_row"))
        row = checked(sql.col("_decoded_row"), row_type(self.schema), "its value is not in Avro, as its schema has it")
        return made.select(*KAFKA_NAMES, row.alias(ROW))

    def _row(self, number: Column) -> Column:
        kind = row_type(self.schema)
        stranger = "no frame of a schema registry, or a schema that is newer than the query; restart the query"
        row = sql.when(number.isNull(), refusal("no frame of a schema registry").cast(kind))
        for each, text in self.versions.items():
            node = record_node(text)
            unknown = _unknown(kind, _type(node)) if self.strict else None
            if unknown is not None:
                row = row.when(number == each, known_only(sql.lit(None).cast(kind), kind, unknown))
                continue
            cells = [field.alias(field_name) for field_name, field in _fields(kind, node, sql.col(f"_record_{each}"))]
            row = row.when(number == each, sql.struct(*cells))
        return row.otherwise(refusal(stranger).cast(kind))


def record_node(text: str) -> dict[str, Any]:
    """An Avro schema, which must be a record. `DataError` if it is not one, or not valid."""
    try:
        node = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the registry has a schema that is not JSON: {error}") from error
    if not isinstance(node, dict) or node.get("type") != "record":
        raise DataError(f"the registry has a schema that is no record: {text:.200}", hint="Is it another topic's?")
    _check(node, 0)
    return node


def _check(node: Any, depth: int) -> None:
    """Refuse a schema without required attributes (Avro, "Schema Declaration"), at any depth."""
    if depth > MAX_DEPTH:
        raise DataError(f"the registry has a schema that is nested deeper than {MAX_DEPTH} levels")
    below: list[Any] = []
    match node:
        case str() if node not in ("record", "array", "map"):
            pass
        case list() if not any(isinstance(branch, list) for branch in node):
            below = node
        case {"type": "record", "fields": list(fields)} if all(map(_is_field, fields)):
            below = [field["type"] for field in fields]
        case {"type": "array", "items": items}:
            below = [items]
        case {"type": "map", "values": values}:
            below = [values]
        case {"type": str(), "logicalType": "decimal", "precision": int(precision), "scale": int(scale)}:
            if not 0 <= scale <= precision <= MAX_PRECISION:
                raise DataError(f"the registry has a schema with a decimal that is none: {node!r:.200}")
        case {"type": str(kind), **rest} if (
            kind not in ("record", "array", "map") and rest.get("logicalType") != "decimal"
        ):
            pass
        case _:
            raise DataError(
                f"the registry has a schema with a type that is none: {node!r:.200}", hint="Is it another topic's?"
            )
    for each in below:
        _check(each, depth + 1)


def _is_field(field: Any) -> bool:
    return (
        isinstance(field, dict)
        and "type" in field
        and all(isinstance(field.get(n, ""), str) for n in ("name", "doc"))
        and bool(field.get("name"))
    )


def table_type(text: str) -> StructType:
    """The table's columns in Spark's types, from the Avro schema of change rows. It has ints for bytes and shorts, and strings for variants.

    Raises:
        DataError: the schema is not one of change rows.
    """
    kind = _type(record_node(text))
    names = kind.names if isinstance(kind, StructType) else []
    if not isinstance(kind, StructType) or tuple(names[-len(CHANGE_NAMES) :]) != CHANGE_NAMES:
        raise DataError(f"the registry's schema is not one of change rows; its fields are {', '.join(names)}"[:1000])
    return StructType(kind.fields[: -len(CHANGE_NAMES)])


def _type(node: Any) -> DataType:
    node = _without_null(node)
    kind = node["type"] if isinstance(node, dict) else node
    logical = node.get("logicalType") if isinstance(node, dict) else None
    if logical == "decimal":
        return DecimalType(node["precision"], node["scale"])
    if isinstance(logical, str) and logical in _LOGICAL:
        return _LOGICAL[logical]
    match kind:
        case "record":
            # Columns of type void are nulls. Spark's schemas of tables leave them out.
            typed = (field for field in node["fields"] if field["type"] != "null")
            return StructType([StructField(_name(field), _type(field["type"])) for field in typed])
        case "array" if (entry := _entry(node)) is not None:
            return MapType(_type(entry[0]["type"]), _type(entry[1]["type"]))
        case "array":
            return ArrayType(_type(node["items"]))
        case "map":
            return MapType(StringType(), _type(node["values"]))
    if kind not in _PRIMITIVES:
        raise DataError(f"the registry's schema has the type {kind!r:.100}, which cdfd does not write")
    return _PRIMITIVES[kind]


def _unknown(kind: DataType, written: DataType) -> str | None:
    """The first written field that is not in the type."""
    match kind, written:
        case StructType(), StructType():
            known = {field.name: field.dataType for field in kind}
            for field in written:
                if field.name not in known:
                    return field.name
                if (unknown := _unknown(known[field.name], field.dataType)) is not None:
                    return f"{field.name}.{unknown}"
        case ArrayType(), ArrayType():
            return _unknown(kind.elementType, written.elementType)
        case MapType(), MapType():
            return _unknown(kind.keyType, written.keyType) or _unknown(kind.valueType, written.valueType)
    return None


def _fields(kind: StructType, node: dict[str, Any], cell: Column) -> list[tuple[str, Column]]:
    """The fields of a table's struct, from a record with another schema."""
    written = {_name(field): field for field in node["fields"]}
    fields = []
    for field in kind:
        source = written.get(field.name)
        if source is None or source["type"] == "null":
            fields.append((field.name, sql.lit(None).cast(field.dataType)))
        else:
            fields.append((field.name, _value(field.dataType, source["type"], cell.getField(source["name"]))))
    return fields


def _value(kind: DataType, node: Any, cell: Column) -> Column:
    """Convert a result of `from_avro` to the table's type."""
    node = _without_null(node)
    wrote = _type(node)
    match kind:
        case VariantType() if isinstance(wrote, StringType):
            return sql.parse_json(cell)
        case StructType() if isinstance(wrote, StructType):
            fields = [value.alias(name) for name, value in _fields(kind, node, cell)]
            return sql.when(cell.isNotNull(), sql.struct(*fields))
        case ArrayType() if isinstance(wrote, ArrayType):
            return sql.transform(cell, lambda element: _value(kind.elementType, node["items"], element))
        case MapType() if isinstance(wrote, MapType) and (entry := _entry(node)) is not None:
            return sql.map_from_entries(sql.transform(cell, lambda pair: _pair(kind, entry, pair)))
        case MapType() if isinstance(wrote, MapType):
            return sql.transform_values(cell, lambda _key, value: _value(kind.valueType, node["values"], value))
        case StructType() | ArrayType() | MapType():
            raise SchemaChangedError(
                f"a column is {wrote.simpleString():.200} in some records and {kind.simpleString():.200} here"
            )
    return cell if wrote == kind else strict_cast(cell, kind)


def _pair(kind: MapType, entry: tuple[Any, Any], pair: Column) -> Column:
    cells = (
        _value(wanted, field["type"], pair.getField(field["name"])).alias(name)
        for name, wanted, field in zip(("key", "value"), (kind.keyType, kind.valueType), entry, strict=True)
    )
    return sql.struct(*cells)


def _entry(node: dict[str, Any]) -> tuple[Any, Any] | None:
    """The fields of a map's entry, if this array is a map. Elements of a list are unions with null; entries of a map are not."""
    items = node.get("items")
    if not isinstance(items, dict) or items.get("type") != "record" or len(items["fields"]) != len(("key", "value")):
        return None
    return items["fields"][0], items["fields"][1]


def _without_null(node: Any) -> Any:
    return next((branch for branch in node if branch != "null"), "null") if isinstance(node, list) else node


def _name(field: Mapping[str, Any]) -> str:
    """The column's name in the table. It is in `doc` if Avro does not allow it."""
    name: str = field.get("doc") or field["name"]
    return name
