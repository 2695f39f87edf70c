"""Variant columns -> JSON text.

Parquet stores a variant as a struct of binaries, `metadata` and `value`. A shredded one also has a `typed_value` (VariantEncoding.md and
VariantShredding.md of the Parquet format). No Arrow kernel decodes them, so values are decoded one by one here and nowhere else. Equal
variants of a batch that are not shredded are decoded once.
"""

from __future__ import annotations

import functools
from array import array as compact_array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan import variant_text as texts
from cdfd.scan.batch_budget import BatchBudget
from cdfd.scan.updates.equality import to_plain
from cdfd.scan.variant_text import MAX_DEPTH, Name, Names, VariantWriter, is_object, malformed_error

_MAX_TEXT_BYTES = (1 << 31) - 1
_NULL = b"\x00"
_NAMES_KEPT = 64
_WINDOW_ROWS = 1024


def to_json(array: pa.Array, budget: BatchBudget | None = None) -> pa.Array:
    """JSON text of each variant of a column, as it was read from Parquet.

    Objects and arrays stay as they are, numbers and decimals become numbers, dates and times ISO 8601 text, and binary base64. NaN and the
    infinities, which JSON does not have, become text. A null variant is the text `null`.

    Args:
        array: struct of `metadata`, `value` and `typed_value`, by name; one of the last two may be missing.
        budget: for the texts; None for as many as an array holds.

    Returns:
        A string array, null where the struct is null.

    Raises:
        DataError: a value is not a variant, or the texts take more than the budget has.
    """
    array = to_plain(array)
    if not pa.types.is_struct(array.type):
        raise malformed_error(f"a column of type {array.type!s:.200}")
    present = array.drop_null()
    columns = _columns(present)
    metadata = columns.get("metadata")
    if metadata is None or metadata.null_count:
        raise malformed_error("no metadata")
    decoded = _Texts(BatchBudget(_MAX_TEXT_BYTES) if budget is None else budget)
    if "typed_value" in columns:
        text = _unshred(present, metadata, decoded)
    else:
        text = _whole(metadata, columns.get("value"), decoded)
    if not array.null_count:
        return text
    valid = to_numpy(array.is_valid())
    return text.take(array_of(np.cumsum(valid) - 1, mask=~valid))


def _whole(metadata: pa.Array, value: pa.Array | None, decoded: _Texts) -> pa.Array:
    """Texts of variants that are not shredded. Each distinct pair of metadata and value is decoded once."""
    if value is None:
        raise malformed_error("no value")
    dictionaries = _binary(metadata).dictionary_encode()
    values = _binary(value).fill_null(_NULL).dictionary_encode()
    count = max(len(values.dictionary), 1)
    pairs = to_numpy(dictionaries.indices).astype(np.int64) * count + to_numpy(values.indices)
    different, which = np.unique(pairs, return_inverse=True)
    encoded = _Values(values.dictionary)
    names = functools.lru_cache(1)(lambda number: Names(dictionaries.dictionary[number].as_py()))
    for pair in map(int, different):
        dictionary, number = divmod(pair, count)
        data = encoded[number]
        decoded.writer(names(dictionary)).value(data, (0, len(data)), 0)
        decoded.end()
    return decoded.spread(which)


def _unshred(array: pa.Array, metadata: pa.Array, decoded: _Texts) -> pa.Array:
    """Texts of shredded variants ("Reconstructing a Shredded Variant")."""
    group = _group(array, 0)
    names = functools.lru_cache(_NAMES_KEPT)(Names)
    dictionaries = _Values(_binary(metadata))
    for row in range(len(metadata)):
        writer = decoded.writer(names(dictionaries[row]))
        if not group.write(writer, row, 0):
            writer.text += b"null"
        decoded.end()
    return decoded.spread(np.arange(len(metadata)))


