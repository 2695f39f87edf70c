"""Kafka's record batches (format 2), built by kernels from Arrow arrays of keys and values.

A batch is a header and its records, one after the other, compressed together. A record is put together from pieces:

    length | attributes, timestamp delta | offset delta | key length | key | value length | value | headers
    varint   00 00                         varint         varint             varint

All lengths are computed at once. Their texts, keys, values and headers form one pool, and one `take` copies them in order: the data
buffer of what it returns is the records, ready to be compressed. No record is ever an object.

Who sends a batch is written into its header when it is sent (`RecordBatch.stamp`), where the checksum is computed too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from cdfd.encoding.numbers import dense
from cdfd.encoding.pieces import Booleans, Index, Integers, nulls_of, parts, pool, pool_of
from cdfd.encoding.records import Records
from cdfd.sinks.kafka.records import varints
from cdfd.sinks.kafka.records.compression import CODES, Compression, compress

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp, producer id, epoch, sequence, count.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_FROM = struct.calcsize(">qi")
_CRC_AT = struct.calcsize(">qiib")
_ATTRIBUTES_AT = _CRC_AT + 4
_PRODUCER_AT = struct.calcsize(">qiibIhiqq")
_TRANSACTIONAL = 0x10
_MAGIC = 2
_NONE = -1
_NOBODY = (_NONE, _NONE, _NONE)

# The most that a record has besides key, value and headers: its length, attributes, timestamp and offset delta, lengths of key and value.
_RECORD_EXTRA = 5 + 2 + 5 + 5 + 5
# So few records that kernels do not pay.
_FEW = 100
# Lengths in the format are of 31 bits.
_LENGTH_LIMIT = (1 << 31) - 1 - 1024
_EMPTY = pool(b"")


Partitions = int | npt.NDArray[np.int32]
"""Of all records, or of each."""

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Key, value and headers of a record."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How records become batches.

    Attributes:
        compression: of the records of a batch.
        limit: bytes of the largest batch that the topic takes (`max.message.bytes`), header included.
        target: bytes of records, before compression, after which the next batch begins.
    """

    compression: Compression = "lz4"
    limit: int = 1_048_588
    target: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Oversized:
    """A record that is larger than the topic's limit even alone and compressed. It is in no batch.

    Attributes:
        index: which of the records that were given.
        size: bytes of its batch.
    """

    index: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """A batch as it goes over the wire.

    Attributes:
        data: all bytes; not to be sent before `stamp`.
        count: number of records.
    """

    data: bytearray
    count: int

    def stamp(self, producer_id: int, epoch: int, sequence: int, *, transactional: bool) -> None:
        """Write down who sends it, and compute the checksum. May be repeated."""
        (attributes,) = struct.unpack_from(">h", self.data, _ATTRIBUTES_AT)
        attributes = attributes & ~_TRANSACTIONAL | (_TRANSACTIONAL if transactional else 0)
        struct.pack_into(">h", self.data, _ATTRIBUTES_AT, attributes)
        struct.pack_into(">qhi", self.data, _PRODUCER_AT, producer_id, epoch, sequence)
        with memoryview(self.data) as view:
            struct.pack_into(">I", self.data, _CRC_AT, crc32c(view[_ATTRIBUTES_AT:]))


def each(partitions: Partitions) -> Iterable[int]:
    """The partition of each record; without end where it is the same for all."""
    return repeat(partitions) if isinstance(partitions, int) else partitions.tolist()


def rows(records: Records) -> Iterator[Row]:
    """Key, value and headers of each record as objects, for clients that take nothing else."""
    keys = repeat(None) if records.keys is None else records.keys.to_pylist()
    columns = [(name, column.to_pylist()) for name, column in records.header_columns]
    for number, (key, value) in enumerate(zip(keys, records.values.to_pylist(), strict=False)):
        own = [(name, column[number]) for name, column in columns if column[number] is not None]
        yield key, value, [*records.headers, *own]


