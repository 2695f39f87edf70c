"""The two encoders of Kafka's records, native code and Python, give the same bytes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from bench.kafka_batches import orders
from cdfd.encode.records import HeaderColumn, Records
from cdfd.runtime import native
from cdfd.sinks.kafka.records import batches
from cdfd.sinks.kafka.records.batches import HEADER_BYTES, BatchBuilder, Batching, Oversized, RecordBatch, compress
from cdfd.sinks.kafka.records.murmur2 import partitions
from tests.support.sampling import stride

TEXTS = st.one_of(st.none(), st.binary(max_size=70), st.integers(0, 300).map(lambda size: b"x" * size))
LENGTHS = st.builds(lambda power, less: 10**power - less, st.integers(0, 18), st.integers(0, 1))
NUMBERS = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1), LENGTHS)
WRAPPINGS = st.tuples(st.binary(max_size=70), st.binary(max_size=3))


def header(kind: pa.DataType, values: st.SearchStrategy[Any]) -> st.SearchStrategy[HeaderColumn]:
    """Values of 60 records."""
    columns = st.lists(values, min_size=60, max_size=60).map(lambda column: pa.array(column, kind))
    return st.builds(HeaderColumn, st.text("abc", max_size=3), columns, WRAPPINGS)


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    if not native.built:
        assert "CI" not in os.environ, "cdfd-native is missing: `make` builds it"
        pytest.skip("cdfd-native is missing")


def both(records: Records, places: int | np.ndarray, batching: Batching) -> int:
    """The number of batches, which are the same both ways."""
    answers = []
    for built in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "built", built)
            # Few records become Python objects, which would hide both.
            patch.setattr(batches, "_FEW", 0)
            # Plain code makes no batch larger after one that was compressed well.
            patch.setattr(batches, "_LIKELY", 0)
            answers.append([(where, shown(item)) for where, item in BatchBuilder(batching).batches(records, places, 1)])
    assert answers[0] == answers[1]
    return len(answers[0])


def shown(item: object) -> object:
    return (bytes(item.data), item.count) if isinstance(item, RecordBatch) else item


@settings(max_examples=300 // stride(4), deadline=None)
@given(
    st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 3)), min_size=1, max_size=60),
    st.booleans(),
    st.lists(st.tuples(st.text("abc", max_size=3), st.binary(max_size=9)), max_size=2),
    st.lists(st.one_of(header(pa.large_binary(), TEXTS), header(pa.int64(), NUMBERS)), max_size=3),
    st.integers(80, 3000),
    st.integers(0, 5),
    st.lists(WRAPPINGS, min_size=2, max_size=2),
)
def test_records_of_any_size(
    drawn: list[tuple[bytes | None, bytes | None, int]],
    keyed: bool,
    headers: list[tuple[str, bytes]],
    columns: list[HeaderColumn],
    target: int,
    start: int,
    wrappings: list[tuple[bytes, bytes]],
) -> None:
    keys, values = (pa.array([each[place] for each in drawn], pa.large_binary()).slice(start) for place in (0, 1))
    places = np.array([each[2] for each in drawn], np.int32)[start:]
    others = tuple(replace(column, values=column.values[start : len(drawn)]) for column in columns)
    if len(places):
        records = Records(keys if keyed else None, values, tuple(headers), others, None, *wrappings)
        both(records, places, Batching("none", target=target))


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_rows_of_a_table(compression: str) -> None:
    records = orders(270)
    assert both(records, partitions(records.keys, 4), Batching(compression)) > 4
    assert both(Records(None, records.values), 3, Batching(compression)) > 4


def test_batches_are_larger_after_one_that_is_compressed_well() -> None:
    records = Records(None, pa.array([b"%d " % number * 200 for number in range(6_000)], pa.large_binary()))
    limit, target = 1 << 20, 1 << 20
    builder = BatchBuilder(Batching("lz4", limit, target))
    made, later = ([item for _, item in builder.batches(records, 0, 1)] for _ in range(2))
    assert all(isinstance(batch, RecordBatch) and len(batch.data) <= limit for batch in [*made, *later])
    first, *others, _ = [sum(len(value) for value in values) for values in split(records, made)]
    others += [sum(len(value) for value in values) for values in split(records, later)[:-1]]
    assert first <= target
    assert len(others) >= 2
    assert all(1.9 * target < size <= 2 * target for size in others)


def test_a_batch_that_is_compressed_worse_than_the_one_before_stays_within_the_limit() -> None:
    noise = np.random.default_rng(1)
    texts = [b"a" * 1000] * 1_100 + [noise.bytes(1000) for _ in range(4_000)]
    limit = 1 << 20
    records = Records(None, pa.array(texts, pa.large_binary()))
    made = [item for _, item in BatchBuilder(Batching("lz4", limit)).batches(records, 0, 1)]
    assert all(isinstance(batch, RecordBatch) and len(batch.data) <= limit for batch in made)
    assert [value for values in split(records, made) for value in values] == texts


def split(records: Records, made: list[RecordBatch | Oversized]) -> list[list[bytes | None]]:
    """The values of each batch, as its records have them."""
    read = [list(DefaultRecordBatch(bytes(batch.data))) for batch in made if isinstance(batch, RecordBatch)]
    values = [[record.value for record in batch] for batch in read]
    assert sum(map(len, values)) == len(records)
    return values


def test_a_record_over_the_limit() -> None:
    values = pa.array([b"a", b"b" * 5000, b"c" * 300], pa.large_binary())
    both(Records(None, values), 0, Batching("none", limit=1000))


BARE = b"", b""
VALUE = np.frombuffer(b"abc", np.uint8), np.array([0, 3]), None, BARE


def write(
    size: int, *, rows: Any = (0, 0), value: Any = VALUE, columns: Any = (), limit: int = 1000
) -> tuple[int, int]:
    """Write two records of ten bytes and their header columns into memory of a size."""
    data = np.empty(size, np.uint8)
    return native.kafka_records.write(np.array(rows), None, value, 0, b"", columns, limit, data)


def test_records_end_at_the_limit_and_where_memory_ends() -> None:
    assert write(200) == (2, 20)
    assert write(200, limit=20) == (2, 20)
    assert write(200, limit=19) == (1, 10)
    assert write(200, limit=0) == (1, 10)
    assert write(45) == (1, 10)
    assert write(42) == (1, 10)
    assert write(31) == (0, 42)
    assert write(200, columns=[(b"\2x", VALUE)]) == (2, 20 + 2 * 6)
    assert write(200, columns=[(b"\2x", (None, np.array([-10]), None, BARE))]) == (2, 20 + 2 * 6)
    assert write(200, value=(*VALUE[:3], (b"<<", b">"))) == (2, 20 + 2 * 3)
    assert write(36, value=(*VALUE[:3], (b"<<", b">"))) == (0, 45)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": (0, 1)},
        {"rows": (-1, 0)},
        {"value": (VALUE[0], np.array([0, 4]), None, BARE)},
        {"value": (VALUE[0], np.array([3, 0]), None, BARE)},
        {"value": (VALUE[0], np.array([-1, 2]), None, BARE)},
        {"value": (*VALUE[:2], np.zeros(0, np.uint8), BARE)},
        {"columns": [(b"\2x", (VALUE[0], np.array([0]), None, BARE))]},
        {"columns": [(b"\2x", (None, np.empty(0, np.int64), None, BARE))]},
    ],
)
def test_rows_and_offsets_beyond_their_arrays_are_errors(wrong: Any) -> None:
    with pytest.raises(ValueError, match="out of its array"):
        write(200, **wrong)


def test_partitions_of_texts_beyond_their_array_are_errors() -> None:
    for offsets in ([0, 4], [2, 1], [-1, 2]):
        with pytest.raises(ValueError, match="out of its array"):
            native.kafka_records.partitions((VALUE[0], np.array(offsets), None, BARE), 1, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="zero"):
        native.kafka_records.partitions((VALUE[0], np.array([0, 1]), None, BARE), 0, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="one offset more"):
        native.kafka_records.partitions((VALUE[0], np.array([0, 1]), None, BARE), 1, np.zeros(2, np.int32))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_the_broker_compresses_again_stays_within_the_limit(codec: Any) -> None:
    """A batch that would grow is sent without compression. A topic with a codec compresses it nevertheless."""
    limit = 50_000
    batching = Batching.for_topic("none", limit, codec)
    for size in range(batching.limit - 200, batching.limit):
        records = Records(None, pa.array([np.random.default_rng(size).bytes(size)], pa.large_binary()))
        [(_, batch)] = BatchBuilder(batching).batches(records, 0, 1)
        if isinstance(batch, RecordBatch):
            largest = len(compress(codec, memoryview(batch.data)[HEADER_BYTES:]))
    assert limit - 200 < HEADER_BYTES + largest <= limit


def test_a_topic_chooses_the_codec_of_its_batches() -> None:
    assert Batching.for_topic("lz4", 2000, "producer") == Batching("lz4", 2000)
    assert Batching.for_topic("lz4", 2000, "uncompressed") == Batching("none", 2000)
    assert Batching.for_topic("none", 2000, "zstd").compression == "zstd"
