"""Reads the files of one task: in phases, or joined with other files. Errors name table, version and file."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cdfd.errors import CdfdError
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.runtime.shared_results import CutOffError, Reader
from cdfd.scan.image_order import ImageOrder, MemoryBudget, ReorderBuffer
from cdfd.scan.joined import PlannedScan, Scanned, read_joined
from cdfd.scan.read import ScanReader, read_image_order
from cdfd.scan.table_files import READ_ERRORS
from cdfd.scan.updates.last_refined import RefinedVersions

if TYPE_CHECKING:
    from cdfd.scan.joined_images import ImageOrders, JoinedImages
    from cdfd.scan.updates.refined import RefinedVersion


@dataclass(frozen=True, slots=True)
class TaskReader(ScanReader):
    """Reads scans that pass rows to each other, and files that are joined.

    Attributes:
        refined: the refined version that was read last.
    """

    refined: RefinedVersions = field(default_factory=RefinedVersions)

    def read_images(self, plan: ChangePlan, scan: FileScan, version: Callable[[], RefinedVersion]) -> Iterator[Scanned]:
        """The rows of a version with one change data file. Raises what `read` does.

        Args:
            plan: of the version.
            scan: of the file.
            version: the refined version, for images that are not in pairs of one key.
        """
        buffer = ReorderBuffer(needs_pairs=True)
        yield from self.read(plan, scan, buffer)
        if buffer.order is not None and not buffer.order.by_key:
            yield from self.read_bucket(plan, plan.scans[0], version())

    def read_if_paired(
        self,
        plan: ChangePlan,
        task: Callable[[], Iterator[Scanned]],
        orders: ImageOrders,
        version: Callable[[], RefinedVersion] | None,
        handover: Future[Any] | None,
    ) -> Iterator[Scanned]:
        """The rows of a task of a version with several change data files, if all images are in pairs of one key.

        Args:
            plan: of the version.
            task: reads rows of one or more files in one phase.
            orders: of all files of the version.
            version: of the first task: the refined version. If images have to be matched by the key, its rows replace those of all tasks.
            handover: of an early task: what the late one waits for.
        """
        if orders.by_key:
            yield from task()
            return
        if handover is not None:
            handover.set_result(None)
        if version is not None:
            yield from self.read_bucket(plan, plan.scans[0], version())

    def read_bucket(self, plan: ChangePlan, scan: FileScan, version: RefinedVersion) -> Iterator[Scanned]:
        """Rows of a refined version in one of its buckets. Errors name their file already."""
        bucket = scan.bucket
        assert bucket is not None
        try:
            for rows, moved in version.batches(scan):
                yield Scanned(((plan, rows.num_rows),), version.schema, rows, 0, moved, bucket.ordinal)
        except CdfdError as error:
            raise error.within(table=self.files.storage.uri, version=plan.version) from None
        if bucket.number == bucket.of - 1 and scan.image_phase != "early":
            self.refined.forget(version)

    def read_order(self, plan: ChangePlan, scan: FileScan, result: Future[ImageOrder | None]) -> Iterator[Scanned]:
        """Set `result` to the image order of a file by itself, or to None if it cannot be read. Yields no rows."""
        order = None
        try:
            order = read_image_order(scan, self.files, plan.key_schema)
        except CdfdError:
            # The scan that reads the rows raises the same error, after the rows before it.
            return
        finally:
            result.set_result(order)
        yield from ()

    def read_phase(
        self,
        plan: ChangePlan,
        scan: FileScan,
        budget: MemoryBudget,
        handover: Future[ReorderBuffer] | None,
        orders: ImageOrders,
    ) -> Iterator[Scanned]:
        """Rows of a change data file in one phase. `handover` passes the buffer from the early phase to the late one.

        The futures come from tasks that were started earlier. Their results are taken first, so waiting for them cannot deadlock.
        """
        if scan.image_phase == "late" and handover is not None:
            yield from self.read(plan, scan, handover.result())
            return
        pairs = scan.pairs and orders.paired
        order = orders.of_files[scan.path].result() if scan.path in orders.of_files else None
        # Without pairs, the order of a file is another one if its own images are all in pairs.
        buffer = ReorderBuffer(budget, order if order is not None and order.paired == pairs else None, pairs)
        try:
            yield from self.read(plan, scan, buffer)
        finally:
            if buffer.order is None:
                # The file is gone, and `on_missing` was called for it: the late phase must not report it again.
                buffer.reread_from = None
            if handover is not None:
                handover.set_result(buffer)

    def read_phase_together(
        self, plan: ChangePlan, images: JoinedImages, first: FileScan, budget: MemoryBudget, orders: ImageOrders
    ) -> Iterator[Scanned]:
        """Rows of joined change data files in the phase of `first`. After any error, the rows that are left come from each file by itself."""
        is_early, done, together = first.image_phase == "early", 0, False
        try:
            try:
                if is_early or images.early_read.result():
                    schema = self.schema_of(plan, first)
                    options = schema, self.batch_rows, budget
                    pairs = first.pairs and orders.paired
                    for rows, skipped in images.early(*options, pairs=pairs) if is_early else images.late(*options):
                        yield Scanned(((plan, rows.num_rows),), schema, rows, skipped)
                        done += rows.num_rows
                    together = True
            except READ_ERRORS:
                pass
            if not together:
                yield from _without_first(done, self._one_by_one(plan, images, first, budget, orders))
        finally:
            if is_early:
                images.early_read.set_result(together)

    def read_together(self, group: Sequence[PlannedScan]) -> Iterator[Scanned]:
        """Rows of small files that are joined. After any error, the rows that are left come from each file by itself."""
        done = 0
        try:
            schema = self.schema_of(*group[0])
            for scanned in read_joined(group, schema, self.files, batch_rows=self.batch_rows):
                yield scanned
                done += scanned.rows.num_rows
        except READ_ERRORS:
            pass
        else:
            return
        yield from _without_first(done, (scanned for plan, scan in group for scanned in self.read(plan, scan)))

    def _one_by_one(
        self, plan: ChangePlan, images: JoinedImages, first: FileScan, budget: MemoryBudget, orders: ImageOrders
    ) -> Iterator[Scanned]:
        for early in images.scans:
            scan = replace(early, image_phase=first.image_phase)
            is_early = scan.image_phase == "early"
            handover = Future[ReorderBuffer]() if is_early else images.buffers.get(scan.path)
            yield from self.read_phase(plan, scan, budget, handover, orders)
            if is_early and handover is not None:
                images.buffers[scan.path] = handover


def _without_first(count: int, batches: Iterable[Scanned], empty: int = 0) -> Iterator[Scanned]:
    """The rows without the first `count` rows, nor the `empty` batches after those. Other empty batches say which ordinals are skipped."""
    for scanned in batches:
        rows = scanned.rows.num_rows
        if count < rows or (not rows and not count and not empty):
            yield scanned.after(count)
        if not rows and not count:
            empty = max(0, empty - 1)
        count = max(0, count - rows)


def read_shared(
    reader: Reader[Scanned], kind: str, scans: Sequence[PlannedScan], task: Callable[[], Iterator[Scanned]]
) -> Iterator[Scanned]:
    """The rows of a task that others may run too. They are read once, by whichever needs them first.

    Args:
        reader: one of those who run such tasks.
        kind: of the task.
        scans: what it reads.
        task: reads the rows.
    """
    plans = {plan.version: plan for plan, _ in scans}
    done = empty = 0
    try:
        for scanned in reader.results(key_of(kind, scans), task):
            yield scanned._replace(plans=[(plans[plan.version], rows) for plan, rows in scanned.plans])
            rows = scanned.rows.num_rows
            done, empty = done + rows, 0 if rows else empty + 1
    except CutOffError:
        yield from _without_first(done, task(), empty)


def key_of(kind: str, scans: Sequence[PlannedScan]) -> Hashable:
    """The key of a task that reads scans. A version of a table, and the path of a file, say everything else about them."""
    return kind, *(
        (
            *(plan.version, plan.timestamp_ms, plan.origin),
            *(scan.path, scan.change_type, scan.image_phase, scan.piece, scan.only, scan.without, scan.bucket),
        )
        for plan, scan in scans
    )
