"""Decodes pages with a kernel, which takes about half of the time that pyarrow takes for them.

It reads what writers of Delta tables usually write. Everything else is left to pyarrow, from the row on at which it comes: other encodings
and types, pages of unusual size, and all damage, so that errors do not depend on the platform.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.parquet.bounds import BATCH_BYTES, NESTED_BYTES, ColumnChunk
from cdfd.parquet.codecs import decompress
from cdfd.parquet.kernels import allocated
from cdfd.parquet.kernels import pages as native
from cdfd.parquet.nodes import Node, nodes_of
from cdfd.parquet.opening import OpenFile
from cdfd.parquet.text import check_text

MEMORY_BYTES = 256 << 20
"""Bytes of the pages of all columns that are open at a time, at most, and of what is made of them."""
MOST_TYPES = 256
"""Strings of a column that is read as indices, at most."""

_WIDTHS = {
    "int96": 8,
    "decimal4": 16,
    "decimal8": 16,
    "decimal_bytes": 16,
    "four": 4,
    "eight": 8,
    "bit": 1,
    "indices": 4,
}


class _Indices:
    """Strings of a column that is read as a dictionary, in the order in which the dictionaries of its row groups have them."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._strings = pa.array([], pa.string())

    def unify(self, strings: Sequence[bytes]) -> Any:
        """The numbers of the strings of a dictionary (int32); None if there are too many, or they are no text."""
        for each in strings:
            self._numbers.setdefault(each, len(self._numbers))
        if len(self._numbers) > MOST_TYPES:
            return None
        if len(self._numbers) > len(self._strings):
            try:
                self._strings = pa.array([each.decode() for each in self._numbers], pa.string())
            except UnicodeDecodeError:
                return None
        return np.array([self._numbers[each] for each in strings], np.int32)

    @property
    def strings(self) -> pa.Array:
        """All of them."""
        return self._strings


class Unread(Exception):
    """The rows that were not returned are to be read by pyarrow."""


class _Field:
    """A top-level column that is being read."""

    def __init__(self, node: Node, column: Callable[[Node, str, Any], Any], *, indexed: bool) -> None:
        self._node = node
        self._indices = _Indices() if indexed else None
        if indexed and node.kind != "strings":
            raise Unread
        unify = None if self._indices is None else self._indices.unify
        self._columns = {each.leaf: column(each, "indices" if indexed else each.kind, unify) for each in node.leaves()}
        self._cuttable = node.kind == "strings" and not indexed
        self._bytes_of_row, self._levels_of_row = 8.0, 2.0
        self.type = pa.dictionary(pa.int32(), pa.string()) if indexed else node.type
        self.doubtful = False

    @property
    def rate(self) -> float:
        """Bytes of strings of a row, about."""
        return self._bytes_of_row if self._cuttable else 0

    def take(self, rows: int, most: int) -> pa.Array:
        """The next rows: fewer if strings would have more than `most` bytes. Sets `doubtful` if text has to be checked."""
        assert native is not None
        found, self.doubtful = dict[int, tuple[Any, Any]](), False
        for node in self._node.leaves():
            column = self._columns[node.leaf]
            kind = "indices" if self._indices is not None else node.kind
            levels = int(rows * self._levels_of_row * 1.125) + 64 if column.is_repeated else rows
            size = int(rows * self._bytes_of_row * 1.125) + 64 if kind == "strings" else levels * _WIDTHS[kind]
            values = native.Block(min(size, most) if kind == "strings" else size)
            offsets = native.Block(4 * (levels + 1)) if kind == "strings" else None
            taken = column.take(rows, most, values, offsets)
            if taken != rows and not (self._cuttable and taken):
                raise Unread
            self._levels_of_row = column.entries / max(taken, 1)
            if kind == "strings" and column.count:
                self._bytes_of_row = column.text_bytes / taken
                self.doubtful |= not column.is_ascii and not pa.types.is_binary(node.type)
            self.doubtful |= kind.startswith("decimal")
            found[node.leaf] = pa.py_buffer(values), None if offsets is None else pa.py_buffer(offsets)
        array = self._array(self._node, found)
        if self._indices is not None:
            return pa.DictionaryArray.from_arrays(array, self._indices.strings)
        return array

    def _array(self, node: Node, found: dict[int, tuple[Any, Any]]) -> Any:
        column = self._columns[node.leaf]
        count, nulls, bits = self._validity(node, column)
        if node.kind:
            return self._leaf(node, column, (count, nulls, bits), found[node.leaf])
        valid = bits if nulls else None
        if pa.types.is_struct(node.type):
            children = [self._array(child, found) for child in node.children]
            if any(len(child) != count for child in children):
                raise Unread
            return pa.Array.from_buffers(node.type, count, [valid], nulls, children=children)
        offsets = allocated(4 * (column.entries + 1))
        numbers = np.frombuffer(offsets, np.int32)
        lists = column.lists(node.depth, node.exists, node.valid + 1, numbers)
        items = self._array(node.children[0], found)
        if lists != count or len(items) != numbers[count]:
            raise Unread
        return pa.Array.from_buffers(node.type, count, [valid, offsets], nulls, children=[items])

    def _validity(self, node: Node, column: Any) -> tuple[int, int, pa.Buffer | None]:
        """How many values an array has, how many of them are null, and their bits."""
        if not column.has_levels or (node.valid == 0 and not column.is_repeated):
            return column.entries, 0, None
        bits = pa.py_buffer(bytearray((column.entries + 7) // 8))
        count, nulls = column.validity(node.depth, node.exists, node.valid, np.frombuffer(bits, np.uint8))
        return count, nulls, bits

    def _leaf(self, node: Node, column: Any, validity: tuple[int, int, Any], buffers: tuple[Any, Any]) -> Any:
        count, nulls, bits = validity
        values, offsets = buffers
        if column.count != count - nulls:
            raise Unread
        kind = pa.int32() if self._indices is not None else node.type
        if offsets is not None:
            if nulls:
                offsets = _spread_ends(bits, count, offsets, column.count)
            return pa.Array.from_buffers(kind, count, [bits if nulls else None, offsets, values], nulls)
        width = _WIDTHS["indices" if self._indices is not None else node.kind]
        if nulls:
            values = _spread(bits, count, width, values, column.count)
        valid = bits if nulls else None
        if node.kind == "bit":
            packed = np.packbits(np.frombuffer(values, np.uint8, count), bitorder="little")
            return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(packed)], nulls)
        if kind in (pa.int8(), pa.int16()):
            return pa.Array.from_buffers(pa.int32(), count, [valid, values], nulls).cast(kind, safe=False)
        return pa.Array.from_buffers(kind, count, [valid, values], nulls)


