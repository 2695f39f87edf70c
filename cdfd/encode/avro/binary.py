"""Avro's binary encoding of columns, for all rows at once.

Avro writes a row as its cells one after the other, with no bytes in between. Cells come in two forms: short ones
(numbers, lengths, the branch of a union) as a matrix of bytes, a line per row, and which of them count; long ones (text)
as an array of bytes. Neighbouring matrices are pressed into one array, and one Arrow kernel joins arrays row by row:

    long, 7 and 300     string, "a" and "hello"     null or double
    [0e ..]             [02] "a"                    [02 .. .. .. .. .. .. .. ..]
    [d8 04]             [0a] "hello"                [00                        ]     (. does not count)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.encode.pieces import Booleans, Bytes, Integers, parts, pool_from_parts
from cdfd.runtime.arrays import array_of, scalar_of

_TEXT_AT: Final = 4
_NO_BYTES: Final = scalar_of(b"", pa.large_binary())


@dataclass(frozen=True, slots=True, eq=False)
class Short:
    """Cells of a few bytes.

    Attributes:
        data: a line per row, or a single line for all rows.
        counts: which bytes are there, in the shape of `data` or of one line per row; None for all.
        lengths: how many they are, of each row or of all.
    """

    data: Bytes
    counts: Booleans | None
    lengths: Integers | int

    @property
    def is_same(self) -> bool:
        """Whether all rows have the same bytes."""
        return self.counts is None and len(self.data) == 1


Cells: TypeAlias = Short | pa.Array
"""Short cells, or `large_binary` without nulls."""


def same(data: bytes) -> Short:
    """The same bytes in every row."""
    return Short(np.frombuffer(data, np.uint8)[None, :], None, len(data))


def fixed(data: Bytes) -> Short:
    """Lines that count as they are."""
    return Short(data, None, data.shape[1])


def varints(values: npt.NDArray[np.signedinteger]) -> Short:
    """`int` and `long`: zigzag, then seven bits a byte, the lowest first, the highest bit set where more follow."""
    if not len(values):
        return same(b"")
    if len(values) > 1 and values.min() == values.max():
        values = values[:1]
    width = values.dtype.itemsize * 8
    zigzag = ((values << 1) ^ (values >> (width - 1))).view(np.dtype(f"u{values.dtype.itemsize}"))
    size = max(1, -(-int(zigzag.max()).bit_length() // 7))
    data = np.empty((len(values), size), np.uint8)
    counts = np.ones((len(values), size), np.bool_)
    lengths = np.ones(len(values), np.int64)
    for place in range(size):
        group = zigzag & 0x7F if place + 1 < size else zigzag
        if place + 1 < size:
            zigzag = zigzag >> 7
            follows = zigzag != 0
            group |= follows.astype(zigzag.dtype) << 7
            counts[:, place + 1] = follows
            lengths += follows
        data[:, place] = group
    if int(lengths.min()) == size:
        return Short(data, None, size)
    return Short(data, counts, lengths)


def right_aligned(data: Bytes) -> Short:
    """Big-endian two's complement without the leading bytes that say nothing but the sign, as Java writes decimals."""
    sign = (data[:, :1] >> 7).astype(np.uint8) * 0xFF
    # A leading byte is needless where it is all sign and the next one begins with the sign.
    needless = (data[:, :-1] == sign) & ((data[:, 1:] ^ sign) < 0x80)
    counts = np.ones(data.shape, np.bool_)
    np.logical_not(np.logical_and.accumulate(needless, axis=1), out=counts[:, :-1])
    return Short(data, counts, np.count_nonzero(counts, axis=1))


def hidden(cells: Cells, nulls: Booleans) -> Cells:
    """The cells, with no bytes in the rows that are null."""
    shown = ~nulls
    if isinstance(cells, Short):
        counts = shown[:, None] if cells.counts is None else cells.counts & shown[:, None]
        return replace(cells, counts=counts, lengths=np.where(shown, cells.lengths, 0))
    offsets, _ = parts(cells)
    if not np.diff(offsets)[nulls].any():
        return cells
    return pc.if_else(array_of(nulls), _NO_BYTES, cells)


def join_cells(cells: Sequence[Cells], rows: int) -> pa.Array:
    """The cells of each row one after the other, as `large_binary`."""
    arrays: list[pa.Array | pa.Scalar] = []
    for _, group in groupby(_merge_cells(cells), _form):
        run = list(group)
        if isinstance(run[0], Short):
            arrays.append(_matrix([each for each in run if isinstance(each, Short)], rows))
        else:
            arrays += run
    if len(arrays) == 1 and isinstance(arrays[0], pa.Array):
        return arrays[0]
    if not any(isinstance(each, pa.Array) for each in arrays):
        arrays.append(pool_from_parts(np.zeros(rows + 1, np.int64), None))
    return pc.binary_join_element_wise(*arrays, _NO_BYTES)


def _merge_cells(cells: Sequence[Cells]) -> Iterator[Cells | pa.Scalar]:
    """The cells, with short ones that are the same in all rows as a text between arrays where there are enough bytes.

    To copy a text costs as much as a few bytes of a matrix, of which each byte costs.
    """
    for is_same, group in groupby(cells, lambda each: isinstance(each, Short) and each.is_same):
        run = list(group)
        data = b"".join(each.data.tobytes() for each in run if isinstance(each, Short)) if is_same else b""
        if not is_same:
            yield from run
        elif len(data) >= _TEXT_AT:
            yield scalar_of(data, pa.large_binary())
        else:
            yield same(data)


def _form(cells: Cells | pa.Scalar) -> int:
    """Cells of the same form go into one matrix: those that vary in length, and those that do not and are not short."""
    if not isinstance(cells, Short):
        return 0
    return 1 if cells.counts is not None or cells.data.shape[1] < _TEXT_AT else 2


def _matrix(run: Sequence[Short], rows: int) -> pa.Array:
    width = sum(each.data.shape[1] for each in run)
    whole = all(each.counts is None for each in run)
    data, counts = np.empty((rows, width), np.uint8), np.empty((rows, 0 if whole else width), np.bool_)
    lengths = np.zeros(rows, np.int64)
    at = 0
    for each in run:
        span = slice(at, at + each.data.shape[1])
        data[:, span] = each.data
        if not whole:
            counts[:, span] = True if each.counts is None else each.counts
        lengths += each.lengths
        at = span.stop
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return pool_from_parts(offsets, data.reshape(-1) if whole else data[counts])


def spans(texts: pa.Array, counts: Integers) -> pa.Array:
    """Texts put together: as many as each count says, one after the other, without a copy."""
    offsets, data = parts(texts)
    return pool_from_parts(offsets[np.concatenate(([0], np.cumsum(counts)))], data)