class _Values:
    """The values of a column by row, as Python objects, few at a time. Rows are asked for in ascending order, mostly."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        self._start = 0
        self._window: list[Any] = []

    def __getitem__(self, row: int) -> Any:
        if not self._start <= row < self._start + len(self._window):
            self._start, self._window = row, self._array.slice(row, _WINDOW_ROWS).to_pylist()
        return self._window[row - self._start]


class _Texts:
    """The texts of an array, one after the other."""

    def __init__(self, budget: BatchBudget) -> None:
        self._budget = budget
        self._text = bytearray()
        self._ends = compact_array("i", [0])

    def writer(self, names: Names) -> VariantWriter:
        """Writes the next text."""
        return VariantWriter(names, self._text, self._budget)

    def end(self) -> None:
        """The text is complete."""
        self._budget.check(len(self._text))
        self._ends.append(len(self._text))

    def spread(self, which: npt.NDArray[np.int64]) -> pa.Array:
        """The text of each row; `which` has the number of each row's text."""
        ends = np.frombuffer(self._ends, np.int32)
        self._budget.charge(int(np.diff(ends).astype(np.int64)[which].sum()))
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._text)]
        distinct = pa.Array.from_buffers(pa.string(), len(ends) - 1, buffers)
        return distinct if np.array_equal(which, np.arange(len(distinct))) else distinct.take(array_of(which))


@dataclass(frozen=True, slots=True)
class _Group:
    """A `value` and a `typed_value` that together form at most one variant per row.

    Attributes:
        values: the `value` of each row; None if there are none.
        typed: the `typed_value`, if there is one.
        present: the rows that have a `typed_value`.
    """

    values: _Values | None
    typed: _Typed | None
    present: _Values | None

    def write(self, writer: VariantWriter, row: int, depth: int) -> bool:
        """Write that row's variant; False if it has none."""
        value = None if self.values is None else self.values[row]
        if self.typed is not None and self.present is not None and self.present[row]:
            self.typed.write(writer, row, value, depth)
            return True
        if value is None:
            return False
        writer.value(value, (0, len(value)), depth)
        return True


@dataclass(frozen=True, slots=True)
class _Primitives:
    """A `typed_value` of a primitive type, and the function that formats a value."""

    values: _Values
    text: Callable[[Any], bytes]

    def write(self, writer: VariantWriter, row: int, value: bytes | None, depth: int) -> None:
        if value is not None:
            raise malformed_error("both value and typed_value")
        writer.text += self.text(self.values[row])


@dataclass(frozen=True, slots=True)
class _Items:
    """A `typed_value` that is a list ("Arrays"): row `n` has the elements from `bounds[n]` to `bounds[n + 1]`."""

    bounds: _Values
    elements: _Group

    def write(self, writer: VariantWriter, row: int, value: bytes | None, depth: int) -> None:
        if value is not None:
            raise malformed_error("both value and typed_value")
        separator = b"["
        for element in range(self.bounds[row], self.bounds[row + 1]):
            writer.text += separator
            separator = b","
            if not self.elements.write(writer, element, depth + 1):
                writer.text += b"null"
        writer.text += b"[]" if separator == b"[" else b"]"


@dataclass(frozen=True, slots=True)
class _Fields:
    """A `typed_value` that is a struct ("Objects"): the shredded fields of an object. `value`, also an object, may have more fields.

    Fields are in the order of their names, as in objects that are not shredded.
    """

    fields: dict[bytes, tuple[Name, _Group]]

    def write(self, writer: VariantWriter, row: int, value: bytes | None, depth: int) -> None:
        others = {}
        order: Iterable[bytes] = self.fields
        if value is not None:
            if not is_object(value):
                raise malformed_error("a value that is not an object, next to the fields of one")
            others = {name.raw: (name, span) for name, span in writer.fields(value, (0, len(value)))}
            order = sorted(self.fields.keys() | others.keys())
        text = writer.text
        opening = len(text)
        # A field must not be in both places. If it is, the column wins.
        for raw in order:
            before = len(text)
            text += b"{" if before == opening else b","
            if raw not in self.fields:
                name, span = others[raw]
                writer.name(name)
                writer.value(value or b"", span, depth + 1)
                continue
            name, group = self.fields[raw]
            writer.name(name)
            if not group.write(writer, row, depth + 1):
                del text[before:]
        text += b"{}" if len(text) == opening else b"}"


