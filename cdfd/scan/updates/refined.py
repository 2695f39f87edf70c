"""A refined version -> its change rows: reads the rows that its files remove and add, and matches them bucket by bucket.

By row ids, the ids are read first, and alone: they are a small part of a file, and often stored nowhere. They say which rows only moved. Only
the others are read with all their columns. By a key, all columns of all rows are compared. Change data files say what changed: their rows are
only put in order.

| rows, in this order                       | change type                       |
|-------------------------------------------|-----------------------------------|
| deletes, and pre-images that are apart    | `delete`                          |
| both images of a row that changes its key | `update_preimage`, `_postimage`   |
| both images of one key                    | `update_preimage`, `_postimage`   |
| inserts, and post-images that are apart   | `insert`                          |

So each key loses its old row before it gets a new one. If no key changes, deletes and updates of change data files are in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64, FrozenBitMap64

from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.types.schema import StructType, TableSchema
from cdfd.errors import DataError, MissingFileError
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPE, CHANGE_TYPES
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.refinement import Refinement, RowTracking
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.runtime.ordered_pool import run_in_order
from cdfd.scan.data_files import prefetch_columns
from cdfd.scan.file_reader import BATCH_ROWS, FileReader, rows_at_once, selection_of
from cdfd.scan.image_order import DELETE, INSERT, LONE_IMAGE, POST_IMAGE, PRE_IMAGE, codes_of, pair_numbers
from cdfd.scan.read import ScanReader, scan_errors
from cdfd.scan.row_selection import RowSelection
from cdfd.scan.table_files import TableFiles
from cdfd.scan.updates.equality import Integers, dense, hashes
from cdfd.scan.updates.matching import Matched, by_key, by_row_id, equal_rows, images_by_key
from cdfd.scan.updates.row_id_runs import RUNS, RepeatedRowId, add_rows, bucket_of, not_moved, runs_of, within_bucket
from cdfd.scan.updates.row_ids import HINT, ROW_ID, ROW_ID_FIELDS, ROW_VERSION, FileRowIds
from cdfd.scan.updates.spill import Buckets, SpillSpace, capacity_errors

UPDATE, GONE = (PRE_IMAGE, POST_IMAGE), (DELETE, INSERT)
"""Change types of the images of an update, and of a deleted row, which has no other image."""

MovedRows = tuple[pa.RecordBatch, tuple[int, int]]
"""Change rows, and which of them are images of updates that change the key; see `Scanned`."""

ID_ROWS = 1 << 20
"""Rows of a batch of row ids."""

# No column of a table has such a name.
PAIR = "\0pair"
"""Name of the column of rows of change data files that numbers pairs of images."""


@dataclass(slots=True)
class RefinedVersion:
    """The true changes of one version. Threads may share it: the first one that needs rows reads the files.

    Attributes:
        plan: of the version, with a refinement.
        schema: the columns to deliver.
        files: the table's files.
        space: local disk, for rows that do not fit into memory.
        workers: files to read at a time.
        batch_rows: rows of a batch, at most.
        on_missing: called if a file is gone; the version is then refined without its rows.
        drop_unchanged: whether updates without a change are left out.
    """

    plan: ChangePlan
    schema: TableSchema
    files: TableFiles
    space: SpillSpace
    workers: int
    batch_rows: int
    on_missing: Callable[[MissingFileError], None]
    drop_unchanged: bool = False
    _lock: Lock = field(default_factory=Lock)
    _sides: tuple[Buckets, Buckets] | None = None

    @property
    def refinement(self) -> Refinement:
        """How the changes are found."""
        assert self.plan.refinement is not None
        return self.plan.refinement

    def is_like(self, other: RefinedVersion) -> bool:
        """Whether the other one has the same changes: plans may differ by the scans that they have."""
        mine, theirs = self.plan, other.plan
        return (
            (mine.version, mine.timestamp_ms, self.drop_unchanged, self.files.storage.uri)
            == (theirs.version, theirs.timestamp_ms, other.drop_unchanged, other.files.storage.uri)
            and (self.schema, mine.schema) == (other.schema, theirs.schema)
            and mine.refinement == theirs.refinement
        )

    def batches(self, scan: FileScan) -> Iterator[MovedRows]:
        """The change rows of one of the plan's scans: deletes, updates, inserts.

        Raises:
            CdfdError: as `read` says; it names table, version and file.
            DataError: row ids that repeat, or more text than Arrow holds in a column.
            StorageError: the rows do not fit on the disk.
        """
        assert scan.bucket is not None
        with self._lock:
            if self._sides is None:
                tracking = self.refinement.tracking
                if self.refinement.images:
                    self._sides = self._read_images()
                else:
                    self._sides = self._read_all() if tracking is None else self._read_changed(tracking)
        removed, added = (side.rows(scan.bucket.number) for side in self._sides)
        with capacity_errors(removed, added):
            yield from self._changes(scan, removed.combine_chunks(), added.combine_chunks())

    def _changes(self, scan: FileScan, removed: pa.Table, added: pa.Table) -> Iterator[MovedRows]:
        changes = self._match(removed, added, whole=scan.image_phase is None)
        rows = pa.concat_tables([removed, added])
        if scan.image_phase != "late":
            count, moves, first_added = len(changes.deleted), len(changes.left), removed.num_rows
            olds = np.concatenate([changes.deleted, changes.left, changes.before])
            news = np.concatenate([np.full(count, -1), changes.came + first_added, changes.after + first_added])
            types = np.repeat([GONE, UPDATE, UPDATE], [count, moves, len(changes.before)], axis=0)
            images = np.stack([olds, news], axis=1)
            if self.refinement.images and not moves:
                # As they are read from large files, where nothing waits.
                order = np.argsort(olds, kind="stable")
                images, types = images[order], types[order]
            there = images >= 0
            yield from self._batches(rows, images[there], types[there], (count, count + 2 * moves))
        if scan.image_phase != "early":
            inserted = changes.inserted + removed.num_rows
            yield from self._batches(rows, inserted, np.full(len(inserted), INSERT))

    def _batches(
        self, rows: pa.Table, chosen: Integers, types: Integers, moved: tuple[int, int] = (0, 0)
    ) -> Iterator[MovedRows]:
        schema = pa.schema([*self.schema.arrow, CHANGE_COLUMNS[0]])
        rows = rows.select(self.schema.names)
        step = rows_at_once(rows.num_rows, rows.nbytes, self.batch_rows)
        for start in range(0, len(chosen), step):
            span = slice(start, start + step)
            # If none of the columns exists at this version, there is no batch.
            batches = rows.take(array_of(chosen[span])).combine_chunks().to_batches()
            columns = batches[0].columns if batches else []
            column = pa.DictionaryArray.from_arrays(array_of(types[span].astype(np.int8)), CHANGE_TYPES)
            here = tuple(min(max(0, place - start), len(column)) for place in moved)
            yield pa.RecordBatch.from_arrays([*columns, column], schema=schema), (here[0], here[1])

    def _match(self, removed: pa.Table, added: pa.Table, *, whole: bool) -> Matched:
        """The changes of a bucket; `whole` says whether it is the only one."""
        key = self._key_names()
        if self.refinement.images:
            return self._pair(removed, added, key)
        if self.refinement.tracking is None:
            return by_key(removed, added, key)
        names = self._read_schema().names
        count = self.plan.scans[0].bucket.of if self.plan.scans[0].bucket is not None else 1
        ids = dense(within_bucket(np.concatenate([to_numpy(side.column(ROW_ID)) for side in (removed, added)]), count))
        versions = (to_numpy(side.column(ROW_VERSION)) for side in (removed, added))
        gone, come, before, after = by_row_id(ids[: removed.num_rows], ids[removed.num_rows :], *versions)
        if self.drop_unchanged:
            equal = equal_rows(removed, before, added, after, names)
            gone[before[equal]] = False
            come[after[equal]] = False
            before, after = before[~equal], after[~equal]
        if not key:
            return Matched.of(gone, come, before, after)
        if whole:
            return images_by_key(removed, added, key, (gone, come), before, after)
        # A row may get a key that another bucket frees: all deletes come first.
        stays = equal_rows(removed, before, added, after, key)
        return Matched.of(gone, come, before[stays], after[stays])

    def _pair(self, removed: pa.Table, added: pa.Table, key: Sequence[str]) -> Matched:
        """The changes of change data files."""
        pairs = [np.asarray(to_numpy(side.column(side.num_columns - 1))) for side in (removed, added)]
        sources = self.refinement.sources
        apart = any(LONE_IMAGE in side for side in pairs)
        if apart and any(scan.partition_values != sources[0].partition_values for scan in sources):
            # An update may have moved rows between the files, so that neighbours belong to different rows.
            pairs = [np.where(side >= 0, LONE_IMAGE, side) for side in pairs]
        before, after = (np.flatnonzero(side >= 0) for side in pairs)
        lone = np.flatnonzero(pairs[0] == LONE_IMAGE), np.flatnonzero(pairs[1] == LONE_IMAGE)
        if len(lone[0]) == len(lone[1]) == 1:
            # An update has both. So the only ones belong together, wherever the writer put them.
            before, after = np.concatenate([before, lone[0]]), np.concatenate([after, lone[1]])
            lone = lone[0][:0], lone[1][:0]
        sides = np.ones(len(pairs[0]), np.bool_), np.ones(len(pairs[1]), np.bool_)
        return images_by_key(removed, added, key, sides, before, after, lone)

    def _key_names(self) -> tuple[str, ...]:
        columns = (self._read_schema().find((name,)) for name in self.refinement.key)
        return tuple(column.name for column in columns if column is not None)

    def _read_schema(self) -> TableSchema:
        """The columns to read: those to deliver, then those of the key that are not among them."""
        missing = [name for name in self.refinement.key if self.schema.find((name,)) is None]
        if not missing:
            return self.schema
        extra = self.plan.schema.select(missing)
        struct = StructType((*self.schema.struct, *extra.struct))
        return TableSchema(struct, (*self.schema.partition_columns, *extra.partition_columns), self.schema.mapping)

    def _sides_of(self, schema: pa.Schema, *, compressed: bool = True) -> tuple[Buckets, Buckets]:
        bucket = self.plan.scans[0].bucket
        assert bucket is not None
        removed, added = (Buckets(self.space, bucket.of, schema, compressed=compressed) for _ in range(2))
        return removed, added

    def _read_all(self) -> tuple[Buckets, Buckets]:
        """All rows of both sides, in buckets by the hash of the key."""
        schema, key = self._read_schema(), self._key_names()
        sides = self._sides_of(schema.arrow)
        reader = ScanReader(self.files, lambda _: schema, on_missing=self.on_missing)

        def rows(_: int, scan: FileScan) -> Iterator[_SideRows]:
            for scanned in reader.read(self.plan, scan):
                batch = pa.RecordBatch.from_arrays(scanned.rows.columns[:-1], schema=schema.arrow)
                buckets, count = None, sides[0].count
                if count > 1:
                    columns = [batch.column(name) for name in key]
                    buckets = (hashes(columns, batch.num_rows) % np.uint64(count)).astype(np.int64)
                yield scan.change_type == "insert", batch, buckets

        return self._fill(sides, rows)

    def _read_changed(self, tracking: RowTracking) -> tuple[Buckets, Buckets]:
        """The rows of both sides that did not only move, in buckets by row id."""
        schema, left = self._read_schema(), self._unmoved_rows(tracking)
        sides = self._sides_of(pa.schema([*schema.arrow, *ROW_ID_FIELDS]))

        def rows(number: int, scan: FileScan) -> Iterator[_SideRows]:
            if not left[number]:
                return
            assert scan.row_ids is not None
            with self.files.open_scan(scan) as (source, file):
                row_ids, only = FileRowIds.of(scan.row_ids, tracking, file.schema_arrow), RowSelection(left[number])
                reader = replace(FileReader.prepare(file, schema, scan, self.files), selection=only, row_ids=row_ids)
                groups = {group for _, groups in reader.row_groups() for group in groups}
                prefetch_columns(source, file, reader.names, groups)
                for batch in reader.batches(BATCH_ROWS, use_threads=False):
                    buckets = bucket_of(to_numpy(batch.column(ROW_ID)), sides[0].count)
                    yield scan.change_type == "insert", batch, buckets

        return self._fill(sides, rows)

    def _read_images(self) -> tuple[Buckets, Buckets]:
        """All rows of change data files, with the number of the pair that they belong to."""
        schema = self._read_schema()
        rows_schema = pa.schema([*schema.arrow, pa.field(PAIR, pa.int64(), nullable=False)])
        reader = ScanReader(self.files, lambda _: schema, on_missing=self.on_missing)

        def rows(number: int, scan: FileScan) -> Iterator[_SideRows]:
            written = replace(scan, image_phase="as_written")
            batches = [scanned.rows for scanned in reader.read(self.plan, written)]
            types = np.concatenate([np.zeros(0, np.int8), *codes_of(batch.column(CHANGE_TYPE) for batch in batches)])
            pairs, start = pair_numbers(types, number << 32), 0
            for batch in batches:
                span = slice(start, start + batch.num_rows)
                start += batch.num_rows
                whole = pa.RecordBatch.from_arrays([*batch.columns[:-1], array_of(pairs[span])], schema=rows_schema)
                is_added = (types[span] == INSERT) | (types[span] == POST_IMAGE)
                yield False, whole.filter(array_of(~is_added)), None
                yield True, whole.filter(array_of(is_added)), None

        return self._fill(self._sides_of(rows_schema), rows)

    def _unmoved_rows(self, tracking: RowTracking) -> list[RowSet]:
        """For each source, its rows that did not only move."""

        def runs(number: int, scan: FileScan) -> Iterator[_SideRows]:
            assert scan.row_ids is not None
            with self.files.open_scan(scan) as (_, file):
                row_ids = FileRowIds.of(scan.row_ids, tracking, file.schema_arrow)
                selection = selection_of(scan, self.files, file.metadata)
                for group, first, count in selection.row_groups(file.metadata):
                    # Without stored ids, nothing is read.
                    batches = file.batches(row_ids.names, [group], rows=ID_ROWS) if row_ids.names else (None,)
                    for batch in batches:
                        ids, versions = row_ids.infer(first, count) if batch is None else row_ids.of_batch(batch, first)
                        rows = np.arange(first, first + len(ids), dtype=np.int64)
                        kept, first = selection.mask(first, len(ids)), first + len(ids)
                        if kept is not None:
                            rows, ids, versions = rows[kept], ids[kept], versions[kept]
                        of_batch = runs_of(number, rows, ids, versions)
                        buckets = bucket_of(to_numpy(of_batch.column("id")), sides[0].count)
                        yield scan.change_type == "insert", of_batch, buckets

        sides = self._sides_of(RUNS, compressed=False)
        removed, added = self._fill(sides, runs)
        left = [BitMap64() for _ in self.refinement.sources]
        for number in range(removed.count):
            try:
                for rows in not_moved(removed.rows(number), added.rows(number), removed.count):
                    add_rows(left, rows)
            except RepeatedRowId as error:
                raise DataError(
                    f"row id {error.row_id} is there twice",
                    table=self.files.storage.uri,
                    version=self.plan.version,
                    path=self.refinement.sources[error.source].path,
                    hint=HINT,
                ) from None
        removed.close()
        added.close()
        return [RowSet(FrozenBitMap64(rows)) for rows in left]

    def _fill(
        self, sides: tuple[Buckets, Buckets], read_source: Callable[[int, FileScan], Iterator[_SideRows]]
    ) -> tuple[Buckets, Buckets]:
        """Both sides, with the rows of all sources, in their order."""

        def read(number: int, scan: FileScan) -> Iterator[_SideRows]:
            with scan_errors(self.plan, scan, self.files.storage.uri, self.on_missing):
                yield from read_source(number, scan)

        tasks = (partial(read, number, scan) for number, scan in enumerate(self.refinement.sources))
        for is_added, batch, buckets in run_in_order(tasks, workers=self.workers, ahead=1):
            sides[is_added].add(batch, buckets)
        return sides


_SideRows = tuple[bool, pa.RecordBatch, "npt.NDArray[np.int64] | None"]
"""Rows of a source: whether they are added, the rows, and the bucket of each."""
