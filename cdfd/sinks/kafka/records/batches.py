"""Kafka's record batches (format 2), built from Arrow arrays of keys and values.

A batch is a header and its records, which are compressed together. A record consists of these pieces:

    length | attributes, timestamp delta | offset delta | key length | key | value length | value | headers
    varint   00 00                         varint         varint             varint

`cdfd-native` writes them, record by record, into memory that is compressed at once. Records become Python objects if they are few, or if it
is missing.

`RecordBatch.stamp` writes the producer into the header and computes the checksum, when the batch is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from cdfd.encode.cells.numbers import raw_values
from cdfd.encode.cells.pieces import Integers, nulls_of, parts, pool_of
from cdfd.encode.records import HeaderColumn, Records, Wrapping
from cdfd.runtime import native
from cdfd.runtime.arrays import stable_order

if TYPE_CHECKING:
    from cdfd_native.kafka_records import Integers as Numbers
    from cdfd_native.kafka_records import Texts

Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]

CODES: dict[Compression, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Bits 0 to 2 of a record batch's attributes."""

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

# The levels of Kafka's own clients.
_LEVELS: dict[Compression, int] = {"gzip": 6, "zstd": 3}
# Snappy has no framing. Kafka's consumers expect that of the Java library: a header, then blocks that start with their length.
_SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK = 32 * 1024

