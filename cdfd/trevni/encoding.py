"""Lengths and values of a column -> the bytes of blocks. The counterpart of `decoding`."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.errors import TrevniError
from cdfd.trevni import varints
from cdfd.trevni.value_types import WIDTHS, ValueType
from cdfd.trevni.varints import Bytes, Numbers


class Encoded(NamedTuple):
    """Values as bytes, one after the other, and where each begins, with the end of the last."""

    data: Bytes
    bounds: Numbers


def encode(kind: ValueType, values: pa.Array) -> Encoded:
    """The bytes of values without nulls. Not for booleans, whose bits depend on where a block begins.

    Args:
        kind: of the values.
        values: of the Arrow type of `kind`.
    """
    count = len(values)
    if kind is ValueType.NULL:
        return Encoded(np.zeros(0, np.uint8), np.zeros(count + 1, np.int64))
    if (width := WIDTHS.get(kind)) is not None:
        numbers: Any = np.ascontiguousarray(values.to_numpy())
        return Encoded(numbers.view(np.uint8), np.arange(count + 1) * width)
    if kind in (ValueType.INT, ValueType.LONG):
        numbers = varints.zigzag(values.to_numpy().astype(np.int64, copy=False))
        widths = varints.widths(numbers)
        return Encoded(varints.encoded(numbers, widths), bounds(widths))
    return _strings(values)


def bounds(sizes: Numbers) -> Numbers:
    """Where items of those sizes begin, and the end of the last."""
    found = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def _strings(values: pa.Array) -> Encoded:
    """Each string after its length. Arrow joins both, which are arrays of binary values."""
    lengths = pc.binary_length(values).to_numpy().astype(np.int64)
    numbers = varints.zigzag(lengths)
    widths = varints.widths(numbers)
    ends = bounds(lengths + widths)
    if ends[-1] > np.iinfo(np.int32).max:
        raise TrevniError("the strings to encode together have more than 2 GiB", hint="Write fewer rows at once")
    headers = pa.Array.from_buffers(
        pa.binary(),
        len(values),
        [None, pa.py_buffer(bounds(widths).astype(np.int32)), pa.py_buffer(varints.encoded(numbers, widths))],
    )
    joined = pc.binary_join_element_wise(headers, values.cast(pa.binary()), pa.scalar(b"", pa.binary()))
    _, _, data = joined.buffers()
    found = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return Encoded(found[: ends[-1]], ends)


class Tokens(NamedTuple):
    """Numbers that stand for lengths.

    Attributes:
        numbers: a length, or a run of them.
        starts: the first length that each stands for, and the number of lengths.
    """

    numbers: Numbers
    starts: Numbers


def tokens(lengths: Numbers, *, ones: bool) -> Tokens:
    """Lengths with runs of zeros, and of ones if `ones`: only where no value comes between them, which would end a run."""
    count = len(lengths)
    if not count:
        return Tokens(lengths, np.zeros(1, np.int64))
    runs = lengths <= 1 if ones else lengths == 0
    begins = np.ones(count, np.bool_)
    begins[1:] = ~runs[1:] | (lengths[1:] != lengths[:-1])
    starts = np.append(np.flatnonzero(begins), count)
    covered = np.diff(starts)
    first = lengths[starts[:-1]]
    return Tokens(np.where(covered > 1, (3 - first) - 2 * covered, first), starts)


def weights(lengths: Numbers, *, ones: bool) -> Numbers:
    """Bytes that each length takes, about: none if it continues a run."""
    found = varints.widths(varints.zigzag(lengths))
    runs = lengths <= 1 if ones else lengths == 0
    found[1:][runs[1:] & (lengths[1:] == lengths[:-1])] = 0
    return found


def interleave(numbers: Tokens, values: Encoded, value_bounds: Numbers) -> Bytes:
    """Lengths, and behind each one its values.

    Args:
        numbers: the lengths.
        values: of the lengths.
        value_bounds: number of values before each length, and of all values.
    """
    content = values.bounds[value_bounds]
    zigzags = varints.zigzag(numbers.numbers)
    widths = varints.widths(zigzags)
    at = content[numbers.starts[:-1]] - content[0] + np.cumsum(widths) - widths
    data = values.data[content[0] : content[-1]]
    if not len(data):
        return varints.encoded(zigzags, widths)
    found = np.empty(len(data) + int(widths.sum()), np.uint8)
    inside = np.ones(len(found), np.bool_)
    for place in range(int(widths.max())):
        inside[at[widths > place] + place] = False
    varints.put(found, at, zigzags, widths)
    found[inside] = data
    return found


def booleans(values: pa.Array) -> Bytes:
    """One bit a value, the lowest first."""
    found: Bytes = np.packbits(values.to_numpy(zero_copy_only=False), bitorder="little")
    return found


def boolean_arrays(lengths: Numbers, values: pa.Array) -> Encoded:
    """The bits behind each length, which begin a byte: where each length's begin, and the end of the last."""
    sizes = (lengths + 7) >> 3
    begins = bounds(sizes)
    bits: Any = values.to_numpy(zero_copy_only=False)
    number = np.arange(len(bits)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    byte = np.repeat(begins[:-1], lengths) + (number >> 3)
    sums = np.bincount(byte, weights=bits * (1 << (number & 7)), minlength=int(begins[-1]))
    return Encoded(sums.astype(np.uint8), begins)
