"""Records in Avro with Confluent's frame: a zero byte, the schema's id in four bytes, and the row, or Debezium's event.

Spark's `from_avro` (`spark-avro`, a jar that is not part of Spark) reads each record with its own schema, which
the registry tells when the reading begins. Rows of older schemas are conformed to the one that is asked for: fields by name, those that are
missing null, narrower numbers widened.
"""

import json
from collections.abc import Callable, Mapping
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
from cdfd.errors import DataError, SchemaChangedError
from cdfd.spark.records.envelope import IMAGE, change_cells, explode, image_type, images_of
from cdfd.spark.records.records import (
    CHANGE_NAMES,
    KAFKA_NAMES,
    ROW,
    VALUE,
    check_row,
    known_only,
    refusal,
    row_type,
    strict_cast,
)

_FRAME: Final = 5
_MAX_DEPTH: Final = 80
_WRONG: Final = "its value is not in Avro, as its schema has it"
_OPTIONS: Final = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
"""Options of `from_avro`, whatever the session says: cdfd writes dates of the proleptic Gregorian calendar."""
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
    """Records with one row or one of Debezium's events each.

    Attributes:
        schema: of the table.
        versions: all Avro schemas of records, by id.
        strict: whether a column or field that is not in the schema is an error.
        events: whether they are events.
    """

    schema: StructType
    versions: Mapping[int, str]
    strict: bool
    events: bool = False

    def rows(self, records: DataFrame) -> DataFrame:
        """Decode records; see `cdfd.spark.records.records`."""
        value, number = sql.col(VALUE), sql.col("_schema")
        framed = (sql.length(value) > _FRAME) & (sql.substring(value, 1, 1) == sql.lit(b"\0"))
        number_text = sql.conv(sql.hex(sql.substring(value, 2, 4)), 16, 10)
        framed_records = records.select(
            *KAFKA_NAMES, VALUE, sql.when(framed, number_text.cast("long")).alias("_schema")
        )
        payload = sql.expr(f"substring({VALUE}, {_FRAME + 1})")
        read = framed_records.select(
            *(*KAFKA_NAMES, "_schema"),
            *(
                sql.when(number == each, from_avro(payload, text, _OPTIONS)).alias(f"_record_{each}")
                for each, text in self.versions.items()
            ),
        )
        if self.events:
            return self._event_rows(read)
        kind = row_type(self.schema)

        def row(number: int, node: dict[str, Any]) -> Column:
            return sql.struct(*_fields(kind, node, _record(number)))

        made = read.select(*KAFKA_NAMES, "_schema", self._by_schema(kind, kind, row).alias("_decoded_row"))
        return made.select(*KAFKA_NAMES, check_row(sql.col("_decoded_row"), kind, _WRONG).alias(ROW))

    def _event_rows(self, read: DataFrame) -> DataFrame:
        def images(number: int, _node: dict[str, Any]) -> Column:
            before, after = (_record(number).getField(name).isNotNull() for name in ("before", "after"))
            # Whether it is the newer image stands for the image, because the records of two schemas have two types.
            older, newer = sql.when(before, sql.lit(False)), sql.when(after, sql.lit(True))
            return images_of(_record(number), older, newer, BooleanType(), _WRONG)

        kind = image_type(BooleanType())
        names = (f"_record_{number}" for number in self.versions)
        rows = explode(read, self._by_schema(kind, self.schema, images), "_schema", *names)
        is_newer = sql.col(IMAGE).getField("row")

        def row(number: int, node: dict[str, Any]) -> Column:
            before, after = (_record(number).getField(name) for name in ("before", "after"))
            image = sql.when(is_newer, after).otherwise(before)
            return sql.struct(*_fields(self.schema, node, image), *change_cells())

        return rows.select(*KAFKA_NAMES, self._by_schema(row_type(self.schema), self.schema, row).alias(ROW))

    def _by_schema(
        self, kind: DataType, own_schema: StructType, value: Callable[[int, dict[str, Any]], Column]
    ) -> Column:
        """A value for the schema of each record, out of its id and the schema of its row; or an error about the record.

        Args:
            kind: of the value.
            own_schema: fields of rows that are no error.
            value: makes it.
        """
        number = sql.col("_schema")
        stranger = "no frame of a schema registry, or a schema that is newer than the query; restart the query"
        chosen = sql.when(number.isNull(), refusal("no frame of a schema registry").cast(kind))
        for each, text in self.versions.items():
            node = image_node(text) if self.events else record_node(text)
            unknown = _unknown(own_schema, _type(node)) if self.strict else None
            wrong = None if unknown is None else known_only(sql.lit(None).cast(kind), kind, unknown)
            chosen = chosen.when(number == each, value(each, node) if wrong is None else wrong)
        return chosen.otherwise(refusal(stranger).cast(kind))


