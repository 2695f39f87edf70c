"""Kafka's default partitioner for keyed records: murmur2 as the Java client computes it, over a whole array of keys.

Such topics can be joined with those of Java producers partition by partition.

    partition = (murmur2(key) & 0x7fffffff) % partitions

`cdfd.runtime.native` takes all keys at once. Without it, kafka-python does, key by key.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.partitioner import murmur2

from cdfd.encode.cells.pieces import pool_of, text_parts
from cdfd.encode.records import BARE, Wrapping
from cdfd.runtime import native


def partitions(keys: pa.Array, count: int, wrapping: Wrapping = BARE) -> npt.NDArray[np.int32]:
    """The partition of each record.

    Args:
        keys: binary or text of any width, none null.
        count: number of partitions of the topic, at least 1.
        wrapping: of the keys.
    """
    if not native.built:
        before, after = wrapping
        hashes = (murmur2(before + key + after) for key in pool_of(keys).to_pylist())
        return np.array([(hash & 0x7FFFFFFF) % count for hash in hashes], np.int32)
    offsets, data = text_parts(keys)
    numbers = np.empty(len(keys), np.int32)
    native.kafka_records.partitions((data, offsets, None, wrapping), count, numbers)
    return numbers
