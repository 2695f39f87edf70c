"""One table's loop: plans in, deliveries out.

The position lives in the sink, written with the rows. The loop holds nothing that it could not get from there again: it starts from the
sink's position, and after any error whoever supervises it opens a new sink and starts it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from cdfd.changes.ahead import bursts
from cdfd.changes.execute import Execution, in_thread
from cdfd.changes.parts import parts
from cdfd.changes.position import Position
from cdfd.changes.stream import Version
from cdfd.errors import MissingFileError, SchemaChangedError, SinkError
from cdfd.report import Report
from cdfd.sinks.base import Sink
from cdfd.table import Table
from cdfd.tail.start import Start, awaited_start
from cdfd.tail.tailer import Tailer

logger = logging.getLogger("cdfd.feed")

T = TypeVar("T")

PART_BYTES = 256 << 20
"""Bytes of files from which a version is delivered in parts, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Policies:
    """What to do where there is a choice.

    Attributes:
        start: where to begin if the sink has no position; `snapshot` is the live rows, then what follows.
        changes: where change rows may come from.
        on_missing_file: a data file is gone: end, leave its rows out, or deliver the live rows of the newest version instead.
        on_schema_change: a column is renamed, dropped or retyped: go on, or end before that version.
    """

    start: Start = "snapshot"
    changes: Literal["auto", "cdf", "files"] = "auto"
    on_missing_file: Literal["fail", "skip", "resnapshot"] = "fail"
    on_schema_change: Literal["continue", "stop"] = "continue"


@dataclass(slots=True)
class Feed:
    """Delivers one table's changes to one sink, in order, until told to stop.

    Attributes:
        table: where the changes come from.
        sink: where they go.
        execution: how files are read.
        tailer: what waits for the next version.
        policies: see there.
        stop: set it to end after the delivery under way.
        part_bytes: bytes of files from which a version is delivered in parts. Another value after a restart is no harm: parts are file scans.
        terminal: whether to show on a terminal how far long work has come, instead of logging it.
    """

    table: Table
    sink: Sink
    execution: Execution
    tailer: Tailer
    policies: Policies
    stop: asyncio.Event
    part_bytes: int = PART_BYTES
    terminal: bool = False
    _report: Report = field(init=False)

    def __post_init__(self) -> None:
        clock = self.tailer.clock
        self._report = Report(logger, "delivered", self.table.uri, terminal=self.terminal, clock=clock)

    async def run(self) -> None:
        """Deliver until stopped.

        Raises:
            CdfdError: what went wrong; nothing of the delivery under way counts.
        """
        position = await self.sink.last_position()
        if position is None:
            position = await self._unless_stopped(self._first_position())
            if position is None:
                return
        else:
            self._log("resuming at version %d", position.version, position)
        self.tailer.table_id = position.table_id
        while not self.stop.is_set():
            try:
                await self._run_from(position)
            except MissingFileError as error:
                if self.policies.on_missing_file != "resnapshot":
                    raise
                position = await self._restart(error)
            else:
                return

    async def _first_position(self) -> Position:
        """Where to begin, made durable at once: a daemon that dies before its first row begins there again."""
        log, start = self.table.log, self.policies.start
        if start == "snapshot":
            await self.tailer.wait_for_table()
            header = await log.header()
            position = Position(header.metadata.id, header.version, phase="snapshot")
        else:
            version = await awaited_start(self.tailer, start)
            header = await log.header()
            position = Position(header.metadata.id, version)
        await self._move(position, position)
        self._log("starting at version %d", position.version, position)
        return position

    async def _restart(self, error: MissingFileError) -> Position:
        """Give up on the changes in between, which cannot be had any more, for the live rows of the newest version."""
        known = await self.sink.last_position()
        assert known is not None
        newest = await self.tailer.check_table()
        position = Position(known.table_id, newest, phase="snapshot")
        if known.version >= newest and (known.phase == "snapshot" or known.part > 0):
            # It is the newest version's live rows that cannot be read, or changes that are delivered by half and have nothing after them.
            raise error
        logger.warning("%s; starting again from a snapshot", error, extra={"table": self.table.uri, "version": newest})
        await self._move(known, position)
        return position

    async def _move(self, known: Position, position: Position) -> None:
        delivery = await self.sink.begin(known)
        await delivery.commit(position)

    async def _run_from(self, position: Position) -> None:
        stream = self.table.stream(self.policies.changes)
        if position.phase == "snapshot":
            self._log("snapshot of version %d started", position.version, position)
            following = Position(position.table_id, position.version + 1)
            await self._deliver(await stream.snapshot(position.version, self.tailer), position, following)
            if self.stop.is_set():
                return
            self._log("snapshot of version %d completed", position.version, position)
            position = following
        versions = stream.versions(self.tailer, position.version)
        async with contextlib.aclosing(bursts(versions)) as ready:
            while (burst := await self._unless_stopped(anext(ready))) is not None:
                for version in burst:
                    if self.stop.is_set():
                        return
                    self._note_schema(version)
                    following = Position(version.table_id, version.plan.version + 1)
                    await self._deliver(version, position, following)
                    position = following

    async def _deliver(self, version: Version, position: Position, following: Position) -> None:
        """Deliver a version from `position` on, in parts where it is large. A stop comes into force between two parts."""
        plan, first = version.plan, position.part
        if first > len(plan.scans):
            raise SinkError(
                f"{first} files of this version are delivered, but it has {len(plan.scans)} to read",
                table=self.table.uri,
                version=plan.version,
                hint="Put `changes` back to what it was, or deliver into an empty sink",
            )
        for start, end in parts(plan, first, self.part_bytes):
            if self.stop.is_set() and start > first:
                return
            delivery = await self.sink.begin(position)
            ordinal = position.ordinal
            some = replace(plan, scans=plan.scans[:end])
            try:
                async with contextlib.aclosing(in_thread(self.execution.batches([some], position))) as batches:
                    async for found in batches:
                        await delivery.write(found.rows)
                        ordinal += found.rows.num_rows
                        self._report.count(plan.version, found.rows.num_rows)
                position = following if end == len(plan.scans) else position.at_part(end, ordinal)
                await delivery.commit(position)
            except BaseException:
                await delivery.abort()
                raise

    def _note_schema(self, version: Version) -> None:
        change = version.schema_change
        if change is None:
            return
        described = "; ".join(change.describe())
        extra = {"table": self.table.uri, "version": version.plan.version}
        if change.additive or self.policies.on_schema_change == "continue":
            logger.info("schema change: %s", described, extra=extra)
            return
        raise SchemaChangedError(
            f"the schema changes: {described}",
            table=self.table.uri,
            version=version.plan.version,
            hint="Everything before it is delivered; set `on_schema_change: continue` to go on",
        )

    async def _unless_stopped(self, work: Awaitable[T]) -> T | None:
        """The result of `work`, or None where told to stop before it was there."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for future in (task, stopped):
                future.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    def _log(self, message: str, version: int, position: Position) -> None:
        logger.info(message, version, extra={"table": self.table.uri, "version": version, "part": position.part})
