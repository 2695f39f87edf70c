"""A version as a job of many parts: how it is cut, in which order parts may be delivered, and what delivering one takes.

Whoever delivers a part, a thread of the daemon or an executor of a cluster, runs `Assignment.deliver`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Protocol

from cdfd.changes.execute import ChangeBatch, Execution, iterate_in_thread
from cdfd.changes.ordered_pool import map_in_order
from cdfd.changes.position import Position
from cdfd.changes.slices import Measured, Slice, measure, read_slice
from cdfd.changes.stream import Version
from cdfd.config import settings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.encoding.side import RowCounts
from cdfd.errors import CdfdError, ConfigError
from cdfd.sinks.kafka import configured
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.transactions import parts
from cdfd.sinks.kafka.transactions.delivery import KafkaDelivery
from cdfd.sinks.kafka.transactions.parts import Counts
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from cdfd.tables.configured import execution, open_table

_AT_A_TIME = 8

Part = tuple[int, Slice]
"""A slice, and the number under which it is delivered."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What whoever delivers parts of a version has to know. It pickles, secrets of the settings included; its repr shows none.

    Attributes:
        config: of the pipeline.
        table: the table's name there.
        version: the version, its plan without scans.
        position: where the version begins.
        job: id of the job.
        since: offset of the progress topic at which it began.
        role: what the job is a part of, where that is not the table's own delivery.
    """

    config: Settings
    table: str
    version: Version
    position: Position
    job: str = ""
    since: int = 0
    role: str | None = None

    @classmethod
    def of(
        cls, config: Settings, table: str, version: Version, position: Position, role: str | None = None
    ) -> Assignment:
        """One to measure a version with; it takes a job to deliver."""
        bare = replace(version, plan=replace(version.plan, scans=(), cross_partition=()))
        return cls(config, table, bare, Position(position.table_id, position.version, phase=position.phase), role=role)

    def measured(self, part: Slice, workers: int | None = None) -> Measured:
        """What a slice holds; see `measure`. Blocks."""
        return measure(part, self.execution(workers))

    async def deliver(self, number: int, part: Slice, workers: int | None = None) -> Counts:
        """Deliver a part, if nobody has; see `parts.deliver`.

        Args:
            number: of the part.
            part: what is in it.
            workers: cores to keep busy with reading.

        Raises:
            CdfdError: it cannot be read or delivered; it names the table.
        """
        found = self.config.sink
        if not isinstance(found, KafkaSettings):
            raise ConfigError("only a Kafka sink takes versions in parts", hint="Use `engine.kind: embedded`")
        sink, table = found, self._table
        try:
            place = self._place(sink, table, number)

            def opened() -> AbstractAsyncContextManager[KafkaSink]:
                return configured.opened(sink, table, place)

            async def write(delivery: KafkaDelivery) -> Counts:
                return await self._write(delivery, part, self.execution(workers))

            return await parts.deliver(place, opened, self.job, self.position, write)
        except CdfdError as error:
            raise error.within(table=table.uri, version=self.version.plan.version) from None

    async def _write(self, delivery: KafkaDelivery, part: Slice, execution: Execution) -> Counts:
        counts = RowCounts()
        await delivery.start_version(self.version)
        batches: AsyncGenerator[ChangeBatch, None] = iterate_in_thread(read_slice(part, execution))
        async with aclosing(batches):
            async for found in batches:
                await delivery.write(found.rows)
                counts.add(found.rows)
        return {kind: rows for kind, rows in counts.by_type().items() if rows}

    def _place(self, sink: KafkaSettings, table: settings.Table, number: int) -> Destination:
        place = configured.destination(self.config, sink, table, parts.role(number, self.role))
        # The table's own delivery tells of the version and its schema.
        return replace(place, schema_topic=None, transactions_topic=None, since=self.since)

    def execution(self, workers: int | None = None) -> Execution:
        """How the table's files are read."""
        table = self._table
        return execution(open_table(self.config, table), table, workers)

    @property
    def _table(self) -> settings.Table:
        found = self.config.table(self.table)
        assert found is not None
        return found


class Engine(Protocol):
    """Runs jobs. Both calls may be cancelled; then nothing of them goes on but what cannot be reached any more."""

    async def measure(self, assignment: Assignment, slices: Sequence[Slice]) -> list[Measured]:
        """What slices hold.

        Raises:
            CdfdError: as `measure` says.
        """

    async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> Counts:
        """Deliver parts, in any order; the rows of all of them.

        Raises:
            CdfdError: of the first part that could not be delivered. Others may be.
        """


async def measured_here(assignment: Assignment, slices: Sequence[Slice]) -> list[Measured]:
    """What slices hold, found out in this process, several at a time.

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


def stages(slices: Sequence[Slice]) -> Iterator[list[Part]]:
    """Parts that may be delivered side by side, and after all those of the stage before.

    Within a version a key may be deleted and inserted again. All deletes come before all inserts, so that whoever keeps the last change of
    each key has the right one: also where one part of a version arrives before another.
    """
    for _, some in groupby(enumerate(slices), lambda item: _kinds(item[1])):
        yield list(some)


def _kinds(part: Slice) -> frozenset[str | None]:
    return frozenset(scan.image_phase if scan.change_type is None else scan.change_type for scan in part.plan.scans)


def digest(slices: Sequence[Slice]) -> str:
    """What tells one cut of a version from another: the ordinals and the files at both ends of each slice."""
    summed = hashlib.sha256()
    for part in slices:
        plan = part.plan
        ends = [(scan.path, scan.change_type, scan.image_phase, scan.piece) for scan in (plan.scans[0], plan.scans[-1])]
        told = (plan.version, plan.timestamp_ms, part.part, len(plan.scans), part.ordinal, part.following, ends)
        summed.update(repr(told).encode())
    return summed.hexdigest()[:16]
