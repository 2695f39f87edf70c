"""Cells of the types that are numbers or print like numbers: booleans, integers, floating point, decimals."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.encode.cells.pieces import (
    Booleans,
    Column,
    Index,
    Integers,
    at,
    nulls_of,
    numbers_in,
    parts,
    pool,
    pool_of,
    split_at,
)
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, to_numpy

_QUOTE = b'"'
_BOOLEANS = pool(b"false", b"true")

# Thousandths behind the point, without trailing zeros but for the first: .0 .001 .002 ... .999
_FRACTIONS = [b"." + (b"%03d" % n).rstrip(b"0").ljust(1, b"0") for n in range(1000)]
_PARTS = [b"", b"-0"]
_SPECIAL = [b"NaN", b"Infinity", b"-Infinity"]
_FLOAT_TEXTS = {
    quote: pool(*_FRACTIONS, *_PARTS, *(quote + name + quote for name in _SPECIAL)) for quote in (b"", _QUOTE)
}
_POINT_ZERO = 0
_EMPTY, _MINUS_ZERO, _NAN, _INFINITY, _MINUS_INFINITY = range(1000, 1005)
# Decimals of up to 15 significant digits and doubles are one to one, so the shortest text is found by arithmetic.
_EXACT_BELOW = 1e15


def raw_values(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values buffer as numbers of that type; entries under nulls are arbitrary."""
    if not len(array):
        return np.empty(0, dtype)
    return numbers_in(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def without_gaps(values: npt.NDArray[Any], nulls: Booleans | None) -> npt.NDArray[Any]:
    """The values with one that is in the column where it is null, so that no chance number widens its range."""
    return values if nulls is None else np.where(nulls, values[nulls.argmin()], values)


def dense(values: Integers) -> tuple[Integers, Index] | None:
    """The range of the values and the position of each in it, or None where it is longer than half of the rows."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return values[:1], 0
    if high - low >= len(values) // 2:
        return None
    if values.dtype.itemsize < 8:
        values = values.astype(np.int64)
    steps = np.arange(high - low + 1).astype(values.dtype)
    return steps + values.dtype.type(low), (values - values.dtype.type(low)).astype(np.int64)


def booleans(array: pa.Array) -> Column:
    """`true` and `false`."""
    nulls = nulls_of(array)
    index = to_numpy(array.fill_null(False).cast(pa.uint8())).astype(np.int64)
    return Column(_BOOLEANS, (index,), nulls)


def integers(array: pa.Array) -> Column:
    """Integers of any width. Where only few different ones are possible (a quantity), each is printed only once."""
    nulls = nulls_of(array)
    return _integers(without_gaps(raw_values(array, array.type.to_pandas_dtype()), nulls), nulls)


def _integers(values: Integers, nulls: Booleans | None) -> Column:
    distinct = dense(values)
    printed, index = distinct if distinct is not None else (values, np.arange(len(values)))
    return Column(_print(array_of(printed)), (index,), nulls)


def floats(array: pa.Array, special_quote: bytes = _QUOTE) -> Column:
    """The shortest text that reads back as the same double, always with a point or an exponent.

    A single is printed as the double that it equals: JSON's readers have doubles, and the shortest text of a single is another number to
    them (0.1 for 0.10000000149011612), which then differs from what every other reader of the table finds.

    NaN, Infinity and -Infinity, which JSON does not have, stand in the given quotes. Most numbers in tables have a
    few decimals only. Those are printed as an integer and a fraction out of a table, all others by Arrow, which takes
    three times as long.
    """
    if not pa.types.is_float64(array.type):
        array = array.cast(pa.float64())
    nulls = nulls_of(array)
    values = without_gaps(raw_values(array, np.float64), nulls)
    # Most are whole thousandths: those rounded are their shortest decimal form.
    with np.errstate(over="ignore", invalid="ignore"):
        thousandths = np.rint(values * 1000)
        short = (thousandths / 1000 == values) & (np.abs(thousandths) < _EXACT_BELOW)
    pools = [_FLOAT_TEXTS[special_quote]]
    base = len(pools[0])
    first, second = np.empty(len(values), np.int64), np.full(len(values), _EMPTY)
    if short.any():
        whole, fraction = np.divmod(np.abs(thousandths[short]).astype(np.int64), 1000)
        negative = np.signbit(values[short])
        digits = _integers(np.where(negative, -whole, whole), None)
        first[short] = np.where(negative & (whole == 0), _MINUS_ZERO, digits.index[0] + base)
        second[short] = fraction
        pools.append(digits.pool)
        base += len(digits.pool)
    if not short.all():
        long = np.flatnonzero(~short)
        texts = _print(array_of(values[long]))
        first[long] = base + np.arange(len(long))
        # Some whole numbers look like integers.
        whole = np.flatnonzero(np.isfinite(values[long]) & (values[long] == np.rint(values[long])))
        has_point = to_numpy(pc.match_substring_regex(texts.take(array_of(whole)), "[.e]"))
        second[long[whole[~has_point]]] = _POINT_ZERO
        first[np.isnan(values)] = _NAN
        first[np.isposinf(values)] = _INFINITY
        first[np.isneginf(values)] = _MINUS_INFINITY
        pools.append(texts)
    return Column(pa.concat_arrays(pools), (first, second) if (second != _EMPTY).any() else (first,), nulls)


def decimals(array: pa.Array) -> Column:
    """All digits in quotes, as many after the point as the scale says; never an exponent, which Arrow prints for
    small numbers.

    The unscaled integers are printed, and their text cut before the last `scale` digits. Between the two goes the
    point, together with the
    zeros that are missing where there are not so many digits: scale 3, -5 -> `-` `0.00` `5`.
    """
    scale, nulls, short = array.type.scale, nulls_of(array), limbs(array)
    if short is not None:
        digits = _integers(without_gaps(short, nulls), nulls)
        texts, index = digits.pool, digits.index[0]
    else:
        make = pa.decimal128 if pa.types.is_decimal128(array.type) else pa.decimal256
        kind = make(array.type.precision, 0)
        texts = _print(pa.Array.from_buffers(kind, len(array), array.buffers(), array.null_count, array.offset))
        index = np.arange(len(array))
    if scale == 0:
        return Column(texts, (index,), nulls, _QUOTE, _QUOTE)
    offsets, data = parts(texts)
    starts, stops = offsets[:-1], offsets[1:]
    leading = data[np.minimum(starts, len(data) - 1)]
    if scale < 0:
        zeros = pool(b"0" * -scale, b"")
        is_zero = leading == ord("0")
        pieces = index, at(len(texts) + is_zero, index)
        return Column(pa.concat_arrays([texts, zeros]), pieces, nulls, _QUOTE, _QUOTE)
    signs = leading == ord("-")
    missing = scale - (stops - starts - signs)
    cuts = np.where(missing >= 0, starts + signs, stops - scale)
    points = pool(b".", *(b"0." + b"0" * count for count in range(scale + 1)))
    point = 2 * len(texts) + np.maximum(missing + 1, 0)
    every = 2 * np.arange(len(texts))
    cells = at(every, index), at(point, index), at(every + 1, index)
    return Column(pa.concat_arrays([split_at(texts, cuts), points]), cells, nulls, _QUOTE, _QUOTE)


def limbs(array: pa.Array) -> Integers | None:
    """The integers of a decimal array, unscaled; None if one has more than 64 bits. Entries under nulls are arbitrary."""
    if array.type.bit_width < 128:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    if not pa.types.is_decimal128(array.type):
        return None
    both = numbers_in(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
    low, high = both[0::2], both[1::2]
    return low if (high == low >> 63).all() else None


def _print(array: pa.Array) -> pa.Array:
    return pool_of(array.cast(pa.large_string()))
