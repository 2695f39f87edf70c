"""One variant in its binary encoding -> JSON text (Parquet's VariantEncoding.md; section names below are its own).

Variants are untrusted input. Each size is checked against the available bytes before it is
used, and each value is decoded from bytes of its own, so that a few bytes cannot stand for many values.
"""

from __future__ import annotations

import base64
import itertools
import math
import struct
import sys
import uuid
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import orjson

from cdfd.delta.types.values import format_row_date
from cdfd.errors import DataError
from cdfd.scan.batch_budget import BatchBudget

MAX_DEPTH = 256
# Names are written once and used often: the one way in which text can outgrow the variant it comes from.
MAX_NAME_BYTES = 128 << 20
# Each takes several hundred bytes while the values of its object are written.
MAX_OPEN_FIELDS = 1 << 19

_FIELDS_KEPT = 1 << 14
_VERSION = 1
_MICROSECOND, _NANOSECOND = 6, 9
_DAY_SECONDS = 86_400
_MAX_SCALE = 38
_UNSIGNED = {2: "H", 4: "I"}

Span: TypeAlias = tuple[int, int]
"""The start of a value, and its end at the latest."""


def malformed_error(what: str) -> DataError:
    """The error for bytes that are no variant."""
    return DataError(
        f"malformed variant: {what}", hint="The data file is corrupt, or its writer is faulty: rewrite the file"
    )


@dataclass(frozen=True, slots=True)
class Name:
    """A field's name: in UTF-8, by which fields are ordered, and as JSON with the colon after it."""

    raw: bytes
    json: bytes

    @classmethod
    def of(cls, raw: bytes) -> Name:
        """From UTF-8."""
        return cls(raw, string_text(raw) + b":")