_Typed: TypeAlias = _Primitives | _Items | _Fields
"""A `typed_value`. `write` writes its value in a row; `value` is the `value` field of the same row."""


def _group(array: pa.Array, depth: int) -> _Group:
    """The group of a struct of `value` and `typed_value`. Rows in which the struct is null have neither."""
    if depth > MAX_DEPTH:
        raise malformed_error(f"shredded deeper than {MAX_DEPTH} levels")
    if not pa.types.is_struct(array.type):
        raise malformed_error(f"shredded into {array.type!s:.200} where a group was expected")
    columns = _columns(array)
    value, typed = columns.get("value"), columns.get("typed_value")
    values = None if value is None else _Values(_binary(value))
    if typed is None:
        return _Group(values, None, None)
    typed = to_plain(typed)
    return _Group(values, _typed_value(typed, depth), _Values(typed.is_valid()))


def _typed_value(array: pa.Array, depth: int) -> _Typed:
    kind = array.type
    if pa.types.is_struct(kind):
        columns = _columns(array)
        names = sorted(name.encode() for name in columns)
        fields = {name: (Name.of(name), _group(columns[name.decode()], depth + 1)) for name in names}
        return _Fields(fields)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = to_numpy(array.value_lengths().fill_null(0))
        bounds = _Values(array_of(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])))
        return _Items(bounds, _group(to_plain(array.flatten()), depth + 1))
    values, text = _primitives(array)
    return _Primitives(_Values(values), text)


def _primitives(array: pa.Array) -> tuple[pa.Array, Callable[[Any], bytes]]:
    """Values of a primitive column, and the function that formats one ("Shredded Value Types")."""
    kind: Any = array.type
    plain: list[tuple[Callable[[Any], bool], Callable[[Any], bytes]]] = [
        (pa.types.is_boolean, lambda flag: b"true" if flag else b"false"),
        (pa.types.is_signed_integer, lambda number: str(number).encode()),
        (pa.types.is_float32, texts.float_text),
        (pa.types.is_float64, texts.double_text),
    ]
    for is_kind, text in plain:
        if is_kind(kind):
            return array, text
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array.cast(pa.large_binary()), texts.string_text
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return array, texts.binary_text
    if kind == pa.binary(16):
        return array, texts.uuid_text
    if pa.types.is_date32(kind):
        return array.cast(pa.int32()), texts.date_text
    if kind == pa.time64("us"):
        return array.cast(pa.int64()), texts.time_text
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ns"):
        digits, zone = 6 if kind.unit == "us" else 9, "" if kind.tz is None else "Z"
        return array.cast(pa.int64()), lambda ticks: texts.timestamp_text(ticks, digits, zone)
    if pa.types.is_decimal(kind) and kind.scale >= 0:
        return array, lambda number: texts.decimal_text(int(format(number, "f").replace(".", "")), kind.scale)
    raise malformed_error(f"shredded into {kind!s:.200}, which no variant is")


def _columns(array: pa.Array) -> dict[str, pa.Array]:
    """Columns of a struct by name; null where the struct is null."""
    kind: Any = array.type
    names = [kind.field(number).name for number in range(kind.num_fields)]
    if len(set(names)) < len(names):
        raise malformed_error("shredded into two columns of one name")
    return dict(zip(names, array.flatten(), strict=True))


def _binary(array: pa.Array) -> pa.Array:
    array = to_plain(array)
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_binary_view(kind):
        return pc.cast(array, pa.large_binary())
    raise malformed_error(f"a column of type {kind!s:.200} where binary was expected")
