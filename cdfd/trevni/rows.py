"""Rows of several columns, in windows: some consecutive rows of all columns, whose blocks end at different rows.

    column a   [block 0      ][block 1      ][block 2   ]
    column b   [block 0][block 1      ][block 2         ]
    windows    [       ][    ][       ][     ][          ]     never across the end of what a column has decoded

A column with a parent has values for those of its parent, so a read that begins within the file begins before the wanted row if it must:
at the beginning of the child's block, and in a block of the parent that has that row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from cdfd.errors import TrevniError
from cdfd.trevni import blocks, metadata
from cdfd.trevni.blocks import BlockTable
from cdfd.trevni.column_reader import UNBACKED, ColumnReader, Slice
from cdfd.trevni.source import Source

LOAD_BYTES = 24 << 20
"""Bytes of blocks that are decoded at once, of all columns together, about."""
MOST_LOADED, MOST_LOADED_PER_COLUMN = 128 << 20, 128 << 10
"""Bytes of blocks of a data file that are decoded at once, at most, of all columns together, and further ones for each column: blocks have
64 KiB and one value."""
WINDOW_VALUES = 1 << 20
"""Values of a column in a window of several rows, at most, about."""
WINDOW_BYTES = 64 << 20
"""Bytes of the values in a window of several rows, without those of texts, at most, about. Nulls take as many, and none of the file."""

UNBACKED_ROWS = 1 << 20
"""Rows that are kept together, at most, beside those that the bytes of the file stand for."""
ROWS_PER_BYTE = 64
"""Rows that a byte of a file stands for, at most."""
ROW_BYTES = 1024
"""Bytes of a row of Arrow, at most, that counts as one row there: a wider one counts as several."""

Run: TypeAlias = Callable[[Sequence[Callable[[], None]]], None]
"""Calls all functions, perhaps in threads, and returns when they have ended."""


class Window(NamedTuple):
    """Some consecutive rows: the first, the one after the last, and what they have of each column, by its number."""

    start: int
    end: int
    columns: Mapping[int, Slice]


def run_all(calls: Sequence[Callable[[], None]]) -> None:
    """Calls functions one after the other."""
    for call in calls:
        call()


class Reader:
    """Reads the columns of a file.

    Args:
        source: the file.

    Raises:
        TrevniError: the header is damaged.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.metadata = metadata.read(source)
        self._tables: dict[int, BlockTable] = {}
        names = {column.name: number for number, column in enumerate(self.metadata.columns)}
        self.parents = tuple(
            None if column.parent is None else names[column.parent] for column in self.metadata.columns
        )

    def blocks(self, number: int) -> BlockTable:
        """The blocks of a column.

        Raises:
            TrevniError: a descriptor is damaged.
        """
        if number not in self._tables:
            column, start = self.metadata.columns[number], self.metadata.starts[number]
            try:
                self._tables[number] = blocks.read(self.source, column, start, self.metadata.num_rows)
            except TrevniError as error:
                raise error.at(column=column.name) from None
        return self._tables[number]

    def windows(
        self,
        numbers: Iterable[int],
        start: int = 0,
        end: int | None = None,
        *,
        most: int | None = None,
        widths: Mapping[int, int] = MappingProxyType({}),
        load_bytes: int = LOAD_BYTES,
        most_bytes: int | None = None,
        run: Run = run_all,
    ) -> Iterator[Window]:
        """The rows `[start, end)` in order, with the columns `numbers` and their parents.

        Args:
            numbers: columns to read.
            start: first row.
            end: the row after the last; None for the last of the file.
            most: rows of a window, at most; None for as many as are decoded together.
            widths: bytes that a value takes, by column; 1 by default.
            load_bytes: bytes of blocks to decode at once, about.
            most_bytes: of blocks to decode at once, besides those that are usual for each column; None for any number.
            run: decodes columns in parallel.

        Raises:
            TrevniError: the file is damaged.
        """
        end = self.metadata.num_rows if end is None else min(end, self.metadata.num_rows)
        if start >= end:
            return
        with_parents = set[int]()
        for number in numbers:
            each: int | None = number
            while each is not None and each not in with_parents:
                with_parents.add(each)
                each = self.parents[each]
        wanted = sorted(with_parents)
        weight = {number: widths.get(number, 1) for number in wanted}
        most = max(1, min(most or WINDOW_VALUES, WINDOW_BYTES // max(1, sum(weight.values()))))
        if not wanted:
            self._check_rows()
        readers = self._readers(wanted, start)
        rows, size = self.metadata.num_rows, sum(self.blocks(number).num_bytes for number in wanted)
        step = max(1, rows if size <= load_bytes else rows * load_bytes // size)
        row = min((reader.row for reader in readers.values()), default=start)
        loaded = row
        while row < end:
            if row >= loaded:
                loaded = min(end, row + step)
                if most_bytes is not None:
                    loaded = _loadable(readers, row, loaded, most_bytes + MOST_LOADED_PER_COLUMN * len(readers))
                due = [reader for reader in readers.values() if reader.loaded < loaded]
                # The largest first: threads then end at about the same time.
                due.sort(key=lambda reader: -reader.table.num_bytes)
                run([partial(reader.load, loaded) for reader in due])
            active = {number: reader for number, reader in readers.items() if reader.row <= row}
            stops = [reader.row for reader in readers.values() if reader.row > row]
            stops += [reader.piece_end for reader in active.values()]
            stops += [end, loaded, row + most] + ([start] if row < start else [])
            stop = min(stops)
            entries = self._entries(active, row, stop)
            while stop - row > 1 and (
                max(entries.values(), default=0) > max(WINDOW_VALUES, stop - row)
                or sum(weight[number] * count for number, count in entries.items()) > WINDOW_BYTES
            ):
                stop = row + (stop - row) // 2
                entries = self._entries(active, row, stop)
            columns = {number: reader.take(stop, entries[number]) for number, reader in active.items()}
            if row >= start:
                yield Window(row, stop, columns)
            row = stop

    def _check_rows(self) -> None:
        """Check the header's number of rows, which nothing else does if no column is read.

        Raises:
            TrevniError: the first column has another number, or there is none, and the rows are too many for the bytes of the file.
        """
        rows, size = self.metadata.num_rows, self.source.size
        if self.metadata.columns:
            self.blocks(0)
        elif rows > UNBACKED_ROWS + ROWS_PER_BYTE * size:
            raise TrevniError(f"the file has {size} bytes and no columns for {rows} rows")

    def _readers(self, wanted: Sequence[int], start: int) -> dict[int, ColumnReader]:
        need = dict.fromkeys(wanted, start)
        readers: dict[int, ColumnReader] = {}
        for number in reversed(wanted):
            table, parent = self.blocks(number), self.parents[number]
            block = table.block_of(need[number])
            row = need[number] if parent is None else int(table.first_rows[block])
            if parent is not None:
                need[parent] = min(need[parent], row)
            readers[number] = ColumnReader(self.source, table, block, row, runs=self.metadata.runs)
        return dict(sorted(readers.items()))

    def _entries(self, active: Mapping[int, ColumnReader], row: int, end: int) -> dict[int, int]:
        """How many lengths, or values if there are none, the rows have of each column."""
        counts: dict[int, int] = {}
        for number, reader in active.items():
            parent = self.parents[number]
            counts[number] = end - row if parent is None else active[parent].total(counts[parent])
            reader.available(counts[number])
            if counts[number] > UNBACKED and end - row == 1:
                # Nulls need no memory by themselves, and arrays of them do not either.
                values = counts[number]
                if reader.column.array and values > UNBACKED + reader.table.num_bytes:
                    raise TrevniError(f"a row has {values} arrays, for which the file has no bytes").at(
                        column=reader.column.name
                    )
        return counts


def _loadable(readers: Mapping[int, ColumnReader], row: int, end: int, most: int) -> int:
    """The row up to which blocks can be decoded at once, which is `end` unless few rows have most of the bytes.

    Raises:
        TrevniError: the blocks of one row have too many bytes.
    """
    while end - row > 1 and sum(reader.size_until(end) for reader in readers.values()) > most:
        end = row + (end - row) // 2
    if end - row == 1:
        # Blocks that are decoded already may have other rows.
        sizes = {reader.column.name: reader.size_at(row) for reader in readers.values()}
        if (size := sum(sizes.values())) > most:
            what = f"the blocks of row {row} have {size} bytes decompressed; at most {most} are read"
            raise TrevniError(what).at(column=max(sizes, key=sizes.__getitem__))
    return end