class Names:
    """The dictionary of names of a variant ("Metadata encoding"). A name is decoded on first use.

    Raises `DataError` where the metadata is malformed.
    """

    def __init__(self, metadata: bytes) -> None:
        if not metadata:
            raise malformed_error("empty metadata")
        if metadata[0] & 0x0F != _VERSION:
            raise malformed_error(f"metadata of version {metadata[0] & 0x0F}, known is {_VERSION}")
        width = (metadata[0] >> 6) + 1
        size = int.from_bytes(_bytes(metadata, 1, len(metadata), width), "little")
        self._first = 1 + width * (size + 2)
        if len(metadata) < self._first:
            raise malformed_error(f"metadata ends before its {size} names")
        self._metadata, self._width, self._size = metadata, width, size
        self._known: dict[int, Name] = {}
        self._known_lists: dict[tuple[bytes, int], list[Name]] = {}
        self._fields = 0

    def several(self, ids: bytes, width: int) -> list[Name]:
        """Names of an object's fields, given their ids of `width` bytes each. Most objects of a column share them."""
        names = self._known_lists.get((ids, width))
        if names is None:
            names = [self._name(number) for number in _unsigned_ints(ids, 0, width, len(ids) // width)]
            if len({name.raw for name in names}) < len(names):
                raise malformed_error("an object with two fields of one name")
            self._fields += len(names)
            if self._fields > _FIELDS_KEPT:
                self._known.clear()
                self._known_lists.clear()
                self._fields = len(names)
            self._known_lists[ids, width] = names
        return names

    def _name(self, number: int) -> Name:
        name = self._known.get(number)
        if name is None:
            if number >= self._size:
                raise malformed_error(f"a field has name {number} of {self._size}")
            begin, end = _unsigned_ints(self._metadata, 1 + self._width * (number + 1), self._width, 2)
            if not begin <= end <= len(self._metadata) - self._first:
                raise malformed_error("a name leads out of the metadata")
            name = self._known[number] = Name.of(self._metadata[self._first + begin : self._first + end])
        return name


class VariantWriter:
    """Writes the JSON text of one variant.

    Args:
        names: the dictionary of names of the variant's metadata.
        text: to append to.
        budget: for the whole of `text`, which is not charged yet.
    """

    def __init__(self, names: Names, text: bytearray, budget: BatchBudget) -> None:
        self.text = text
        self._names = names
        self._budget = budget
        self._name_bytes = 0
        self._open_fields = 0

    def name(self, name: Name) -> None:
        """Write a field's name. `DataError` where the names get too long altogether."""
        self._name_bytes += len(name.json)
        if self._name_bytes > MAX_NAME_BYTES:
            raise malformed_error(f"its text has more than {MAX_NAME_BYTES} bytes of names")
        text = self.text
        text += name.json

    def value(self, data: bytes, span: Span, depth: int) -> None:
        """Write a value ("Value encoding"). Bytes of the span behind it are ignored: some writers leave holes."""
        start, end = span
        if start >= end:
            raise malformed_error("an empty value")
        if depth > MAX_DEPTH:
            raise malformed_error(f"nested deeper than {MAX_DEPTH} levels")
        basic_type, header = data[start] & 3, data[start] >> 2
        if basic_type == 0:
            text = self.text
            text += _primitive(data, start + 1, end, header)
        elif basic_type == 1:
            text = self.text
            text += string_text(_bytes(data, start + 1, end, header))
        elif basic_type == 2:
            self._object(data, span, depth)
        else:
            self._array(data, span, depth)

    def fields(self, data: bytes, span: Span) -> list[tuple[Name, Span]]:
        """Fields of an object, in the order in which it has them, which is that of their names."""
        start, end = span
        header = data[start] >> 2
        offset_width, id_width = (header & 3) + 1, (header >> 2 & 3) + 1
        count, place = _count(data, start + 1, end, large=bool(header >> 4 & 1))
        first = place + count * id_width + (count + 1) * offset_width
        if first > end:
            raise malformed_error(f"an object ends before its {count} fields")
        if self._open_fields + count > MAX_OPEN_FIELDS:
            raise malformed_error(f"nested objects with more than {MAX_OPEN_FIELDS} fields")
        names = self._names.several(data[place : place + count * id_width], id_width)
        offsets = _unsigned_ints(data, place + count * id_width, offset_width, count + 1)
        # Values may be in any order: each ends where the next one in place begins.
        in_place = [*sorted(offsets[:-1]), offsets[-1]]
        _check_places(in_place, first, end)
        ends = dict(itertools.pairwise(in_place))
        return [(name, (first + begin, first + ends[begin])) for name, begin in zip(names, offsets[:-1], strict=True)]

    def _object(self, data: bytes, span: Span, depth: int) -> None:
        text, fields = self.text, self.fields(data, span)
        self._budget.check(len(text))
        self._open_fields += len(fields)
        separator = b"{"
        for name, below in fields:
            text += separator
            separator = b","
            self.name(name)
            self.value(data, below, depth + 1)
        text += b"{}" if separator == b"{" else b"}"
        self._open_fields -= len(fields)

    def _array(self, data: bytes, span: Span, depth: int) -> None:
        start, end = span
        header = data[start] >> 2
        width = (header & 3) + 1
        count, place = _count(data, start + 1, end, large=bool(header >> 2 & 1))
        first = place + (count + 1) * width
        if first > end:
            raise malformed_error(f"an array ends before its {count} elements")
        offsets = _unsigned_ints(data, place, width, count + 1)
        _check_places(offsets, first, end)
        text = self.text
        text += b"["
        for number in range(count):
            if number:
                text += b","
            self.value(data, (first + offsets[number], first + offsets[number + 1]), depth + 1)
        text += b"]"


def is_object(data: bytes) -> bool:
    """Whether a value is an object."""
    return bool(data) and data[0] & 3 == 2


def _check_places(offsets: Sequence[int], first: int, end: int) -> None:
    """Values must not share bytes, or a hundred nested arrays of two equal halves would be 2^100 values."""
    if first + offsets[-1] > end:
        raise malformed_error("an element leads out of what holds it")
    if any(begin >= following for begin, following in itertools.pairwise(offsets)):
        raise malformed_error("elements overlap")


def _count(data: bytes, start: int, end: int, *, large: bool) -> tuple[int, int]:
    """Number of elements, and what follows it."""
    width = 4 if large else 1
    return int.from_bytes(_bytes(data, start, end, width), "little"), start + width


def _bytes(data: bytes, start: int, end: int, length: int) -> bytes:
    if length > end - start:
        raise malformed_error(f"a value of {length} bytes where {max(end - start, 0)} are left")
    return data[start : start + length]


def _unsigned_ints(data: bytes, start: int, width: int, count: int) -> Sequence[int]:
    """`count` unsigned little-endian integers; the caller has made sure that they are there. A large array has millions."""
    content = data[start : start + width * count]
    if width == 1:
        return content
    if width == 3:
        return array("I", (int.from_bytes(content[at : at + 3], "little") for at in range(0, len(content), 3)))
    integers = array(_UNSIGNED[width], content)
    if sys.byteorder == "big":
        integers.byteswap()
    return integers


def _primitive(data: bytes, start: int, end: int, kind: int) -> bytes:
    if kind in (_BINARY, _STRING):
        length = int.from_bytes(_bytes(data, start, end, 4), "little")
        content = _bytes(data, start + 4, end, length)
        return binary_text(content) if kind == _BINARY else string_text(content)
    if kind not in _PRIMITIVES:
        raise malformed_error(f"unknown type {kind}")
    width, text = _PRIMITIVES[kind]
    return text(_bytes(data, start, end, width))


def string_text(content: bytes) -> bytes:
    """A string, from UTF-8."""
    try:
        return orjson.dumps(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise malformed_error("a string that is not UTF-8") from error


def binary_text(content: bytes) -> bytes:
    """Base64."""
    return b'"' + base64.b64encode(content) + b'"'


def uuid_text(content: bytes) -> bytes:
    """A UUID, from its 16 bytes."""
    return f'"{uuid.UUID(bytes=content)}"'.encode()


def double_text(number: float) -> bytes:
    """The shortest text that reads back as the same number; what JSON has no number for stands in quotes."""
    if not math.isfinite(number):
        return b'"NaN"' if math.isnan(number) else b'"Infinity"' if number > 0 else b'"-Infinity"'
    return repr(number).encode()


def float_text(number: float) -> bytes:
    """The same for 32 bits."""
    return str(np.float32(number)).encode() if math.isfinite(number) else double_text(number)


def decimal_text(unscaled: int, scale: int) -> bytes:
    """A number without exponent and without trailing zeros, as Spark prints decimals of variants."""
    if not 0 <= scale <= _MAX_SCALE:
        raise malformed_error(f"a decimal of scale {scale}")
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :].rstrip("0")
    return f"{'-' if unscaled < 0 else ''}{whole}{'.' if fraction else ''}{fraction}".encode()


def date_text(days: int) -> bytes:
    """`"2026-01-01"`, from days since 1970."""
    return f'"{format_row_date(days)}"'.encode()


def timestamp_text(ticks: int, digits: int, zone: str) -> bytes:
    """`"2026-01-01T00:00:00.000000Z"`, from ticks since 1970 of which 10 to the `digits` are a second."""
    seconds, fraction = divmod(ticks, 10**digits)
    days, second = divmod(seconds, _DAY_SECONDS)
    return f'"{format_row_date(days)}T{_clock(second)}.{fraction:0{digits}}{zone}"'.encode()


def time_text(microseconds: int) -> bytes:
    """`"12:34:56.000000"`, from microseconds since midnight."""
    second, fraction = divmod(microseconds, 10**_MICROSECOND)
    if not 0 <= second < _DAY_SECONDS:
        raise malformed_error("a time of day beyond the day")
    return f'"{_clock(second)}.{fraction:06}"'.encode()


def _clock(second: int) -> str:
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def _signed_int(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


def _integer(content: bytes) -> bytes:
    return str(_signed_int(content)).encode()


def _decimal(content: bytes) -> bytes:
    return decimal_text(_signed_int(content[1:]), content[0])


_BINARY, _STRING = 15, 16
# "Encoding types": width in bytes and text of the primitive types of fixed width.
_PRIMITIVES: dict[int, tuple[int, Callable[[bytes], bytes]]] = {
    0: (0, lambda _: b"null"),
    1: (0, lambda _: b"true"),
    2: (0, lambda _: b"false"),
    3: (1, _integer),
    4: (2, _integer),
    5: (4, _integer),
    6: (8, _integer),
    7: (8, lambda content: double_text(struct.unpack("<d", content)[0])),
    8: (5, _decimal),
    9: (9, _decimal),
    10: (17, _decimal),
    11: (4, lambda content: date_text(_signed_int(content))),
    12: (8, lambda content: timestamp_text(_signed_int(content), _MICROSECOND, "Z")),
    13: (8, lambda content: timestamp_text(_signed_int(content), _MICROSECOND, "")),
    14: (4, lambda content: float_text(struct.unpack("<f", content)[0])),
    17: (8, lambda content: time_text(_signed_int(content))),
    18: (8, lambda content: timestamp_text(_signed_int(content), _NANOSECOND, "Z")),
    19: (8, lambda content: timestamp_text(_signed_int(content), _NANOSECOND, "")),
    20: (16, uuid_text),
}
