"""Where a log lists the live files of a version, for readers that do not keep all of them in memory.

    live = await list_live(log, version)
    live.listing.batches(storage)     # the files of the checkpoint, a batch at a time
    live.changed, live.state          # the paths that later commits name, and the state of the files with these paths

The live files are those of the checkpoint whose path no later commit names, and the live files of `state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from cdfd.delta.checkpoint import RowColumns
from cdfd.delta.commit import Commit
from cdfd.delta.files import FILES, TEXT
from cdfd.delta.snapshot import Base, Snapshot, replay
from cdfd.errors import Within
from cdfd.log import checkpoint_files
from cdfd.log.log import DeltaLog
from cdfd.log.segment import Checkpoint, Segment
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of
from cdfd.storage.base import Stat, Storage


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a checkpoint that list live files. A value; it pickles.

    Attributes:
        version: of the checkpoint.
        files: in the order in which their rows count.
        partitioned: whether files have partition values.
        vectors: whether files may have deletion vectors.
        line_bytes: limit of a line of JSON; see `commit.parse`.
    """

    version: int
    files: tuple[Stat, ...]
    partitioned: bool
    vectors: bool
    line_bytes: int | None = None

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(stat.size for stat in self.files)

    def batches(
        self, storage: Storage, *, with_stats: bool = False, with_partitions: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """The files that the checkpoint lists, in the `FILES` schema.

        Raises:
            CdfdError: a file of the checkpoint cannot be read; it names table, version and file.
        """
        partitioned = self.partitioned and with_partitions
        return self._batches(storage, RowColumns(partitioned=partitioned, vectors=self.vectors, stats=with_stats))

    def paths(self, storage: Storage) -> Iterator[pa.Array]:
        """Only the paths. Raises what `batches` does."""
        return (batch.column("path") for batch in self._batches(storage, RowColumns(names=("add.path",))))

    def kept(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Rows of its batches, to keep in memory.

        Raises:
            LogError: they take more memory than the rows of such a checkpoint may take.
        """
        most = checkpoint_files.MEMORY_BYTES + checkpoint_files.MEMORY_RATIO * self.size
        budget, kept = checkpoint_files.MemoryBudget(most), []
        for batch in batches:
            if len(batch):
                budget.reserve(batch.nbytes)
                kept.append(batch)
        return kept

    def _batches(self, storage: Storage, columns: RowColumns) -> Iterator[pa.RecordBatch]:
        with Within(storage.uri, self.version, None):
            for stat in self.files:
                yield from checkpoint_files.adds(storage, self.version, stat, columns, self.line_bytes)


@dataclass(frozen=True, slots=True)
class LiveListing:
    """Where the live files of a version are listed.

    Attributes:
        listing: of the checkpoint.
        changed: paths that commits after the checkpoint name, ascending.
        state: of the version, with no other files than those whose path is among `changed`.
    """

    listing: Listing
    changed: pa.Array
    state: Snapshot

    def paths(self, storage: Storage) -> Iterator[pa.Array]:
        """The paths of all live files, in any order.

        Raises:
            CdfdError: a file of the checkpoint cannot be read; it names table, version and file.
        """
        for paths in self.listing.paths(storage):
            yield without(pa.record_batch([paths], names=["path"]), self.changed).column("path")
        yield from self.state.live().table.column("path").chunks


def without(batch: pa.RecordBatch, paths: pa.Array) -> pa.RecordBatch:
    """The rows of a batch whose path is not among some paths."""
    return batch.filter(pc.invert(pc.is_in(batch.column("path"), value_set=paths))) if len(paths) else batch


async def list_live(log: DeltaLog, version: int | None = None, *, least_bytes: int = 0) -> LiveListing | None:
    """Where the live files of a version (None: the newest) are listed. Their row counts are in `state`, where the log has them.

    None if the version has no checkpoint, or one of fewer than `least_bytes` bytes.

    Raises:
        CdfdError: as `DeltaLog.snapshot` says.
    """
    return await log.read_segment(version, partial(_list_live, log, least_bytes))


async def _list_live(log: DeltaLog, least_bytes: int, segment: Segment) -> LiveListing | None:
    await log.anchor(segment.version)
    if segment.checkpoint is None:
        return None
    with Within(log.storage.uri, segment.checkpoint.version, None):
        listing, begun = await asyncio.to_thread(_open_checkpoint, log, segment.checkpoint)
    if listing.size < least_bytes:
        return None
    commits = [commit async for commit in log.commits_of(segment)]
    changed = await asyncio.to_thread(_paths_of, commits)
    rows = await asyncio.to_thread(_files_at, listing, log.storage, changed)
    state = await asyncio.to_thread(replay, replace(begun, base=Base(rows)), commits)
    log.check_managed(state.header)
    return LiveListing(listing, changed, log.warn_of_mismatches(state))


def _open_checkpoint(log: DeltaLog, checkpoint: Checkpoint) -> tuple[Listing, Snapshot]:
    """Where a checkpoint lists its files, and its state without them. Blocks: a table may have many sidecars and transactions."""
    state = checkpoint_files.read_state(log.storage, checkpoint, line_bytes=log.line_bytes)
    begun = checkpoint_files.snapshot_of(checkpoint, state)
    listing = Listing(
        checkpoint.version,
        (*checkpoint.files, *checkpoint_files.sidecar_stats(state.sidecars)),
        partitioned=bool(begun.metadata.partition_columns),
        vectors=begun.protocol.min_reader_version >= 3,
        line_bytes=log.line_bytes,
    )
    return listing, begun


def _paths_of(commits: Iterable[Commit]) -> pa.Array:
    """The paths that commits name, ascending. Blocks: a commit may have a million files."""
    paths = {added.path for commit in commits for added in commit.adds}
    paths |= {removed.path for commit in commits for removed in commit.removes}
    return array_of(sorted(paths), TEXT)


def _files_at(listing: Listing, storage: Storage, paths: pa.Array) -> pa.Table:
    """The files of a checkpoint with one of some paths."""
    is_named = partial(pc.is_in, value_set=paths)
    if not len(paths) or not any(pc.any(is_named(chunk)).as_py() for chunk in listing.paths(storage)):
        return pa.Table.from_batches([], FILES)
    batches = listing.batches(storage, with_stats=True)
    return pa.Table.from_batches(listing.kept(batch.filter(is_named(batch.column("path"))) for batch in batches), FILES)
