"""A version as a job of many parts: what delivering one takes, and the engines that have it done.

A thread of the daemon or an executor of a cluster delivers a part by `Assignment.deliver`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.deliver.configured import execution, open_table
from cdfd.deliver.path_ranges import counted_ranges, sampled_bounds
from cdfd.deliver.splits import RangeSplit, measure, range_splits, read_splits
from cdfd.encode.side import RowCounts
from cdfd.errors import CdfdError
from cdfd.log.listing import LiveListing
from cdfd.model.batch import ChangeBatch
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.ordered_pool import map_in_order
from cdfd.runtime.tasks import iterate_in_thread
from cdfd.scan.execute import Execution
from cdfd.scan.splits import MOST_PIECES, Measured, Part, Split, plan_splits
from cdfd.sinks.base import Delivery, connector
from cdfd.sinks.jobs import Counts, Delivered, Job

_AT_A_TIME = 8

_READ_BYTES = 1 << 10
"""Bytes of files of a range, for each file of the snapshot: each range costs reading the checkpoint. Another number is another cut."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything that a process needs to deliver parts of a version. It pickles with the secrets of the settings; its repr hides them.

    Attributes:
        table: the table's name there.
        version: the version, its plan without scans.
        job: the job; None to measure only.
        role: what the job is a part of, where that is not the table's own delivery.
    """

    config: Settings
    table: str
    version: Version
    position: Position
    job: Job | None = None
    role: str | None = None

    @classmethod
    def of(
        cls, config: Settings, table: str, version: Version, position: Position, role: str | None = None
    ) -> Assignment:
        """One to measure a version with; it takes a job to deliver."""
        plan = replace(version.plan, scans=(), cross_partition=(), refinement=None)
        bare = Version(plan, version.table_id, version.schema_change, version.only_txns, version.digest)
        return cls(config, table, bare, Position(position.table_id, position.version, phase=position.phase), role=role)

    def ranges(self, plan: ChangePlan, live: LiveListing, limit: int) -> list[RangeSplit]:
        """A snapshot cut into ranges of paths, for deliveries of `limit` bytes. Reads the checkpoint twice, and blocks.

        The ranges are placed if the log has the rows of all files; others are to be measured.

        Raises:
            CdfdError: the checkpoint cannot be read.
        """
        storage = open_table(self.config, self._table).log.storage
        bounds = sampled_bounds(live, storage)
        ranges = counted_ranges(live, bounds, storage, lambda _: None)
        return list(range_splits(ranges, plan, max(limit, _READ_BYTES * int(ranges.files.sum()))))

    async def deliver(self, number: int, part: Split, workers: int | None = None) -> list[Delivered]:
        """Deliver a part, unless it is delivered already; see `Connector.deliver_part`.

        The files of a range of paths are more than one delivery takes. They are listed and cut here, and delivered one cut after the other.

        Args:
            workers: cores to keep busy with reading.

        Raises:
            CdfdError: it cannot be read or delivered; it names the table.
        """
        if not isinstance(part, RangeSplit):
            return [await self._deliver(number, part, workers)]
        delivered, ordinal = list[Delivered](), part.ordinal or 0
        pieces = await asyncio.to_thread(self._file_splits, part)
        # Rows of a snapshot are inserts: without them, nothing is delivered, and counts do not say how many rows there are.
        counted = "insert" not in self._table.exclude_change_types
        for number, piece in pieces:
            # The last one ends where the next range begins, or is refused.
            following = part.following if counted and number == pieces[-1][0] else None
            delivery = await self._deliver(number, replace(piece, ordinal=ordinal, following=following), workers)
            ordinal += sum(delivery.counts.values())
            delivered.append(delivery)
        return delivered

    def _file_splits(self, part: RangeSplit) -> list[Part]:
        """The deliveries of a range. Their numbers are those of no other range, because no file is cut into more than `MOST_PIECES`."""
        assert self.job is not None
        table = self._table
        try:
            whole = part.with_files(open_table(self.config, table).log.storage)
        except CdfdError as error:
            raise error.within(table=table.uri, version=self.version.plan.version) from None
        return list(enumerate(plan_splits(whole.plan, self.job.bytes), part.part * MOST_PIECES))

    async def _deliver(self, number: int, part: Split, workers: int | None) -> Delivered:
        assert self.job is not None
        table = self._table

        async def write(delivery: Delivery) -> Counts:
            counts = RowCounts()
            await delivery.start_version(self.version)
            batches: AsyncGenerator[ChangeBatch, None] = iterate_in_thread(read_splits([part], self.execution(workers)))
            async with aclosing(batches):
                async for batch in batches:
                    if batch.rows.num_rows:
                        await delivery.write(batch.rows)
                        counts.add(batch.rows)
            return {kind: rows for kind, rows in counts.by_type().items() if rows}

        try:
            sinks = connector(self.config)
            return await sinks.deliver_part(table, number, self.job, self.position, write, self.role)
        except CdfdError as error:
            raise error.within(table=table.uri, version=self.version.plan.version) from None

    def execution(self, workers: int | None = None) -> Execution:
        """How the table's files are read."""
        table = self._table
        return execution(self.config, open_table(self.config, table), table, workers)

    @property
    def _table(self) -> settings.Table:
        table = self.config.table(self.table)
        assert table is not None
        return table


class Engine(Protocol):
    """Runs jobs. Both calls may be cancelled; then nothing of them goes on but what cannot be reached any more."""

    async def measure(self, assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
        """The contents of splits.

        Raises:
            CdfdError: as `measure` says.
        """

    async def deliver(self, assignment: Assignment, parts: Sequence[Part]) -> list[Delivered]:
        """Deliver parts, in any order; all of them. A range of paths is several deliveries.

        Raises:
            CdfdError: of the first part that could not be delivered. Others may be.
        """


async def measure_here(assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
    """The contents of splits, measured in this process, several at a time.

    Raises:
        CdfdError: as `measure` says.
    """
    execution = assignment.execution()
    measured = map_in_order(partial(measure, execution=execution), splits, workers=_AT_A_TIME)
    contents: AsyncGenerator[Measured, None] = iterate_in_thread(measured)
    async with aclosing(contents):
        return [each async for each in contents]
