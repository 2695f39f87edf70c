"""Arrow arrays -> the lengths and values of physical columns, by a walk over the shape of rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.errors import DataError, UnsupportedError
from cdfd.runtime.arrays import array_of
from cdfd.trevni.arrow_schema import decimal_bytes
from cdfd.trevni.file_writer import ColumnRows
from cdfd.trevni.shapes import Array, Branch, Leaf, Map, Record, Shape, Union
from cdfd.trevni.values.lengths import Numbers, sums
from cdfd.trevni.values.value_types import ARROW, ValueType


def shred(shape: Shape, rows: Any) -> list[ColumnRows]:
    """The columns of rows.

    Args:
        shape: of the rows.
        rows: an array; records are structs.

    Raises:
        DataError: a value is null and must not be, or is too large for its column.
    """
    columns = dict(_columns(shape, rows, np.arange(len(rows) + 1), ""))
    return [columns[number] for number in sorted(columns)]


def _columns(shape: Shape, values: Any, entries: Numbers, name: str) -> Iterator[tuple[int, ColumnRows]]:
    """The columns of values, with their numbers. `entries` says how many values are before each row."""
    if not isinstance(shape, Union) and values.null_count and not pa.types.is_null(values.type):
        raise DataError(f"column {name} has nulls, and its type in the file has none")
    match shape:
        case Leaf():
            yield shape.column, ColumnRows(None, physical(shape, values, name), entries)
        case Record(fields):
            for number, field in enumerate(fields):
                inside = f"{name}.{field.name}" if name else field.name
                yield from _columns(field.shape, values.field(number), entries, inside)
        case Array():
            if shape.entries is not None:
                lengths, keys, items = _map_parts(values)
                rows: Any = pa.StructArray.from_arrays([keys, items], names=["key", "value"])
            else:
                lengths, rows = pc.list_value_length(values).to_numpy().astype(np.int64), values.flatten()
            yield from _items(shape, shape.items, lengths, rows, entries, f"{name}.element")
        case Map():
            lengths, keys, items = _map_parts(values)
            yield shape.column, ColumnRows(lengths, pa.nulls(int(lengths.sum())), entries)
            before = sums(lengths)[entries]
            yield from _columns(shape.key, keys, before, f"{name}.key")
            yield from _columns(shape.value, items, before, f"{name}.value")
        case Union():
            if shape.optional is not None:
                # 1 for each value, 0 for each null; and the values that are not null.
                lengths, present = np.ones(len(values), np.int64), values
                if values.null_count:
                    valid = values.is_valid()
                    lengths, present = valid.to_numpy(zero_copy_only=False).astype(np.int64), values.filter(valid)
                yield from _items(shape.optional, shape.optional.shape, lengths, present, entries, name)
                return
            codes, offsets = values.type_codes.to_numpy(), values.offsets
            for number, branch in enumerate(shape.branches):
                if branch is None:
                    continue
                chosen = codes == values.type.type_codes[number]
                items = values.field(number).take(offsets.filter(array_of(chosen)))
                yield from _items(
                    branch, branch.shape, chosen.astype(np.int64), items, entries, f"{name}.{branch.name}"
                )


def _items(
    array: Array | Branch, shape: Shape, lengths: Numbers, items: Any, entries: Numbers, name: str
) -> Iterator[tuple[int, ColumnRows]]:
    """An array column, and the columns of its items, which have a shape."""
    if array.inner:
        assert isinstance(shape, Leaf)
        if items.null_count and not pa.types.is_null(items.type):
            raise DataError(f"column {name} has nulls, and its type in the file has none")
        yield array.column, ColumnRows(lengths, physical(shape, items, name), entries)
    else:
        yield array.column, ColumnRows(lengths, pa.nulls(int(lengths.sum())), entries)
        yield from _columns(shape, items, sums(lengths)[entries], name)


def _map_parts(values: Any) -> tuple[Numbers, Any, Any]:
    """Lengths, keys and values of maps."""
    offsets = values.offsets.to_numpy().astype(np.int64)
    first, count = int(offsets[0]) if len(offsets) else 0, int(offsets[-1] - offsets[0]) if len(offsets) else 0
    return np.diff(offsets), values.keys.slice(first, count), values.items.slice(first, count)


def physical(leaf: Leaf, values: Any, name: str) -> pa.Array:
    """Values in the Arrow type of their column.

    Raises:
        DataError: a value is too large for it.
        UnsupportedError: the values are of another type.
    """
    kind = values.type
    try:
        if isinstance(kind, pa.BaseExtensionType):
            return values.storage.cast(ARROW[leaf.kind])
        if leaf.symbols is not None:
            places = pc.index_in(values.cast(pa.string()), array_of(leaf.symbols))
            if places.null_count:
                raise DataError(f"column {name} has a value that does not fit: it is not a symbol of the enum")
            return places
        if pa.types.is_dictionary(kind):
            return physical(leaf, values.dictionary_decode(), name)
        if pa.types.is_decimal(leaf.arrow):
            # Big-endian bytes, as few as the precision needs.
            values = values.cast(leaf.arrow)
            count, size = len(values), decimal_bytes(leaf.arrow.precision)
            data = values.buffers()[1]
            table = np.zeros((0, 16), np.uint8) if data is None else np.frombuffer(data, np.uint8).reshape(-1, 16)
            big_endian = np.ascontiguousarray(table[values.offset : values.offset + count, size - 1 :: -1])
            offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
            return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(big_endian)])
        if pa.types.is_temporal(leaf.arrow):
            return values.cast(leaf.arrow).view(ARROW[leaf.kind])
        if leaf.kind is ValueType.NULL:
            return pa.nulls(len(values))
        return values.cast(ARROW[leaf.kind])
    except pa.ArrowInvalid as error:
        raise DataError(f"column {name} has a value that does not fit: {error}") from None
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedError(f"column {name} is of the type {kind!s:.200}: {error}") from None