# Up to this number of records and bytes, Python objects are faster than arrays.
_FEW = 8
_FEW_BYTES = 64 << 10
# Blocks that cannot be compressed grow by less than a thousandth in each codec, and a frame has a header and a checksum.
_GROWTH, _FRAME = 1024, 64
# Batches differ in how well they can be compressed.
_LIKELY = 0.7
# Bytes that are free beside the records.
_SPARE_BYTES = 32
# Lengths in the format have 31 bits.
_LENGTH_LIMIT = (1 << 31) - 1 - 1024


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
        target: bytes of records before compression after which a new batch starts, or twice as many if they are small once compressed.
    """

    compression: Compression = "lz4"
    limit: int = 1_048_588
    target: int = 1 << 20

    @property
    def section_limit(self) -> int:
        """Bytes of records that are a batch within the limit, however well they can be compressed. Only a record that is alone exceeds it."""
        return max(min(self.target, self.limit - HEADER_BYTES), 0)

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
    columns = [(column.name, column.whole_values) for column in records.header_columns]
    for number, (key, value) in enumerate(zip(records.whole_keys, records.whole_values, strict=True)):
        own = [(name, text) for name, texts in columns if (text := texts[number]) is not None]
        yield key, value, [*records.headers, *own]


class BatchBuilder:
    """Builds the record batches of a producer. After a batch that was compressed well, the next one has more records.

    Args:
        batching: compression and limits.
    """

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._limit = batching.section_limit

    def batches(
        self, records: Records, partitions: Partitions, timestamp: int
    ) -> Iterator[tuple[int, RecordBatch | Oversized]]:
        """Batches within the limit, each with its partition. An `Oversized` takes the place of a batch that exceeds the limit.

        Records of a partition keep their order. One pass builds the batches of all partitions, in the order of the partitions, which is
        faster than one pass for each partition.

        Compression never makes a batch larger, because a batch that would grow is sent uncompressed. So records within the limit before
        compression are within it afterwards. If a batch with more records exceeds the limit, it is made again with fewer. A record beyond
        the limit is tried alone.

        Args:
            records: of any partitions.
            partitions: one partition for all records, or one for each.
            timestamp: of all records, in milliseconds since 1970.
        """
        batching = self._batching
        if not native.built or (len(records) <= _FEW and records.values.nbytes <= _FEW_BYTES):
            yield from _batches_of_objects(records, partitions, timestamp, batching)
            return
        sections = _Sections(records)
        # The order of records by partition, and the end of each partition's records in it.
        if isinstance(partitions, int):
            order, ends = np.arange(len(records)), np.array([len(records)])
        else:
            counts = np.bincount(partitions)
            order, ends = stable_order(partitions, len(counts)), np.cumsum(counts)
        start = 0
        for end in ends.tolist():
            while start < end:
                first = int(order[start])
                partition = partitions if isinstance(partitions, int) else int(partitions[first])
                # One batch at a time stays in the processor's cache until it is compressed.
                count, section = sections.section(order[start:end], self._limit)
                batch = _batch(section, first, count, timestamp, batching)
                if isinstance(batch, RecordBatch):
                    # The next batch may be twice as large, because fewer batches take less time, if it is likely to be within the limit.
                    likely = int(_LIKELY * batching.limit * len(section) / len(batch.data))
                    self._limit = max(batching.section_limit, min(2 * batching.target, likely))
                elif count > 1:
                    self._limit = batching.section_limit
                    continue
                yield partition, batch
                start += count


def _batches_of_objects(
    records: Records, partitions: Partitions, timestamp: int, batching: Batching
) -> Iterator[tuple[int, RecordBatch | Oversized]]:
    """`BatchBuilder.batches` by a Python object for each record."""
    by_partition: dict[int, list[tuple[int, Row]]] = {}
    for number, (partition, row) in enumerate(zip(each(partitions), rows(records), strict=False)):
        by_partition.setdefault(partition, []).append((number, row))
    for partition in sorted(by_partition):
        section, count, first = bytearray(), 0, 0
        for number, row in by_partition[partition]:
            record = _record(*row, count)
            if section and len(section) + len(record) > batching.section_limit:
                yield partition, _batch(memoryview(section), first, count, timestamp, batching)
                section, count, record = bytearray(), 0, _record(*row, 0)
            if not count:
                first = number
            section += record
            count += 1
        yield partition, _batch(memoryview(section), first, count, timestamp, batching)


def _record(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]], delta: int) -> bytes:
    texts = [_varint(_NONE) if text is None else _varint(len(text)) + text for text in (key, value)]
    fields = b"".join((b"\x00\x00", _varint(delta), *texts, _headers(headers)))
    return _varint(len(fields)) + fields


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


def compress(compression: Compression, data: memoryview) -> bytes | memoryview:
    """The compressed bytes. Releases the GIL."""
    match compression:
        case "none":
            return data
        case "lz4":
            # Kafka cannot read frames with linked blocks: a broker returns UNKNOWN_SERVER_ERROR.
            frame: bytes = lz4.frame.compress(data, block_linked=False)
            return frame
        case "snappy":
            codec = pa.Codec("snappy")
            pieces = [_SNAPPY_HEADER]
            for start in range(0, len(data), _SNAPPY_BLOCK):
                block = codec.compress(data[start : start + _SNAPPY_BLOCK], asbytes=True)
                pieces += [struct.pack(">i", len(block)), block]
            return b"".join(pieces)
        case "gzip" | "zstd":
            # A new codec for each call, because it has state.
            packed: bytes = pa.Codec(compression, compression_level=_LEVELS[compression]).compress(data, asbytes=True)
            return packed


def _headers(headers: Sequence[tuple[str, bytes]], *, counted: bool = True) -> bytes:
    """The encoded headers that all records share."""
    count = _varint(len(headers)) if counted else b""
    return count + b"".join(_header_name(name) + _varint(len(value)) + value for name, value in headers)


def _header_name(name: str) -> bytes:
    encoded = name.encode()
    return _varint(len(encoded)) + encoded


_SMALL_VARINTS = [bytes([value]) for value in range(1 << 7)]


def _varint(value: int) -> bytes:
    """A variable-length integer (zigzag, as in Protocol Buffers): 0 -> 00, -1 -> 01, 1 -> 02, 63 -> 7e, 64 -> 80 01."""
    unsigned = value << 1 ^ value >> 63
    if unsigned < 0x80:
        return _SMALL_VARINTS[unsigned]
    encoded = bytearray()
    while unsigned >= 0x80:
        encoded.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    encoded.append(unsigned)
    return bytes(encoded)


class _Sections:
    """Writes records one after the other, by `cdfd.runtime.native`: what a batch compresses.

    Args:
        records: all of them.
    """

    def __init__(self, records: Records) -> None:
        self._keys = None if records.keys is None else _texts(records.keys, records.key_wrapping)
        self._values = _texts(records.values, records.value_wrapping)
        self._fixed, self._headers = len(records.headers), _headers(records.headers, counted=False)
        self._columns = [(_header_name(column.name), _header_values(column)) for column in records.header_columns]
        self._data = np.empty(0, np.uint8)

    def section(self, rows: Integers, limit: int) -> tuple[int, memoryview]:
        """The first of these records: how many, and their bytes. The next call writes over them.

        Args:
            rows: which ones, in this order; at least one.
            limit: in bytes. Only a record that is alone exceeds it.
        """
        size = limit + _SPARE_BYTES
        while True:
            if len(self._data) < size:
                # malloc gives memory that was in use before. The system clears each new page first, which takes as long as the records.
                self._data = np.frombuffer(pa.allocate_buffer(size, pa.system_memory_pool()), np.uint8)
            data = self._data
            count, size = native.kafka_records.write(
                rows, self._keys, self._values, self._fixed, self._headers, self._columns, limit, data
            )
            if count:
                section: Any = data[:size]
                return count, memoryview(section)


def _header_values(column: HeaderColumn) -> Texts | Numbers:
    if not pa.types.is_int64(column.values.type):
        return _texts(column.values, column.wrapping)
    return None, raw_values(column.values, np.int64), _mask(column.values), column.wrapping


def _texts(array: pa.Array, wrapping: Wrapping) -> Texts:
    offsets, data = parts(pool_of(array))
    return data, np.ascontiguousarray(offsets, np.int64), _mask(array), wrapping


def _mask(array: pa.Array) -> npt.NDArray[np.uint8] | None:
    nulls = nulls_of(array)
    return None if nulls is None else nulls.view(np.uint8)