def record_batches(
    records: Records, partitions: Partitions, timestamp: int, batching: Batching
) -> Iterator[tuple[int, RecordBatch | Oversized]]:
    """The records as batches within the limit, each with its partition; what fits into none is told in its place.

    Records of a partition keep their order. They are not put together for it: all partitions' are made in one go, in the order of the
    partitions, which is faster than to do it for each of them.

    Compression never makes a batch larger: where it would, the batch is sent without. So records that are within the limit before it are
    within the limit after it. A record that is not is tried alone.

    Args:
        records: of any partitions.
        partitions: of all records, or of each.
        timestamp: of all of them, milliseconds since 1970.
        batching: compression and limits.
    """
    if len(records) <= _FEW:
        yield from _few(records, partitions, timestamp, batching)
        return
    order, ends = _ordered(partitions, len(records))
    cuts = _cuts(_most(records)[order], ends, min(batching.target, batching.limit - _HEADER.size))
    counts = np.diff(cuts)
    deltas = np.arange(len(order)) - np.repeat(cuts[:-1], counts)
    texts, index = _pieces(records, order, deltas)
    for start, count in zip(cuts[:-1], counts.tolist(), strict=True):
        first = int(order[start])
        partition = partitions if isinstance(partitions, int) else int(partitions[first])
        # A batch at a time stays in the processor's cache until it is compressed.
        section = texts.take(pa.array(index[start : start + count].reshape(-1))).buffers()[2]
        yield partition, _batch(memoryview(section), first, count, timestamp, batching)


def _ordered(partitions: Partitions, rows: int) -> tuple[Integers, Integers]:
    """Records in the order of their partitions, and where the records of each end in it."""
    if isinstance(partitions, int):
        return np.arange(rows), np.array([rows])
    counts = np.bincount(partitions)
    # Of 16 bits the sort is by digits, and several times faster.
    narrow = partitions.astype(np.uint16) if len(counts) <= 1 << 16 else partitions
    return np.argsort(narrow, kind="stable"), np.cumsum(counts[counts > 0])


def _most(records: Records) -> Integers:
    """How many bytes each record takes at most."""
    most = np.full(len(records), _RECORD_EXTRA + len(_headers(records.headers)) + 5, np.int64)
    for array in (records.keys, records.values):
        if array is not None:
            most += np.diff(parts(pool_of(array))[0])
    for name, column in records.header_columns:
        most += np.diff(parts(pool_of(column))[0]) + len(_header_name(name)) + 5
    return most


def _cuts(most: Integers, ends: Integers, room: int) -> list[int]:
    """Where batches begin, and where the last one ends: as many records each as there is room for, at least one, of one partition.

    Args:
        most: how many bytes each record takes at most.
        ends: of partitions.
        room: bytes.
    """
    bounds = np.concatenate(([0], np.cumsum(most)))
    cuts = [0]
    for end in ends.tolist():
        while cuts[-1] < end:
            fitting = int(np.searchsorted(bounds, bounds[cuts[-1]] + room, "right")) - 1
            cuts.append(min(max(fitting, cuts[-1] + 1), end))
    return cuts


def _few(
    records: Records, partitions: Partitions, timestamp: int, batching: Batching
) -> Iterator[tuple[int, RecordBatch | Oversized]]:
    """The same for a handful of records, which are put together sooner than all the kernels are called."""
    homes: dict[int, list[tuple[int, Row]]] = {}
    for number, (partition, row) in enumerate(zip(each(partitions), rows(records), strict=False)):
        homes.setdefault(partition, []).append((number, row))
    room = min(batching.target, batching.limit - _HEADER.size)
    for partition in sorted(homes):
        section, count, first = bytearray(), 0, 0
        for number, row in homes[partition]:
            record = _record(*row, count)
            if section and len(section) + len(record) > room:
                yield partition, _batch(memoryview(section), first, count, timestamp, batching)
                section, count, record = bytearray(), 0, _record(*row, 0)
            if not count:
                first = number
            section += record
            count += 1
        yield partition, _batch(memoryview(section), first, count, timestamp, batching)


def _record(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]], delta: int) -> bytes:
    rest = b"\x00\x00" + b"".join((varints.varint(delta), _field(key), _field(value), _headers(headers)))
    return varints.varint(len(rest)) + rest


def _field(text: bytes | None) -> bytes:
    return varints.varint(_NONE) if text is None else varints.varint(len(text)) + text


def _batch(section: memoryview, first: int, count: int, timestamp: int, batching: Batching) -> RecordBatch | Oversized:
    """A batch of these records, of which the first is number `first`; or that it, all alone, is too large."""
    if len(section) > _LENGTH_LIMIT:
        return Oversized(first, len(section))
    compression, packed = batching.compression, memoryview(compress(batching.compression, section))
    if len(packed) >= len(section):
        compression, packed = "none", section
    size = _HEADER.size + len(packed)
    if size > batching.limit:
        return Oversized(first, size)
    header = _HEADER.pack(
        0, size - _LENGTH_FROM, _NONE, _MAGIC, 0, CODES[compression], count - 1, timestamp, timestamp, *_NOBODY, count
    )
    return RecordBatch(bytearray().join((header, packed)), count)


