"""Blocks of a column -> lengths and Arrow arrays of values, for many blocks at once and without a loop over values.

[lengths and values of block 0][those of block 1] ...  ->  lengths (of array columns), values, and how many each block has
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.trevni import chains, varints
from cdfd.trevni.chains import Headers
from cdfd.trevni.lengths import Lengths, covered, values_after
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.value_types import ARROW, WIDTHS, ValueType
from cdfd.trevni.varints import Bytes, Numbers

_LONGEST_INT = 5
_MOST_TOGETHER = 16
"""Strings of a row that a step over rows can skip."""


@dataclass(slots=True, eq=False)
class Decoded:
    """The content of some consecutive blocks.

    Attributes:
        lengths: of array columns; None for others.
        values: Arrow values. For booleans of a column with a parent, whose number the blocks do not say, all bits that there are.
        entries: how many lengths, or values if there are none, each block has; None if the blocks do not say.
    """

    lengths: Lengths | None
    values: pa.Array
    entries: Numbers | None


def decode(
    column: ColumnMetadata, blocks: Sequence[bytes | memoryview], rows: Numbers, *, runs: bool = True
) -> Decoded:
    """The content of consecutive blocks.

    Args:
        column: that has the blocks.
        blocks: decompressed.
        rows: of each block.
        runs: whether lengths may have runs.

    Raises:
        TrevniError: a block is damaged; it names the block, counted from the first of `blocks`.
    """
    padded, bounds = _joined(blocks)
    if column.array:
        return _arrays(column, padded, bounds, runs)
    if column.type is ValueType.BOOLEAN:
        return _booleans(padded, bounds, rows if column.plain else None)
    values, counts = _plain(column, padded, bounds)
    if column.type is ValueType.NULL:
        return Decoded(None, values, None)
    if column.plain and (wrong := np.flatnonzero(counts != rows)).size:
        block = int(wrong[0])
        raise TrevniError(f"the block has {counts[block]} values for {rows[block]} rows").at(block=block)
    return Decoded(None, values, counts)


def _joined(blocks: Sequence[bytes | memoryview]) -> tuple[Bytes, Numbers]:
    """The blocks' bytes one after the other, padded; and where each begins, with the end of the last."""
    bounds = np.zeros(len(blocks) + 1, np.int64)
    np.cumsum([len(block) for block in blocks], out=bounds[1:])
    padded = np.empty(int(bounds[-1]) + varints.PADDING, np.uint8)
    padded[int(bounds[-1]) :] = 0
    for number, block in enumerate(blocks):
        padded[bounds[number] : bounds[number + 1]] = np.frombuffer(block, np.uint8)
    return padded, bounds


# --- one value a row, or as many as the parent says ---


def _plain(column: ColumnMetadata, padded: Bytes, bounds: Numbers) -> tuple[pa.Array, Numbers]:
    """The values, and how many each block has."""
    data = padded[: bounds[-1]]
    kind = column.type
    if kind is ValueType.NULL:
        _check_empty(bounds)
        return pa.nulls(0), np.zeros(len(bounds) - 1, np.int64)
    if (width := WIDTHS.get(kind)) is not None:
        sizes = np.diff(bounds)
        if (wrong := np.flatnonzero(sizes % width)).size:
            raise TrevniError("the block ends within a value").at(block=int(wrong[0]))
        return _fixed(data, kind), sizes // width
    if kind in (ValueType.INT, ValueType.LONG):
        last, counts = varints.ends(data, bounds)
        return _numbers(_signed(padded, last, bounds, kind), kind), counts
    headers = Headers(padded, _text_bytes)
    at, counts = chains.text_positions(padded, bounds, [headers.short, headers.any])
    length, width_ = headers.read(at)
    return _strings(padded, at + width_, length, kind, bounds), counts


def _check_empty(bounds: Numbers) -> None:
    if bounds[-1]:
        block = int(np.flatnonzero(np.diff(bounds))[0])
        raise TrevniError("a block of nulls has data").at(block=block)


