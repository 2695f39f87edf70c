"""Reads small change data files of a version together: they are joined, and each keeps its own order of images (`image_order`).

The early rows of all files come before the late ones. These wait in memory, or are read once more. Files that cannot be read together are
read one by one, which also finds the errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby, repeat
from typing import NoReturn

import numpy as np
import pyarrow as pa

from cdfd.delta.types.schema import TableSchema
from cdfd.errors import CdfdError, DataError
from cdfd.model.columns import CHANGE_TYPE, CHANGE_TYPES, types_as_written
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.file_reader import BATCH_ROWS, check_change_type
from cdfd.scan.image_order import (
    KEPT_CODES,
    MOVED,
    POST_IMAGE,
    Codes,
    ImageOrder,
    MemoryBudget,
    ReorderBuffer,
    are_paired,
    codes_with_keys,
    divide,
    late_rows,
)
from cdfd.scan.joined import Constants, JoinedFiles, PlannedScan, groups_of
from cdfd.scan.read import SkippedRows, read_image_order
from cdfd.scan.table_files import READ_ERRORS, TableFiles


def joined_images(plan: ChangePlan, scans: Sequence[FileScan], files: TableFiles) -> Mapping[str, JoinedImages]:
    """By path, the change data files of a plan that are read together. Each of them has a scan for both phases among `scans`."""
    early = [scan for scan in scans if scan.image_phase == "early"]
    late = [scan.path for scan in scans if scan.image_phase == "late"]
    if not late or late != [scan.path for scan in early]:
        return {}
    kept = MemoryBudget(KEPT_CODES)
    groups = (
        JoinedImages([each.scan for each in group], files, plan.key_schema, kept)
        for group in groups_of(PlannedScan(plan, scan) for scan in early)
        if len(group) > 1
    )
    return {scan.path: images for images in groups for scan in images.scans}


@dataclass(frozen=True)
class ImageOrders:
    """The image orders of the change data files of a version, between which updates may have moved rows.

    Attributes:
        of_files: by path; None where a file cannot be read.
        joined: files that are read together.
    """

    of_files: Mapping[str, Future[ImageOrder | None]]
    joined: Sequence[JoinedImages]

    @cached_property
    def paired(self) -> bool:
        """Whether the images of all files are in pairs. Waits for the orders of all of them."""
        orders = [order.result() for order in self.of_files.values()]
        joined = [images.paired.result() for images in self.joined]
        return all(joined) and all(order is None or order.paired for order in orders)

    @property
    def by_key(self) -> bool:
        """The same, and no pair changes the key."""
        if not self.paired or any(images.moves for images in self.joined):
            return False
        orders = [order.result() for order in self.of_files.values()]
        return all(order is None or order.by_key for order in orders)


@dataclass(eq=False)
class JoinedImages:
    """Small change data files that are read together, by several tasks: for their order, the early rows, and the late rows.

    Attributes:
        scans: of the files, for the early phase.
        paired: whether the images of all files are in pairs. `find_pairs` sets it.
        moves: whether a pair changes the key; known with `paired`.
        early_read: set once the early rows were read: whether they were read together.
        buffers: by path, the late rows of files that were read one by one.
    """

    scans: Sequence[FileScan]
    files: TableFiles
    key: TableSchema | None
    kept: MemoryBudget
    paired: Future[bool] = field(default_factory=Future[bool], init=False)
    moves: bool = field(default=False, init=False)
    early_read: Future[bool] = field(default_factory=Future[bool], init=False)
    buffers: dict[str, Future[ReorderBuffer]] = field(default_factory=dict, init=False)
    _codes: Sequence[Codes] | None = field(default=None, init=False)
    _late: list[tuple[SkippedRows, int]] = field(default_factory=list, init=False)
    _reread_from: int | None = field(default=0, init=False)
    _pairs: bool = field(default=True, init=False)

    def find_pairs(self) -> Iterator[NoReturn]:
        """Set `paired`. A file that cannot be read counts as paired: the scan that reads its rows raises the error. Yields no rows."""
        paired = True
        try:
            try:
                codes = self._codes_of(JoinedFiles.of(self.scans, self.files, [CHANGE_TYPE]))
                paired = all(map(are_paired, codes))
                self.moves = any(bool((each == MOVED).any()) for each in codes)
                if self.kept.reserve(sum(map(len, codes))):
                    self._codes = codes
            except READ_ERRORS:
                for scan in self.scans:
                    with suppress(CdfdError):
                        order = read_image_order(scan, self.files, self.key)
                        self.moves, paired = self.moves or order.moves, paired and order.paired
        finally:
            self.paired.set_result(paired)
        yield from ()

    def early(
        self, schema: TableSchema, batch_rows: int, budget: MemoryBudget, *, pairs: bool
    ) -> Iterator[SkippedRows]:
        """The early rows of all files. Late ones wait, as long as they fit into the budget.

        Args:
            schema: with the selected columns.
            batch_rows: rows of a batch, at most.
            budget: for late rows.
            pairs: whether adjacent images count as pairs.

        Raises:
            CdfdError, pa.ArrowException, OSError, ValueError, OverflowError, MemoryError: they cannot be read together from here on.
        """
        self._pairs, self._reread_from = pairs, None
        codes, self._codes = self._codes, None
        kept = sum(map(len, codes or ()))
        try:
            for row, early, late in self._blocks(schema, batch_rows, codes):
                size = sum(rows.nbytes for rows, _ in late)
                if late and self._reread_from is None:
                    if budget.reserve(size):
                        self._late += [(rows, size if place == 0 else 0) for place, rows in enumerate(late)]
                    else:
                        self._reread_from = row
                yield from zip(early, repeat(0))
        except READ_ERRORS:
            self._reread_from = 0
            for _ in self._drain(budget):
                pass
            raise
        finally:
            self.kept.release(kept)

    def late(self, schema: TableSchema, batch_rows: int, budget: MemoryBudget) -> Iterator[SkippedRows]:
        """The late rows of all files, after `early`. Arguments and errors are those of `early`."""
        yield from self._drain(budget)
        if self._reread_from is None:
            return
        reached = False
        for row, _, late in self._blocks(schema, batch_rows, None):
            reached = reached or row == self._reread_from
            if reached:
                yield from late
        if not reached:
            raise DataError("the files were read in other batches")

    def _drain(self, budget: MemoryBudget) -> Iterator[SkippedRows]:
        while self._late:
            rows, size = self._late.pop(0)
            budget.release(size)
            yield rows

    def _blocks(
        self, schema: TableSchema, batch_rows: int, codes: Sequence[Codes] | None
    ) -> Iterator[tuple[int, list[pa.RecordBatch], list[SkippedRows]]]:
        """For each batch the number of its first row, its early rows and its late rows."""
        files = JoinedFiles.of(self.scans, self.files, [CHANGE_TYPE])
        codes_by_file = self._codes_of(files) if codes is None else codes
        starts = [0, *accumulate(map(len, codes_by_file))]
        late_of_files = [late_rows(each, pairs=self._pairs and are_paired(each)) for each in codes_by_file]
        is_late = np.concatenate([late for late, _ in late_of_files])
        # Post-images that must not be paired with the row before them.
        gaps = [start + gap for start, (_, gap) in zip(starts, late_of_files, strict=False) if gap is not None]
        written = np.concatenate(codes_by_file)
        written[written == MOVED] = POST_IMAGE
        types = pa.DictionaryArray.from_arrays(array_of(written), CHANGE_TYPES)
        row = 0
        for batch in files.batches(schema, self.files, batch_rows, types.slice):
            count = batch.num_rows
            mask = is_late[row : row + count]
            late_count = int(mask.sum())
            early, late = list[pa.RecordBatch](), list[SkippedRows]()
            if not late_count:
                early.append(batch)
            for _, start, size in _files_of(row, count, starts) if late_count else ():
                of_file = slice(start - row, start - row + size)
                # Slices hold the memory of the whole batch while they wait.
                before, after = divide(batch.slice(start - row, size), mask[of_file], copied=2 * late_count < count)
                early += before
                gap = any(start <= each < start + size for each in gaps)
                late += [(rows, int(gap and place == 0)) for place, rows in enumerate(after)]
            yield row, early, late
            row += count

    def _codes_of(self, files: JoinedFiles) -> list[Codes]:
        """The codes of the change types of each file."""
        rows = files.together.rows
        if not all(rows) or sum(rows) > KEPT_CODES:
            raise DataError("files without rows, or with too many, are not read together")
        starts = [0, *accumulate(rows)]
        codes = np.concatenate(list(self._read_types(files, starts)))
        if len(codes) != starts[-1]:
            raise DataError(f"{len(codes)} change types were read of {starts[-1]}")
        return np.split(codes, starts[1:-1])

    def _read_types(self, files: JoinedFiles, starts: Sequence[int]) -> Iterator[Codes]:
        key, together = self.key, files.together
        check_change_type(together)
        if key is None:
            for batch in together.batches([CHANGE_TYPE], rows=BATCH_ROWS):
                yield to_numpy(_types(batch).indices)
            return
        projection = self.files.projections.of(key, together.schema_arrow)
        constants = Constants(files.scans, together.rows, key)

        def columns() -> Iterator[tuple[int, tuple[pa.Array, Sequence[pa.Array]]]]:
            row = 0
            for batch in together.batches(projection.names(None), rows=BATCH_ROWS):
                for number, start, count in _files_of(row, batch.num_rows, starts):
                    rows = batch.slice(start - row, count)
                    for part, columns in projection.parts(rows, constants.of(start, count)):
                        yield number, (_types(part), columns)
                row += batch.num_rows

        for _, of_file in groupby(columns(), key=lambda each: each[0]):
            yield from codes_with_keys(each for _, each in of_file)


def _types(batch: pa.RecordBatch) -> pa.DictionaryArray:
    types = types_as_written(batch.column(CHANGE_TYPE))
    if len(types.dictionary) != len(CHANGE_TYPES):
        raise DataError("change types in the spelling of early writers")
    return types


def _files_of(row: int, count: int, starts: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    """The files of rows: (number, first row, how many). Each file has rows."""
    for number in range(max(0, int(np.searchsorted(starts, row, "right")) - 1), len(starts) - 1):
        start, end = max(row, starts[number]), min(row + count, starts[number + 1])
        if start >= end:
            return
        yield number, start, end - start
