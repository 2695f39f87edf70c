"""Blocks of a column -> lengths and values, by the kernels of `cdfd.native`: the fast form of `decoding`."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd import native
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.lengths import Lengths
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.value_types import ARROW, WIDTHS, ValueType
from cdfd.trevni.varints import Bytes, Numbers

NULLS, INTEGERS, FIXED, TEXT, BITS = range(5)
"""Kinds of values, as the kernels number them."""

Checksums: TypeAlias = npt.NDArray[np.uint32]

KINDS = {
    ValueType.NULL: (NULLS, 1),
    ValueType.INT: (INTEGERS, 4),
    ValueType.LONG: (INTEGERS, 8),
    ValueType.STRING: (TEXT, 1),
    ValueType.BYTES: (TEXT, 1),
    ValueType.BOOLEAN: (BITS, 1),
    **{kind: (FIXED, width) for kind, width in WIDTHS.items()},
}
"""The kind of each type, and the bytes of a value in memory."""

_MOST_TEXT = np.iinfo(np.int32).max
_SPARE = 65_536
"""Lengths that a few bytes may stand for; runs beyond are left as runs, by `decoding`."""
_TEXT_SLACK = 32
"""Short strings are copied as 32 bytes."""


def checksums(column: ColumnMetadata, blocks: int) -> Checksums | None:
    """A place for the checksums of blocks, if the kernels check them. They do where they are faster than zlib."""
    if not native.built or column.checksum is not Checksum.CRC32 or not native.trevni_decoding.HAS_CRC32:
        return None
    return np.empty(blocks, np.uint32)


def decode(
    column: ColumnMetadata,
    blocks: Iterable[bytes | memoryview],
    sizes: Numbers,
    rows: Numbers,
    *,
    checksums: Checksums | None = None,
    runs: bool,
) -> tuple[Lengths | None, pa.Array, Numbers] | None:
    """Lengths, values, and how many each block has, as `decoding.Decoded` has them.

    Args:
        column: that has the blocks.
        blocks: decompressed, one after the other.
        sizes: bytes of each block.
        rows: of each block.
        checksums: of the blocks, each set before its block is taken from `blocks`; None if `blocks` checks them.
        runs: whether lengths may have runs.

    Returns:
        None if `decoding` must do it: there are no kernels, none for this type, a block is damaged, or has runs that are better kept.
    """
    kind, width = KINDS[column.type]
    size = int(sizes.sum())
    if not native.built or (kind in (NULLS, BITS) and not column.array) or size > _MOST_TEXT - _TEXT_SLACK:
        return None
    known = column.parent is None
    num_rows = int(rows.sum())
    lengths = None
    if column.array:
        room = 4 * size + _SPARE
        lengths = np.empty(min(num_rows, room) if known else room, np.int64)
    # Each value has a byte at least, or its width, or its length; a bit is part of one.
    most = 8 * size if kind == BITS else size // width if kind == FIXED else size
    if column.plain:
        most = min(most, num_rows)
    values = np.empty(most * width if kind != TEXT else size + _TEXT_SLACK, np.uint8)
    offsets = np.zeros(most + 1 if kind == TEXT else 1, np.int32)
    counts = np.zeros(len(sizes), np.int64)
    found = native.trevni_decoding.decode(blocks, checksums, kind, width, lengths, values, offsets, counts, runs)
    if found is None or (column.plain and (counts != rows).any()):
        return None
    num_lengths, num_values, num_bytes, high = found
    values.resize(num_bytes if kind == TEXT else num_values * width, refcheck=False)
    if kind == TEXT:
        offsets.resize(num_values + 1, refcheck=False)
    if lengths is not None:
        lengths.resize(num_lengths, refcheck=False)
    array = _array(column.type, values, offsets, num_values, high)
    return None if array is None else (None if lengths is None else Lengths(lengths), array, counts)


def _array(kind: ValueType, values: Bytes, offsets: Any, count: int, high: bool) -> pa.Array | None:
    """The Arrow array of decoded values; None if text is not UTF-8."""
    match kind:
        case ValueType.NULL:
            return pa.nulls(0)
        case ValueType.BOOLEAN:
            return pa.array(values.view(np.bool_))
        case ValueType.STRING | ValueType.BYTES:
            found = pa.Array.from_buffers(ARROW[kind], count, [None, pa.py_buffer(offsets), pa.py_buffer(values)])
            if high and kind is ValueType.STRING:
                try:
                    found.validate(full=True)
                except pa.ArrowInvalid:
                    return None
            return found
    return pa.Array.from_buffers(ARROW[kind], count, [None, pa.py_buffer(values)])