def _text_bytes(lengths: Numbers) -> Numbers:
    return lengths


def _signed(padded: Bytes, last: Numbers, bounds: Numbers, kind: ValueType) -> Numbers:
    """The numbers that end at `last`."""
    most = 10 if kind is ValueType.LONG else _LONGEST_INT
    try:
        return varints.signed(varints.unsigned(padded, last, most))
    except TrevniError as error:
        widths = np.diff(last, prepend=-1)
        wrong = np.flatnonzero(widths >= most)
        at = last[wrong[0]] if wrong.size else 0
        raise error.at(block=int(np.searchsorted(bounds, at, "right")) - 1) from None


def _numbers(numbers: Numbers, kind: ValueType) -> pa.Array:
    found: Any = numbers.astype(np.int32) if kind is ValueType.INT else numbers
    return pa.Array.from_buffers(ARROW[kind], len(found), [None, pa.py_buffer(found)])


def _fixed(data: Bytes, kind: ValueType) -> pa.Array:
    return pa.Array.from_buffers(ARROW[kind], len(data) // WIDTHS[kind], [None, pa.py_buffer(data)])


def _strings(padded: Bytes, starts: Numbers, lengths: Numbers, kind: ValueType, bounds: Numbers) -> pa.Array:
    """The strings at those positions. They are in order, and have gaps between them.

    The data is taken for twice as many strings: gap, string, gap, string. Arrow then copies every second one.
    """
    count = len(starts)
    size = int(bounds[-1])
    large = size > np.iinfo(np.int32).max
    offsets = np.zeros(2 * count + 1, np.int64 if large else np.int32)
    offsets[1::2] = starts
    offsets[2::2] = starts + lengths
    binary = pa.large_binary() if large else pa.binary()
    both = pa.Array.from_buffers(binary, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(padded)])
    found = both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int64)))
    if kind is ValueType.BYTES:
        return found
    text = pa.large_string() if large else pa.string()
    strings = pa.Array.from_buffers(text, count, found.buffers())
    if size and padded.max() >= 0x80:
        _check_utf8(strings, starts, bounds)
    return strings


def _check_utf8(strings: pa.Array, starts: Numbers, bounds: Numbers) -> None:
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        block = next(
            number
            for number, (first, last) in enumerate(zip(*_spans(starts, bounds), strict=True))
            if not _is_utf8(strings.slice(first, last - first))
        )
        raise TrevniError("a string is not UTF-8").at(block=block) from None


def _spans(starts: Numbers, bounds: Numbers) -> tuple[list[int], list[int]]:
    """First and last string of each block."""
    places = np.searchsorted(starts, bounds).tolist()
    places[-1] = len(starts)
    return places[:-1], places[1:]


def _is_utf8(strings: pa.Array) -> bool:
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _booleans(padded: Bytes, bounds: Numbers, rows: Numbers | None) -> Decoded:
    """One bit a value, the lowest first. Each block begins a byte."""
    sizes = np.diff(bounds)
    if rows is None:
        bits = np.unpackbits(padded[: bounds[-1]], bitorder="little")
        return Decoded(None, pa.array(bits.view(np.bool_)), None)
    if (wrong := np.flatnonzero(sizes != (rows + 7) >> 3)).size:
        block = int(wrong[0])
        raise TrevniError(f"the block has {sizes[block]} bytes for {rows[block]} bits").at(block=block)
    parts = [
        np.unpackbits(padded[start:end], count=int(count), bitorder="little")
        for start, end, count in zip(bounds[:-1], bounds[1:], rows, strict=True)
    ]
    found = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    return Decoded(None, pa.array(found.view(np.bool_)), rows)


# --- a length and its values a row ---


