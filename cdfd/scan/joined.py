"""Reads small data files together: consecutive files of one schema are decoded as if they were one (`FilesTogether`).

They may be of several versions: in catch-up, most versions have one small file. The rows are the same, in the same order, but a batch has
rows of several files. Each file that does not fit, is gone or is damaged is read by itself, which gives its rows or the error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cdfd.delta.types import values
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import CdfdError, DataError
from cdfd.model.columns import types_of
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.runtime.arrays import array_of
from cdfd.scan.data_files import is_parquet
from cdfd.scan.file_reader import rows_at_once
from cdfd.scan.parquet.reader import FilesTogether
from cdfd.scan.projection import PartitionValues
from cdfd.scan.table_files import TableFiles

FEW = 4
"""Files, at least, to read them together."""
FILE_BYTES = 1 << 20
"""Bytes of a file, at most, to join it with others. Opening a larger one is a small part of reading it."""
JOINED_BYTES = 2 << 20
"""Bytes of files that are joined, at most."""
JOINED_FILES = 256
"""Files that are joined, at most."""


class PlannedScan(NamedTuple):
    """A scan, and the plan that it belongs to."""

    plan: ChangePlan
    scan: FileScan

    @property
    def schema(self) -> TableSchema:
        """The schema to read the file in."""
        return self.scan.schema or self.plan.schema


def groups_of(scans: Iterable[PlannedScan]) -> Iterator[Sequence[PlannedScan]]:
    """The scans in order: consecutive small files in one group, and each other scan by itself.

    The error that ends `scans` is raised after all groups before it.
    """
    source, failed = iter(scans), None
    group, size = list[PlannedScan](), 0
    while True:
        try:
            each = next(source, None)
        except CdfdError as error:
            each, failed = None, error
        joins = each if each is not None and _is_joinable(each.scan) else None
        if group and (
            joins is None
            or len(group) == JOINED_FILES
            or size + joins.scan.size > JOINED_BYTES
            or (joins.scan.change_type is None) != (group[0].scan.change_type is None)
            or (joins.schema is not group[0].schema and joins.schema != group[0].schema)
        ):
            yield from [group] if len(group) >= FEW else [(one,) for one in group]
            group, size = [], 0
        if joins is not None:
            group.append(joins)
            size += joins.scan.size
        elif each is not None:
            yield (each,)
        else:
            break
    if failed is not None:
        raise failed


def _is_joinable(scan: FileScan) -> bool:
    return (
        (scan.change_type is not None or scan.image_phase == "early")
        and 0 < scan.size <= FILE_BYTES
        and scan.only is None
        and scan.without is None
        and scan.piece is None
        and scan.row_ids is None
        and scan.bucket is None
        and is_parquet(scan.path)
    )


class Scanned(NamedTuple):
    """Rows of one scan, or of several that are joined. They have no ordinals yet.

    Attributes:
        plans: of the rows, in order, each with its number of rows.
        schema: of the table's columns.
        rows: the columns of the table, then `_change_type`.
        skipped: ordinals before these: of rows that the filter excludes and that are not read, or one before a post-image that does not
            belong to the row before it.
        moved: the first and the end of the rows that are images of updates which change the key.
        least: ordinal of the first row, at least.
    """

    plans: Sequence[tuple[ChangePlan, int]]
    schema: TableSchema
    rows: pa.RecordBatch
    skipped: int = 0
    moved: tuple[int, int] = (0, 0)
    least: int = 0

    def after(self, count: int) -> Scanned:
        """The rows after the first `count` ones, without what came before those."""
        if not count:
            return self
        plans, gone = list[tuple[ChangePlan, int]](), count
        for plan, rows in self.plans:
            if rows > gone:
                plans.append((plan, rows - gone))
            gone = max(0, gone - rows)
        first, end = self.moved
        moved = max(0, first - count), max(0, end - count)
        return self._replace(plans=plans, rows=self.rows.slice(count), skipped=0, moved=moved)


def read_joined(
    group: Sequence[PlannedScan], schema: TableSchema, files: TableFiles, *, batch_rows: int
) -> Iterator[Scanned]:
    """The change rows of scans that `groups_of` put together, in order. Batches have the columns that `read` gives them.

    Raises:
        CdfdError, pa.ArrowException, OSError, ValueError, OverflowError, MemoryError: they cannot be read together from here on.
    """
    joined = JoinedFiles.of([each.scan for each in group], files)
    starts, types = [0, *accumulate(joined.together.rows)], [str(each.scan.change_type) for each in group]

    def counts(row: int, count: int) -> Any:
        """How many of `count` rows from row `row` on each file has."""
        return np.diff(np.clip(starts, row, row + count))

    row = 0
    for batch in joined.batches(schema, files, batch_rows, lambda row, count: types_of(types, counts(row, count))):
        plans = list[tuple[ChangePlan, int]]()
        for each, rows in zip(group, counts(row, batch.num_rows).tolist(), strict=True):
            if plans and plans[-1][0] is each.plan:
                plans[-1] = each.plan, plans[-1][1] + rows
            elif rows:
                plans.append((each.plan, rows))
        yield Scanned(plans, schema, batch)
        row += batch.num_rows


class JoinedFiles(NamedTuple):
    """Files that are joined.

    Attributes:
        together: the files.
        scans: of these files.
    """

    together: FilesTogether
    scans: Sequence[FileScan]

    @classmethod
    def of(cls, scans: Sequence[FileScan], files: TableFiles, dictionaries: Collection[str] = ()) -> JoinedFiles:
        """The files of scans, with some columns as dictionaries. Raises what `read_joined` does."""
        contents = files.read_whole([scan.path for scan in scans], [scan.size for scan in scans])
        if contents is None:
            raise DataError("the store does not read files together")
        together = FilesTogether(contents, dictionaries)
        if any(scan.num_records not in (None, rows) for scan, rows in zip(scans, together.rows, strict=True)):
            raise DataError("a file has other rows than the log says")
        return cls(together, scans)

    def batches(
        self, schema: TableSchema, files: TableFiles, batch_rows: int, types: Callable[[int, int], pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        """Their rows in order. `types` returns the change types of so many rows from a row on. Raises what `read_joined` does."""
        together, row = self.together, 0
        total = sum(together.rows)
        constants = Constants(self.scans, together.rows, schema)
        most = rows_at_once(total, together.size, batch_rows)
        projection = files.projections.of(schema, together.schema_arrow)
        for batch in together.batches(list(projection.columns), rows=most):
            for part, columns in projection.parts(batch, constants.of(row, batch.num_rows)):
                columns.append(types(row, part.num_rows))
                yield pa.RecordBatch.from_arrays(columns, schema=projection.row_schema)
                row += part.num_rows


class Constants:
    """Partition values of the rows of several files."""

    def __init__(self, scans: Sequence[FileScan], rows: Sequence[int], schema: TableSchema) -> None:
        self._starts = [0, *accumulate(rows)]
        first = scans[0].partition_values
        several = any(scan.partition_values != first for scan in scans)
        each = [values.parse_partition(scan.partition_values, schema) for scan in (scans if several else scans[:1])]
        self._same: dict[str, Any] = {} if several else each[0]
        self._each: dict[str, Any] = {}
        for child in schema.partition_fields if several else ():
            column = [values_of.get(child.name) for values_of in each]
            present = [value for value in column if value is not None]
            if present:
                self._each[child.name] = array_of(column, present[0].type)

    def of(self, row: int, count: int) -> PartitionValues:
        """The values for `count` rows from row `row` on."""
        if not self._each:
            return self._same
        ends = np.clip(self._starts, row, row + count) - row
        (files,) = np.diff(ends).nonzero()
        of_runs, places = array_of(ends[files + 1].astype(np.int32)), array_of(files)
        return {
            name: pa.RunEndEncodedArray.from_arrays(of_runs, column.take(places)) for name, column in self._each.items()
        }
