"""Plans: the file scans that give the row-level changes of a version, or its live rows. Values: they say which rows to read, and not how."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, overload

import pyarrow as pa

from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles
from cdfd.delta.statistics import record_count, record_counts
from cdfd.delta.types.schema import TableSchema
from cdfd.model.file_scan import FileScan
from cdfd.model.position import Position
from cdfd.model.refinement import Refinement
from cdfd.runtime import compute as pc

Changes = Literal["auto", "cdf", "files"]
Origin = Literal["cdc", "files", "snapshot", "none"]


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """All changes of a version. A value: it pickles, and the same log gives the same plan, so the index of a scan identifies it.

    Attributes:
        version: of the table.
        timestamp_ms: when it was committed, in ms since the Unix epoch.
        schema: the schema in force at this version.
        scans: in the order of delivery: deletes before inserts, each by path. Change data files are sorted by path. If there are several, the
            early phases of all come before the late phases.
        origin: the source of the rows.
        cross_partition: change data files of several partitions, between which an update may have moved rows. Together they decide whether
            adjacent images are pairs, also if only a part of the version is read.
        refinement: how the version's true changes are found. None if its scans are its changes.
        unrefined: why a version is not refined, although that was asked for.
        key: columns that identify a row, by which change data files are ordered; empty if they are not known.
        where: the filter that has left some of the version's files out; empty if none has.
    """

    version: int
    timestamp_ms: int
    schema: TableSchema
    scans: Sequence[FileScan]
    origin: Origin
    cross_partition: Sequence[FileScan] = ()
    refinement: Refinement | None = None
    unrefined: str | None = None
    key: tuple[str, ...] = ()
    where: str = ""

    @property
    def key_schema(self) -> TableSchema | None:
        """The schema of the key alone; None without a key."""
        return self.schema.select(self.key) if self.key else None

    @property
    def earlier_schema(self) -> TableSchema | None:
        """The schema of rows that the version deletes while it replaces the schema; None if there are none."""
        if isinstance(self.scans, LiveScans):
            return None
        return next((scan.schema for scan in self.scans if scan.schema is not None), None)

    @property
    def size(self) -> int:
        """Bytes of all files to read."""
        if isinstance(self.scans, LiveScans):
            return self.scans.files.total_size()
        return sum(scan.share for scan in self.scans)

    @property
    def files(self) -> Sequence[FileScan]:
        """Scans of the files that are read whole, in their order."""
        refinement = self.refinement
        if refinement is None:
            return self.scans
        # Row ids are read first, and alone.
        return refinement.sources if refinement.tracking is None else ()

    @property
    def parts_id(self) -> int:
        """A hash of what decides which rows a part has, besides the log. Positions store it, so it has to stay the same in later releases."""
        refinement = self.refinement
        by = None if refinement is None else [refinement.key, refinement.tracking is not None, refinement.images]
        text = json.dumps([self.origin, self.where, self.key, by])
        # It is a number that JSON has everywhere, and not 0, which stands for none in a Delta target.
        return int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) or 1

    def ordinal_of(self, part: int, following: int) -> int:
        """The ordinal of a position at scan number `part`; `following` is one more than that of the last row before it.

        Positions within a refined version have the first ordinal of a bucket, so that they tell what their parts are.
        """
        bucket = self.scans[part].bucket
        return following if bucket is None else max(following, bucket.ordinal)

    def continues(self, position: Position) -> bool:
        """Whether the parts before a position in this version are parts of this plan."""
        other = position.is_unrefined if self.refinement is not None else position.is_refined
        same = position.part == 0 or position.plan in (None, self.parts_id)
        return position.part <= len(self.scans) and same and not other


@dataclass(frozen=True, slots=True, eq=False)
class LiveScans(Sequence[FileScan]):
    """Files whose rows are all inserts, as in a first snapshot. Scans are created on access, so a million files are not a million objects."""

    files: PackedFiles[Add]

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, index: int) -> FileScan: ...
    @overload
    def __getitem__(self, index: slice) -> LiveScans: ...
    def __getitem__(self, index: int | slice) -> FileScan | LiveScans:
        if isinstance(index, slice):
            return LiveScans(self.files[index])
        return insert_scan(self.files[index])

    def __iter__(self) -> Iterator[FileScan]:
        return map(insert_scan, self.files)

    def counts(self) -> pa.ChunkedArray | None:
        """Rows of each file, from their statistics; None if any of them has no row count."""
        row_counts = []
        for batch in self.files.table.to_batches():
            counts = record_counts(batch.column("stats"))
            hidden = pc.fill_null(pc.struct_field(batch.column("deletion_vector"), "cardinality"), 0)
            if counts.null_count or pc.any(pc.greater(hidden, counts)).as_py():
                return None
            row_counts.append(pc.subtract(counts, hidden))
        return pa.chunked_array(row_counts, pa.int64())

    def rows(self) -> int | None:
        """Rows of all files together, from their statistics; None if any of them has no row count."""
        counts = self.counts()
        return None if counts is None else pc.sum(counts).as_py() or 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LiveScans):
            return self.files == other.files
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


def insert_scan(add: Add) -> FileScan:
    """The scan of all rows of a file that was added."""
    count = record_count(add.stats)
    return FileScan(add.path, "insert", add.partition_values, add.size, without=add.deletion_vector, num_records=count)
