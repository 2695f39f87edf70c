"""The state of a mirror: which rows its target has, as of a version, and where they are.

Finds the rows of a mirror by the hashes of their keys.

The index is a list of sorted runs: the newest in memory, older ones on local disk. A new row is added to it. A deleted row stays in it until
runs are merged, because the deletion vectors say which rows are still there. The index belongs to one process: the next one reads the keys
of the target again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cdfd.delta.actions import Add, DeletionVectorDescriptor, Metadata
from cdfd.delta.commit import Commit
from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.statistics import record_count
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import NotFoundError, SinkError
from cdfd.log.log import DeltaLog
from cdfd.model.columns import CHANGE_TYPE
from cdfd.model.file_scan import FileScan
from cdfd.scan.file_reader import BATCH_ROWS, FileReader
from cdfd.scan.row_selection import RowSelection
from cdfd.scan.table_files import TableFiles
from cdfd.scan.updates.equality import hashes
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.delta.columns import Columns
from cdfd.sinks.delta.data_files import no_other_root
from cdfd.sinks.delta.mirror.live_files import LiveFiles
from cdfd.sinks.delta.mirror.sorted_run import Hashes, Keep, Rows, SortedRun, StoredRun
from cdfd.sinks.delta.target import Target, translate_errors

logger = logging.getLogger("cdfd.sink")


class MirrorTable:
    """Follows the log of a target. Rows are looked up from the first delivery on that deletes any.

    Args:
        target: the table.
        key: columns that identify a row.
        space: local disk, for the index.
    """

    def __init__(self, target: Target, key: Sequence[str], space: SpillSpace) -> None:
        self._target = target
        self.storage = target.storage
        self._key = tuple(key)
        self._space = space
        self._log = DeltaLog(target.storage)
        self._files = TableFiles(target.storage, no_other_root)
        self._schema: TableSchema | None = None
        self.written: Mapping[str, Hashes] = {}
        """The hashes of the keys of files that the next version may have, by path."""
        self.vectors: Mapping[str, RowSet] = {}
        """The rows of deletion vectors that the next version may have, by their ids."""
        self.live = LiveFiles()
        """The live files, once the rows are known."""
        self.index: KeyIndex | None = None
        """The rows by key; None until `load`."""
        self.metadata: Metadata | None = None
        """The metadata of the last version; None until `follow`."""
        self.version: int | None = None
        """The last version that is followed."""

    async def follow(self) -> int:
        """Follow the target to its newest version, and return that.

        Raises:
            SinkError: another writer has changed rows.
        """
        with translate_errors("read the target", self._target.uri):
            state = await self._target.state()
            self.metadata = state.metadata
            if self.version is not None:
                try:
                    for version in range(self.version + 1, state.version + 1):
                        commit = (await self._log.entry(version, with_stats=True)).commit
                        await self._check_unchanged(commit)
                        if self.index is not None:
                            added = {add.path for add in commit.adds}
                            for removed in commit.removes:
                                if removed.path not in added:
                                    self.live.remove(removed.path)
                            for add in commit.adds:
                                rows = self.live.rows_of(add.path)
                                if rows is not None:
                                    self.live.update(add, await self._rows_of(add.deletion_vector, rows))
                                else:
                                    await self._append(add, self.index)
                        self.version = version
                except NotFoundError:
                    # Clean-up has removed the entry: what it says is in a checkpoint.
                    self.forget()
            if self.version is None:
                await self._check_since_ours(state.version)
                self.version = state.version
            self.written, self.vectors = {}, {}
            return self.version

    async def load(self, columns: Columns) -> None:
        """Read which rows there are, unless it is known. `follow` comes first. `columns`: those of the table, as the rows have them.

        Raises:
            StorageError: the index does not fit on the disk.
        """
        with translate_errors("read the target", self._target.uri):
            schema = TableSchema(columns.struct, columns.partition_by, columns.mapping)
            if self._schema is not None and schema.select(self._key).arrow != self._schema.select(self._key).arrow:
                # The rows are read again; the versions that `follow` has checked are not.
                version = self.version
                self.forget()
                self.version = version
            self._schema = schema
            if self.index is not None:
                return
            adds = await self.live_adds()
            self.index = KeyIndex(self._space, self.live.exist)
            for add in adds:
                await self._append(add, self.index)
            extra = {"table": self._target.uri, "version": self.version}
            logger.info("%d keys of the mirror are indexed", self.index.pairs, extra=extra)

    async def live_adds(self) -> Sequence[Add]:
        """The live files of the last version. `follow` comes first."""
        with translate_errors("read the target", self._target.uri):
            state = await self._log.snapshot(self.version, with_stats=True, all_fields=True)
            return await asyncio.to_thread(state.live)

    def forget(self) -> None:
        """Forget all rows; the next `load` reads them again."""
        if self.index is not None:
            self.index.close()
        self.live, self.index, self.version = LiveFiles(), None, None

    def hashes(self, rows: pa.RecordBatch | pa.Table) -> Hashes:
        """The hash of each row's key. The rows have the types of the table."""
        assert self._schema is not None
        names = {name.lower(): name for name in rows.schema.names}
        return hashes([rows.column(names[name.lower()]) for name in self._key], rows.num_rows)

    def read_rows(self, numbers: Rows, names: Sequence[str]) -> pa.Table:
        """Some columns of rows, whose numbers ascend."""
        assert self._schema is not None
        schema = self._schema.select(names)
        batches: list[pa.RecordBatch] = []
        for file, positions in self.live.split(numbers):
            with _reader(file.add, schema, self._files) as reader:
                rows = replace(reader, selection=RowSelection(RowSet.of_array(positions)))
                batches += rows.batches(BATCH_ROWS, use_threads=False)
        return pa.Table.from_batches([batch.drop_columns([CHANGE_TYPE]) for batch in batches], schema.arrow)

    async def _append(self, add: Add, index: KeyIndex) -> None:
        keys = self.written.get(add.path)
        if keys is None:
            keys = await asyncio.to_thread(self.read_keys, add, self._files)
        deleted = await self._rows_of(add.deletion_vector, len(keys))
        file = self.live.append(add, len(keys), deleted)
        await asyncio.to_thread(index.add, keys, file.first)

    async def _rows_of(self, vector: DeletionVectorDescriptor | None, rows: int) -> RowSet | None:
        if vector is None:
            return None
        cached = self.vectors.get(vector.unique_id)
        return cached if cached is not None else await asyncio.to_thread(self._files.vector_rows, vector, rows)

    def read_keys(self, add: Add, files: TableFiles) -> Hashes:
        """The hashes of the keys of a file's rows, with those of deleted rows."""
        assert self._schema is not None
        schema = self._schema.select(self._key)
        keys = []
        with _reader(add, schema, files) as reader:
            for batch in reader.batches(_KEY_ROWS, use_threads=True):
                keys.append(self.hashes(batch))
        return np.concatenate(keys) if keys else np.zeros(0, np.uint64)

    async def _check_since_ours(self, newest: int) -> None:
        """Check the versions after the last one of this mirror, as far as their entries are there."""
        for version in range(newest, 0, -1):
            try:
                commit = (await self._log.entry(version)).commit
            except NotFoundError:
                return
            if self._target.is_ours(commit):
                return
            await self._check_unchanged(commit)

    async def _check_unchanged(self, commit: Commit) -> None:
        """Check that a version of another writer changes no row."""
        if not self._target.is_ours(commit) and await asyncio.to_thread(_changes_rows, commit):
            operation = "" if commit.info is None or commit.info.operation is None else f" ({commit.info.operation})"
            raise SinkError(
                f"another writer has changed rows of the mirror{operation:.100}",
                table=self._target.uri,
                version=commit.version,
                hint="A mirror has the rows of its source only. Remove or rename the target, then run "
                "`cdfd progress reset` to start over",
            )


