"""Partitions for Spark's tasks: plans are cut into splits, and splits are packed into partitions of similar size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cdfd.deliver.splits import measure
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import CdfdError
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import Position
from cdfd.plan.reconciliation import SchemaReconciler
from cdfd.runtime.ordered_pool import map_in_order
from cdfd.scan.execute import Execution
from cdfd.scan.splits import FILE_BYTES, Measured, Split, place_splits, plan_splits

LEAST_BYTES, MOST_BYTES = 32 << 20, 128 << 20
"""Default limits of a partition's size: small ones keep all cores busy, but each one costs a task."""

TARGET_PARTITIONS = 64
"""Target number of partitions, if their size is within the limits."""

_REMOTE_READS = 16
"""Files to read at a time from a remote store."""


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


@dataclass(frozen=True, slots=True)
class Schemas:
    """Reconciles plans with one schema on the driver, once, so that the plans for executors are small."""

    reconciler: SchemaReconciler
    _cache: dict[int, tuple[TableSchema, TableSchema]]

    @classmethod
    def to(cls, target: TableSchema) -> Schemas:
        """Those of plans whose rows are to be conformed to `target`."""
        return cls(SchemaReconciler(target), {})

    def of(self, plan: ChangePlan, uri: str) -> ChangePlan:
        """The plan, with the schemas to read its files in.

        Raises:
            SchemaChangedError: a column's type changed to one that does not hold the old values; it names table and version.
        """
        if not len(plan.scans):
            return plan  # its schema may be one that RESTORE left again before it had rows
        try:
            schema, scans = self._select(plan.schema), plan.scans
            if not isinstance(scans, LiveScans) and any(scan.schema is not None for scan in scans):
                scans = tuple(
                    scan if scan.schema is None else replace(scan, schema=self._select(scan.schema)) for scan in scans
                )
        except CdfdError as error:
            raise error.within(table=uri, version=plan.version) from None
        # The files of a refined version are all read in its own schema.
        return replace(plan, schema=schema, scans=scans)

    def _select(self, schema: TableSchema) -> TableSchema:
        # Versions share their schema until it changes; comparing a wide one takes longer than planning a version.
        entry = self._cache.get(id(schema))
        if entry is None:
            entry = self._cache[id(schema)] = schema, self.reconciler.select(schema)
        return entry[1]


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
        contents = iter(
            measure_splits([each for splits in cuts if not _is_placed(splits) for each in splits], execution)
        )
        cuts = [
            splits if _is_placed(splits) else place_splits(plan_range.plan, splits, [next(contents) for _ in splits])
            for plan_range, splits in zip(plan_ranges, cuts, strict=True)
        ]
    return list(_pack((split for splits in cuts for split in splits), limit))


def partition_bytes(whole: int) -> int:
    """Bytes of files of one task, if `whole` bytes are read."""
    return min(max(LEAST_BYTES, whole // TARGET_PARTITIONS), MOST_BYTES)


def _is_placed(splits: Sequence[Split]) -> bool:
    return all(split.is_placed for split in splits)


def measure_splits(splits: Sequence[Split], execution: Execution) -> Iterator[Measured]:
    """Measure splits, several at a time."""
    workers = _REMOTE_READS if execution.files.storage.remote else execution.threads
    return map_in_order(partial(measure, execution=execution), splits, workers=min(workers, len(splits)))


def _pack(splits: Iterable[Split], limit: int) -> Iterator[tuple[Split, ...]]:
    run, size = list[Split](), 0
    for split in splits:
        if run and size + split.weight > limit:
            yield tuple(run)
            run, size = [], 0
        run.append(split)
        size += split.weight
    if run:
        yield tuple(run)
