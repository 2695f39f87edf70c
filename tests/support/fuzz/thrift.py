"""Thrift's compact protocol, as far as Parquet's footers and page headers need it: bytes to a tree that can be changed, and back.

A struct is `[(field id, kind, value), ...]`, a list `(kind, [value, ...])`, an integer an int, a binary its bytes.
"""

import struct
from random import Random
from typing import Any

from tests.support.fuzz.mutate import NUMBERS

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
MAGIC = b"PAR1"
_COLUMN_OFFSETS = (9, 10, 11)


class Reader:
    """Reads one struct from `at` on."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    def value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self.byte()
        if kind in (I16, I32, I64):
            number = self.varint()
            return number >> 1 ^ -(number & 1)
        if kind == DOUBLE:
            self.at += 8
            return struct.unpack_from("<d", self.data, self.at - 8)[0]
        if kind == BINARY:
            length = self.varint()
            self.at += length
            return self.data[self.at - length : self.at]
        if kind in (LIST, SET):
            header = self.byte()
            count = self.varint() if header >> 4 == 15 else header >> 4
            inner = header & 15
            return inner, [self.byte() == 1 if inner in (TRUE, FALSE) else self.value(inner) for _ in range(count)]
        if kind == STRUCT:
            return self.struct()
        raise ValueError(f"kind {kind}")

    def struct(self) -> list[tuple[int, int, Any]]:
        fields: list[tuple[int, int, Any]] = []
        number = 0
        while header := self.byte():
            kind = header & 15
            number = number + (header >> 4) if header >> 4 else self.value(I16)
            fields.append((number, kind, self.value(kind)))
        return fields


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes((*made, number))


def encode(kind: int, value: Any) -> bytes:
    """The bytes of a value."""
    if kind in (TRUE, FALSE):
        return b""
    if kind == BYTE:
        return bytes([value % 256])
    if kind in (I16, I32, I64):
        return _varint((value << 1 ^ value >> 63) % 2**64)
    if kind == DOUBLE:
        return struct.pack("<d", value)
    if kind == BINARY:
        return _varint(len(value)) + value
    if kind in (LIST, SET):
        inner, items = value
        head = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([240 | inner]) + _varint(len(items))
        flags = inner in (TRUE, FALSE)
        return head + b"".join((b"\x01" if i else b"\x02") if flags else encode(inner, i) for i in items)
    return b"".join(_field(*field) for field in value) + b"\0"


def _field(number: int, kind: int, value: Any) -> bytes:
    kind = (TRUE if value else FALSE) if kind in (TRUE, FALSE) else kind
    return bytes([kind]) + encode(I16, number) + encode(kind, value)


def structs(kind: int, value: Any) -> list[list[tuple[int, int, Any]]]:
    """All structs in a value, itself included."""
    if kind == STRUCT:
        return [value, *(each for _, inner, item in value for each in structs(inner, item))]
    if kind in (LIST, SET):
        return [each for item in value[1] for each in structs(value[0], item)]
    return []


def tree(random: Random, fields: list[tuple[int, int, Any]]) -> None:
    """Change something in a struct or one below it, in place."""
    place = random.choice([each for each in structs(STRUCT, fields) if each])
    at = random.randrange(len(place))
    number, kind, value = place[at]
    choice = random.randrange(12)
    if choice == 0:
        del place[at]
    elif choice == 1:
        place[at] = (random.choice((1, 2, 3, 4, 5, 9, 30, 1000)), kind, value)
    elif choice == 2:
        place.insert(at, place[random.randrange(len(place))])
    elif kind in (BYTE, I16, I32, I64):
        whole = [n for n in NUMBERS if isinstance(n, int) and abs(n) < 2**63]
        place[at] = (number, kind, random.choice((value + 1, value - 1, value * 2, -value, 0, random.choice(whole))))
    elif kind == BINARY:
        bad = (b"", b"\xff\xfe", b"a\0b", b"x" * 5000, b"id", b"_change_type", value[:-1], value + b"\xed\xa0\x80")
        place[at] = (number, kind, random.choice(bad))
    elif kind in (TRUE, FALSE):
        place[at] = (number, kind, not value)
    elif kind in (LIST, SET):
        items = list(value[1])
        if items and random.random() < 0.5:
            del items[random.randrange(len(items))]
        else:
            items = items * random.choice((2, 3, 40))
        place[at] = (number, kind, (value[0], items))


def footer(random: Random, data: bytes) -> bytes:
    """A Parquet file whose footer says something else."""
    body, fields = _split(data)
    tree(random, fields)
    return _joined(body, fields)


def page(random: Random, data: bytes) -> bytes:
    """A Parquet file with a page header that says something else; what follows it is where the footer says."""
    body, fields = _split(data)
    chunks = [each for each in structs(STRUCT, fields) if {1, 2, 9} <= {n for n, _, _ in each} and len(each) > 6]
    offsets = [v for each in chunks for n, _, v in each if n in _COLUMN_OFFSETS and 0 < v < len(body)]
    if not offsets:
        return footer(random, data)
    offset = random.choice(offsets)
    reader = Reader(body, offset)
    header = reader.struct()
    tree(random, header)
    made = encode(STRUCT, header)
    moved = len(made) - (reader.at - offset)
    for each in chunks:
        for at, (number, kind, value) in enumerate(each):
            if number in _COLUMN_OFFSETS and value > offset:
                each[at] = (number, kind, value + moved)
    return _joined(body[:offset] + made + body[reader.at :], fields)


def _split(data: bytes) -> tuple[bytes, list[tuple[int, int, Any]]]:
    (length,) = struct.unpack_from("<I", data, len(data) - 8)
    start = len(data) - 8 - length
    return data[:start], Reader(data, start).struct()


def _joined(body: bytes, fields: list[tuple[int, int, Any]]) -> bytes:
    tail = encode(STRUCT, fields)
    return body + tail + struct.pack("<I", len(tail)) + MAGIC