def _changes_rows(commit: Commit) -> bool:
    changed = (action.data_change for actions in (commit.adds, commit.removes) for action in actions)
    return bool(commit.cdcs) or any(changed)


@contextmanager
def _reader(add: Add, schema: TableSchema, files: TableFiles) -> Iterator[FileReader]:
    count = record_count(add.stats)
    scan = FileScan(add.path, "insert", add.partition_values, add.size, num_records=count)
    with files.open_scan(scan) as (_, file):
        yield FileReader.prepare(file, schema, scan, files)


_KEY_ROWS = 1 << 20
"""Rows whose keys are read at once."""


MEMORY_PAIRS = 1 << 21
"""Pairs in memory before they are written to disk."""
MOST_STORED = 8
"""Runs on disk. One more merges all of them."""


@dataclass(eq=False)
class KeyIndex:
    """Row numbers by hash.

    Attributes:
        space: local disk.
        keep: tells which rows are still there.
        memory: pairs in memory, at most.
    """

    space: SpillSpace
    keep: Keep
    memory: int = MEMORY_PAIRS
    _pending: list[tuple[Hashes, Rows]] = field(default_factory=list, init=False)
    _pending_pairs: int = field(default=0, init=False)
    _recent: list[SortedRun] = field(default_factory=list, init=False)
    _stored: list[SortedRun] = field(default_factory=list, init=False)

    @property
    def pairs(self) -> int:
        """Pairs, with those of deleted rows that are not left out yet."""
        return self._pending_pairs + sum(map(len, (*self._recent, *self._stored)))

    def add(self, hashes: Hashes, first: int) -> None:
        """Add consecutive rows. `first` is the number of the first one.

        Raises:
            StorageError: they do not fit on the disk.
        """
        if len(hashes):
            self._pending.append((hashes, np.arange(first, first + len(hashes), dtype=np.int64)))
            self._pending_pairs += len(hashes)
            if self._pending_pairs + sum(map(len, self._recent)) >= self.memory:
                self._sort_pending()
                self._stored.append(StoredRun.merged(self.space, self._recent, self.keep))
                self._recent = []
                if len(self._stored) > MOST_STORED:
                    merged = StoredRun.merged(self.space, self._stored, self.keep)
                    for run in self._stored:
                        run.close()
                    self._stored = [merged]

    def find(self, wanted: Hashes) -> tuple[Rows, Rows]:
        """The rows with some hashes that are still there.

        Args:
            wanted: ascending, without repeats.

        Returns:
            For each row, the place of its hash in `wanted`, and its number.
        """
        self._sort_pending()
        by_run = [run.find(wanted) for run in (*self._stored, *self._recent)]
        if not by_run:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        places, rows = (np.concatenate(parts) for parts in zip(*by_run, strict=True))
        kept = self.keep(rows)
        return places[kept], rows[kept]

    def close(self) -> None:
        """Forget all rows, and return the disk space."""
        for run in self._stored:
            run.close()
        self._pending, self._recent, self._stored = [], [], []
        self._pending_pairs = 0

    def _sort_pending(self) -> None:
        if not self._pending:
            return
        hashes, rows = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._pending_pairs = [], 0
        self._recent.append(SortedRun.of(hashes, rows))
        # Each run is at least twice as large as the next one, so there are few, and a pair is merged few times.
        while len(self._recent) > 1 and len(self._recent[-2]) < 2 * len(self._recent[-1]):
            newer, older = self._recent.pop(), self._recent.pop()
            hashes = np.concatenate([older.hashes, newer.hashes])
            self._recent.append(SortedRun.of(hashes, np.concatenate([older.rows, newer.rows])))
