"""Parses the locations of column chunks from a Parquet footer, and nothing else of it.

pyarrow offers this too, but its access to column metadata crashes the process if that is damaged. This module raises ValueError instead, and
reading continues without prefetching. The footer is Thrift's compact protocol,
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from cdfd.parquet.kernels import native

_TRUE, _FALSE, _BYTE, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12
_DEPTH = 32

Buffer: TypeAlias = bytes | memoryview

_V = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
# A column as writers usually encode it: its location, type, encodings and path; then codec, number of values, sizes and page locations.
_BEGINNING = re.compile(
    rb"\x26" + _V + rb"\x1c\x15" + _V + rb"\x19([\x05-\xf5])([\x00-\x14]{0,14})\x19([\x18-\xe8])", re.DOTALL
)
_MIDDLE = re.compile(
    rb"\x15(V)\x16(V)\x16V\x16(V)\x26(V)(?:\x26(V)|(?![\x10-\x1f\x20-\x2f]))".replace(b"V", _V), re.DOTALL
)

# Field ids of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_SCHEMA, _ROW_GROUPS, _COLUMNS, _META_DATA = 2, 4, 1, 3
_PATH, _CODEC, _VALUES, _COMPRESSED_SIZE, _DATA_PAGE, _DICTIONARY_PAGE = 3, 4, 5, 7, 9, 11


_before: tuple[bytes, ...] = ()
_after: tuple[bytes, ...] = ()
"""The bytes before the number of rows, and after the row groups, of footers that were read last: files of a table have the same there.

