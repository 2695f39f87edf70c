"""Records in the format Arrow IPC, with many rows each. Spark's Python workers decode them, so they need cdfd installed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from cdfd.delta.types.arrow_types import to_arrow
from cdfd.delta.types.schema_string import parse
from cdfd.errors import DataError
from cdfd.model.columns import CHANGE_TYPES
from cdfd.runtime import compute as pc
from cdfd.scan import variant
from cdfd.spark.records.records import CHANGE_NAMES, KAFKA_NAMES, ROW, UNKNOWN_HINT, VALUE, row_type


def arrow_rows(records: DataFrame, schema: StructType, *, strict: bool) -> DataFrame:
    """Decode records with many rows each.

    Args:
        records: see `cdfd.spark.records.records`.
        schema: of the table.
        strict: whether a column or field that is not in the schema is an error.
    """
    fields = row_type(schema).fields
    wire = StructType([StructField(field.name, _wire_type(field.dataType)) for field in fields])
    reader = StreamReader(to_arrow(parse(wire.json())), strict)

    def read(values: pa.Array, topics: pa.Array, partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        return reader(values, topics, partitions, offsets)

    # Its type overloads do not cover functions with type hints.
    make: Any = arrow_udf
    rows = records.select(
        *KAFKA_NAMES, sql.explode(make(read, ArrayType(wire))(VALUE, *KAFKA_NAMES[:3])).alias("_wire")
    )
    cells = [_decode(field.dataType, sql.col("_wire").getField(field.name)).alias(field.name) for field in fields]
    return rows.select(*KAFKA_NAMES, sql.struct(*cells).alias(ROW))


@dataclass(frozen=True, slots=True)
class StreamReader:
    """Decodes records to lists of rows, in Spark's Python workers.

    Attributes:
        schema: of the rows; variants are text.
        strict: as of `arrow_rows`.
    """

    schema: pa.Schema
    strict: bool

    def __call__(self, values: pa.Array, topics: pa.Array, partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        """The rows of each record, as a list of structs.

        Args:
            values: of records, binary. A tombstone has no rows.
            topics, partitions, offsets: of the records.

        Raises:
            DataError: a record is not such a stream, or its rows do not fit; with topic, partition and offset.
        """
        streams: list[pa.RecordBatch] = []
        ends = [0]
        for number in range(len(values)):
            place = f"topic {topics[number]}, partition {partitions[number]}, offset {offsets[number]}"
            try:
                batches = list(self._stream(values[number].as_buffer())) if values[number].is_valid else []
            except (pa.ArrowException, OSError, ValueError) as error:
                raise DataError(f"{place}: no Arrow stream of this schema: {error}"[:1000]) from error
            except DataError as error:
                error.what = f"{place}: {error.what}"
                raise
            streams += batches
            ends.append(ends[-1] + sum(batch.num_rows for batch in batches))
        rows = pa.Table.from_batches(streams, self.schema).to_struct_array().combine_chunks()
        # One chunk, whatever the number of batches.
        rows = rows if isinstance(rows, pa.Array) else pa.concat_arrays(rows.chunks)
        kind = pa.list_(pa.field("element", pa.struct(list(self.schema))))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), rows, type=kind)

    def _stream(self, value: pa.Buffer) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(value) as stream:
            for batch in stream:
                # Any producer may write to the topic, and Spark does not validate batches.
                batch.validate(full=True)
                yield self._conform(batch)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        missing = [name for name in CHANGE_NAMES if name not in batch.schema.names]
        if missing:
            raise DataError(f"its rows have no column {missing[0]}, so they are not change rows")
        structs = conform(batch.to_struct_array(), pa.struct(list(self.schema)), self.strict)
        rows = pa.RecordBatch.from_struct_array(structs)
        for name in CHANGE_NAMES:
            if rows.column(name).null_count:
                raise DataError(f"{name} is null in one of its rows")
        types = pc.is_in(rows.column(CHANGE_NAMES[0]), value_set=CHANGE_TYPES)
        if not pc.all(types).as_py() and rows.num_rows:
            raise DataError(f"{CHANGE_NAMES[0]} is none of {', '.join(CHANGE_TYPES.to_pylist())} in one of its rows")
        return rows


def conform(array: pa.Array, kind: pa.DataType, strict: bool) -> pa.Array:
    """Convert an array to a type: fields by name, null for missing fields, narrower numbers widened, variants as JSON.

    Raises:
        DataError: a field is not in the type, if `strict`.
        pyarrow.ArrowException: a value does not fit the type, or there is no such conversion.
    """
    if array.type.equals(kind):
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return conform(array.storage, kind, strict)
    if isinstance(kind, pa.JsonType):
        text = variant.to_json(array) if pa.types.is_struct(array.type) else array.cast(pa.string())
        return pa.ExtensionArray.from_storage(kind, text)
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        if strict:
            _check_known(array.type, [field.name for field in kind])
        children = []
        for number in range(kind.num_fields):
            field = kind.field(number)
            position = array.type.get_field_index(field.name)
            if position < 0:
                children.append(pa.nulls(len(array), field.type))
            else:
                children.append(conform(array.field(position), field.type, strict))
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_map(array.type) and pa.types.is_map(kind):
        keys, items = conform(array.keys, kind.key_type, strict), conform(array.items, kind.item_type, strict)
        # Offsets are relative to the start of the children, even for a slice.
        return pa.MapArray.from_arrays(_offsets(array), keys, items, type=kind)
    if pa.types.is_list(array.type) and pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_offsets(array), conform(array.values, kind.value_type, strict), type=kind)
    return array.cast(kind)


def _check_known(fields: Iterable[pa.Field], names: Sequence[str]) -> None:
    # Columns of type void, which Spark's schemas of tables leave out, are nulls.
    unknown = [field.name for field in fields if field.name not in set(names) and not pa.types.is_null(field.type)]
    if unknown:
        raise DataError(f"it has {unknown[0]}, which the schema does not have", hint=UNKNOWN_HINT)


def _offsets(array: pa.Array) -> pa.Array:
    """Offsets of a list or map, with null for entries that are null."""
    ends = array.offsets
    if not array.null_count:
        return ends
    nulls = pa.concat_arrays([array.is_null(), pa.array([False])])
    return pc.if_else(nulls, pa.scalar(None, ends.type), ends)


def _wire_type(kind: DataType) -> DataType:
    """The type as returned by the Python workers: variants as text."""
    match kind:
        case StructType():
            return StructType([StructField(field.name, _wire_type(field.dataType)) for field in kind])
        case ArrayType():
            return ArrayType(_wire_type(kind.elementType))
        case MapType():
            return MapType(_wire_type(kind.keyType), _wire_type(kind.valueType))
        case VariantType():
            return StringType()
    return kind


def _decode(kind: DataType, cell: Column) -> Column:
    if _wire_type(kind) == kind:
        return cell
    match kind:
        case StructType():
            cells = [_decode(field.dataType, cell.getField(field.name)).alias(field.name) for field in kind]
            return sql.when(cell.isNotNull(), sql.struct(*cells))
        case ArrayType():
            return sql.transform(cell, lambda element: _decode(kind.elementType, element))
        case MapType():
            return sql.transform_values(cell, lambda _key, value: _decode(kind.valueType, value))
    return sql.parse_json(cell)