def _pieces(records: Records, rows: Integers, deltas: Integers) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """The records, in the order of `rows`, as texts and which of these each is put together from."""
    pieces = _Pieces(rows)
    pieces.add(pool(b""), 0)  # stands for the length, which is known when all the rest is
    pieces.number(deltas, before=b"\x00\x00")
    pieces.field(records.keys)
    pieces.field(records.values)
    if records.header_columns:
        _add_headers(pieces, records, rows)
    else:
        pieces.add(pool(_headers(records.headers)), 0)
    return pieces.after_length()


def _add_headers(pieces: _Pieces, records: Records, rows: Integers) -> None:
    """Headers where some records have more than others."""
    counts = np.full(len(rows), len(records.headers), np.int64)
    absent = [_nulls(column, rows) for _, column in records.header_columns]
    for missing in absent:
        counts += 1 if missing is None else ~missing
    pieces.number(counts)
    pieces.add(pool(_headers(records.headers, counted=False)), 0)
    for (name, column), missing in zip(records.header_columns, absent, strict=True):
        pieces.add(pool(_header_name(name)), 0, missing)
        pieces.field(column, missing)


def _headers(headers: Sequence[tuple[str, bytes]], *, counted: bool = True) -> bytes:
    """Headers that all records have."""
    count = varints.varint(len(headers)) if counted else b""
    return count + b"".join(_header_name(name) + varints.varint(len(value)) + value for name, value in headers)


def _header_name(name: str) -> bytes:
    encoded = name.encode()
    return varints.varint(len(encoded)) + encoded


def _nulls(array: pa.Array, rows: Integers) -> Booleans | None:
    nulls = nulls_of(array)
    return None if nulls is None else nulls[rows]


class _Pieces:
    """What records are put together from, in order; each with its size in every record.

    Piece 0 is the length of the others.

    Args:
        rows: which records, and in which order.
    """

    def __init__(self, rows: Integers) -> None:
        self._rows = rows
        self._pools = [_EMPTY]
        self._index: list[Index] = []
        self._size: Integers | int = 0
        self._base = 1

    def add(self, texts: pa.Array, index: Index, absent: Booleans | None = None) -> None:
        """The text at `index` in each record, or nothing where `absent` says so."""
        lengths = np.diff(parts(texts)[0])
        size = lengths[index]
        placed = index + self._base
        if absent is not None:
            size, placed = np.where(absent, 0, size), np.where(absent, 0, placed)
        self._size = self._size + size
        self._index.append(placed)
        self._pools.append(texts)
        self._base += len(texts)

    def number(self, values: Integers, before: bytes = b"", absent: Booleans | None = None) -> None:
        """A varint in each record. Where only few different ones are possible, each is made once."""
        found = dense(values)
        different, index = found if found is not None else (values, np.arange(len(values)))
        self.add(varints.texts(different, before), index, absent)

    def field(self, array: pa.Array | None, absent: Booleans | None = None) -> None:
        """Length and bytes in each record: -1 and none for null, nothing at all where `absent` says so."""
        if array is None:
            self.add(pool(varints.varint(_NONE)), 0)
            return
        texts, nulls = pool_of(array), _nulls(array, self._rows)
        lengths = np.diff(parts(texts)[0])[self._rows]
        self.number(lengths if nulls is None else np.where(nulls, _NONE, lengths), absent=absent)
        self.add(texts, self._rows, nulls)

    def after_length(self) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """All texts, and a line per record: the length of all pieces but the first in place of the first, then the others."""
        rows = len(self._rows)
        size = self._size if isinstance(self._size, np.ndarray) else np.full(rows, self._size)
        lengths = _Pieces(self._rows)
        lengths.number(size)
        index = [lengths._index[0] + self._base - 1, *self._index[1:]]
        matrix = np.empty((rows, len(index)), np.int32)
        for place, piece in enumerate(index):
            matrix[:, place] = piece
        return pa.concat_arrays([*self._pools, lengths._pools[1]]), matrix
