"""Records one after the other, by `cdfd.runtime.native`: what a record batch compresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.encode.pieces import Integers, nulls_of, parts, pool_of
from cdfd.runtime import native

if TYPE_CHECKING:
    from cdfd_native.kafka_records import Texts

_NUMBERS = 32
"""Bytes that are free beside the records."""


class Sections:
    """Writes records of some keys and values.

    Args:
        keys: of the records; None if they have none.
        values: of the records.
        fixed: how many headers all records share.
        headers: these, encoded.
        columns: headers that differ: the encoded name, and a value or null for each record.
    """

    def __init__(
        self,
        keys: pa.Array | None,
        values: pa.Array | None,
        fixed: int,
        headers: bytes,
        columns: Iterable[tuple[bytes, pa.Array]],
    ) -> None:
        self._keys, self._values = _texts(keys), _texts(values)
        self._fixed, self._headers = fixed, headers
        self._columns = [(name, _of_column(column)) for name, column in columns]
        self._data = np.empty(0, np.uint8)

    def section(self, rows: Integers, limit: int) -> tuple[int, memoryview]:
        """The first of these records: how many, and their bytes. The next call writes over them.

        Args:
            rows: which ones, in this order; at least one.
            limit: in bytes. Only a record that is alone exceeds it.
        """
        size = limit + _NUMBERS
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


def _texts(array: pa.Array | None) -> Texts | None:
    return None if array is None else _of_column(array)


def _of_column(array: pa.Array) -> Texts:
    pool, nulls = pool_of(array), nulls_of(array)
    offsets, data = parts(pool)
    mask: npt.NDArray[np.uint8] | None = None if nulls is None else nulls.view(np.uint8)
    return data, np.ascontiguousarray(offsets, np.int64), mask
