"""Cells of the types that are text or bytes: strings with JSON's escapes, base64, JSON that stays as it is."""

import binascii

import numpy as np
import pyarrow as pa

from cdfd.encode.cells.pieces import Bytes, Column, Integers, join, nulls_of, parts, pool, pool_from_parts, pool_of
from cdfd.errors import DataError
from cdfd.runtime.arrays import array_of

_QUOTE = b'"'
_SHORT = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_ESCAPES = [_SHORT.get(byte, b"\\u%04x" % byte if byte < 32 else bytes([byte])) for byte in range(128)]
_ESCAPE_POOL = pool(*_ESCAPES)
_GROWTH = np.array([len(escape) - 1 for escape in _ESCAPES])
_PADDING = pool(b"", b"\0", b"\0\0")
_EQUALS, _SPACE = ord("="), ord(" ")


def strings(array: pa.Array) -> Column:
    """Strings in quotes, with the escapes that JSON requires and no others. `DataError` if the bytes are not UTF-8."""
    texts, nulls = pool_of(array), nulls_of(array)
    data = _data(texts)
    check_utf8(array, data)
    plain = data.tobytes()  # `in` on bytes is many times faster than a comparison of arrays
    escape = bool(data.min(initial=255) < 32) or b'"' in plain or b"\\" in plain
    if nulls is None and same_everywhere(texts, parts(texts)[0], data):
        first = texts.slice(0, 1)
        return Column(_escape(first) if escape else first, (0,), None, _QUOTE, _QUOTE)
    return Column(_escape(texts) if escape else texts, (np.arange(len(array)),), nulls, _QUOTE, _QUOTE)


def documents(array: pa.Array) -> Column:
    """Strings that are JSON already, embedded as values. `DataError` where the bytes are not UTF-8."""
    texts, nulls = pool_of(array), nulls_of(array)
    data = _data(texts)
    check_utf8(array, data)
    breaks = (data == 10) | (data == 13)
    if breaks.any():
        # A line break in JSON is white space between tokens, never part of a string; ours would end the line.
        offsets, _ = parts(texts)
        texts = pool_from_parts(offsets - offsets[0], np.where(breaks, np.uint8(_SPACE), data))
    return Column(texts, (np.arange(len(array)),), nulls)


def base64(array: pa.Array) -> Column:
    """Bytes in base64 (RFC 4648, section 4), padded."""
    texts, nulls = pool_of(array), nulls_of(array)
    every = np.arange(len(array))
    offsets, _ = parts(texts)
    missing = -np.diff(offsets) % 3
    if missing.any():
        # With every value a multiple of three bytes long, base64 of all of them in a row is base64 of each in a row.
        texts = join([b"", b"", b""], [Column(texts, (every,)), Column(_PADDING, (missing,))], len(array))
        offsets, _ = parts(texts)
    encoded = np.frombuffer(bytearray(binascii.b2a_base64(_data(texts).data, newline=False)), np.uint8)
    offsets = (offsets - offsets[0]) // 3 * 4
    ends = offsets[1:]
    encoded[ends[missing >= 1] - 1] = _EQUALS
    encoded[ends[missing == 2] - 2] = _EQUALS
    return Column(pool_from_parts(offsets, encoded), (every,), nulls, _QUOTE, _QUOTE)


def hexadecimal(array: pa.Array) -> Column:
    """Bytes as two lower-case digits each."""
    texts, nulls = pool_of(array), nulls_of(array)
    offsets, _ = parts(texts)
    digits = np.frombuffer(binascii.b2a_hex(_data(texts).data), np.uint8)
    return Column(pool_from_parts((offsets - offsets[0]) * 2, digits), (np.arange(len(array)),), nulls, _QUOTE, _QUOTE)


def check_utf8(array: pa.Array, data: Bytes) -> None:
    """`DataError` where a string is not UTF-8, which neither Parquet nor Arrow's readers guarantee."""
    if not len(data) or data.max() < 128:
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        hint = "The column was written as text in another encoding; it has to be declared as binary"
        raise DataError("a string is not valid UTF-8", hint=hint) from error


def _data(texts: pa.Array) -> Bytes:
    """The bytes of all texts, one after the other."""
    offsets, data = parts(texts)
    return data[offsets[0] : offsets[-1]]


def same_everywhere(texts: pa.Array, offsets: Integers, data: Bytes) -> bool:
    """Whether all texts are equal, as in a partition column. Comparing both ends rules that out in most cases.

    Args:
        texts: an array of them.
        offsets: where each one begins, and the last one ends.
        data: the bytes from the first offset to the last one.
    """
    width = offsets[1] - offsets[0]
    if texts[0] != texts[len(texts) - 1] or (np.diff(offsets) != width).any():
        return False
    return bool((data[width:] == data[: len(data) - width]).all())


def _escape(texts: pa.Array) -> pa.Array:
    """The texts with escapes.

    The data is cut before and behind every byte that needs one, and put together again with escapes in their places:

        say "hi"   ->   pieces of the data:  say_  "  hi  "  (end)   taken:  say_  \\"  hi  \\"  (end)
    """
    offsets, _ = parts(texts)
    data, offsets = _data(texts), offsets - offsets[0]
    places = np.flatnonzero((data < 32) | (data == ord('"')) | (data == ord("\\")))
    special = data[places].astype(np.int64)
    bounds = np.empty(2 * len(places) + 2, np.int64)
    bounds[0], bounds[-1] = 0, len(data)
    bounds[1:-1:2], bounds[2:-1:2] = places, places + 1
    cuts = pool_from_parts(bounds, data)
    order = np.arange(len(cuts))
    order[1::2] = len(cuts) + special
    escaped = pa.concat_arrays([cuts, _ESCAPE_POOL]).take(array_of(order))
    growth = np.concatenate(([0], np.cumsum(_GROWTH[special])))
    return pool_from_parts(offsets + growth[np.searchsorted(places, offsets)], escaped.buffers()[2])
