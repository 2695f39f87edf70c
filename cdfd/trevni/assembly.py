"""The lengths and values of physical columns -> Arrow arrays, by a walk over the shape of rows. The counterpart of `shredding`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.runtime.arrays import array_of
from cdfd.trevni.column_reader import Slice
from cdfd.trevni.rows import WINDOW_BYTES
from cdfd.trevni.shapes import Array, Branch, Leaf, Map, Record, Shape, Union, arrow_field, arrow_type, width_of
from cdfd.trevni.values.lengths import Numbers, sums

NARROW = 64
"""Bytes of a value, at most, that nulls may always take: lengths alone bound these."""


def assemble(shape: Shape, columns: Mapping[int, Slice], rows: int) -> Any:
    """An array of `rows` values.

    Raises:
        TrevniError: lengths or values that cannot be: two branches of a union, or bytes of another length than their type has.
    """
    match shape:
        case Leaf():
            return logical(shape, columns[shape.column].values)
        case Record(fields):
            children = [assemble(field.shape, columns, rows) for field in fields]
            return pa.Array.from_buffers(arrow_type(shape), rows, [None], children=children)
        case Array():
            lengths = _lengths(columns, shape.column)
            if shape.entries is not None:
                return _map(*shape.entries, columns, lengths)
            items = assemble(shape.items, columns, int(lengths.sum()))
            kind = pa.list_(arrow_field("element", shape.items))
            return pa.Array.from_buffers(kind, len(lengths), [None, _offsets(lengths)], children=[items])
        case Map():
            return _map(shape.key, shape.value, columns, _lengths(columns, shape.column))
        case Union():
            return _union(shape, columns, rows)


def _lengths(columns: Mapping[int, Slice], column: int) -> Numbers:
    lengths = columns[column].lengths
    assert lengths is not None
    return lengths


def _offsets(lengths: Numbers) -> Any:
    offsets = sums(lengths)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise TrevniError(f"a batch has {offsets[-1]} values in lists, more than Arrow's lists can have")
    return pa.py_buffer(offsets.astype(np.int32))


def _map(key: Shape, value: Shape, columns: Mapping[int, Slice], lengths: Numbers) -> Any:
    count = int(lengths.sum())
    kind: Any = pa.map_(arrow_type(key), arrow_field("value", value))
    pair = pa.struct([kind.key_field, kind.item_field])
    children = [assemble(key, columns, count), assemble(value, columns, count)]
    entries = pa.Array.from_buffers(pair, count, [None], children=children)
    return pa.Array.from_buffers(kind, len(lengths), [None, _offsets(lengths)], children=[entries])


def _union(shape: Union, columns: Mapping[int, Slice], rows: int) -> Any:
    if shape.optional is not None:
        return _optional(shape.optional, columns)
    codes = np.full(rows, -1, np.int8)
    offsets = np.zeros(rows, np.int32)
    children: list[Any] = []
    for number, branch in enumerate(shape.branches):
        if branch is None:
            children.append(pa.nulls(0))
            continue
        lengths = _at_most_one(columns, branch)
        chosen = np.flatnonzero(lengths)
        if (codes[chosen] >= 0).any():
            raise TrevniError("a value has two branches of its union").at(column=branch.name)
        codes[chosen], offsets[chosen] = number, np.arange(len(chosen))
        children.append(assemble(branch.shape, columns, len(chosen)))
    missing = np.flatnonzero(codes < 0)
    if missing.size:
        if None not in shape.branches:
            raise TrevniError("a value has no branch of its union")
        null = shape.branches.index(None)
        codes[missing], offsets[missing] = null, np.arange(len(missing))
        children[null] = pa.nulls(len(missing))
    kind = arrow_type(shape)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(codes), pa.py_buffer(offsets)], children=children)


def _at_most_one(columns: Mapping[int, Slice], branch: Branch) -> Numbers:
    lengths = _lengths(columns, branch.column)
    if len(lengths) and lengths.max() > 1:
        raise TrevniError("a branch of a union has more than one value").at(column=branch.name)
    return lengths


def _optional(branch: Branch, columns: Mapping[int, Slice]) -> Any:
    """Values with nulls, from those that are not null."""
    lengths = _at_most_one(columns, branch)
    count = int(lengths.sum())
    present = assemble(branch.shape, columns, count)
    if count == len(lengths):
        return present
    width = width_of(branch.shape)
    if width > NARROW and width * len(lengths) > WINDOW_BYTES + present.nbytes:
        what = f"a row has {len(lengths)} values of {width} bytes, for most of which the file has no bytes"
        raise TrevniError(what).at(column=branch.name)
    valid = lengths.astype(np.bool_)
    kind = present.type
    validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_primitive(kind) and not pa.types.is_boolean(kind):
        words: Any = np.dtype(f"u{kind.bit_width // 8}")
        data = np.zeros(len(valid), words)
        buffer = present.buffers()[1]
        if buffer is not None and len(present):
            data[valid] = np.frombuffer(buffer, words)[present.offset : present.offset + len(present)]
        return pa.Array.from_buffers(kind, len(valid), [validity, pa.py_buffer(data)])
    if kind in (pa.string(), pa.binary()):
        # The same text with other offsets: a null ends where it begins.
        _, offsets, text = present.buffers()
        starts = np.zeros(1, np.int32)
        if offsets is not None and len(present):
            starts = np.frombuffer(offsets, np.int32)[present.offset : present.offset + len(present) + 1]
        return pa.Array.from_buffers(kind, len(valid), [validity, pa.py_buffer(starts[sums(lengths)]), text])
    places = np.cumsum(lengths) - 1
    with_nulls = array_of(places, mask=~valid)
    if not pa.types.is_struct(kind):
        return present.take(with_nulls)
    # A field that is not nullable has the value of another row where the struct is null: Parquet's writer accepts no null in it.
    filled = array_of(np.maximum(places, 0))
    children = []
    for number in range(kind.num_fields):
        child = present.field(number)
        takes_nulls = kind.field(number).nullable or not len(child)
        children.append(child.take(with_nulls if takes_nulls else filled))
    return pa.Array.from_buffers(kind, len(valid), [validity], children=children)


def logical(leaf: Leaf, values: Any) -> Any:
    """Values of a column in the Arrow type of the schema.

    Raises:
        TrevniError: a value that the type cannot have.
    """
    kind = leaf.arrow
    try:
        if leaf.symbols is not None:
            numbers = values.to_numpy()
            if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(leaf.symbols)):
                raise TrevniError(f"a number is not one of the {len(leaf.symbols)} symbols of an enum")
            return pa.DictionaryArray.from_arrays(values, array_of(leaf.symbols, pa.string()))
        if pa.types.is_decimal(kind):
            return _decimals(kind, values)
        if pa.types.is_fixed_size_binary(kind):
            return values.cast(kind)
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, values.cast(kind.storage_type))
        if pa.types.is_temporal(kind):
            return values.view(kind)
        return values if values.type == kind else values.cast(kind)
    except pa.ArrowInvalid as error:
        raise TrevniError(f"a value is not of the type {kind}: {error}") from None


def _decimals(kind: Any, values: Any) -> Any:
    """Decimals from big-endian bytes."""
    count = len(values)
    if not count:
        return array_of([], kind)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1]
    lengths = np.diff(offsets)
    if lengths.min() < 1 or lengths.max() > 16:
        raise TrevniError("a decimal has no bytes, or more than 16")
    table = np.empty((count, 16), np.uint8)
    start, size = int(offsets[0]), int(lengths[0])
    data = np.frombuffer(values.buffers()[2], np.uint8)
    if (lengths == size).all():
        digits = data[start : start + count * size].reshape(count, size)
        table[:, :size] = digits[:, ::-1]
        table[:, size:] = np.where(digits[:, :1] >= 0x80, 0xFF, 0)
    else:
        last = start + np.cumsum(lengths) - 1
        sign = np.where(data[last - lengths + 1] >= 0x80, 0xFF, 0)
        for place in range(16):
            table[:, place] = np.where(place < lengths, data[last - np.minimum(place, lengths - 1)], sign)
    decimals = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(table)])
    decimals.validate(full=True)
    return decimals