Replaced as a whole, so it is thread-safe."""


def _with(known: tuple[bytes, ...], part: bytes) -> tuple[bytes, ...]:
    return (part, *known)[:8] if len(part) <= 64 << 10 else known


class ChunkLocation(NamedTuple):
    """A column of a row group: `path` with dots, the bytes `[start, end)` of the file, its codec, and how many values it has."""

    group: int
    path: str
    start: int
    end: int
    codec: int = 0
    values: int = 0


def chunks(footer: bytes) -> list[ChunkLocation]:
    """Every column chunk in a footer (without its length and magic number), in its order.

    Raises:
        ValueError: the footer is damaged.
    """
    if native is not None and (found := native.chunks(footer)) is not None:
        return list(map(ChunkLocation._make, found))
    try:
        return list(Compact(footer).chunks())
    except (IndexError, UnicodeDecodeError, TypeError) as error:
        raise ValueError("the footer is damaged") from error


def _chunk(group: int, path: str, places: tuple[int, int], size: int, numbers: tuple[int, int]) -> ChunkLocation:
    data_page, dictionary_page = places
    start = dictionary_page if 0 < dictionary_page < data_page else data_page
    if start < 0 or size < 0:
        raise ValueError("a column is before the beginning of the file")
    return ChunkLocation(group, path, start, start + size, *numbers)


def _number(varint: bytes) -> int:
    bits = int.from_bytes(varint, "little")
    if bits > 127:
        value = 0
        for place, byte in enumerate(varint):
            value |= (byte & 127) << 7 * place
        bits = value
    return (bits >> 1) ^ -(bits & 1)


def _rest(data: Buffer, at: int) -> int:
    """Where a struct ends, from a position in it; -1 if a field has an explicit id, because it may be a repeated one."""
    while header := data[at]:
        at += 1
        if header < 16:
            return -1
        kind = header & 15
        if kind == _BINARY:
            size = shift = 0
            while (byte := data[at]) > 127:
                size |= (byte & 127) << shift
                shift += 7
                at += 1
            at += 1 + (size | byte << shift)
        elif _BYTE < kind <= _I64:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind == _STRUCT:
            if (at := _rest(data, at)) < 0:
                return -1
        elif kind == _LIST:
            if (at := _list_rest(data, at)) < 0:
                return -1
        elif kind not in (_TRUE, _FALSE):
            return -1
    return at + 1


def _list_rest(data: Buffer, at: int) -> int:
    """Where a list ends; -1 if its items are not numbers or structs."""
    count, item = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15 or item not in (_I32, _I64, _STRUCT):
        return -1
    for _ in range(count):
        if item == _STRUCT:
            if (at := _rest(data, at)) < 0:
                return -1
        else:
            while data[at] > 127:
                at += 1
            at += 1
    return at


class Compact:
    """A reader of the compact protocol: values are read in order, and unneeded ones are skipped."""

    def __init__(self, data: Buffer, at: int = 0) -> None:
        self._data = data
        self._at = at

    @property
    def place(self) -> int:
        """Position of the next value."""
        return self._at

    def chunks(self) -> Iterator[ChunkLocation]:
        """The column chunks of a footer."""
        global _before, _after
        at = self._at
        before = next((part for part in _before if self._data[at : at + len(part)] == part), b"")
        self._at += len(before)
        for field, kind in self.fields(_SCHEMA if before else 0):
            if field != _ROW_GROUPS:
                self.skip(kind)
                if field == _SCHEMA and not before:
                    _before = _with(_before, bytes(self._data[at : self._at]))
                continue
            for group in range(self._list(kind)):
                yield from self._group(group)
            after, rest = bytes(self._data[self._at :]), self._at
            if after in _after:
                return
            for again, other in self.fields(_ROW_GROUPS):
                if again == _ROW_GROUPS:
                    raise ValueError("row groups twice")
                self.skip(other)
            _after = _with(_after, after[: self._at - rest])
            return

    def _group(self, group: int) -> Iterator[ChunkLocation]:
        for field, kind in self.fields():
            if field != _COLUMNS:
                self.skip(kind)
                continue
            for _ in range(self._list(kind)):
                chunk = self._column(group)
                if chunk is None:
                    raise ValueError("a column is encrypted, or has no location")
                yield chunk

    def _column(self, group: int) -> ChunkLocation | None:
        return self._usual_column(group) or self._any_column(group)

    def _usual_column(self, group: int) -> ChunkLocation | None:
        """A column in the usual encoding; None, without a change of position, for any other."""
        data = self._data
        found = _BEGINNING.match(data, self._at)
        if found is None:
            return None
        count, encodings, names = found.groups()
        if count[0] != len(encodings) << 4 | 5 or names[0] & 15 != _BINARY:
            return None
        at, path = found.end(), []
        for _ in range(names[0] >> 4):
            end = at + 1 + data[at]
            if data[at] > 127:
                return None
            path.append(str(data[at + 1 : end], "utf-8"))
            at = end
        found = _MIDDLE.match(data, at)
        if found is None:
            return None
        end = _rest(data, found.end())
        end = _rest(data, end) if end >= 0 else end
        if end < 0:
            return None
        codec, values, size, data_page, dictionary_page = found.groups(b"\0")
        self._at = end
        places = _number(data_page), _number(dictionary_page)
        return _chunk(group, ".".join(path), places, _number(size), (_number(codec), _number(values)))

    def _any_column(self, group: int) -> ChunkLocation | None:
        chunk = None
        for field, kind in self.fields():
            if field == _META_DATA:
                chunk = self._meta_data(group)
            else:
                self.skip(kind)
        return chunk

    def _meta_data(self, group: int) -> ChunkLocation:
        path, numbers = "", {_CODEC: 0, _VALUES: 0, _COMPRESSED_SIZE: 0, _DATA_PAGE: 0, _DICTIONARY_PAGE: 0}
        for field, kind in self.fields():
            if field == _PATH:
                path = ".".join(self._binary().decode() for _ in range(self._list(kind)))
            elif field in numbers and kind == (_I32 if field == _CODEC else _I64):
                numbers[field] = self.integer(kind)
            else:
                self.skip(kind)
        codec, values, size, data_page, dictionary_page = numbers.values()
        return _chunk(group, path, (data_page, dictionary_page), size, (codec, values))

    def fields(self, field: int = 0) -> Iterator[tuple[int, int]]:
        """(id, type) of a struct's fields after `field`. The caller reads or skips each value."""
        # A type of 0 ends the struct, whatever the other bits of the byte.
        while (header := self._byte()) & 15:
            delta = header >> 4
            field = field + delta if delta else self._zigzag()
            yield field, header & 15

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _varint(self) -> int:
        value = self._byte()
        if value < 128:
            return value
        value &= 127
        for shift in range(7, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number is too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def integer(self, kind: int) -> int:
        """A number of type `kind`."""
        if not _BYTE < kind <= _I64:
            raise ValueError("a number of another type")
        return self._zigzag()

    def _binary(self) -> bytes:
        start = self._pass_binary()
        return bytes(self._data[start : self._at])

    def _pass_binary(self) -> int:
        """Skip a text; returns its position."""
        size = self._varint()
        self._at += size
        if self._at > len(self._data):
            raise IndexError("a text ends after the data")
        return self._at - size

    def _list(self, kind: int) -> int:
        """Length of a list. Each item has at least one byte, so an impossible length is an error before anything is allocated."""
        if kind != _LIST:
            raise ValueError("expected a list")
        return self._length()[0]

    def _length(self) -> tuple[int, int]:
        header = self._byte()
        count = header >> 4
        if count == 15:
            count = self._varint()
        if count > len(self._data) - self._at:
            raise ValueError("a list ends after the footer")
        return count, header & 15

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skip a value of type `kind`."""
        if depth > _DEPTH:
            raise ValueError("the footer is too deep")
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self._at += 1
        elif _BYTE < kind <= _I64:
            self._varint()
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            self._pass_binary()
        elif kind in (_LIST, _SET):
            count, item = self._length()
            for _ in range(count):
                self.skip(_BYTE if item in (_TRUE, _FALSE) else item, depth + 1)
        elif kind == _STRUCT:
            for _, item in self.fields():
                self.skip(item, depth + 1)
        elif kind == _MAP:
            self._skip_map(depth)
        else:
            raise ValueError("an unknown type")

    def _skip_map(self, depth: int) -> None:
        count = self._varint()
        if count > len(self._data) - self._at:
            raise ValueError("a map ends after the footer")
        kinds = self._byte() if count else 0
        for _ in range(count):
            for item in (kinds >> 4, kinds & 15):
                self.skip(_BYTE if item in (_TRUE, _FALSE) else item, depth + 1)
