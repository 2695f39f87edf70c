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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.encode import native_rows
from cdfd.encode.native_rows import Cells
from cdfd.runtime import native
from cdfd.runtime.arrays import array_of, scalar_of, to_numpy

if TYPE_CHECKING:
    from cdfd_native.json_rows import Cells as Parts

Integers = npt.NDArray[np.signedinteger]
Booleans = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Index = Integers | int

_NULL = b"null"


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
    """

    pool: pa.Array
    index: tuple[Index, ...]
    nulls: Booleans | None = None
    opening: bytes = b""
    closing: bytes = b""

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
    return Column(column.pool, index, both, column.opening, column.closing)


def join(separators: Sequence[bytes], columns: Sequence[Column | Cells], rows: int) -> pa.Array:
    """One text per row: separator 0, the cell of column 0, separator 1 and so on, ending with a separator."""
    gaps, varying = _without_constants(separators, columns)
    if native.built:
        cells = [column.parts if isinstance(column, Cells) else _cells(column) for column in varying]
        size = sum(column.size(rows) for column in varying)
        return pool_from_parts(*native_rows.written(gaps, cells, rows, size))
    # A first text for each row, because all others may be the same in all rows.
    texts: list[pa.Array | pa.Scalar] = [pa.repeat(_text(gaps[0]), rows)]
    for column, gap in zip(varying, gaps[1:], strict=True):
        assert isinstance(column, Column), "without `cdfd.runtime.native`, nothing makes `Cells`"
        texts += [_texts(column), _text(gap)]
    return pc.binary_join_element_wise(*texts, _text(b""))


def _text(text: bytes) -> pa.Scalar:
    return scalar_of(text, pa.large_binary())


def _texts(column: Column) -> pa.Array | pa.Scalar:
    """The text of each cell, or one text for all rows."""
    pieces = [
        column.pool[piece] if isinstance(piece, int) else column.pool.take(array_of(piece, mask=column.nulls))
        for piece in column.index
    ]
    texts = pc.binary_join_element_wise(_text(column.opening), *pieces, _text(column.closing), _text(b""))
    return texts if column.nulls is None else pc.if_else(array_of(column.nulls), _text(_NULL), texts)


def _cells(column: Column) -> Parts:
    offsets, data = parts(column.pool)
    marks = column.opening, column.closing
    return native_rows.texts(data, offsets, column.nulls, marks, column.index)


def _without_constants(
    separators: Sequence[bytes], columns: Sequence[Column | Cells]
) -> tuple[list[bytes], list[Column | Cells]]:
    """Constant columns and the separators around them melted into one separator."""
    gaps: list[bytes] = [separators[0]]
    varying: list[Column | Cells] = []
    for column, separator in zip(columns, separators[1:], strict=True):
        constant = column.constant
        if constant is None:
            varying.append(column)
            gaps.append(separator)
        else:
            gaps[-1] += constant + separator
    return gaps, varying
