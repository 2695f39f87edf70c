"""Keys go where Java's client and kafka-python put them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2

from cdfd.sinks.kafka.records.murmur2 import partitions

pytestmark = pytest.mark.usefixtures("kernels")

# From UtilsTest.testMurmur2 of Apache Kafka.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def expected(key: bytes, count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % count


def test_hashes_of_javas_own_tests() -> None:
    actual = partitions(pa.array(JAVA, pa.large_binary()), 0x7FFFFFFF)
    assert actual.tolist() == [hash & 0x7FFFFFFF for hash in JAVA.values()]


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.binary(max_size=300))),
    st.integers(1, 1000),
    st.tuples(st.binary(max_size=9), st.binary(max_size=9)),
)
def test_equal_to_kafka_python(keys: list[bytes], count: int, wrapping: tuple[bytes, bytes]) -> None:
    actual = partitions(pa.array(keys, pa.large_binary()), count, wrapping)
    assert actual.dtype == np.int32
    before, after = wrapping
    assert actual.tolist() == [expected(before + key + after, count) for key in keys]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.string_view()])
def test_any_width_and_slices(kind: pa.DataType) -> None:
    keys = [f"key {'x' * (n % 7)}{n}" for n in range(50)]
    actual = partitions(pa.array(keys, kind).slice(7, 20), 12)
    assert actual.tolist() == [expected(key.encode(), 12) for key in keys[7:27]]


def test_lengths_of_every_remainder_side_by_side() -> None:
    keys = [bytes(range(256))[:length] for length in range(40)] * 3
    assert partitions(pa.array(keys, pa.large_binary()), 7).tolist() == [expected(key, 7) for key in keys]


def test_one_long_key_among_short_ones() -> None:
    keys = [b"a", b"x" * 9_999, b"", b"bc"]
    assert partitions(pa.array(keys, pa.large_binary()), 5).tolist() == [expected(key, 5) for key in keys]


@pytest.mark.parametrize("keys", [[], [b""]])
def test_partition_of_few_keys(keys: list[bytes]) -> None:
    assert partitions(pa.array(keys, pa.large_binary()), 4).tolist() == [expected(key, 4) for key in keys]