def _record(number: int) -> Column:
    """The record of a schema, as `from_avro` gives it."""
    return sql.col(f"_record_{number}")


def image_node(text: str) -> dict[str, Any]:
    """The record of rows in a schema of Debezium's events. `DataError` if it is none."""
    fields = {field["name"]: field for field in record_node(text)["fields"]}
    image = _without_null(fields["before"]["type"]) if "before" in fields else None
    if not {"after", "source", "op"} <= fields.keys() or not isinstance(image, dict) or image["type"] != "record":
        raise DataError(
            f"the registry's schema is not one of Debezium's events; its fields are {', '.join(fields)}"[:1000]
        )
    return image


def record_node(text: str) -> dict[str, Any]:
    """An Avro schema, which must be a record. `DataError` if it is not one, or not valid."""
    try:
        node = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the registry has a schema that is not JSON: {error}") from error
    if not isinstance(node, dict) or node.get("type") != "record":
        raise DataError(f"the registry has a schema that is not a record: {text:.200}", hint="Is it another topic's?")
    _check(node, 0)
    return node


def _check(node: Any, depth: int) -> None:
    """Refuse a schema without required attributes (Avro, "Schema Declaration"), at any depth."""
    if depth > _MAX_DEPTH:
        raise DataError(f"the registry has a schema that is nested deeper than {_MAX_DEPTH} levels")
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
        case {"type": str(kind), **others} if (
            kind not in ("record", "array", "map") and others.get("logicalType") != "decimal"
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


def table_type(text: str, *, events: bool = False) -> StructType:
    """The table's columns in Spark's types, from the Avro schema of change rows. It has ints for bytes and shorts, and strings for variants.

    Args:
        text: the schema.
        events: whether it is one of Debezium's events.

    Raises:
        DataError: the schema is not one of change rows, or of events.
    """
    kind = _type(image_node(text) if events else record_node(text))
    if events and isinstance(kind, StructType):
        return kind
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
            types = {field.name: field.dataType for field in kind}
            for field in written:
                if field.name not in types:
                    return field.name
                if (unknown := _unknown(types[field.name], field.dataType)) is not None:
                    return f"{field.name}.{unknown}"
        case ArrayType(), ArrayType():
            return _unknown(kind.elementType, written.elementType)
        case MapType(), MapType():
            return _unknown(kind.keyType, written.keyType) or _unknown(kind.valueType, written.valueType)
    return None


def _fields(kind: StructType, node: dict[str, Any], cell: Column) -> list[Column]:
    """The fields of a table's struct, from a record with another schema."""
    written = {_name(field): field for field in node["fields"]}
    fields = []
    for field in kind:
        source = written.get(field.name)
        if source is None or source["type"] == "null":
            value = sql.lit(None).cast(field.dataType)
        else:
            value = _value(field.dataType, source["type"], cell.getField(source["name"]))
        fields.append(value.alias(field.name))
    return fields


def _value(kind: DataType, node: Any, cell: Column) -> Column:
    """Convert a result of `from_avro` to the table's type."""
    node = _without_null(node)
    wrote = _type(node)
    match kind:
        case VariantType() if isinstance(wrote, StringType):
            return sql.parse_json(cell)
        case StructType() if isinstance(wrote, StructType):
            return sql.when(cell.isNotNull(), sql.struct(*_fields(kind, node, cell)))
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
