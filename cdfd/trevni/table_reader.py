"""A file's rows as Arrow record batches, and the row of a value."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

from cdfd.errors import ConfigError, TrevniError
from cdfd.runtime.arrays import scalar_of
from cdfd.trevni import avro_schema
from cdfd.trevni.assembly import assemble
from cdfd.trevni.column_reader import ColumnReader
from cdfd.trevni.metadata import RESERVED, ColumnMetadata, FileMetadata
from cdfd.trevni.rows import LOAD_BYTES, Reader, Run, run_all
from cdfd.trevni.shapes import Array, Field, Leaf, Record, Shape, Union, arrow_field, widths_of
from cdfd.trevni.source import Source
from cdfd.trevni.values.value_types import ARROW


def shape_of(metadata: FileMetadata) -> Record:
    """The shape of a file's rows. A schema that is no record is that of a column `value`.

    Raises:
        TrevniError: the schema is damaged, or the columns are not those of the schema.
    """
    text = metadata.metadata.get(avro_schema.KEY)
    if text is None:
        return _physical(metadata.columns)
    columns, shape = avro_schema.parse(text, metadata.num_columns)
    for actual, expected in zip(metadata.columns, columns, strict=False):
        place, described = ((each.name, each.type, each.array, each.parent) for each in (actual, expected))
        if place != described:
            what = f"the Avro schema has {expected.name!r:.100} ({expected.type}) here, and the file another column"
            raise TrevniError(what).at(column=actual.name)
    if len(columns) != metadata.num_columns:
        raise TrevniError(f"the Avro schema has {len(columns)} columns, and the file {metadata.num_columns}")
    return shape if isinstance(shape, Record) else Record((Field("value", shape),))


def _physical(columns: Sequence[ColumnMetadata]) -> Record:
    """Columns without a parent are columns of the rows. An array column with children is a list of structs of them."""
    children: dict[str | None, list[int]] = {}
    for number, column in enumerate(columns):
        children.setdefault(column.parent, []).append(number)

    def shape(number: int, depth: int) -> Shape:
        column = columns[number]
        if depth > avro_schema.DEEPEST:
            raise TrevniError(f"columns have more than {avro_schema.DEEPEST} levels of parents").at(column=column.name)
        leaf = Leaf(number, column.type, ARROW[column.type])
        if not column.array:
            return leaf
        inside = children.get(column.name, [])
        if not inside:
            return Array(number, leaf, inner=True)
        own = [] if column.type == "null" else [Field(column.name, leaf)]
        fields = [*own, *(Field(columns[child].name, shape(child, depth + 1)) for child in inside)]
        return Array(number, Record(tuple(fields)), inner=False)

    return Record(tuple(Field(columns[number].name, shape(number, 0)) for number in children.get(None, [])))


def arrow_schema(shape: Record, metadata: FileMetadata) -> pa.Schema:
    """The Arrow schema of rows. Its metadata is the user's in the file."""
    own = {
        key.encode(): value
        for key, value in metadata.metadata.items()
        if key != avro_schema.KEY and not key.startswith(RESERVED)
    }
    fields = [arrow_field(field.name, field.shape, field.id) for field in shape.fields]
    return pa.schema(fields, metadata=own or None)


def select(shape: Record, names: Iterable[str]) -> Record:
    """The shape of some columns, in the file's order.

    Args:
        shape: of the rows.
        names: columns, or dotted names of fields of structs.

    Raises:
        ConfigError: a name is unknown, or no text.
    """
    own_names = {field.name for field in shape.fields}
    wanted: dict[str, list[str]] = {}
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"columns has {name!r:.100}", hint='Give names, such as ["id", "price"]')
        first, _, below = (name, "", "") if name in own_names else name.partition(".")
        if first not in own_names:
            raise ConfigError(
                f"there is no column {name!r:.100}", hint=f"Choose from {', '.join(sorted(own_names))[:200]}"
            )
        wanted.setdefault(first, []).append(below)
    fields = []
    for field in shape.fields:
        if field.name in wanted:
            inside = wanted[field.name]
            fields.append(field if "" in inside else replace(field, shape=_inside(field.shape, inside)))
    return Record(tuple(fields))


def _inside(shape: Shape, names: Sequence[str]) -> Shape:
    """Some fields of a struct, which may be nullable. Others cannot be read in part."""
    if isinstance(shape, Record):
        return select(shape, names)
    if isinstance(shape, Union) and shape.optional is not None and isinstance(shape.optional.shape, Record):
        chosen = replace(shape.optional, shape=select(shape.optional.shape, names))
        return Union(tuple(None if branch is None else chosen for branch in shape.branches))
    return shape


BATCH_ROWS = 65_536
"""Rows of a batch, at most."""


