"""Records one after the other, by the kernel of `cdfd.native`: what a record batch compresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdfd import native
from cdfd.encoding.pieces import Integers, nulls_of, parts, pool_of

if TYPE_CHECKING:
    import pyarrow as pa

    from cdfd.native.kafka_records import Texts

_NUMBERS = 64
"""Bytes that the kernel wants to have free beside a record."""


class Sections:
    """Writes records of some keys and values.

    Args:
        keys: of the records; None if they have none.
        values: of the records.
        headers: the encoded headers of each record, with their number.
    """

    def __init__(self, keys: pa.Array | None, values: pa.Array | None, headers: bytes) -> None:
        self._keys, self._values = _texts(keys), _texts(values)
        self._headers = np.frombuffer(headers, np.uint8)

    def section(self, rows: Integers, size: int) -> memoryview:
        """The records of these rows, in at most `size` bytes."""
        data = np.empty(size + _NUMBERS, np.uint8)
        found = native.kafka_records.write(rows, self._keys, self._values, self._headers, data)
        assert found >= 0, "the bound of the records' sizes was too low"
        section: Any = data[:found]
        return memoryview(section)


def _texts(array: pa.Array | None) -> Texts | None:
    if array is None:
        return None
    pool, nulls = pool_of(array), nulls_of(array)
    offsets, data = parts(pool)
    mask: npt.NDArray[np.uint8] | None = None if nulls is None else nulls.view(np.uint8)
    return data, np.ascontiguousarray(offsets, np.int64), mask
