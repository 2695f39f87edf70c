"""Kafka's record batches (format 2), built by kernels from Arrow arrays of keys and values.

A batch is a header and its records, which are compressed together. A record consists of these pieces:

    length | attributes, timestamp delta | offset delta | key length | key | value length | value | headers
    varint   00 00                         varint         varint             varint

A kernel in machine code writes them, record by record. Arrow does so without it: all lengths are computed at once, their texts, keys, values
and headers form one pool, and one `take` copies them in order. The data buffer of its result contains the records, ready for compression.
No record becomes a Python object.

`RecordBatch.stamp` writes the producer into the header and computes the checksum, when the batch is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from cdfd import native
from cdfd.encoding.numbers import dense
from cdfd.encoding.pieces import Booleans, Index, Integers, nulls_of, parts, pool, pool_of
from cdfd.encoding.records import Records
from cdfd.sinks.kafka.records import varints
from cdfd.sinks.kafka.records.compression import CODES, Compression, compress
from cdfd.sinks.kafka.records.native_sections import Sections

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and last timestamp, producer id, epoch, sequence, count.
_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
"""Bytes of a batch besides its records."""
_LENGTH_FROM = struct.calcsize(">qi")
_CRC_AT = struct.calcsize(">qiib")
_ATTRIBUTES_AT = _CRC_AT + 4
_PRODUCER_AT = struct.calcsize(">qiibIhiqq")
_TRANSACTIONAL = 0x10
_MAGIC = 2
_NONE = -1
_NO_PRODUCER = (_NONE, _NONE, _NONE)

# Maximum size of a record's other pieces: length, attributes, timestamp and offset delta, lengths of key and value.
_RECORD_EXTRA = 5 + 2 + 5 + 5 + 5
# Up to this number of records and bytes, Python objects are faster than kernels, which copy a long value once instead of five times.
_FEW = 100
_FEW_BYTES = 64 << 10
# Blocks that cannot be compressed grow by less than a thousandth in each codec, and a frame has a header and a checksum.
_GROWTH, _FRAME = 1024, 64
# Lengths in the format have 31 bits.
_LENGTH_LIMIT = (1 << 31) - 1 - 1024
_EMPTY = pool(b"")


Partitions = int | npt.NDArray[np.int32]
"""One partition for all records, or one for each."""

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Key, value and headers of a record."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How records become batches.

    If a topic has a `compression.type`, batches have that codec too: the broker would compress others again, and its limit applies to
    the result. So `limit` is below that of the topic then, by as much as compression can make a batch larger.

    Attributes:
        compression: codec of the records of a batch.
        limit: size limit of a batch of the topic in bytes (`max.message.bytes`), including the header.
        target: bytes of records before compression after which a new batch starts.
    """

    compression: Compression = "lz4"
    limit: int = 1_048_588
    target: int = 1 << 20

    @classmethod
    def for_topic(cls, compression: Compression, limit: int, topic_codec: str) -> Self:
        """The batches of a topic.

        Args:
            compression: the configured codec.
            limit: `max.message.bytes` of the topic.
            topic_codec: its `compression.type`.
        """
        if topic_codec == "uncompressed":
            return cls("none", limit)
        if topic_codec not in CODES:
            return cls(compression, limit)  # `producer`
        return cls(topic_codec, limit - limit // _GROWTH - _FRAME)


@dataclass(frozen=True, slots=True)
class Oversized:
    """A record that exceeds the topic's limit even alone and compressed. It is in no batch.

    Attributes:
        index: index of the record.
        size: bytes of a batch with this record alone.
    """

    index: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """A batch in its wire format.

    Attributes:
        data: all bytes; call `stamp` before you send them.
        count: number of records.
    """

    data: bytearray
    count: int

    def stamp(self, producer_id: int, epoch: int, sequence: int, *, transactional: bool) -> None:
        """Write the producer into the header and compute the checksum. May be repeated."""
        (attributes,) = struct.unpack_from(">h", self.data, _ATTRIBUTES_AT)
        attributes = attributes & ~_TRANSACTIONAL | (_TRANSACTIONAL if transactional else 0)
        struct.pack_into(">h", self.data, _ATTRIBUTES_AT, attributes)
        struct.pack_into(">qhi", self.data, _PRODUCER_AT, producer_id, epoch, sequence)
        with memoryview(self.data) as view:
            struct.pack_into(">I", self.data, _CRC_AT, crc32c(view[_ATTRIBUTES_AT:]))


def each(partitions: Partitions) -> Iterable[int]:
    """The partition of each record; infinite if all have the same one."""
    return repeat(partitions) if isinstance(partitions, int) else partitions.tolist()


def rows(records: Records) -> Iterator[Row]:
    """Key, value and headers of each record as objects, for clients that need objects."""
    keys = repeat(None) if records.keys is None else records.keys.to_pylist()
    columns = [(name, column.to_pylist()) for name, column in records.header_columns]
    for number, (key, value) in enumerate(zip(keys, records.values.to_pylist(), strict=False)):
        own = [(name, column[number]) for name, column in columns if column[number] is not None]
        yield key, value, [*records.headers, *own]


def record_batches(
    records: Records, partitions: Partitions, timestamp: int, batching: Batching
) -> Iterator[tuple[int, RecordBatch | Oversized]]:
    """Batches within the limit, each with its partition. An `Oversized` takes the place of a batch that exceeds the limit.

    Records of a partition keep their order. One pass builds the batches of all partitions, in the order of the partitions, which is faster
    than one pass for each partition.

    Compression never makes a batch larger, because a batch that would grow is sent uncompressed. So records within the limit before
    compression are within it afterwards. A record beyond the limit is tried alone.

    Args:
        records: of any partitions.
        partitions: one partition for all records, or one for each.
        timestamp: of all records, in milliseconds since 1970.
        batching: compression and limits.
    """
    if len(records) <= _FEW and not (native.built and records.values.nbytes > _FEW_BYTES):
        yield from _batches_of_few(records, partitions, timestamp, batching)
        return
    order, ends = _by_partition(partitions, len(records))
    sizes = _max_sizes(records)[order]
    boundaries = _boundaries(sizes, ends, min(batching.target, batching.limit - HEADER_BYTES))
    counts = np.diff(boundaries)
    if native.built:
        columns = [(_header_name(name), column) for name, column in records.header_columns]
        headers = _headers(records.headers, counted=False)
        written = Sections(records.keys, records.values, len(records.headers), headers, columns)
        for start, end in pairwise(boundaries):
            first = int(order[start])
            partition = partitions if isinstance(partitions, int) else int(partitions[first])
            section = written.section(order[start:end], int(sizes[start:end].sum()))
            yield partition, _batch(section, first, end - start, timestamp, batching)
        return
    deltas = np.arange(len(order)) - np.repeat(boundaries[:-1], counts)
    texts, index = _pieces(records, order, deltas)
    for start, count in zip(boundaries[:-1], counts.tolist(), strict=True):
        first = int(order[start])
        partition = partitions if isinstance(partitions, int) else int(partitions[first])
        # One batch at a time stays in the processor's cache until it is compressed.
        taken = texts.take(pa.array(index[start : start + count].reshape(-1))).buffers()[2]
        yield partition, _batch(memoryview(taken), first, count, timestamp, batching)


def _by_partition(partitions: Partitions, rows: int) -> tuple[Integers, Integers]:
    """The order of records by partition, and the end of each partition's records in it."""
    if isinstance(partitions, int):
        return np.arange(rows), np.array([rows])
    counts = np.bincount(partitions)
    # NumPy sorts 16-bit integers by radix, which is several times faster.
    narrow = partitions.astype(np.uint16) if len(counts) <= 1 << 16 else partitions
    return np.argsort(narrow, kind="stable"), np.cumsum(counts[counts > 0])


def _max_sizes(records: Records) -> Integers:
    """The maximum size of each record in bytes."""
    max_sizes = np.full(len(records), _RECORD_EXTRA + len(_headers(records.headers)) + 5, np.int64)
    for array in (records.keys, records.values):
        if array is not None:
            max_sizes += np.diff(parts(pool_of(array))[0])
    for name, column in records.header_columns:
        max_sizes += np.diff(parts(pool_of(column))[0]) + len(_header_name(name)) + 5
    return max_sizes


def _boundaries(max_sizes: Integers, ends: Integers, limit_bytes: int) -> list[int]:
    """The start of each batch, and the end of the last one. A batch has records of one partition, at least one, within the limit.

    Args:
        max_sizes: the maximum size of each record in bytes.
        ends: the end of each partition's records.
        limit_bytes: the limit of a batch.
    """
    bounds = np.concatenate(([0], np.cumsum(max_sizes)))
    boundaries = [0]
    for end in ends.tolist():
        while boundaries[-1] < end:
            fitting = int(np.searchsorted(bounds, bounds[boundaries[-1]] + limit_bytes, "right")) - 1
            boundaries.append(min(max(fitting, boundaries[-1] + 1), end))
    return boundaries


def _batches_of_few(
    records: Records, partitions: Partitions, timestamp: int, batching: Batching
) -> Iterator[tuple[int, RecordBatch | Oversized]]:
    """`record_batches` for few records, for which Python objects are faster than kernels."""
    by_partition: dict[int, list[tuple[int, Row]]] = {}
    for number, (partition, row) in enumerate(zip(each(partitions), rows(records), strict=False)):
        by_partition.setdefault(partition, []).append((number, row))
    limit_bytes = min(batching.target, batching.limit - HEADER_BYTES)
    for partition in sorted(by_partition):
        section, count, first = bytearray(), 0, 0
        for number, row in by_partition[partition]:
            record = _record(*row, count)
            if section and len(section) + len(record) > limit_bytes:
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
    """A batch of records, of which the first one has index `first`; `Oversized` if it exceeds the limit."""
    if len(section) > _LENGTH_LIMIT:
        return Oversized(first, len(section))
    compression, packed = batching.compression, memoryview(compress(batching.compression, section))
    if len(packed) >= len(section):
        compression, packed = "none", section
    size = HEADER_BYTES + len(packed)
    if size > batching.limit:
        return Oversized(first, size)
    header = _HEADER.pack(
        0,
        size - _LENGTH_FROM,
        _NONE,
        _MAGIC,
        0,
        CODES[compression],
        count - 1,
        timestamp,
        timestamp,
        *_NO_PRODUCER,
        count,
    )
    return RecordBatch(bytearray().join((header, packed)), count)


def _pieces(records: Records, rows: Integers, deltas: Integers) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """The pieces of the records in the order of `rows`: a pool of texts, and for each record the indices of its pieces."""
    pieces = _Pieces(rows)
    pieces.add(pool(b""), 0)  # placeholder of the length, which is computed from the other pieces
    pieces.number(deltas, before=b"\x00\x00")
    pieces.field(records.keys)
    pieces.field(records.values)
    if records.header_columns:
        _add_headers(pieces, records, rows)
    else:
        pieces.add(pool(_headers(records.headers)), 0)
    return pieces.after_length()


def _add_headers(pieces: _Pieces, records: Records, rows: Integers) -> None:
    """Add headers, if records differ in their headers."""
    counts = np.full(len(rows), len(records.headers), np.int64)
    absent = [_nulls_at(column, rows) for _, column in records.header_columns]
    for missing in absent:
        counts += 1 if missing is None else ~missing
    pieces.number(counts)
    pieces.add(pool(_headers(records.headers, counted=False)), 0)
    for (name, column), missing in zip(records.header_columns, absent, strict=True):
        pieces.add(pool(_header_name(name)), 0, missing)
        pieces.field(column, missing)


def _headers(headers: Sequence[tuple[str, bytes]], *, counted: bool = True) -> bytes:
    """The encoded headers that all records share."""
    count = varints.varint(len(headers)) if counted else b""
    return count + b"".join(_header_name(name) + varints.varint(len(value)) + value for name, value in headers)


def _header_name(name: str) -> bytes:
    encoded = name.encode()
    return varints.varint(len(encoded)) + encoded


def _nulls_at(array: pa.Array, rows: Integers) -> Booleans | None:
    nulls = nulls_of(array)
    return None if nulls is None else nulls[rows]


class _Pieces:
    """Collects the pieces of records in order, with the size of each piece in every record.

    Piece 0 is the length of the others.

    Args:
        rows: the indices of the records, in order.
    """

    def __init__(self, rows: Integers) -> None:
        self._rows = rows
        self._pools = [_EMPTY]
        self._index: list[Index] = []
        self._size: Integers | int = 0
        self._base = 1

    def add(self, texts: pa.Array, index: Index, absent: Booleans | None = None) -> None:
        """Add the text at `index` to each record, except for records that are `absent`."""
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
        """Add a varint to each record. If only few values are possible, each one is encoded once."""
        found = dense(values)
        different, index = found if found is not None else (values, np.arange(len(values)))
        self.add(varints.texts(different, before), index, absent)

    def field(self, array: pa.Array | None, absent: Booleans | None = None) -> None:
        """Add length and bytes to each record: the length -1 for null, and nothing for records that are `absent`."""
        if array is None:
            self.add(pool(varints.varint(_NONE)), 0)
            return
        texts, nulls = pool_of(array), _nulls_at(array, self._rows)
        lengths = np.diff(parts(texts)[0])[self._rows]
        self.number(lengths if nulls is None else np.where(nulls, _NONE, lengths), absent=absent)
        self.add(texts, self._rows, nulls)

    def after_length(self) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """All texts, and a row of indices per record: the total length in place of piece 0, then the other pieces."""
        rows = len(self._rows)
        size = self._size if isinstance(self._size, np.ndarray) else np.full(rows, self._size)
        lengths = _Pieces(self._rows)
        lengths.number(size)
        index = [lengths._index[0] + self._base - 1, *self._index[1:]]
        matrix = np.empty((rows, len(index)), np.int32)
        for place, piece in enumerate(index):
            matrix[:, place] = piece
        return pa.concat_arrays([*self._pools, lengths._pools[1]]), matrix
