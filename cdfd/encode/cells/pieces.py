"""Rows of text put together from pieces, for a whole batch at once.

Every column is first turned into a *pool* of texts and, per row, the positions of the pieces in that pool which make up its cell:

    pool   {"id":   ,"kind":"   "}   | 7 8 9 | insert delete
             0         1         2      3 4 5    6      7

    index  0 3 1 6 2      ->   {"id":7,"kind":"insert"}
           0 4 1 7 2      ->   {"id":8,"kind":"delete"}
           0 5 1 7 2      ->   {"id":9,"kind":"delete"}

Then `join` copies piece after piece, row after row, into one buffer. A piece costs a few nanoseconds, a dictionary column needs its values
encoded once only, and what is the same in all rows melts into the literals between the columns and costs nothing.

All arrays here are `large_binary`: offsets of 64 bits, so that no batch is too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.encode.cells import native_rows
from cdfd.encode.cells.native_rows import Cells
from cdfd.runtime import compute as pc
from cdfd.runtime import native
from cdfd.runtime.arrays import array_of, scalar_of, to_numpy

if TYPE_CHECKING:
    from cdfd_native.json_rows import Cells as Parts

Integers = npt.NDArray[np.signedinteger]
Booleans = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Index = Integers | int
Cell: TypeAlias = "Column | Cells | Nested"

_NULL = b"null"
_NOTHING = np.empty(0, np.uint8)

FEW_ROWS = 16
"""Rows that are written faster than it is found out whether all of them are the same."""


class Form(IntEnum):
    """The form of an integer of seven bits a byte."""

    ZIGZAG = 1
    """Avro's, which keeps negative numbers short."""

    PLAIN = 2
    """Protobuf's: two's complement of 64 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The cells of one column as pieces of text.

    Attributes:
        pool: the texts, `large_binary`.
        index: for each piece of a cell its position in the pool: an array with one entry per row, or one number for
            all rows.
        nulls: which rows are null (those get the text `null`, whatever `index` says), or None if none is.
        opening: what precedes every cell that is not null: a quote, a bracket.
        closing: what follows every cell that is not null.
        null: the text of a cell that is null.
    """

    pool: pa.Array
    index: tuple[Index, ...]
    nulls: Booleans | None = None
    opening: bytes = b""
    closing: bytes = b""
    null: bytes = _NULL

    def size(self, rows: int) -> int:
        """Bytes of all cells, about."""
        offsets, _ = parts(self.pool)
        average = int(offsets[-1] - offsets[0]) // max(1, len(self.pool)) + 1
        return rows * (average * len(self.index) + len(self.opening) + len(self.closing))

    @property
    def constant(self) -> bytes | None:
        """The text of every cell, where it is the same in all rows."""
        positions = [position for position in self.index if isinstance(position, int)]
        if self.nulls is not None or len(positions) < len(self.index):
            return None
        return b"".join([self.opening, *(self.pool[position].as_py() for position in positions), self.closing])


@dataclass(frozen=True, slots=True, eq=False)
class Nested:
    """The cells of one column as rows of other columns, such as objects in objects.

    Attributes:
        separators: before, between and after the cells of a row, as of `join`.
        columns: of the rows.
        count: how many rows there are.
        index: for each cell its row; None: each is the next row.
        nulls: which cells are null, or None if none is. An index beneath a null need not be in range.
        null: the text of a cell that is null.
        opening: what precedes every cell that is not null.
        length: the form of the length that precedes the row, behind `opening`; see `Form`. 0 for none.
    """

    constant: ClassVar[None] = None

    separators: Sequence[bytes]
    columns: Sequence[Cell]
    count: int
    index: Integers | None = None
    nulls: Booleans | None = None
    null: bytes = _NULL
    opening: bytes = b""
    length: int = 0

    def size(self, rows: int) -> int:
        """Bytes of all cells, about."""
        within = sum(column.size(self.count) for column in self.columns)
        gaps = sum(map(len, self.separators)) + len(self.opening) + len(self.null)
        return within * rows // max(1, self.count) + rows * (gaps + 2)


def literal(text: bytes) -> Column:
    """A column with the same text in every row."""
    return Column(pool(text), (0,))


def pool(*texts: bytes) -> pa.Array:
    """A few given texts as a pool."""
    return array_of(texts, pa.large_binary())