def _spread(bits: Any, count: int, width: int, values: Any, have: int) -> pa.Buffer:
    assert native is not None
    found = allocated(count * width)
    dense = np.frombuffer(values, np.uint8, have * width)
    if not native.spread(np.frombuffer(bits, np.uint8), count, width, dense, np.frombuffer(found, np.uint8)):
        raise Unread
    return found


def _spread_ends(bits: Any, count: int, ends: Any, have: int) -> pa.Buffer:
    assert native is not None
    found = allocated(4 * (count + 1))
    dense = np.frombuffer(ends, np.int32, have + 1)
    if not native.spread_ends(np.frombuffer(bits, np.uint8), count, dense, np.frombuffer(found, np.int32)):
        raise Unread
    return found


class _Busy:
    """The decoders of this process that are at work. Where there are several, they use the cores, and each of them one thread."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()

    def __enter__(self) -> int:
        """One more is at work: the number of others."""
        with self._lock:
            self._count += 1
            return self._count - 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1


_busy = _Busy()


class Decoder:
    """Columns of some row groups, which are read from their beginning to their end."""

    def __init__(
        self,
        source: Any,
        nodes: Sequence[tuple[str, Node]],
        chunks: Iterable[ColumnChunk],
        rows: int,
        indexed: Collection[str],
    ) -> None:
        """Columns `nodes` by name, in the order of the file, and their chunks in `rows` rows.

        Args:
            source: the file as a buffer, or a function that returns bytes of it: at least so many and at most so many, from a position on.
            nodes: columns by name, in the order of the file.
            chunks: of their leaves, in the order of row groups and of the file.
            rows: of all row groups.
            indexed: columns to return as dictionaries.
        """
        assert native is not None
        leaves = [leaf for _, node in nodes for leaf in node.leaves()]
        places = [(chunk.start, chunk.end, chunk.values, chunk.codec) for chunk in chunks]
        chunks_of = {leaf.leaf: places[number :: len(leaves)] for number, leaf in enumerate(leaves)}
        most = MEMORY_BYTES // max(1, len(leaves))

        def column(node: Node, kind: str, unify: Any) -> Any:
            keeps = node.depth > 0 or not any(node is top for _, top in nodes)
            levels = node.valid, node.depth
            given = chunks_of[node.leaf], native.KINDS[kind], node.width, levels, keeps, most, decompress, unify
            return native.Column(source, *given)

        try:
            self._fields = [_Field(node, column, indexed=name in indexed) for name, node in nodes]
        except native.Unusual:
            raise Unread from None
        sizes = [
            sum(end - start for leaf in node.leaves() for start, end, *_ in chunks_of[leaf.leaf]) for _, node in nodes
        ]
        # The largest first: others are decoded beside it.
        self._order = sorted(range(len(nodes)), key=lambda place: -sizes[place])
        self._schema = pa.schema(
            [pa.field(name, field.type, node.nullable) for (name, node), field in zip(nodes, self._fields, strict=True)]
        )
        # Rows of these are not read in parts: pyarrow reads them if a batch has more, in batches of fewer rows.
        whole = sum(node.kind != "strings" for _, node in nodes for _ in node.leaves())
        self._whole_bytes = min(2 * BATCH_BYTES, NESTED_BYTES // max(1, whole))
        self._rows = rows
        width = sum(_WIDTHS.get(leaf.kind, 4) + 1 for leaf in leaves)
        self._most_rows = max(1, BATCH_BYTES // max(1, width))

    def batches(self, rows: int, threads: int = 1) -> Iterator[pa.RecordBatch]:
        """The rows in order, in batches of at most `rows` rows.

        Raises:
            Unread: the rows from here on are to be read by pyarrow.
            DataError: text that is not UTF-8.
        """
        assert native is not None
        left, wanted = self._rows, min(rows, self._most_rows)
        waiting: list[Any] = [None] * len(self._fields)
        with ExitStack() as stack:
            pool: ThreadPoolExecutor | None = None
            while left:
                count = min(wanted, left)
                try:
                    with _busy as others:
                        if threads > 1 and len(self._fields) > 1 and not others:
                            pool = pool or stack.enter_context(ThreadPoolExecutor(threads))
                            found = self._taken(count, waiting, pool.map)
                        else:
                            found = self._taken(count, waiting, map)
                except native.Unusual:
                    raise Unread from None
                got = min(map(len, found))
                batch = pa.RecordBatch.from_arrays(
                    [array.slice(0, got) if len(array) > got else array for array in found], schema=self._schema
                )
                check_text(batch, [place for place, field in enumerate(self._fields) if field.doubtful])
                yield batch
                waiting = [array.slice(got) if len(array) > got else None for array in found]
                left -= got
                if got < count:
                    wanted = max(1, got)

    def _taken(self, count: int, waiting: Sequence[Any], run: Any) -> list[Any]:
        """The next rows of each field, after those that wait since the batch before had fewer of another field."""
        rates = [field.rate for field in self._fields]
        room = BATCH_BYTES / max(1.0, sum(rates))
        shares = [max(1, int(room * rate)) if rate else self._whole_bytes for rate in rates]

        def take(place: int) -> Any:
            before, field = waiting[place], self._fields[place]
            if before is None:
                return field.take(count, shares[place])
            doubtful = field.doubtful
            if len(before) >= count:
                return before
            array = field.take(count - len(before), shares[place])
            field.doubtful |= doubtful
            return pa.concat_arrays([before, array])

        taken = dict(zip(self._order, run(take, self._order), strict=True))
        return [taken[place] for place in range(len(self._fields))]


def decoder_of(
    source: Any,
    file: OpenFile,
    columns: Sequence[str],
    chunks: Sequence[ColumnChunk],
    groups: Sequence[int],
) -> Decoder | None:
    """A decoder of top-level columns in some row groups; None where pyarrow has to read them.

    Args:
        source: see `Decoder`.
        file: to read. Its `dictionaries` are returned as dictionaries.
        columns: names of top-level columns.
        chunks: of these columns, in the order of row groups and of the file.
        groups: the row groups.
    """
    if native is None:
        return None
    schema, wanted = file.schema, set(columns)
    names = schema.names
    found = [
        (name, node) for name, node in zip(names, nodes_of(file.parquet.schema, schema), strict=True) if name in wanted
    ]
    nodes = [(name, node) for name, node in found if node is not None]
    leaves = sum(1 for _, node in nodes for _ in node.leaves())
    if (
        not leaves
        or len({name for name, _ in nodes}) < len(found)
        or len(found) < len(wanted)
        or len(chunks) != leaves * len(groups)
    ):
        return None
    metadata, rows = file.parquet.metadata, 0
    for place, group in enumerate(groups):
        count = metadata.row_group(group).num_rows
        rows += count
        for chunk in chunks[place * leaves : (place + 1) * leaves]:
            if chunk.leaf.ambiguous or (chunk.values != count and not chunk.leaf.nested):
                return None
    try:
        return Decoder(source, nodes, chunks, rows, file.dictionaries)
    except Unread:
        return None