def _arrays(column: ColumnMetadata, padded: Bytes, bounds: Numbers, runs: bool) -> Decoded:
    kind = column.type
    if kind in (ValueType.NULL, ValueType.INT, ValueType.LONG):
        numbers, values, counts = _arrays_of_numbers(kind, padded, bounds)
    elif kind in (ValueType.STRING, ValueType.BYTES):
        numbers, values, counts = _arrays_of_strings(kind, padded, bounds)
    else:
        numbers, values, counts = _arrays_of_fixed(kind, padded, bounds)
    if not runs and len(numbers) and numbers.min() < 0:
        raise TrevniError("an array has a negative length")
    entries = covered(numbers)
    ends = np.cumsum(counts)
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(entries, out=sums[1:])
    return Decoded(Lengths.of(numbers), values, sums[ends] - sums[ends - counts])


def _arrays_of_numbers(kind: ValueType, padded: Bytes, bounds: Numbers) -> tuple[Numbers, pa.Array, Numbers]:
    """Lengths and values are all numbers of variable length: they are decoded together, and then separated."""
    last, counts = varints.ends(padded[: bounds[-1]], bounds)
    if kind is ValueType.NULL:
        return _signed(padded, last, bounds, ValueType.INT), pa.nulls(0), counts
    numbers = _signed(padded, last, bounds, ValueType.LONG)
    places = np.zeros(len(bounds), np.int64)
    np.cumsum(counts, out=places[1:])
    if _alternate(numbers, counts):
        at = np.arange(0, len(numbers), 2)
        rows = counts >> 1
    else:
        following = np.arange(1, len(numbers) + 1) + np.clip(values_after(numbers), 0, len(numbers))

        def step(now: Numbers) -> Numbers:
            found: Numbers = following.take(now, mode="clip")
            return found

        at, rows = chains.positions(places, [step], together=chains.TOGETHER_IN_NUMBERS)
    is_value = np.ones(len(numbers), np.bool_)
    is_value[at] = False
    values = numbers[is_value]
    if kind is ValueType.INT and len(values) and not _are_ints(values):
        wrong = np.flatnonzero(is_value)[(values >> 31) + (values < 0) != 0]
        block = int(np.searchsorted(places, wrong[0], "right")) - 1
        raise TrevniError("a number has more than 32 bits").at(block=block)
    lengths = numbers[at]
    if len(lengths) and not _are_ints(lengths):
        raise TrevniError("a length has more than 32 bits")
    return lengths, _numbers(values, kind), rows


def _are_ints(values: Numbers) -> bool:
    limits = np.iinfo(np.int32)
    return bool(values.min() >= limits.min and values.max() <= limits.max)


def _alternate(numbers: Numbers, counts: Numbers) -> bool:
    """Whether each row has exactly one value, as in nullable columns without a null."""
    return bool(len(numbers)) and not (counts & 1).any() and bool((numbers[::2] == 1).all())


def _arrays_of_fixed(kind: ValueType, padded: Bytes, bounds: Numbers) -> tuple[Numbers, pa.Array, Numbers]:
    """Numbers or bits after their count."""
    if kind is ValueType.BOOLEAN:
        content: Callable[[Numbers], Numbers] = _bit_bytes
    else:
        width = WIDTHS[kind]
        data = padded[: bounds[-1]]
        step = width + 1
        if not (np.diff(bounds) % step).any() and bool((data[::step] == 2).all()):
            rows = np.diff(bounds) // step
            table = np.ascontiguousarray(data.reshape(-1, step)[:, 1:])
            return np.ones(len(table), np.int64), _fixed(table.reshape(-1), kind), rows
        content = lambda numbers: values_after(numbers) * width  # noqa: E731  # a name for what the type decides
    headers = Headers(padded, content)
    at, rows = chains.positions(bounds, [headers.short, headers.any])
    numbers, header = headers.read(at)
    if kind is ValueType.BOOLEAN:
        return numbers, _bits(padded, at + header, numbers), rows
    return numbers, _fixed(_gathered(padded, at + header, values_after(numbers), WIDTHS[kind]), kind), rows


def _bit_bytes(numbers: Numbers) -> Numbers:
    """Bytes of the bits after a count. Each length begins a byte, also those of a run."""
    found: Numbers = np.where(numbers < 0, values_after(numbers), (numbers + 7) >> 3)
    return found


