"""Kafka's default partitioner for keyed records: murmur2 as the Java client computes it, over a whole array of keys.

Such topics can be joined with those of Java producers partition by partition.

    partition = (murmur2(key) & 0x7fffffff) % partitions

A kernel in machine code hashes key after key. Without it, numpy does: the hash processes a key in words of four bytes, and each step
processes the i-th word of all keys. So the number of steps is that of the longest key's words, for any number of keys.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd import native
from cdfd.encoding.pieces import Bytes, Integers, nulls_of, parts, pool_of

_Hashes = npt.NDArray[np.uint32]

_SEED = 0x9747B28C
_FACTOR = np.uint32(0x5BD1E995)
_WORD = 4


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
    offsets, data = parts(pool_of(keys))
    if native.built and len(data):
        hashed = np.empty(len(keys), np.uint32)
        native.kafka_records.hashes(data, np.ascontiguousarray(offsets, np.int64), hashed)
        return hashed
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashed = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    _mix_words(hashed, starts, lengths // _WORD, data)
    _mix_rest(hashed, starts, lengths, data)
    hashed ^= hashed >> np.uint32(13)
    hashed *= _FACTOR
    hashed ^= hashed >> np.uint32(15)
    return hashed


def _mix_words(hashed: _Hashes, starts: Integers, words: Integers, data: Bytes) -> None:
    if not len(words):
        return
    # Element i of this view is the word that starts at byte i, so elements overlap.
    overlapping = np.ndarray((max(len(data) - _WORD + 1, 0),), "<u4", data, strides=(1,))
    common = int(words.min())
    for step in range(common):
        hashed *= _FACTOR
        hashed ^= _scrambled(overlapping[starts + step * _WORD])
    longer = np.flatnonzero(words > common)
    for step in range(common, int(words.max())):
        hashed[longer] = hashed[longer] * _FACTOR ^ _scrambled(overlapping[starts[longer] + step * _WORD])
        longer = longer[words[longer] > step + 1]


def _scrambled(words: _Hashes) -> _Hashes:
    words = words * _FACTOR
    words ^= words >> np.uint32(24)
    words *= _FACTOR
    return words


def _mix_rest(hashed: _Hashes, starts: Integers, lengths: Integers, data: Bytes) -> None:
    """Mix the one to three bytes after the last complete word."""
    rest = lengths % _WORD
    ends = starts + lengths
    for place in (2, 1, 0):
        rows = np.flatnonzero(rest > place)
        hashed[rows] ^= data[ends[rows] - rest[rows] + place].astype(np.uint32) << np.uint32(8 * place)
    hashed[rest > 0] *= _FACTOR
