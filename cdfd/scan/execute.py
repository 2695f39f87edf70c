"""Plans -> change rows, in order: threads scan files ahead of the consumer, and rows get their ordinals in order.

Small files of several versions are read together. The batches in flight bound the memory, whatever the size of a version or a file. A remote
store starts to fetch files some files before the reader needs them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby, repeat
from typing import TYPE_CHECKING, Any

from cdfd.errors import CdfdError
from cdfd.model.batch import ChangeBatch, VersionRows
from cdfd.model.columns import VersionColumns
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.plan.planner import in_phases
from cdfd.plan.row_options import AS_STORED, RowOptions
from cdfd.runtime.ordered_pool import After, Inline, run_in_order
from cdfd.runtime.shared_results import Reader
from cdfd.scan.data_files import has_ability
from cdfd.scan.file_reader import BATCH_ROWS
from cdfd.scan.image_order import REORDER_BUFFER_BYTES, ImageOrder, MemoryBudget, ReorderBuffer
from cdfd.scan.joined import PlannedScan, Scanned, groups_of
from cdfd.scan.read import OnMissingFile, Select, is_small, raise_missing
from cdfd.scan.scans import TaskReader, read_shared
from cdfd.scan.table_files import TableFiles
from cdfd.scan.updates.last_refined import RefinedVersions
from cdfd.scan.updates.spill import SpillSpace, spill_space
from cdfd.scan.updates.whole_pairs import (
    matched_by_key,
    whole_pairs,
    with_moves_apart,
    without_lone_images,
    without_no_ops,
)
from cdfd.storage.base import WholeFiles

if TYPE_CHECKING:
    from cdfd.scan.updates.refined import RefinedVersion

TINY_FILE_BYTES = 16 << 10
"""Bytes of a file, below which it holds a few rows only."""

PREFETCHED_FILES, PREFETCHED_SMALL_FILES = 6, 16
"""Files to prefetch, at least, beyond the one that is read next: of any size, and of those that are small. Where plans hold more files, up to
three times as many."""
SMALL_FILE_BYTES = 512 << 10
"""Bytes of a small file, on average: it takes less time than its round trip."""


TASKS_AHEAD = 8
"""Tasks that may be begun besides one for each core. Files differ in size and rows come in order, so cores would be idle without them."""
AHEAD_BYTES = 48 << 20
"""Bytes of rows that wait for those before them."""

_Task = Callable[[], Iterator[Scanned]]


def _in_order(tasks: Iterable[_Task], workers: int) -> Iterator[Scanned]:
    return run_in_order(
        tasks, workers=workers, ahead=TASKS_AHEAD, room=AHEAD_BYTES, size_of=lambda each: each.rows.nbytes
    )


@dataclass(frozen=True, slots=True)
class Execution:
    """Executes plans.

    Attributes:
        files: the table's files.
        rows: the options of the rows.
        select: from a version's schema, the columns to read: those of `rows` if None.
        workers: cores to use; None for as many as the process may use.
        batch_rows: rows of a batch, at most. Smaller batches take less memory, larger ones less time.
        on_missing: called if a file is gone.
        whole: whether `select` chooses all columns. A remote store then prefetches files from their beginning, before their footers say
            where each column is.
        space: local disk, for rows of refined versions.
        keeps_moves: whether an update that changes the key of a row has both images side by side, for record formats that name the other key
            in a header. Otherwise it is a delete and an insert, which `rows` may exclude.
        slow_consumer: whether rows are taken more slowly than one thread decodes them, as they are if they become records. Local files are
            then read one after the other, because each open file takes memory.
        refined: the refined version that was read last. Processes that read parts of a version one at a time share it between executions.
        shared: the rows that other sinks of the table read, too; None if there are no others.
    """

    files: TableFiles
    rows: RowOptions = AS_STORED
    select: Select | None = None
    workers: int | None = None
    batch_rows: int = BATCH_ROWS
    on_missing: OnMissingFile = raise_missing
    whole: bool = False
    space: SpillSpace = field(default_factory=spill_space)
    keeps_moves: bool = False
    slow_consumer: bool = False
    refined: RefinedVersions = field(default_factory=RefinedVersions, compare=False, repr=False)
    shared: Reader[Scanned] | None = field(default=None, compare=False, repr=False)

    @property
    def threads(self) -> int:
        """Cores to use."""
        return cores() if self.workers is None else self.workers

    def threads_for(self, plans: Sequence[ChangePlan]) -> int:
        """Cores to use for processing the rows of `plans`. At the tip of a table rows are few, and one thread is faster than several."""
        return 1 if len(plans) == 1 and len(plans[0].scans) <= 4 and is_small(plans[0].size) else self.threads

    def _parallel_scans(self) -> int:
        """Files to read at a time. More of them than cores would take the processor's caches from each other."""
        # A file of a remote store waits for requests, where another one may have been fetched.
        return max(2, self.threads) if self.files.storage.remote else self.threads

    def batches(
        self, plans: Iterable[ChangePlan], start: Position | None = None, *, joined: bool = False
    ) -> Generator[ChangeBatch, None, None]:
        """The change rows of `plans`, in their shape. If the last rows of a version are left out, its last batch is empty.

        Args:
            plans: in order of version.
            start: position in the first plan to begin at; None for its beginning.
            joined: whether a batch may have rows of several versions.

        Raises:
            CdfdError: see `read`. It names table, version and file.
        """
        shape, drops = self.rows.shape, self.rows.drop_unchanged
        joined = joined and self.rows.is_plain
        shaper = None
        if not shape.is_plain:
            from cdfd.scan.shaping import RowShaper  # with filters and masks, which a plain read does without

            shaper = RowShaper(shape)
        # An update of a column that is read for the filter alone changes nothing that is published.
        narrowed = shape.where is not None and shape.columns is not None
        empty: ChangeBatch | None = None
        for run in whole_pairs(self._number(plans, start)):
            for batch in (run,) if joined else run.by_version():
                plan = batch.plan
                # The images of large change data files are not matched by the key: only neighbours are pairs.
                if plan.key and plan.refinement is None:
                    batch = replace(batch, rows=without_lone_images(batch.rows))
                if shaper is not None:
                    batch = shaper.shape_batch(batch, drop_unchanged=drops or (narrowed and matched_by_key(plan)))
                elif drops:
                    batch = replace(batch, rows=without_no_ops(batch.rows))
                # An empty batch is left out, but for the last one of a version: it says which ordinal follows.
                if empty is not None and empty.plan.version != plan.version:
                    yield empty
                empty = None if batch.rows.num_rows else batch
                if empty is None:
                    yield batch
        if empty is not None:
            yield empty

    def _number(self, plans: Iterable[ChangePlan], start: Position | None) -> Generator[ChangeBatch, None, None]:
        """The rows that are read, with their change columns. Ordinals begin at 0 in each version after the first."""
        version, ordinal = (-1, 0) if start is None else (start.version, start.ordinal)
        tasks = self._tasks(plans, 0 if start is None else start.part)
        columns: VersionColumns | None = None
        for scanned in _in_order(tasks, self._parallel_scans()):
            if scanned.moved[1] and not self.keeps_moves:
                scanned = with_moves_apart(scanned)
            shares, numbers = list[VersionRows](), list[tuple[int, int, int, int]]()
            for plan, count in scanned.plans:
                if plan.version != version:
                    version, ordinal = plan.version, 0
                first = max(ordinal + scanned.skipped, scanned.least)
                ordinal = first + count
                shares.append(VersionRows(plan, count, ordinal))
                numbers.append((version, plan.timestamp_ms, count, first))
            if columns is None:
                columns = VersionColumns(plan.version, plan.timestamp_ms)
            elif columns.version != plan.version:
                columns = columns.following(plan.version, plan.timestamp_ms)
            if len(numbers) == 1:
                rows = columns.complete(scanned.rows, first)
            else:
                rows = columns.complete_several(scanned.rows, numbers)
            yield ChangeBatch(plan, scanned.schema, rows, ordinal, shares[:-1])

    def _tasks(self, plans: Iterable[ChangePlan], first_part: int) -> Iterator[_Task]:
        """The tasks that read the plans. Files whose rows are read as they are have a task each; small ones are read together."""
        remote, shared = self.files.storage.remote, self.shared
        if remote:
            plans = _prefetch_plans(plans, first_part, self.files, self.whole)
        joins = has_ability(self.files.storage.__class__, WholeFiles) and self.rows.shape.where is None
        planned = (
            (
                plan,
                part,
                # Scans of a refined version pass rows to each other, and so do the phases of several change data files.
                plan.refinement is not None
                or bool(plan.cross_partition)
                or (plan.origin == "cdc" and any(scan.image_phase in ("early", "late") for scan in plan.scans)),
            )
            for plan, part in zip(plans, chain((first_part,), repeat(0)), strict=False)
        )
        for passes_rows, run in groupby(planned, lambda each: each[2]):
            if passes_rows:
                for plan, part, _ in run:
                    left = plan.scans[part:]
                    yield from self._tasks_of(plan, left) if shared is None else self._as_one(plan, left, shared)
                continue
            reader = self._reader
            scans = (
                PlannedScan(plan, scan)
                for plan, part, _ in run
                for scan in (
                    _prefetch_scans(plan, plan.scans[part:], self.files, self.whole) if remote else plan.scans[part:]
                )
            )
            for group in groups_of(scans) if joins else ((each,) for each in scans):
                alone = len(group) == 1
                task: _Task = partial(reader.read, *group[0]) if alone else partial(reader.read_together, group)
                if shared is not None:
                    task = partial(read_shared, shared, "file" if alone else "together", group, task)
                tiny = alone and self._is_tiny(group[0].scan.size)
                yield Inline(task) if tiny or self._one_by_one else task

    def _as_one(self, plan: ChangePlan, scans: Sequence[FileScan], shared: Reader[Scanned]) -> Iterator[_Task]:
        """The tasks of a version as one, because they pass rows to each other: so all of them are read by one of the sinks."""
        if not scans:
            return
        workers = 1 if is_small(plan.size) else self._parallel_scans()
        planned = [PlannedScan(plan, scan) for scan in scans]
        one = partial(
            read_shared,
            shared,
            "version",
            planned,
            lambda: _in_order(self._tasks_of(plan, scans), workers),
        )
        yield Inline(one) if self._is_tiny(plan.size) else one

    @property
    def _one_by_one(self) -> bool:
        return self.slow_consumer and not self.files.storage.remote

    @property
    def _reader(self) -> TaskReader:
        threads = 1 if self._one_by_one else self.threads
        select = self.rows.shape.select if self.select is None else self.select
        options = select, self.batch_rows, self.on_missing, self.rows.shape.where, threads
        return TaskReader(self.files, *options, self.refined)

    def _tasks_of(self, plan: ChangePlan, scans: Sequence[FileScan]) -> Iterator[_Task]:
        """The tasks of a version whose files pass rows to each other."""
        refinement = plan.refinement
        if refinement is None:
            yield from self._tasks_of_phases(plan, scans, plan.cross_partition)
            return
        from cdfd.scan.updates.refined import RefinedVersion

        reader, sources = self._reader, refinement.sources

        def version() -> RefinedVersion:
            # Its files are read by one of the threads that read buckets.
            workers = 1 if is_small(plan.size) else self._parallel_scans()
            select, drops = reader.select(plan.schema), self.rows.drop_unchanged
            options = self.files, self.space, workers, self.batch_rows, self.on_missing, drops
            return self.refined.of(RefinedVersion(plan, select, *options))

        if not refinement.images or not scans or (self.files.storage.remote and len(sources) > 1):
            refined = version()
            yield from (partial(reader.read_bucket, plan, scan, refined) for scan in scans)
            return
        # The images of change data files may have to be matched by the key.
        tasks: Iterator[_Task] = iter((partial(reader.read_images, plan, sources[0], version),))
        if len(sources) > 1:
            tasks = self._tasks_of_phases(plan, in_phases(sources), sources, version)
        yield from map(Inline, tasks) if self._is_tiny(plan.size) else tasks

    def _tasks_of_phases(
        self,
        plan: ChangePlan,
        scans: Sequence[FileScan],
        looked_at: Sequence[FileScan],
        version: Callable[[], RefinedVersion] | None = None,
    ) -> Iterator[_Task]:
        """The tasks of change data files in phases, or in the order in which they are written.

        Args:
            plan: of the version.
            scans: of the version.
            looked_at: change data files whose pairs of images are looked for before any rows are read.
            version: the refined version, for images that are not in pairs of one key. Without it, they are read as they are.
        """
        from cdfd.scan.joined_images import ImageOrders, joined_images

        reader, remote = self._reader, self.files.storage.remote
        # Without the late phases among these scans, nothing would read what is buffered.
        budget = MemoryBudget(REORDER_BUFFER_BYTES if scans and scans[-1].image_phase == "late" else 0)
        buffers: dict[str, Future[ReorderBuffer]] = {}
        joined = {} if remote else joined_images(plan, scans, self.files)
        alone = {scan.path: scan for scan in looked_at if scan.path not in joined}
        of_files: dict[str, Future[ImageOrder | None]] = {path: Future() for path in alone}
        orders = ImageOrders(of_files, list(dict.fromkeys(joined.values())) if looked_at else ())
        for path, scan in alone.items():
            yield partial(reader.read_order, plan, scan, of_files[path])
        for images in orders.joined:
            yield images.find_pairs
        handover: Future[Any] | None
        for scan in _prefetch_scans(plan, scans, self.files, self.whole) if remote else scans:
            is_early = scan.image_phase == "early"
            if scan.path in joined:
                images = joined[scan.path]
                if scan.path != images.scans[0].path:
                    continue
                handover = images.early_read
                task = partial(reader.read_phase_together, plan, images, scan, budget, orders)
            elif scan.image_phase in ("early", "late"):
                if is_early:
                    buffers[scan.path] = Future()
                handover = buffers.get(scan.path)
                task = partial(reader.read_phase, plan, scan, budget, handover, orders)
            else:
                task = partial(reader.read, plan, scan)
                yield Inline(task) if self._is_tiny(scan.size) else task
                continue
            if version is not None:
                instead = version if is_early and scan is scans[0] else None
                task = partial(reader.read_if_paired, plan, task, orders, instead, handover if is_early else None)
            yield task if is_early or handover is None else After(handover, task)

    def _is_tiny(self, size: int) -> bool:
        # Reading it is mostly Python, which holds the GIL: two threads take half as much time again as one.
        return not self.files.storage.remote and 0 < size <= TINY_FILE_BYTES


