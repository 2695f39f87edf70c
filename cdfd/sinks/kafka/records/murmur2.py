"""Kafka's default partitioner for keyed records: murmur2 as the Java client computes it, over a whole array of keys.

Such topics can be joined with those of Java producers partition by partition.

    partition = (murmur2(key) & 0x7fffffff) % partitions

`cdfd.runtime.native` hashes all keys at once. Without it, kafka-python does, key by key.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.partitioner import murmur2

from cdfd.encode.pieces import nulls_of, pool_of, text_parts
from cdfd.runtime import native

_Hashes = npt.NDArray[np.uint32]


def partitions(keys: pa.Array, count: int, *, unkeyed: int = 0) -> npt.NDArray[np.int32]:
    """The partition of each record.

    Args:
        keys: binary or text of any width; null for a record without a key.
        count: number of partitions of the topic, at least 1.
        unkeyed: partition of records without a key. The caller should pass another one for each batch, which makes few large batches and
            fills all partitions.
    """
    found = ((hashes(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int32)
    nulls = nulls_of(keys)
    if nulls is not None:
        found[nulls] = unkeyed
    return found


def hashes(keys: pa.Array) -> _Hashes:
    """The 32 bits of Java's `Utils.murmur2` of each key. The hash of a null is undefined."""
    if not native.built:
        return np.array([murmur2(key or b"") for key in pool_of(keys).to_pylist()], np.int64).astype(np.uint32)
    offsets, data = text_parts(keys)
    hashed = np.empty(len(keys), np.uint32)
    native.kafka_records.hashes(data, offsets, hashed)
    return hashed
