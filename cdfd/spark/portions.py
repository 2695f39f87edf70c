"""What is read, as portions for tasks: plans are cut into slices, and slices packed into portions of like size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from cdfd.changes.cutting import FILE_BYTES, Measured, Slice, cut, placed
from cdfd.changes.execute import Execution
from cdfd.changes.ordered_pool import map_in_order
from cdfd.changes.plan import ChangePlan, FileScan, LiveScans
from cdfd.changes.position import Position
from cdfd.changes.reconciliation import SchemaReconciler
from cdfd.changes.slices import measure
from cdfd.delta.schema import TableSchema
from cdfd.errors import CdfdError

LEAST_BYTES, MOST_BYTES = 32 << 20, 128 << 20
"""Of a portion, where nothing is said: small ones keep all cores busy to the end, each costs its task."""

PORTIONS = 64
"""Portions to have, if those are of a size between the two."""

_REMOTE_LOOKS = 16
"""Files to look into at a time, where each is a round trip away."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A plan, or a part of one, that is to be read.

    Attributes:
        plan: of a version.
        start: where to begin in it, with the ordinal of the first row; None for its beginning.
        end: the number of the scan to end before; None for its end.
        kept: for each scan of the plan, whether it can hold a row that is asked for; None for all.
    """

    plan: ChangePlan
    start: Position | None = None
    end: int | None = None
    kept: npt.NDArray[np.bool_] | None = None

    @property
    def weight(self) -> int:
        """Bytes of files, about."""
        if self.start is None and self.end is None:
            return self.plan.size + FILE_BYTES * len(self.plan.scans)
        first = 0 if self.start is None else self.start.part
        scans = self.plan.scans[first : self.end]
        return sum(scan.share + FILE_BYTES for scan in scans)


@dataclass(frozen=True, slots=True)
class Schemas:
    """Conforms plans to one schema before they are sent to whoever reads them: what is read is decided once, and is small."""

    reconciler: SchemaReconciler
    _known: dict[int, tuple[TableSchema, TableSchema]]

    @classmethod
    def to(cls, target: TableSchema) -> Schemas:
        """Those of plans whose rows are to be conformed to `target`."""
        return cls(SchemaReconciler(target), {})

    def of(self, plan: ChangePlan, uri: str) -> ChangePlan:
        """The plan, with the schemas to read its files in.

        Raises:
            SchemaChangedError: a column's type changed to one that does not hold the old values; it names table and version.
        """
        try:
            schema, scans = self._selected(plan.schema), plan.scans
            if not isinstance(scans, LiveScans) and any(scan.schema is not None for scan in scans):
                scans = tuple(self._scan(scan) for scan in scans)
        except CdfdError as error:
            raise error.within(table=uri, version=plan.version) from None
        return replace(plan, schema=schema, scans=scans)

    def _scan(self, scan: FileScan) -> FileScan:
        return scan if scan.schema is None else replace(scan, schema=self._selected(scan.schema))

    def _selected(self, schema: TableSchema) -> TableSchema:
        # Versions share their schema until it changes; comparing a wide one takes longer than planning a version.
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = schema, self.reconciler.select(schema)
        return known[1]


def portions(
    stretches: Sequence[Stretch], execution: Execution, *, ordered: bool, limit: int | None = None
) -> list[tuple[Slice, ...]]:
    """Slices, in order, in runs for one task each.

    Args:
        stretches: in order of their rows.
        execution: looks into files, where ordinals are asked for and a version is cut.
        ordered: whether ordinals are asked for.
        limit: bytes of files of one run; None for what suits the whole.

    Raises:
        CdfdError: as `measure` says.
    """
    if limit is None:
        whole = sum(stretch.weight for stretch in stretches)
        limit = min(max(LEAST_BYTES, whole // PORTIONS), MOST_BYTES)
    limit = max(limit, FILE_BYTES)
    cuts = [
        cut(each.plan, limit, start=each.start, end=each.end, ordered=ordered, kept=each.kept) for each in stretches
    ]
    if ordered:
        cuts = _placed(stretches, [_needed(slices) for slices in cuts], execution)
    return list(_packed((part for slices in cuts for part in slices if part.wanted), limit))


def _needed(slices: list[Slice]) -> list[Slice]:
    """Those that are wanted, and those before them."""
    if slices and slices[0].plan.cross_partition:
        # All of them together tell what is a pair.
        return slices if any(part.wanted for part in slices) else []
    last = max((number for number, part in enumerate(slices) if part.wanted), default=-1)
    return slices[: last + 1]


def _placed(stretches: Sequence[Stretch], cuts: Sequence[list[Slice]], execution: Execution) -> list[list[Slice]]:
    unknown = [part for slices in cuts if len(slices) > 1 for part in slices]
    found = iter(measured(unknown, execution))
    return [
        slices if len(slices) < 2 else placed(stretch.plan, slices, [next(found) for _ in slices])
        for stretch, slices in zip(stretches, cuts, strict=True)
    ]


def measured(slices: Sequence[Slice], execution: Execution) -> Iterator[Measured]:
    """What slices hold, several looked into at a time."""
    workers = _REMOTE_LOOKS if execution.files.storage.remote else execution.threads
    return map_in_order(partial(measure, execution=execution), slices, workers=min(workers, len(slices)))


def _packed(slices: Iterable[Slice], limit: int) -> Iterator[tuple[Slice, ...]]:
    run, size = list[Slice](), 0
    for part in slices:
        if run and size + part.weight > limit:
            yield tuple(run)
            run, size = [], 0
        run.append(part)
        size += part.weight
    if run:
        yield tuple(run)
