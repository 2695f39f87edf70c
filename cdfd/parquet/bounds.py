"""Bounds the memory for decoding, from page headers alone: a footer is not trusted, and a page of a few bytes can decode to gigabytes.

| part of a file                                                  | decoded size                                |
|-----------------------------------------------------------------|---------------------------------------------|
| a page, or a dictionary, while it is read                       | its size, from its header                   |
| a row of a column of numbers                                    | their width                                 |
| rows of strings (`PLAIN`, `DELTA_LENGTH_BYTE_ARRAY`)            | the page's size, for the rows in it         |
| a row of strings from a dictionary                              | the longest value of the dictionary         |
| a row of strings from the ones before them (`DELTA_BYTE_ARRAY`) | the page's size                             |
| a row of lists or maps                                          | all of its column chunk: headers do not say |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from cdfd.errors import DataError
from cdfd.parquet.codecs import most_bytes
from cdfd.parquet.pages import (
    DATA,
    DATA_V2,
    DELTA_LENGTH,
    DICTIONARY,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    Page,
)

BATCH_BYTES = 32 << 20
"""Decoded bytes of a batch, at most. A batch always has at least one row."""
NESTED_BYTES = 256 << 20
"""Decoded bytes of lists and maps in one batch, at most, because a row cannot be decoded in parts."""
OPEN_BYTES = 512 << 20
"""Bytes of all pages and dictionaries that are decoded at the same time, in addition to `USUAL_BYTES` of each column."""
ROW_BYTES = 2 * OPEN_BYTES
"""Bytes of a row, at most, as estimated before it is decoded."""
USUAL_BYTES = 8 << 20
"""Bytes of a column's page and dictionary that are not counted; most writers make pages and dictionaries of 1 MiB."""

HINT = "Rewrite the file with smaller values or pages, or remove its rows from the table"

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_STRING = 16
"""Bytes of overhead of a string."""
_LEVELS = 5
"""Bytes of a value's definition and repetition levels, and its validity bit."""
_STRING_PAGES = (PLAIN, DELTA_LENGTH)
_DICTIONARY_PAGES = (PLAIN_DICTIONARY, RLE_DICTIONARY)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf column: numbers or strings, at any depth.

    Attributes:
        path: with dots.
        width: bytes of a value in Arrow; for strings, without their contents.
        strings: whether values have variable length.
        nested: whether a row can have several of its values.
        ambiguous: whether other columns have the same path, because names may contain dots.
    """

    path: str
    width: int
    strings: bool
    nested: bool
    ambiguous: bool = False


_known: tuple[tuple[Any, tuple[Leaf, ...]], ...] = ()
"""Leaves of the schemas that were read last: files of a table share a schema. Replaced as a whole, so it is thread-safe."""


def leaves(schema: Any) -> tuple[Leaf, ...]:
    """The leaf columns of a file, in order; `schema` is its Parquet schema."""
    global _known
    for known, found in _known:
        if schema.equals(known):
            return found
    found = _leaves(schema)
    _known = ((schema, found), *_known)[:8]
    return found


def _leaves(schema: Any) -> tuple[Leaf, ...]:
    found = []
    for number in range(len(schema)):
        column = schema.column(number)
        kind = column.physical_type
        width = max(column.length, 32) if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind, _STRING)
        found.append(Leaf(column.path, width + _LEVELS, kind == "BYTE_ARRAY", column.max_repetition_level > 0))
    counts = Counter(leaf.path for leaf in found)
    return tuple(leaf if counts[leaf.path] == 1 else replace(leaf, ambiguous=True) for leaf in found)


@dataclass(slots=True)
class ColumnChunk:
    """A column of a row group, with what is known from the page headers that were read so far.

    Attributes:
        group: number of the row group.
        leaf: the column.
        start, end: its range in the file.
        values: number of values, from the footer.
        codec: its number in the footer.
        dictionary: its dictionary page.
        longest: bytes of the longest value of the dictionary, once measured.
        first: its first data page.
        largest: bytes of its largest data page.
        plain: whether a page has strings outside the dictionary.
        indexed: whether a page has strings from the dictionary.
    """

    group: int
    leaf: Leaf
    start: int
    end: int
    values: int
    codec: int = 0
    dictionary: Page | None = None
    longest: int | None = None
    first: Page | None = None
    largest: int = 0
    plain: bool = False
    indexed: bool = False
    _rate: float = 0
    _last: Page | None = None
    _numbers: int = 0
    _indices: int = 0
    _strings: int = 0

    def add(self, page: Page) -> None:
        """Add the next page.

        Raises:
            DataError: the page is too large.
            ValueError: it has more bytes than what is stored of it can decompress to, or is a second dictionary.
        """
        most = most_bytes(self.codec, page.stored)
        if most is not None and page.size > most:
            raise ValueError(f"a page of {page.stored} stored bytes says that it has {page.size}")
        if page.size > OPEN_BYTES:
            raise too_large(f"column {self.leaf.path!r:.200} has a page of {page.size} bytes")
        if page.kind == DICTIONARY:
            if self.dictionary is not None:
                raise ValueError("a column with two dictionaries")
            self.dictionary = page
        elif page.kind in (DATA, DATA_V2):
            self.first = page if self.first is None else self.first
            self.largest = max(self.largest, page.size)
            self._last = page
            self._numbers += page.values
            if self.leaf.strings:
                self._add_strings(page)

    def without_pages(self, *, longest: int | None = None) -> ColumnChunk:
        """The same chunk without any page."""
        return ColumnChunk(self.group, self.leaf, self.start, self.end, self.values, self.codec, longest=longest)

    def rows_done(self) -> None:
        """A batch was read: pages before the last one no longer count."""
        self._numbers = self._indices = self._strings = 0
        if self._last is not None:
            self._numbers = self._last.values
            if self.leaf.strings:
                self._add_strings(self._last)

    def learn(self, seen: ColumnChunk) -> None:
        """Add what another reader saw of the same chunk's pages: their sizes, and whether strings follow that are not in the dictionary."""
        self.dictionary = self.dictionary or seen.dictionary
        self.largest = max(self.largest, seen.largest)
        self.plain = self.plain or seen.plain
        self.indexed = self.indexed or seen.indexed
        self._rate = max(self._rate, seen._rate)

    @property
    def numbers_bytes(self) -> int:
        """Bytes of all its values, without the contents of strings."""
        return self._numbers * self.leaf.width

    @property
    def is_indexed(self) -> bool:
        """Whether all its strings are in a dictionary."""
        return self.indexed and not self.plain

    @property
    def starts_indexed(self) -> bool:
        """Whether its first strings are in a dictionary."""
        return self.dictionary is not None and self.first is not None and self.first.encoding in _DICTIONARY_PAGES

    def _add_strings(self, page: Page) -> None:
        if page.encoding in _DICTIONARY_PAGES:
            self.indexed = True
            self._indices += page.values
            return
        self.plain = True
        if page.encoding in _STRING_PAGES:
            self._rate = max(self._rate, page.size / max(page.values, 1))
            self._strings += page.size
        else:
            # Each value may repeat all of the one before it.
            self._rate = max(self._rate, page.size)
            self._strings += page.size * page.values

    @property
    def value_bytes(self) -> int:
        """Bytes of the longest value in its dictionary, at most."""
        if self.longest is not None:
            return self.longest
        return 0 if self.dictionary is None else max(0, self.dictionary.size - 4 * self.dictionary.values)

    @property
    def open_bytes(self) -> int:
        """Bytes of its dictionary and largest page."""
        return self.largest + (0 if self.dictionary is None else self.dictionary.size)

    @property
    def row_bytes(self) -> float:
        """Bytes of a row of a column that is not nested, at most. For plain strings, the mean of the page with the longest ones."""
        return self.leaf.width + max(self._rate, self.value_bytes if self.indexed else 0)

    @property
    def bytes(self) -> int:
        """Bytes of all its values."""
        return self.numbers_bytes + self._strings + self._indices * self.value_bytes


