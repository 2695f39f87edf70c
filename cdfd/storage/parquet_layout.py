"""Where in a Parquet file the bytes of its columns are: the few fields of the footer that say so, and nothing else of it.

pyarrow tells it as well, but its way to what the footer says of a column ends the process where that is damaged. What is damaged here raises
ValueError: reading then goes on without knowing what comes next. The footer is Thrift's compact protocol,
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_TRUE, _FALSE, _BYTE, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 6, 7, 8, 9, 10, 11, 12
_DEPTH = 32

# Field ids of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_PATH, _COMPRESSED_SIZE, _DATA_PAGE, _DICTIONARY_PAGE = 3, 7, 9, 11


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group: `path` with dots, and the bytes `[start, end)` of the file."""

    group: int
    path: str
    start: int
    end: int


def chunks(footer: bytes) -> list[Chunk]:
    """Every column chunk that a footer (without its length and magic number) tells of, in its order.

    Raises:
        ValueError: it is damaged.
    """
    try:
        return list(_Compact(footer).chunks())
    except (IndexError, UnicodeDecodeError, TypeError) as error:
        raise ValueError("the footer is damaged") from error


class _Compact:
    """A reader of the compact protocol: values are read in order, what is not wanted is skipped."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def chunks(self) -> Iterator[Chunk]:
        for field, kind in self._fields():
            if field != _ROW_GROUPS:
                self._skip(kind)
                continue
            for group in range(self._list(kind)):
                yield from self._group(group)

    def _group(self, group: int) -> Iterator[Chunk]:
        for field, kind in self._fields():
            if field != _COLUMNS:
                self._skip(kind)
                continue
            for _ in range(self._list(kind)):
                chunk = self._column(group)
                if chunk is not None:
                    yield chunk

    def _column(self, group: int) -> Chunk | None:
        chunk = None
        for field, kind in self._fields():
            if field == _META_DATA:
                chunk = self._meta_data(group)
            else:
                self._skip(kind)
        return chunk

    def _meta_data(self, group: int) -> Chunk:
        path, size, data_page, dictionary_page = "", 0, 0, 0
        for field, kind in self._fields():
            if field == _PATH:
                path = ".".join(self._binary().decode() for _ in range(self._list(kind)))
            elif field == _COMPRESSED_SIZE:
                size = self._integer(kind)
            elif field == _DATA_PAGE:
                data_page = self._integer(kind)
            elif field == _DICTIONARY_PAGE:
                dictionary_page = self._integer(kind)
            else:
                self._skip(kind)
        start = dictionary_page if 0 < dictionary_page < data_page else data_page
        if start < 0 or size < 0:
            raise ValueError("a column is before the beginning of the file")
        return Chunk(group, path, start, start + size)

    def _fields(self) -> Iterator[tuple[int, int]]:
        """(id, type) of a struct's fields; whoever takes one reads its value."""
        field = 0
        while header := self._byte():
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

    def _integer(self, kind: int) -> int:
        if not _BYTE < kind <= _I64:
            raise ValueError("a number of another type")
        return self._zigzag()

    def _binary(self) -> bytes:
        size = self._varint()
        self._at += size
        if self._at > len(self._data):
            raise ValueError("a text ends after the footer")
        return self._data[self._at - size : self._at]

    def _list(self, kind: int) -> int:
        """Length of a list. Each item has a byte at least: one that cannot be is found before anything is made of it."""
        if kind != _LIST:
            raise ValueError("no list where one is expected")
        return self._length()[0]

    def _length(self) -> tuple[int, int]:
        header = self._byte()
        count = header >> 4
        if count == 15:
            count = self._varint()
        if count > len(self._data) - self._at:
            raise ValueError("a list ends after the footer")
        return count, header & 15

    def _skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEPTH:
            raise ValueError("the footer is too deep")
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self._at += 1
        elif kind <= _I64:
            self._varint()
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            self._binary()
        elif kind in (_LIST, _SET):
            count, item = self._length()
            for _ in range(count):
                self._skip(_BYTE if item in (_TRUE, _FALSE) else item, depth + 1)
        elif kind == _STRUCT:
            for _, item in self._fields():
                self._skip(item, depth + 1)
        elif kind == _MAP:
            self._skip_map(depth)
        else:
            raise ValueError("a type that is none")

    def _skip_map(self, depth: int) -> None:
        count = self._varint()
        if count > len(self._data) - self._at:
            raise ValueError("a map ends after the footer")
        kinds = self._byte() if count else 0
        for _ in range(count):
            for item in (kinds >> 4, kinds & 15):
                self._skip(_BYTE if item in (_TRUE, _FALSE) else item, depth + 1)
