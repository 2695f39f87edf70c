"""Partitions for Spark's tasks: plans are cut into splits, and splits are packed into partitions of similar size.

Executors list the files of a large snapshot: each partition has a range of paths, and its task reads the checkpoint again. Spark's driver
plans a read in a Python process that cannot start jobs. So it reads the checkpoint itself, a batch at a time, and keeps the bounds and the
totals of ranges. It never holds the list of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from cdfd.deliver.path_ranges import PathRanges, counted_ranges, least_bytes, sampled_bounds
from cdfd.deliver.splits import measure, range_splits
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import Within
from cdfd.log.listing import LiveListing
from cdfd.log.stream import PlanStream
from cdfd.log.table import Table
from cdfd.log.tailer import Tailer
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.reconciliation import SchemaReconciler
from cdfd.runtime.ordered_pool import map_in_order
from cdfd.scan.execute import Execution
from cdfd.scan.splits import FILE_BYTES, Measured, Split, place_splits, plan_splits
from cdfd.spark.engine.target import Target
from cdfd.spark.source.admission import count_each
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.reading import ChangePartition, execution_of

LEAST_BYTES, MOST_BYTES = 32 << 20, 128 << 20
"""Default limits of a partition's size: small ones keep all cores busy, but each one costs a task."""

TARGET_PARTITIONS = 64
"""Target number of partitions, if their size is within the limits."""

_REMOTE_READS = 16
"""Files to read at a time from a remote store."""

READ_RATIO = 16
"""Bytes of files in a partition, for each byte of the checkpoint that its task reads again. Reading rows then takes most of the time."""


@dataclass(frozen=True, slots=True)
class PlanRange:
    """A plan to read, or a range of its scans.

    Attributes:
        plan: of a version.
        start: the first scan, with the ordinal of the first row; None: the start of the plan.
        end: number of the scan after the last one; None: the end of the plan.
    """

    plan: ChangePlan
    start: Position | None = None
    end: int | None = None

    @property
    def weight(self) -> int:
        """Approximate bytes of files."""
        if self.start is None and self.end is None:
            return self.plan.size + FILE_BYTES * len(self.plan.scans)
        first = 0 if self.start is None else self.start.part
        scans = self.plan.scans[first : self.end]
        return sum(scan.share + FILE_BYTES for scan in scans)


class Schemas:
    """Reconciles plans with the schema `target` on the driver, once, so that the plans for executors are small."""

    def __init__(self, target: TableSchema) -> None:
        self._select = SchemaReconciler(target).select

    def of(self, plan: ChangePlan, uri: str) -> ChangePlan:
        """The plan, with the schemas to read its files in.

        Raises:
            SchemaChangedError: a column's type changed to one that does not hold the old values; it names table and version.
        """
        if not len(plan.scans):
            return plan  # its schema may be one that RESTORE left again before it had rows
        with Within(uri, plan.version):
            schema, scans = self._select(plan.schema), plan.scans
            if not isinstance(scans, LiveScans) and any(scan.schema is not None for scan in scans):
                scans = tuple(
                    scan if scan.schema is None else replace(scan, schema=self._select(scan.schema)) for scan in scans
                )
        # The files of a refined version are all read in its own schema.
        return replace(plan, schema=schema, scans=scans)


def partition_splits(
    plan_ranges: Sequence[PlanRange], execution: Execution, *, ordered: bool, limit: int | None
) -> list[tuple[Split, ...]]:
    """Splits in order, grouped into one run per task.

    Args:
        plan_ranges: in order of their rows.
        execution: reads files, if ordinals are requested and a version is cut.
        ordered: whether ordinals are requested.
        limit: bytes of files of one run; None: computed from the total.

    Raises:
        CdfdError: as in `measure`.
    """
    if limit is None:
        limit = partition_bytes(sum(plan_range.weight for plan_range in plan_ranges))
    limit = max(limit, FILE_BYTES)
    cuts = [plan_splits(each.plan, limit, start=each.start, end=each.end, ordered=ordered) for each in plan_ranges]
    if ordered:
        placed = [all(split.is_placed for split in splits) for splits in cuts]
        unplaced = [split for splits, ready in zip(cuts, placed, strict=True) if not ready for split in splits]
        contents = iter(measure_splits(unplaced, execution))
        cuts = [
            splits if ready else place_splits(plan_range.plan, splits, [next(contents) for _ in splits])
            for plan_range, splits, ready in zip(plan_ranges, cuts, placed, strict=True)
        ]
    runs, size = list[list[Split]](), 0
    for split in chain.from_iterable(cuts):
        if not runs or size + split.weight > limit:
            runs.append([])
            size = 0
        runs[-1].append(split)
        size += split.weight
    return list(map(tuple, runs))


def partition_bytes(whole: int) -> int:
    """Bytes of files of one task, if `whole` bytes are read."""
    return min(max(LEAST_BYTES, whole // TARGET_PARTITIONS), MOST_BYTES)


def measure_splits(splits: Sequence[Split], execution: Execution) -> Iterator[Measured]:
    """Measure splits, several at a time."""
    workers = _REMOTE_READS if execution.files.storage.remote else execution.threads
    return map_in_order(partial(measure, execution=execution), splits, workers=min(workers, len(splits)))


async def listed_snapshot(
    stream: PlanStream, options: SourceOptions, version: int, tailer: Tailer | None = None
) -> tuple[Version, LiveListing] | None:
    """A snapshot whose files the executors are to list; None if the driver is to list them.

    A filter needs the statistics of each file, so the driver lists the files then.

    Raises:
        CdfdError: as `PlanStream.snapshot` says.
    """
    if options.snapshot_planning == "driver" or options.rows.shape.where is not None:
        return None
    return await stream.listed_snapshot(version, tailer, least_bytes=least_bytes(options.snapshot_planning))


def range_partitions(
    snapshot: tuple[Version, LiveListing], table: Table, target: Target, options: SourceOptions
) -> list[ChangePartition]:
    """The partitions of a snapshot, in order of its rows. Reads the checkpoint twice.

    Raises:
        SchemaChangedError: as `Schemas.of` says.
        CdfdError: the checkpoint, or the footer of a file whose row count is not in the log, cannot be read.
    """
    version, live = snapshot
    plan = version.plan
    with Within(table.uri, plan.version):
        # The plan has no scans yet, which is why `Schemas` would leave it as it is.
        plan = replace(plan, schema=SchemaReconciler(target.schema).select(plan.schema))
    ranges = counted_paths(live, table, plan.version, execution_of(table, options), ordered=target.ordered)
    limit = options.partition_bytes
    if limit is None:
        limit = max(partition_bytes(ranges.weight), READ_RATIO * live.listing.size)
    return [ChangePartition((part,), target) for part in range_splits(ranges, plan, limit)]


def counted_paths(
    live: LiveListing, table: Table, version: int, execution: Execution, *, ordered: bool = True
) -> PathRanges:
    """Ranges of the paths of a snapshot; with the numbers of their rows, if `ordered`. Raises what `range_partitions` does."""
    storage = table.log.storage
    rows = partial(count_each, version, execution=execution) if ordered else None
    return counted_ranges(live, sampled_bounds(live, storage), storage, rows)
