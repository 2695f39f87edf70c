"""Arrow arrays and scalars from Python's values and from numpy.

`pyarrow.array` and `pyarrow.scalar` import pandas first, where that is installed. That takes longer than most of what cdfd is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_NUMBERS = {
    kind: np.dtype(name)
    for kind, name in [
        (pa.bool_(), "?"),
        (pa.int8(), "i1"),
        (pa.int16(), "i2"),
        (pa.int32(), "i4"),
        (pa.int64(), "i8"),
        (pa.uint8(), "u1"),
        (pa.uint64(), "u8"),
        (pa.float32(), "f4"),
        (pa.float64(), "f8"),
    ]
}


def array_of(values: Any, kind: pa.DataType | None = None, *, mask: Any = None) -> Any:
    """An array of these values, as `pyarrow.array` makes it.

    Numbers of numpy are not copied if they are contiguous and of that type.

    Args:
        values: an iterable or an array of numpy.
        kind: type of the array; by default that of numpy's, or of the values.
        mask: of numpy's values, which ones are null.

    Raises:
        pa.ArrowException, OverflowError, TypeError: a value is not of the type.
    """
    if not isinstance(values, np.ndarray) or values.dtype == object:
        return _of_values(list(values), kind)
    array = _of_numpy(np.ascontiguousarray(values), mask)
    return array if kind is None or array.type == kind else array.cast(kind)


def scalar_of(value: Any, kind: pa.DataType | None = None) -> Any:
    """A scalar, as `pyarrow.scalar` makes it."""
    return array_of([value], kind)[0]


def to_numpy(column: Any) -> Any:
    """The values of an array or a column, as its `to_numpy` makes them. Numbers without nulls are not copied."""
    if isinstance(column, pa.ChunkedArray):
        return np.concatenate([to_numpy(chunk) for chunk in column.chunks]) if column.num_chunks else column.to_numpy()
    dtype = _NUMBERS.get(column.type)
    if dtype is None or column.null_count:
        return column.to_numpy(zero_copy_only=False)
    data = column.buffers()[1]
    if not len(column) or data is None:
        return np.empty(0, dtype)
    if dtype == np.bool_:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=column.offset + len(column))
        return bits[column.offset :].view(np.bool_)
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)


def doubles(decimals: Any) -> Any:
    """The nearest double of each decimal. Arrow's own conversion multiplies, and misses it for one of eight values with two digits."""
    return decimals.cast(pa.string()).cast(pa.float64())


def stable_order(groups: Any, count: int) -> Any:
    """The rows by the number of their group, from 0 to `count` - 1. Those of a group keep their order."""
    # NumPy sorts 16-bit integers by radix, which is several times faster.
    return np.argsort(groups.astype(np.uint16) if count <= 1 << 16 else groups, kind="stable")


_VIEWS: Mapping[Any, Any] = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
_TEXTS: Mapping[Any, Any] = {view: text for text, view in _VIEWS.items()}


def type_with_views(kind: Any) -> Any:
    """A type with views in place of strings and binaries, at any depth but for dictionaries. Casting to it copies no text."""
    return _type_with(_VIEWS, kind)


def type_without_views(kind: Any) -> Any:
    """A type with strings and binaries in place of views, at any depth but for dictionaries."""
    return _type_with(_TEXTS, kind)


def _type_with(others: Mapping[Any, Any], kind: Any) -> Any:
    def field_with(field: pa.Field[Any]) -> pa.Field[Any]:
        return field.with_type(_type_with(others, field.type))

    if pa.types.is_struct(kind):
        return pa.struct([field_with(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(field_with(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(field_with(kind.key_field), field_with(kind.item_field))
    return others.get(kind, kind)


def _of_values(values: Sequence[Any], kind: pa.DataType | None) -> Any:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {str} and kind in (None, pa.string(), pa.large_string()):
        return _of_bytes([None if value is None else value.encode() for value in values], kind or pa.string())
    if kinds == {bytes} and kind in (None, pa.binary(), pa.large_binary()):
        return _of_bytes(values, kind or pa.binary())
    if kind is not None and any(isinstance(value, pa.Scalar) for value in values):
        if not pa.types.is_temporal(kind):
            return _of_values([value.as_py() if isinstance(value, pa.Scalar) else value for value in values], kind)
        whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        numbers = [value.value if isinstance(value, pa.Scalar) else value for value in values]
        return _of_values(numbers, whole).view(kind)
    missing = [value is None for value in values]
    if kinds == {bool} and kind in (None, pa.bool_()):
        return _of_numpy(np.array([bool(value) for value in values]), np.array(missing))
    if kinds == {int} and (kind is None or pa.types.is_integer(kind)):
        integers = np.array([0 if value is None else value for value in values], np.int64)
        return _of_numpy(integers, np.array(missing)).cast(kind or pa.int64())
    if kind is not None and not kinds:
        return pa.nulls(len(values), kind)
    if kind is not None and pa.types.is_struct(kind) and all(issubclass(each, dict | tuple) for each in kinds):
        return _of_structs(values, kind)
    if kind is not None and pa.types.is_map(kind):
        return _of_maps(values, kind)
    return pa.array(values, kind)  # noqa: TID251 # of other types, pyarrow alone can


def _of_structs(values: Sequence[Any], kind: pa.DataType) -> Any:
    fields = [kind.field(place) for place in range(kind.num_fields)]
    names = [field.name for field in fields]
    rows = [dict(zip(names, each, strict=True)) if isinstance(each, tuple) else each or {} for each in values]
    columns = [
        array_of([each.get(name) for each in rows], field.type) for name, field in zip(names, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=array_of([each is None for each in values]))


def _of_maps(values: Sequence[Any], kind: Any) -> Any:
    entries = [list(each.items() if isinstance(each, dict) else each or ()) for each in values]
    starts = np.cumsum([0, *map(len, entries)]).tolist()
    offsets = [None if each is None else start for each, start in zip(values, starts, strict=False)]
    pairs = [pair for each in entries for pair in each]
    keys, items = (
        array_of([key for key, _ in pairs], kind.key_type),
        array_of([item for _, item in pairs], kind.item_type),
    )
    return pa.MapArray.from_arrays(array_of([*offsets, starts[-1]], pa.int32()), keys, items, type=kind)


def _of_numpy(values: Any, mask: Any) -> Any:
    data = pa.py_buffer(np.packbits(values, bitorder="little")) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [_validity(mask), data])


def _of_bytes(values: Sequence[bytes | None], kind: pa.DataType) -> Any:
    mask = np.array([value is None for value in values])
    ends = np.cumsum([0, *(len(value or b"") for value in values)])
    width = np.int64 if kind in (pa.large_string(), pa.large_binary()) else np.int32
    if width is np.int32 and ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{ends[-1]} bytes of text in an array")
    buffers = [
        _validity(mask),
        pa.py_buffer(ends.astype(width)),
        pa.py_buffer(b"".join(value or b"" for value in values)),
    ]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _validity(mask: Any) -> pa.Buffer | None:
    return None if mask is None or not mask.any() else pa.py_buffer(np.packbits(~mask, bitorder="little"))