def _prefetch_plans(
    plans: Iterable[ChangePlan], first_part: int, files: TableFiles, whole: bool
) -> Iterator[ChangePlan]:
    """The plans. They are taken early enough to prefetch `_files_ahead` files; an error is raised after the plans that come before it."""
    source = iter(plans)
    waiting: deque[ChangePlan] = deque()
    fetched, failed, more, ahead = 0, None, True, PREFETCHED_FILES
    while True:
        while more and fetched < ahead:
            try:
                plan = next(source, None)
            except CdfdError as error:
                plan, failed = None, error
            if plan is None:
                more = False
                break
            ahead = _files_ahead(plan)
            for scan in plan.files[first_part : first_part + ahead]:
                _prefetch(scan, files, whole)
            first_part = 0
            waiting.append(plan)
            fetched += len(plan.files)
        if waiting:
            plan = waiting.popleft()
            fetched -= len(plan.files)
            yield plan
        elif failed is not None:
            raise failed
        else:
            return


def _files_ahead(plan: ChangePlan) -> int:
    """How many files of a plan to prefetch."""
    return PREFETCHED_SMALL_FILES if 0 < plan.size <= SMALL_FILE_BYTES * len(plan.files) else PREFETCHED_FILES


def _prefetch_scans(plan: ChangePlan, scans: Sequence[FileScan], files: TableFiles, whole: bool) -> Iterator[FileScan]:
    """Scans of a plan. With each, the file that comes `_files_ahead` scans later is prefetched."""
    ahead = _files_ahead(plan)
    for number, scan in enumerate(scans):
        if number + ahead < len(scans):
            _prefetch(scans[number + ahead], files, whole)
        yield scan


def _prefetch(scan: FileScan, files: TableFiles, whole: bool) -> None:
    if scan.image_phase == "late":
        # The scan of the early phase keeps the rows of the late one, so most files are opened once.
        return
    # A scan of some rows skips row groups, so only a scan of all rows reads the whole file.
    files.prefetch(scan.path, scan.size, whole=whole and scan.only is None and scan.piece is None)


def cores() -> int:
    """The cores that this process may use."""
    # Linux reports the cores that a container may use, other systems all of the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
