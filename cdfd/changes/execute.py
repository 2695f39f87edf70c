"""Plans -> change rows, in order: scans run ahead in threads, ordinals are given where the order is known.

A batch never spans two versions. Memory is bounded by the batches in flight, whatever the size of a version or a file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar, cast

import pyarrow as pa

from cdfd.changes.columns import VersionColumns
from cdfd.changes.image_order import HELD_BYTES, Halves, Room, Shelf
from cdfd.changes.ordered_pool import in_order
from cdfd.changes.plan import ChangePlan, FileScan
from cdfd.changes.position import Position
from cdfd.changes.prefetch import further, in_sight
from cdfd.changes.read import BATCH_ROWS, Rows, TableFiles, look, read
from cdfd.delta.schema import TableSchema
from cdfd.errors import CdfdError, MissingFileError

T = TypeVar("T")
OnMissing = Callable[[MissingFileError], None]
"""Called where a scan's file is gone: raises, or returns to go on without its rows."""


Select = Callable[[TableSchema], TableSchema]
"""From the schema of a version, the columns of it that are wanted."""

LITTLE_BYTES = 256 << 10
"""Bytes of files that are worked through before a thread has even started."""

TINY_BYTES = 16 << 10
"""Bytes of files, on average, that hold a few rows each."""


def everything(schema: TableSchema) -> TableSchema:
    """All columns."""
    return schema


def named(columns: Sequence[str], schema: TableSchema) -> TableSchema:
    """Those of `columns` that this version has, in that order; one that was added later or dropped earlier is left out.

    Raises:
        MissingColumnError: this version has none of them.
    """
    return schema.present(columns)


