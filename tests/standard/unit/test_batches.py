"""Record batches, read back with kafka-python's own parser."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import encode_varint

from cdfd.encode.records import HeaderColumn, Records
from cdfd.sinks.kafka.records import batches
from cdfd.sinks.kafka.records.batches import (
    CODES,
    BatchBuilder,
    Batching,
    Compression,
    Oversized,
    RecordBatch,
    compress,
)

pytestmark = pytest.mark.usefixtures("kernels")

COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
# kafka-python unpacks these with libraries that cdfd has no need of; Arrow does it here.
CODECS = {2: "snappy", 4: "zstd"}

Headers = tuple[tuple[str, bytes], ...]
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]


def binary(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.large_binary())


def records_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, headers: Headers = (), **columns: Any
) -> Records:
    more = tuple(HeaderColumn(name, binary(column)) for name, column in columns.items())
    return Records(None if keys is None else binary(keys), binary(values), headers, more)


def rows_of(records: Records) -> list[Row]:
    keys = [None] * len(records) if records.keys is None else around(records.keys, records.key_wrapping)
    values = around(records.values, records.value_wrapping)
    columns = [(column.name, around(column.values, column.wrapping)) for column in records.header_columns]
    return [
        (key, value, [*records.headers, *((name, column[row]) for name, column in columns if column[row] is not None)])
        for row, (key, value) in enumerate(zip(keys, values, strict=True))
    ]


def around(texts: pa.Array, wrapping: tuple[bytes, bytes]) -> list[bytes | None]:
    before, after = wrapping
    return [None if text is None else before + bytes_of(text) + after for text in texts.to_pylist()]


def bytes_of(value: bytes | int) -> bytes:
    return b"%d" % value if isinstance(value, int) else value


def unpacked(batch: DefaultRecordBatch, data: bytes) -> DefaultRecordBatch:
    """The batch without its compression, where kafka-python would need a library for that."""
    codec = CODECS.get(batch.compression_type)
    if codec is None:
        return batch
    section = data[DefaultRecordBatch.HEADER_STRUCT.size :]
    plain = without_frames(section) if codec == "snappy" else pa.input_stream(pa.py_buffer(section), codec).read()
    header = bytearray(data[: DefaultRecordBatch.HEADER_STRUCT.size])
    struct.pack_into(">h", header, DefaultRecordBatch.ATTRIBUTES_OFFSET, batch.attributes & ~7)
    return DefaultRecordBatch(bytes(header) + plain)


def without_frames(section: bytes) -> bytes:
    """Snappy as the Java library frames it."""
    assert section[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    plain, at = b"", 16
    while at < len(section):
        (size,) = struct.unpack_from(">i", section, at)
        block = section[at + 4 : at + 4 + size]
        length, shift = 0, 0
        for byte in block[:5]:
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        plain += pa.Codec("snappy").decompress(block, decompressed_size=length, asbytes=True)
        at += 4 + size
    return plain


def parsed(batch: RecordBatch) -> tuple[DefaultRecordBatch, list[Any]]:
    data = bytes(batch.data)
    (only,) = list(MemoryRecords(data))
    assert only.validate_crc()
    return only, list(unpacked(only, data))


def read_back(items: Sequence[RecordBatch | Oversized], timestamp: int) -> list[Row]:
    rows: list[Row] = []
    for item in items:
        assert isinstance(item, RecordBatch)
        item.stamp(7, 3, 11, transactional=True)
        header, batch_records = parsed(item)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
        assert header.is_transactional
        assert not header.is_control_batch
        assert (header.base_offset, header.leader_epoch, header.magic) == (0, -1, 2)
        assert header.last_offset_delta + 1 == header.records_count == item.count == len(batch_records)
        assert header.first_timestamp == header.max_timestamp == timestamp
        assert header.timestamp_type == 0
        assert [record.offset for record in batch_records] == list(range(item.count))
        assert {record.timestamp for record in batch_records} == {timestamp}
        rows += [(record.key, record.value, record.headers) for record in batch_records]
    return rows


def batches_of(records: Records, timestamp: int, batching: Batching) -> list[RecordBatch | Oversized]:
    """Of records of one partition."""
    actual = list(BatchBuilder(batching).batches(records, 2, timestamp))
    assert {partition for partition, _ in actual} <= {2}
    return [item for _, item in actual]


@st.composite
def some_records(draw: st.DrawFn) -> Records:
    count = draw(st.integers(1, 40))
    cell = st.one_of(st.none(), st.binary(max_size=3), st.binary(min_size=60, max_size=70), st.binary(max_size=400))
    column = st.lists(cell, min_size=count, max_size=count)
    header = st.tuples(st.text(max_size=5), st.binary(max_size=70))
    wrapping = st.tuples(st.binary(max_size=70), st.binary(max_size=3))
    power = st.builds(lambda power, more: 10**power + more, st.integers(0, 18), st.integers(-1, 0))
    number = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1), power)
    numbers = st.lists(number, min_size=count, max_size=count).map(lambda values: pa.array(values, pa.int64()))
    header_column = st.builds(HeaderColumn, st.text(max_size=3), st.one_of(column.map(binary), numbers), wrapping)
    records = Records(
        draw(st.one_of(st.none(), column.map(binary))),
        binary(draw(column)),
        tuple(draw(st.lists(header, max_size=3))),
        tuple(draw(st.lists(header_column, max_size=2))),
        key_wrapping=draw(wrapping),
        value_wrapping=draw(wrapping),
    )
    # Encoders hand on slices too.
    return sliced_out(records, draw(st.integers(0, count - 1)))


def sliced_out(records: Records, start: int) -> Records:
    return replace(
        records,
        keys=None if records.keys is None else records.keys.slice(start),
        values=records.values.slice(start),
        header_columns=tuple(replace(column, values=column.values.slice(start)) for column in records.header_columns),
    )


FEW = st.sampled_from([0, 1000])


@given(some_records(), st.sampled_from(COMPRESSIONS), st.integers(1, 2000), st.integers(0, 1 << 45), FEW)
@settings(deadline=None)
def test_read_back(records: Records, compression: Compression, target: int, timestamp: int, few: int) -> None:
    with mock.patch.object(batches, "_FEW", few):
        items = batches_of(records, timestamp, Batching(compression, target=target))
    assert read_back(items, timestamp) == rows_of(records)


@given(some_records(), st.sampled_from(COMPRESSIONS), st.integers(70, 600), FEW)
@settings(deadline=None)
def test_no_batch_is_over_the_limit_and_nothing_is_lost(
    records: Records, how: Compression, limit: int, few: int
) -> None:
    with mock.patch.object(batches, "_FEW", few):
        items = batches_of(records, 5, Batching(how, limit))
    left_out = {item.index for item in items if isinstance(item, Oversized)}
    made = [item for item in items if isinstance(item, RecordBatch)]
    assert all(len(batch.data) <= limit for batch in made)
    assert all(item.size > limit for item in items if isinstance(item, Oversized))
    assert read_back(made, 5) == [row for number, row in enumerate(rows_of(records)) if number not in left_out]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_many_groups_of_many_batches(compression: Compression) -> None:
    values = [b"%d:" % number + b"v" * (number % 600) for number in range(40_000)]
    records = records_of(values, [b"k%d" % (number % 97) for number in range(40_000)], (("h", b"x"),))
    items = batches_of(records, 1, Batching(compression, target=100_000))
    assert len(items) > 50
    assert read_back(items, 1) == rows_of(records)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("size", [0, 63, 64, 8191, 8192, 1 << 20, 5 << 20])
@pytest.mark.parametrize("few", [0, 1000])
def test_values_of_any_size(compression: Compression, size: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_FEW", few)
    records = records_of([b"a", b"x" * size, None, b""], [b"", b"k" * (size // 2), b"k", b"l"])
    items = batches_of(records, 1, Batching(compression, limit=16 << 20))
    assert read_back(items, 1) == rows_of(records)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_a_record_over_the_limit_that_compression_brings_under_it(compression: Compression) -> None:
    records = records_of([b"a", b"x" * 3_000_000, b"b"], [b"1", b"2", b"3"])
    items = batches_of(records, 1, Batching(compression))
    assert [item.count for item in items if isinstance(item, RecordBatch)] == [1, 1, 1]
    assert read_back(items, 1) == rows_of(records)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("few", [0, 1000])
def test_a_record_that_nothing_brings_under_the_limit(
    compression: Compression, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_FEW", few)
    noise = np.random.default_rng(1).bytes(1_100_000)
    items = batches_of(records_of([b"a", b"b", noise, b"c"]), 1, Batching(compression))
    assert [item.index if isinstance(item, Oversized) else None for item in items] == [None, 2, None]
    kept = [item for item in items if isinstance(item, RecordBatch)]
    assert [row[1] for row in read_back(kept, 1)] == [b"a", b"b", b"c"]


def test_the_limit_is_exact() -> None:
    records = records_of([b"x" * 1000])
    (batch,) = batches_of(records, 1, Batching("none"))
    assert isinstance(batch, RecordBatch)
    size = len(batch.data)
    assert [type(item) for item in batches_of(records, 1, Batching("none", size))] == [RecordBatch]
    assert batches_of(records, 1, Batching("none", size - 1)) == [Oversized(0, size)]


def test_what_does_not_compress_is_sent_as_it_is() -> None:
    (batch,) = batches_of(records_of([np.random.default_rng(2).bytes(1000)]), 1, Batching("zstd"))
    assert isinstance(batch, RecordBatch)
    batch.stamp(1, 1, 1, transactional=False)
    assert parsed(batch)[0].compression_type == 0


def test_lz4_blocks_do_not_refer_to_each_other() -> None:
    frame = compress("lz4", memoryview(b"some text, again and again. " * 10_000))
    assert frame[4] & 0x20, "the flag of independent blocks"


def test_codes_are_those_of_the_format() -> None:
    for compression, code in CODES.items():
        (batch,) = batches_of(records_of([b"x" * 1000]), 1, Batching(compression))
        assert isinstance(batch, RecordBatch)
        batch.stamp(1, 1, 1, transactional=False)
        assert parsed(batch)[0].compression_type == code


def test_stamped_again_for_another_producer() -> None:
    (batch,) = batches_of(records_of([b"v"], [b"k"]), 9, Batching())
    assert isinstance(batch, RecordBatch)
    for sender in ((1, 2, 3, True), (4, 5, 6, False)):
        batch.stamp(*sender[:3], transactional=sender[3])
        header, (record,) = parsed(batch)
        actual = (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional)
        assert actual == sender
        assert (record.key, record.value) == (b"k", b"v")


def test_nothing_makes_no_batch() -> None:
    assert batches_of(records_of([], []), 1, Batching()) == []
    assert list(BatchBuilder(Batching()).batches(records_of([], []), np.zeros(0, np.int32), 1)) == []


@st.composite
def placed_records(draw: st.DrawFn) -> tuple[Records, list[int]]:
    records = draw(some_records())
    return records, draw(st.lists(st.integers(0, 5), min_size=len(records), max_size=len(records)))


@given(placed_records(), st.integers(1, 2000), FEW)
@settings(deadline=None)
def test_partitions_keep_the_order(placed: tuple[Records, list[int]], target: int, few: int) -> None:
    records, places = placed
    made: dict[int, list[RecordBatch | Oversized]] = {}
    with mock.patch.object(batches, "_FEW", few):
        for partition, item in BatchBuilder(Batching("lz4", target=target)).batches(
            records, np.array(places, np.int32), 1
        ):
            made.setdefault(partition, []).append(item)
    assert list(made) == sorted(set(places))
    for partition, items in made.items():
        expected = [row for row, place in zip(rows_of(records), places, strict=True) if place == partition]
        assert read_back(items, 1) == expected


@pytest.mark.parametrize("few", [0, 1000])
def test_which_of_all_records_is_too_large(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_FEW", few)
    noise = np.random.default_rng(1).bytes(2000)
    records = records_of([b"a", noise, b"b", noise, b"c"])
    actual = BatchBuilder(Batching(limit=500)).batches(records, np.array([1, 3, 0, 1, 1], np.int32), 1)
    items = [(partition, item.index if isinstance(item, Oversized) else item.count) for partition, item in actual]
    assert items == [(0, 1), (1, 1), (1, 3), (1, 1), (3, 1)]


@pytest.mark.parametrize("count", [3, 30_000])
def test_many_partitions(count: int) -> None:
    values = [b"%d" % number for number in range(count)]
    places = np.random.default_rng(3).integers(0, 70_000, count).astype(np.int32)
    made: dict[int, list[bytes | None]] = {}
    for partition, item in BatchBuilder(Batching("none")).batches(records_of(values), places, 1):
        made.setdefault(partition, []).extend(row[1] for row in read_back([item], 1))
    expected: dict[int, list[bytes | None]] = {}
    for value, place in zip(values, places.tolist(), strict=True):
        expected.setdefault(place, []).append(value)
    assert made == expected


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_varints(value: int) -> None:
    expected = bytearray()
    encode_varint(value, expected.append)
    assert batches._varint(value) == bytes(expected)
