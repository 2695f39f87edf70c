"""A version as a job of many parts: what delivering one takes, and the engines that have it done.

A thread of the daemon or an executor of a cluster delivers a part by `Assignment.deliver`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from cdfd.changes.batch import ChangeBatch
from cdfd.changes.cutting import Measured, Part, Slice
from cdfd.changes.execute import Execution
from cdfd.changes.in_thread import iterate_in_thread
from cdfd.changes.ordered_pool import map_in_order
from cdfd.changes.position import Position
from cdfd.changes.slices import measure, read_slice
from cdfd.changes.stream import Version
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.encoding.side import RowCounts
from cdfd.errors import CdfdError
from cdfd.sinks.base import Counts, Delivered, Delivery, Job, connector
from cdfd.tables.configured import execution, open_table

_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything that a process needs to deliver parts of a version. It pickles with the secrets of the settings; its repr hides them.

    Attributes:
        config: of the pipeline.
        table: the table's name there.
        version: the version, its plan without scans.
        position: where the version begins.
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
        bare = replace(version, plan=replace(version.plan, scans=(), cross_partition=(), refinement=None))
        return cls(config, table, bare, Position(position.table_id, position.version, phase=position.phase), role=role)

    def measured(self, part: Slice, workers: int | None = None) -> Measured:
        """The contents of a slice; see `measure`. Blocks."""
        return measure(part, self.execution(workers))

    async def deliver(self, number: int, part: Slice, workers: int | None = None) -> Delivered:
        """Deliver a part, unless it is delivered already; see `Connector.deliver_part`.

        Args:
            number: of the part.
            part: what is in it.
            workers: cores to keep busy with reading.

        Raises:
            CdfdError: it cannot be read or delivered; it names the table.
        """
        assert self.job is not None
        table = self._table

        async def write(delivery: Delivery) -> Counts:
            return await self._write(delivery, part, self.execution(workers))

        try:
            sinks = connector(self.config)
            return await sinks.deliver_part(table, number, self.job, self.position, write, self.role)
        except CdfdError as error:
            raise error.within(table=table.uri, version=self.version.plan.version) from None

    async def _write(self, delivery: Delivery, part: Slice, execution: Execution) -> Counts:
        counts = RowCounts()
        await delivery.start_version(self.version)
        batches: AsyncGenerator[ChangeBatch, None] = iterate_in_thread(read_slice(part, execution))
        async with aclosing(batches):
            async for found in batches:
                if found.rows.num_rows:
                    await delivery.write(found.rows)
                    counts.add(found.rows)
        return {kind: rows for kind, rows in counts.by_type().items() if rows}

    def execution(self, workers: int | None = None) -> Execution:
        """How the table's files are read."""
        table = self._table
        return execution(open_table(self.config, table), table, workers, spill=self.config.spill)

    @property
    def _table(self) -> settings.Table:
        found = self.config.table(self.table)
        assert found is not None
        return found


class Engine(Protocol):
    """Runs jobs. Both calls may be cancelled; then nothing of them goes on but what cannot be reached any more."""

    async def measure(self, assignment: Assignment, slices: Sequence[Slice]) -> list[Measured]:
        """The contents of slices.

        Raises:
            CdfdError: as `measure` says.
        """

    async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> list[Delivered]:
        """Deliver parts, in any order; all of them.

        Raises:
            CdfdError: of the first part that could not be delivered. Others may be.
        """


async def measured_here(assignment: Assignment, slices: Sequence[Slice]) -> list[Measured]:
    """The contents of slices, measured in this process, several at a time.

    Raises:
        CdfdError: as `measure` says.
    """
    execution = assignment.execution()
    measured = map_in_order(partial(measure, execution=execution), slices, workers=_AT_A_TIME)
    found = []
    each: AsyncGenerator[Measured, None] = iterate_in_thread(measured)
    async with aclosing(each):
        async for one in each:
            found.append(one)
    return found
