"""Partitions of a large snapshot whose files the executors list: each of them has a range of paths, and reads the checkpoint again.

Spark's driver plans a read in a Python process that cannot start jobs. So it reads the checkpoint itself, a batch at a time, and keeps the
bounds and the totals of ranges. It never holds the list of files.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cdfd.deliver.path_ranges import PathRanges, counted_ranges, least_bytes, sampled_bounds
from cdfd.deliver.splits import range_splits
from cdfd.log.listing import LiveListing
from cdfd.log.stream import PlanStream
from cdfd.log.table import Table
from cdfd.log.tailer import Tailer
from cdfd.model.version import Version
from cdfd.scan.execute import Execution
from cdfd.spark.engine.target import Target
from cdfd.spark.source.admission import count_each
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.partitioning import Schemas, partition_bytes
from cdfd.spark.source.reading import ChangePartition, execution_of

READ_RATIO: Final = 16
"""Bytes of files in a partition, for each byte of the checkpoint that its task reads again. Reading rows then takes most of the time."""


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
        CdfdError: the checkpoint, or the footer of a file whose row count is not in the log, cannot be read.
    """
    version, live = snapshot
    plan = Schemas.to(target.schema).of(version.plan, table.uri)
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