def fail(error: MissingFileError) -> None:
    """The default: a file that is gone ends the reading."""
    raise error


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Change rows of one version: the table's columns in `schema`, then the change columns.

    Attributes:
        plan: of the version.
        schema: the plan's but for rows that a version deletes while it replaces the schema: those are as they were.
        rows: the rows.
        following: `_change_ordinal` of the version's next row. One is left out before a post-image that stands by itself: images are a pair
            where their numbers follow each other, and only there.
    """

    plan: ChangePlan
    schema: TableSchema
    rows: pa.RecordBatch
    following: int = 0


class _Scanned(NamedTuple):
    plan: ChangePlan
    schema: TableSchema
    rows: Rows


@dataclass(frozen=True, slots=True)
class Execution:
    """How plans are executed.

    Attributes:
        files: where the table's files are.
        select: from a version's schema, the columns to read.
        workers: cores to keep busy; as many as the process may use where None.
        batch_rows: rows of a batch, at most; smaller ones need less memory on their way, larger ones less time.
        on_missing: what to do where a file is gone.
        whole: whether `select` chooses all columns: a remote store reads files on from their beginning then, before their ends tell where
            which column is.
    """

    files: TableFiles
    select: Select = everything
    workers: int | None = None
    batch_rows: int = BATCH_ROWS
    on_missing: OnMissing = fail
    whole: bool = False

    @property
    def threads(self) -> int:
        """Cores to keep busy."""
        return _cores() if self.workers is None else self.workers

    def threads_for(self, plans: Sequence[ChangePlan]) -> int:
        """Cores to keep busy with what is done to the rows of `plans`: at the tip of a table they are few, and a thread costs more."""
        return 1 if len(plans) == 1 and len(plans[0].scans) <= 4 and _is_little(plans[0].size) else self.threads

    def _lanes(self, plans: Iterable[ChangePlan]) -> int:
        """Files to read at a time. Files differ in size and rows have to wait for their turn, so one for each core is too few."""
        if self.files.storage.remote:
            # A file's first bytes are a round trip away, even where the next file's are asked for meanwhile.
            return 2 * self.threads
        if isinstance(plans, Sequence) and _are_tiny(plans):
            # Reading them is mostly Python: two threads that take turns with it need half as much again as one.
            return 1
        return 1 if self.threads == 1 else self.threads + 1

    def batches(self, plans: Iterable[ChangePlan], start: Position | None = None) -> Generator[ChangeBatch, None, None]:
        """The change rows of `plans`.

        Args:
            plans: in order of version.
            start: where to begin within the first plan, where that is not its beginning.

        Raises:
            CdfdError: as `read` says; it names table, version and file.
        """
        version, ordinal = (-1, 0) if start is None else (start.version, start.ordinal)
        tasks = self._tasks(plans, 0 if start is None else start.part)
        columns: VersionColumns | None = None
        for scanned in in_order(tasks, workers=self._lanes(plans)):
            plan, rows = scanned.plan, scanned.rows
            if columns is None:
                columns = VersionColumns(plan.version, plan.timestamp_ms)
            elif plan.version != version:
                columns = columns.following(plan.version, plan.timestamp_ms)
            if plan.version != version:
                version, ordinal = plan.version, 0
            first = ordinal + rows.apart
            ordinal = first + rows.batch.num_rows
            yield ChangeBatch(plan, scanned.schema, columns.complete(rows.batch, first), ordinal)

    def _tasks(self, plans: Iterable[ChangePlan], first_part: int) -> Iterator[Callable[[], Iterator[_Scanned]]]:
        remote = self.files.storage.remote
        for plan in in_sight(plans, first_part, self.files, self.whole) if remote else plans:
            scans = plan.scans[first_part:]
            first_part = 0
            # Where the late halves are not of these parts, nobody would take what is held.
            room = Room(HELD_BYTES if scans and scans[-1].images == "late" else 0)
            shelves: dict[str, Future[Shelf]] = {}
            looks = {scan.path: Future[Halves | None]() for scan in plan.across}
            for scan in plan.across:
                yield partial(self._look, scan, looks[scan.path])
            for number, scan in enumerate(scans):
                if remote:
                    further(scans, number, self.files, self.whole)
                if scan.images == "early":
                    shelves[scan.path] = Future()
                # With one file to read, the columns are what can be decoded side by side.
                use_threads = len(scans) < self.threads and not _is_little(scan.size)
                if scan.images in ("early", "late"):
                    yield partial(self._half, plan, scan, use_threads, room, shelves.get(scan.path), looks)
                else:
                    yield partial(self._read, plan, scan, use_threads)

    def _look(self, scan: FileScan, told: Future[Halves | None]) -> Iterator[_Scanned]:
        """No rows: finds out which rows of a file are late by itself. None where that cannot be told."""
        found = None
        try:
            found = look(scan, self.files)
        except CdfdError:
            # Whoever reads the rows meets it again, where it is in order.
            return
        finally:
            told.set_result(found)
        yield from ()

    def _half(
        self,
        plan: ChangePlan,
        scan: FileScan,
        use_threads: bool,
        room: Room,
        left: Future[Shelf] | None,
        looks: Mapping[str, Future[Halves | None]],
    ) -> Iterator[_Scanned]:
        """Rows of one half of a file. `left` is what the scan of the early half leaves to that of the late one.

        What is waited for here comes from tasks that began earlier, whose results are taken first: they come to their ends.
        """
        if scan.images == "late" and left is not None:
            yield from self._read(plan, scan, use_threads, left.result())
            return
        looked = {path: told.result() for path, told in looks.items()}
        pairs = scan.pairs and all(halves is None or halves.paired for halves in looked.values())
        found = Shelf(room, looked.get(scan.path) if pairs else None, pairs)
        try:
            yield from self._read(plan, scan, use_threads, found)
        finally:
            if found.halves is None:
                # A file that is gone, of which enough is said.
                found.again = None
            if left is not None:
                left.set_result(found)

    def _read(
        self, plan: ChangePlan, scan: FileScan, use_threads: bool, shelf: Shelf | None = None
    ) -> Iterator[_Scanned]:
        try:
            schema = self.select(scan.schema or plan.schema)
            found = read(scan, schema, self.files, batch_rows=self.batch_rows, use_threads=use_threads, shelf=shelf)
            for rows in found:
                yield _Scanned(plan, schema, rows)
        except MissingFileError as error:
            self.on_missing(error.within(table=self.files.storage.uri, version=plan.version))
        except CdfdError as error:
            raise error.within(table=self.files.storage.uri, version=plan.version, path=scan.path) from None


def _cores() -> int:
    # Linux tells which cores a container may use, other systems only how many there are.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _are_tiny(plans: Sequence[ChangePlan]) -> bool:
    files = sum(len(plan.scans) for plan in plans)
    return 0 < sum(plan.size for plan in plans) <= TINY_BYTES * files


def _is_little(size: int) -> bool:
    # 0 is a size that the log does not say.
    return 0 < size <= LITTLE_BYTES


async def in_thread(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """The items of a blocking iterator, each fetched in a worker thread. The iterator is closed at the end: use `aclosing`."""
    done = object()
    fetched: asyncio.Future[T | object] | None = None
    loop = asyncio.get_running_loop()
    try:
        while True:
            fetched = loop.run_in_executor(None, next, items, done)
            # A thread cannot be cancelled, and what it runs cannot be closed.
            item = await asyncio.shield(fetched)
            if item is done:
                return
            yield cast(T, item)
    finally:
        if fetched is not None:
            await asyncio.wait((fetched,))
        close = getattr(items, "close", None)
        if close is not None:
            await loop.run_in_executor(None, close)