def _places(starts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """For each of `counts` items in a row, where the row starts, and the item's number in it."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts, counts), np.arange(int(counts.sum())) - np.repeat(before, counts)


def _gathered(padded: Bytes, starts: Numbers, counts: Numbers, width: int) -> Bytes:
    """Values of `width` bytes of which `counts` begin at each of `starts`."""
    start, number = _places(starts, counts)
    kind: Any = f"<u{width}"
    words: Any = np.ndarray((len(padded) - width + 1,), kind, buffer=padded.data, strides=(1,))
    found: Bytes = words[start + number * width].view(np.uint8)
    return found


def _bits(padded: Bytes, starts: Numbers, numbers: Numbers) -> pa.Array:
    start, number = _places(starts, values_after(numbers))
    own_bytes = np.repeat(numbers < 0, values_after(numbers))
    byte = start + np.where(own_bytes, number, number >> 3)
    bit = np.where(own_bytes, 0, number & 7).astype(np.uint8)
    return pa.array(((padded[byte] >> bit) & 1).astype(np.bool_))


def _arrays_of_strings(kind: ValueType, padded: Bytes, bounds: Numbers) -> tuple[Numbers, pa.Array, Numbers]:
    """Strings after their count: first where the rows begin, then where the first string of each row does, the second, and so on."""
    rows_of = _StringRows(padded)
    at, rows = chains.text_positions(padded, bounds, [rows_of.nullable, rows_of.short, rows_of.any], wide=2)
    counts_header = Headers(padded, lambda numbers: np.zeros_like(numbers))
    numbers, header = counts_header.read(at)
    counts = values_after(numbers)
    starts = np.empty(int(counts.sum()), np.int64)
    lengths = np.empty(len(starts), np.int64)
    place = np.cumsum(counts) - counts
    now, left = at + header, counts
    while (some := np.flatnonzero(left > 0)).size:
        now, left, place = now[some], left[some] - 1, place[some]
        length, header = rows_of.strings.read(now)
        now = now + header
        starts[place], lengths[place] = now, length
        now = now + length
        place = place + 1
    return numbers, _strings(padded, starts, lengths, kind, bounds), rows


class _StringRows:
    """Steps over rows of strings."""

    def __init__(self, padded: Bytes) -> None:
        self._padded = padded
        self._end = len(padded)
        self.strings = Headers(padded, _text_bytes)
        self.counts = Headers(padded, lambda numbers: np.zeros_like(numbers))
        codes = np.arange(256)
        known = np.where((codes == 0) | (codes & 3 == 1), 0, np.where(codes == 2, 1, -1))
        self._nullable = np.where(codes < 0x80, known, -1)

    def nullable(self, at: Numbers) -> Numbers:
        """Rows of no or one string of less than 64 bytes, and runs of empty rows."""
        has = self._nullable.take(self._padded.take(at, mode="clip"))
        inside = at + 1
        found = inside + has * (self.strings.short(inside) - inside)
        found[(has < 0) | (found < 0)] = chains.BEYOND
        return np.asarray(found)

    def short(self, at: Numbers) -> Numbers:
        """Rows of few strings."""
        return self._rows(at, _MOST_TOGETHER)

    def any(self, at: Numbers) -> Numbers:
        """All rows."""
        return self._rows(at, None)

    def _rows(self, at: Numbers, most: int | None) -> Numbers:
        numbers, header = self.counts.read(at)
        left = values_after(numbers)
        found = np.where(header == 0, chains.BEYOND, at + header)
        # A row has at least as many bytes as strings.
        found[left > (self._end if most is None else most)] = chains.BEYOND
        while (some := np.flatnonzero((left > 0) & (found < self._end))).size:
            found[some] = self.strings.any(found[some])
            left[some] -= 1
        found[(left > 0) & (found < chains.BEYOND)] = chains.BEYOND
        return found