class TableReader(Reader):
    """Reads rows of a file.

    Args:
        source: the file.

    Raises:
        TrevniError: the header or the schema is damaged.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.shape = shape_of(self.metadata)

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return arrow_schema(self.shape, self.metadata)

    def select(self, columns: Sequence[str] | None) -> Record:
        """The shape of some columns; None for all.

        Raises:
            ConfigError: a name is unknown, or no text.
        """
        if columns is None:
            return self.shape
        if isinstance(columns, str) or not isinstance(columns, Iterable):
            raise ConfigError(f"columns is {columns!r:.100}", hint='Give names, such as ["id", "price"]')
        return select(self.shape, columns)

    def batches(
        self,
        shape: Record,
        start: int = 0,
        end: int | None = None,
        *,
        rows: int | None = BATCH_ROWS,
        load_bytes: int = LOAD_BYTES,
        most_bytes: int | None = None,
        run: Run = run_all,
    ) -> Iterator[pa.RecordBatch]:
        """The rows `[start, end)` in order.

        Args:
            shape: of the columns to read.
            start: first row.
            end: the row after the last; None for the last of the file.
            rows: of a batch, at most; None for as many as are decoded together.
            load_bytes: bytes of blocks to decode at once, about.
            most_bytes: of blocks to decode at once, besides those that are usual for each column; None for any number.
            run: decodes columns in parallel.

        Raises:
            TrevniError: the file is damaged.
        """
        schema = arrow_schema(shape, self.metadata)
        widths = dict(widths_of(shape))
        windows = self.windows(
            widths, start, end, most=rows, widths=widths, load_bytes=load_bytes, most_bytes=most_bytes, run=run
        )
        for window in windows:
            count = window.end - window.start
            columns = [assemble(field.shape, window.columns, count) for field in shape.fields]
            if columns:
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            else:
                yield pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))

    def find(self, name: str, value: Any) -> int:
        """The first row whose value is not below `value`, in a column that is sorted and has first values. Reads one block.

        Args:
            name: of the column.
            value: to look for. It is compared exactly, and may be outside of the range of the column's type.

        Returns:
            The number of the row, or of rows if there is none.

        Raises:
            ConfigError: the column is unknown, has no first values, or cannot be compared with the value.
            TrevniError: the file is damaged.
        """
        leaf = next((each.shape for each in self.shape.fields if each.name == name), None)
        if not isinstance(leaf, Leaf) or not self.metadata.columns[leaf.column].values:
            hint = "Write the file with first_values"
            raise ConfigError(f"there is no column {name!r:.100} with first values", hint=hint)
        table = self.blocks(leaf.column)
        if not len(table):
            return 0
        assert table.first_values is not None
        order = _order(leaf.arrow)
        try:
            wanted = _wanted(leaf, value)
            block = max(0, bisect_left(table.first_values, wanted, key=order) - 1)
        except (TypeError, ValueError, ArithmeticError, pa.ArrowException):
            what = f"column {name!r:.100} cannot be compared with {value!r:.100}"
            raise ConfigError(what, hint=f"Give a value for the type {leaf.arrow}") from None
        row, end = (int(each) for each in table.first_rows[block : block + 2])
        if row == end:
            return row
        reader = ColumnReader(self.source, table, block, row, runs=self.metadata.runs)
        reader.load(end)
        values: Any = reader.take(end, end - row).values
        return row + bisect_left(values, wanted, key=lambda each: order(each.as_py()))


def _order(kind: pa.DataType) -> Callable[[Any], Any]:
    """How stored values of a type are compared: as Python's numbers and text, times as nanoseconds."""
    if pa.types.is_decimal(kind):
        # As bytes, the decimal -1 is above 1. 16 bytes have 39 digits.
        return lambda stored: Decimal(int.from_bytes(stored, signed=True)).scaleb(-kind.scale, Context(prec=39))
    if pa.types.is_floating(kind):
        # Sorted columns end with NaN.
        return lambda stored: math.inf if math.isnan(stored) else stored
    if pa.types.is_temporal(kind):
        unit = _nanoseconds(kind)
        return lambda stored: stored * unit
    return lambda stored: stored


def _wanted(leaf: Leaf, value: Any) -> Any:
    """A value as `_order` has those that are stored.

    Raises:
        TypeError, ValueError, pa.ArrowException: it has no place among them.
    """
    if leaf.symbols is not None:
        return leaf.symbols.index(value)
    if pa.types.is_temporal(leaf.arrow):
        scalar = value if isinstance(value, pa.Scalar) else scalar_of(value)
        kinds = pa.types.is_timestamp, pa.types.is_date32, pa.types.is_time
        if not any(matches(leaf.arrow) and matches(scalar.type) for matches in kinds):
            raise TypeError
        return scalar.value * _nanoseconds(scalar.type)
    number_or_text: Any = value.as_py() if isinstance(value, pa.Scalar) else value
    if number_or_text != number_or_text:
        raise ValueError("NaN is neither below nor above a number")
    return number_or_text


_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def _nanoseconds(kind: Any) -> int:
    return 86_400 * 10**9 if pa.types.is_date32(kind) else _NANOSECONDS[kind.unit]