@dataclass(slots=True)
class Bounds:
    """Memory bounds of column chunks: columns are read in parallel, and row groups one after the other."""

    chunks: list[ColumnChunk] = field(default_factory=list)

    def check_open(self) -> None:
        """DataError if the largest pages of all columns are too large together."""
        large = dict[str, int]()
        for chunk in self.chunks:
            if (size := chunk.open_bytes - USUAL_BYTES) > 0:
                large[chunk.leaf.path] = max(large.get(chunk.leaf.path, 0), size)
        if (size := sum(large.values())) > OPEN_BYTES:
            raise too_large(f"its columns' largest pages and dictionaries have {size} bytes together")

    def rows(self, indexed: Collection[str] = ()) -> int:
        """Rows of a batch, at most. Columns that are read as dictionaries are `indexed`.

        Raises:
            DataError: one row is too large.
        """
        sizes = dict[str, float]()
        for chunk in self.chunks:
            leaf = chunk.leaf
            if not leaf.nested:
                size = leaf.width if not leaf.strings or leaf.path in indexed else chunk.row_bytes
                if size > sizes.get(leaf.path, 0):
                    sizes[leaf.path] = size
        size = max(sum(sizes.values()), 1)
        if size > ROW_BYTES:
            raise too_large(f"a row may have {int(size)} bytes", ROW_BYTES)
        return max(1, int(BATCH_BYTES / size))

    def nested_bytes(self) -> int:
        """Bytes of all values of nested columns."""
        return sum(chunk.bytes for chunk in self.chunks if chunk.leaf.nested)


def too_large(what: str, limit: int = OPEN_BYTES) -> DataError:
    """The error for a file that takes more memory than allowed."""
    return DataError(f"{what}; at most {limit} are read", hint=HINT)
