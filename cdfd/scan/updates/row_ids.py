"""Row ids of a data file: stored in columns of their own for rows that were copied, and counted from the file's first id for all others.

Source: the protocol's "Row Tracking". A *materialized* id wins where it is not null; the same holds for commit versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdfd.errors import DataError
from cdfd.model.file_scan import RowIds
from cdfd.model.refinement import RowTracking
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.updates.equality import Integers

# No column of a table has such a name.
ROW_ID: Final = "\0row_id"
ROW_VERSION: Final = "\0row_version"
ROW_ID_FIELDS: Final = (pa.field(ROW_ID, pa.int64(), nullable=False), pa.field(ROW_VERSION, pa.int64(), nullable=False))

HINT: Final = "The writer of the file is faulty: rewrite the rows, or set `refine: key` or `refine: off`"


@dataclass(frozen=True, slots=True)
class FileRowIds:
    """The row ids of one file.

    Attributes:
        names: columns of the file to read for them.
        row_id, row_version: those of `names` that have ids and commit versions; None if the file does not store them.
        ids: of rows without stored ones.
    """

    names: tuple[str, ...]
    row_id: str | None
    row_version: str | None
    ids: RowIds

    @classmethod
    def of(cls, ids: RowIds, tracking: RowTracking, file_schema: pa.Schema) -> FileRowIds:
        """Find the columns in a file.

        Raises:
            DataError: they do not have 64-bit integers, or are there twice.
        """
        row_id, row_version = _find(tracking.row_id, file_schema), _find(tracking.row_version, file_schema)
        return cls(tuple(name for name in (row_id, row_version) if name is not None), row_id, row_version, ids)

    def extend(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """A batch of the file with the columns `ROW_ID_FIELDS`; its first row is row `first_row` of the file."""
        ids, versions = self.of_batch(batch, first_row)
        arrays = [*batch.columns, array_of(ids), array_of(versions)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*batch.schema, *ROW_ID_FIELDS]))

    def of_batch(self, batch: pa.RecordBatch, first_row: int) -> tuple[Integers, Integers]:
        """Ids and commit versions of the rows of a batch.

        Raises:
            DataError: an id is negative.
        """
        ids, versions = self.infer(first_row, batch.num_rows)
        if self.row_id is not None:
            ids = _stored_ids(batch.column(self.row_id), ids)
            if len(ids) and ids.min() < 0:
                raise DataError(f"a row has the id {ids.min()}", hint=HINT)
        if self.row_version is not None:
            versions = _stored_ids(batch.column(self.row_version), versions)
        return ids, versions

    def infer(self, first_row: int, count: int) -> tuple[Integers, Integers]:
        """Ids and commit versions of rows that have no stored ones."""
        first = self.ids.base + first_row
        return np.arange(first, first + count, dtype=np.int64), np.full(count, self.ids.version, np.int64)


def _find(name: str | None, file_schema: pa.Schema) -> str | None:
    if name is None or name not in file_schema.names:
        return None
    places = file_schema.get_all_field_indices(name)
    if len(places) > 1:
        raise DataError(f"the file has {len(places)} columns {name!r:.200} of row ids", hint=HINT)
    kind = file_schema.field(name).type
    if kind != pa.int64():
        raise DataError(f"column {name!r:.200} has row ids of type {kind!s:.100} instead of int64", hint=HINT)
    return name


def _stored_ids(column: pa.Array[Any], implied: Integers) -> Integers:
    if not column.null_count:
        return np.asarray(to_numpy(column))
    # Null values are arbitrary in the buffer, and are not taken.
    values = np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)
    return np.where(to_numpy(column.is_valid()), values, implied)