def parts(array: pa.Array) -> tuple[Integers, Bytes]:
    """Offsets and data of a `large_binary` array. The first offset is not 0 where the array is a slice."""
    _, offsets, data = array.buffers()
    if not len(array):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    values = numbers_in(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return values, np.frombuffer(data if data is not None else b"", np.uint8)


def numbers_in(buffer: pa.Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The numbers of a buffer, at an address of their width: a buffer that lies in a message need not be at one."""
    numbers = np.frombuffer(buffer, dtype)
    return numbers if numbers.flags.aligned else numbers.copy()


def pool_from_parts(offsets: Integers, data: pa.Buffer | Bytes | None) -> pa.Array:
    """A pool over `data`, text i being `data[offsets[i]:offsets[i + 1]]`. No data is no bytes."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data if data is not None else b"")]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def pool_of(array: pa.Array) -> pa.Array:
    """The texts of any string or binary array as a pool. Bytes beneath nulls are in the pool too; do not refer to them."""
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    if not (pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    return pa.Array.from_buffers(pa.large_binary(), len(array), [None, offsets, data], offset=array.offset)


def text_parts(array: pa.Array) -> tuple[Integers, Bytes]:
    """Offsets of 64 bits and data of any string or binary array; see `parts`. Faster than a `pool_of` of few rows."""
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)) or not len(array):
        return parts(pool_of(array))
    _, offsets, data = array.buffers()
    values = numbers_in(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return values.astype(np.int64), np.frombuffer(data if data is not None else b"", np.uint8)


def nulls_of(array: pa.Array) -> Booleans | None:
    """A mask of the null rows; None if there are none."""
    return to_numpy(array.is_null()) if array.null_count else None


def is_constant(values: Integers) -> bool:
    """Whether all numbers are the same, and there are any."""
    return len(values) > 0 and bool(values[0] == values[-1] and values.min() == values.max())


def is_literal(values: Integers, nulls: Booleans | None) -> bool:
    """Whether a column of numbers is to be written as a literal."""
    return nulls is None and len(values) >= FEW_ROWS and is_constant(values)


def split_at(texts: pa.Array, cuts: Integers) -> pa.Array:
    """Every text cut in two at a place in the data, without a copy: text i becomes 2i and 2i + 1."""
    offsets, _ = parts(texts)
    bounds = np.empty(2 * len(texts) + 1, np.int64)
    bounds[0::2], bounds[1::2] = offsets, cuts
    return pool_from_parts(bounds, texts.buffers()[2])


def at(positions: Integers, index: Index) -> Index:
    """The positions that an index refers to."""
    return int(positions[index]) if isinstance(index, int) else positions[index]


def gather(column: Column, rows: Index, nulls: Booleans | None) -> Column:
    """The column whose row i is row `rows[i]` of another one (a number: row `rows`), or null where `nulls` says so."""
    hidden = None if column.nulls is None else column.nulls[rows]
    if isinstance(rows, int):
        if hidden:
            return literal(_NULL)
        hidden = None
    index = tuple(piece if isinstance(piece, int) else at(piece, rows) for piece in column.index)
    both = hidden if nulls is None else nulls if hidden is None else hidden | nulls
    return Column(column.pool, index, both, column.opening, column.closing, column.null)


def join(separators: Sequence[bytes], columns: Sequence[Cell], rows: int) -> pa.Array:
    """One text per row: separator 0, the cell of column 0, separator 1 and so on, ending with a separator."""
    if native.built:
        gaps, cells, size = _native_parts(separators, columns, rows)
        return pool_from_parts(*native_rows.write_rows(gaps, cells, rows, size))
    gaps, varying = _without_constants(separators, columns)
    # A first text for each row, because all others may be the same in all rows.
    texts: list[pa.Array | pa.Scalar] = [pa.repeat(_text(gaps[0]), rows)]
    for column, gap in zip(varying, gaps[1:], strict=True):
        assert not isinstance(column, Cells), "without `cdfd.runtime.native`, nothing makes `Cells`"
        texts += [_texts(_join(column) if isinstance(column, Nested) else column), _text(gap)]
    return pc.binary_join_element_wise(*texts, _text(b""))


def join_between(
    separators: Sequence[bytes], columns: Sequence[Cell], rows: int
) -> tuple[pa.Array, tuple[bytes, bytes]]:
    """The texts of `join` without what all of them begin and end with, and these two."""
    gaps, varying = _without_constants(separators, columns)
    if not varying:
        return join([b""], [], rows), (gaps[0], b"")
    return join([b"", *gaps[1:-1], b""], varying, rows), (gaps[0], gaps[-1])


def lengths(values: Integers, form: Form) -> pa.Array:
    """Varints of these numbers, as `large_binary`."""
    wide = values.astype(np.int64)
    numbers = (((wide << 1) ^ (wide >> 63)) if form is Form.ZIGZAG else wide).view(np.uint64)
    size = max(1, -(-int(numbers.max()).bit_length() // 7)) if len(numbers) else 1
    data, counts = np.empty((len(numbers), size), np.uint8), np.ones((len(numbers), size), np.bool_)
    for place in range(size):
        group, numbers = (numbers & np.uint64(0x7F)).astype(np.uint8), numbers >> np.uint64(7)
        follows = numbers != 0
        data[:, place] = group | (follows.astype(np.uint8) << 7)
        if place + 1 < size:
            counts[:, place + 1] = follows
    return press(data, counts)


def press(data: Bytes, counts: Booleans) -> pa.Array:
    """A text of each line of a matrix: those of its bytes that count."""
    offsets = np.concatenate(([0], np.cumsum(np.count_nonzero(counts, axis=1), dtype=np.int64)))
    return pool_from_parts(offsets, data[counts])


def prefix(texts: pa.Array, prefixes: pa.Array) -> pa.Array:
    """Each text behind the prefix of its row."""
    every = np.arange(len(texts))
    return join([b"", b"", b""], [Column(prefixes, (every,)), Column(texts, (every,))], len(texts))


def _text(text: bytes) -> pa.Scalar:
    return scalar_of(text, pa.large_binary())


def _texts(column: Column) -> pa.Array | pa.Scalar:
    """The text of each cell, or one text for all rows."""
    pieces = [
        column.pool[piece] if isinstance(piece, int) else column.pool.take(array_of(piece, mask=column.nulls))
        for piece in column.index
    ]
    texts = pc.binary_join_element_wise(_text(column.opening), *pieces, _text(column.closing), _text(b""))
    return texts if column.nulls is None else pc.if_else(array_of(column.nulls), _text(column.null), texts)


def _join(column: Nested) -> Column:
    """The same, with the text of each row."""
    texts = join(column.separators, column.columns, column.count)
    pieces: tuple[Index, ...] = (np.arange(column.count) if column.index is None else column.index,)
    if column.length:
        sizes = lengths(np.diff(parts(texts)[0]), Form(column.length))
        texts = prefix(texts, sizes)
    return Column(texts, pieces, column.nulls, column.opening, b"", column.null)


def _native_parts(
    separators: Sequence[bytes], columns: Sequence[Cell], rows: int
) -> tuple[list[bytes], list[Parts], int]:
    """The gaps, the cells as `cdfd.runtime.native` takes them, and the bytes of all cells, about."""
    gaps, varying = _without_constants(separators, columns)
    cells: list[Parts] = []
    for column in varying:
        mask = None if column.nulls is None else np.ascontiguousarray(column.nulls).view(np.uint8)
        if isinstance(column, Nested):
            inside = _native_parts(column.separators, column.columns, column.count)[:2]
            places = [] if column.index is None else [np.ascontiguousarray(column.index, np.int64)]
            marks = column.opening, b"", column.null
            cells.append((native_rows.ROWS, _NOTHING, None, mask, marks, column.length, places, inside))
            continue
        marks = column.opening, column.closing, column.null
        if isinstance(column, Cells):
            cells.append((column.kind, column.values, column.offsets, mask, marks, column.number, (), None))
            continue
        offsets, data = parts(column.pool)
        pieces = [piece if isinstance(piece, int) else np.ascontiguousarray(piece, np.int64) for piece in column.index]
        cells.append((native_rows.TEXTS, data, np.ascontiguousarray(offsets), mask, marks, 0, pieces, None))
    return gaps, cells, sum(column.size(rows) for column in varying)


def _without_constants(separators: Sequence[bytes], columns: Sequence[Cell]) -> tuple[list[bytes], list[Cell]]:
    """Constant columns and the separators around them melted into one separator."""
    gaps: list[bytes] = [separators[0]]
    varying: list[Cell] = []
    for column, separator in zip(columns, separators[1:], strict=True):
        fixed = column.constant
        if fixed is None:
            varying.append(column)
            gaps.append(separator)
        else:
            gaps[-1] += fixed + separator
    return gaps, varying
