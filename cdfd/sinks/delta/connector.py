"""The configured Delta sink: a table for each topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from cdfd.config.settings import Settings, Table
from cdfd.errors import CdfdError, ConfigError, SinkError, UnsupportedError
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.scan.updates.spill import spill_space
from cdfd.sinks.base import Backfill, Connector, StageTimer, Write, other_topic_error, unmeasured
from cdfd.sinks.delta import parts
from cdfd.sinks.delta.compactor import Compaction
from cdfd.sinks.delta.data_files import DataFiles, MakeFiles
from cdfd.sinks.delta.log_actions import CHANGELOG_MODE, mirror_mode
from cdfd.sinks.delta.mirror.sink import RESHAPED, MirrorSink
from cdfd.sinks.delta.mirror.state import MirrorOptions
from cdfd.sinks.delta.settings import DeltaSettings
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target, delivered_table, translate_errors
from cdfd.sinks.jobs import Delivered, Job
from cdfd.sinks.lease import Lease
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.stored_lease import StoredLease
from cdfd.storage.base import FolderListing
from cdfd.storage.location import open_private, open_storage


@dataclass(eq=False)
class DeltaConnector(Connector):
    """The `Connector` of targets. Readers of a target see whole versions of the source, so a version is one delivery, whatever its size."""

    place = "the target"
    before_reset = "remove or rename the target"
    whole_versions = True
    takes_parts = True
    takes_backfills = True

    config: Settings
    sink: DeltaSettings
    _prepared: dict[str, Target] = field(default_factory=dict, init=False)
    _tables: dict[str, str] = field(default_factory=dict, init=False)
    """The names of the tables that this process has opened, by topic."""

    def preflight(self) -> None:
        """Check the tables of a mirror; see the port."""
        for table in self.config.listed:
            self._check_table(table)

    @asynccontextmanager
    async def open(self, table: Table, stage: StageTimer = unmeasured) -> AsyncIterator[DeltaSink | MirrorSink]:
        """The sink of a table; see the port."""
        self._check_table(table)
        target = self._prepared.pop(table.topic, None) or self._target(table)
        sink: DeltaSink | MirrorSink
        if self.sink.mode == "mirror":
            spill = self.config.spill
            space = spill_space(spill.path, spill.max_bytes)
            options = MirrorOptions(table.rows.published_key, self.sink.change_feed, space, table.shape)
            sink = await MirrorSink.open(target, self._files, options)
        else:
            sink = await DeltaSink.open(target, self._files, table.shape)
        try:
            if await sink.last_position() is None:
                await self._check_topic(table)
            self._tables[table.topic] = table.name
            yield sink
        finally:
            await sink.close()

    async def prepare(self, table: Table) -> None:
        """Read the target, and follow it; see the port. In a store of objects, each of its versions would cost a request."""
        target = self._prepared.get(table.topic) or self._target(table)
        self._prepared[table.topic] = target
        if not target.storage.remote:
            await target.position()

    async def retain(self, tables: Sequence[Table]) -> None:
        """Forget the targets of other tables; see the port."""
        topics = {table.topic for table in tables}
        self._prepared = {topic: target for topic, target in self._prepared.items() if topic in topics}

    async def position(self, table: Table) -> Position | None:
        """The position in the target; see the port.

        Raises:
            SinkError: it has none, but the target of another topic has one of this table.
        """
        position = await self._target(table).position()
        if position is None:
            await self._check_topic(table)
        return position

    async def _check_topic(self, table: Table) -> None:
        options, others = self.config.options(self.sink.path), self.config.topics_beside(table)
        storage = open_storage(self.sink.path, options)
        with translate_errors("list the targets", self.sink.path):
            folders = await storage.folders() if isinstance(storage, FolderListing) else ()
        name = app_id(self.config.pipeline, table.name)
        for folder in folders:
            if folder in others or self._tables.get(folder, table.name) != table.name:
                continue
            place = self.sink.places(folder)["path"]
            try:
                delivered = await delivered_table(open_storage(place, options), SystemClock())
            except CdfdError as error:
                if error.retriable:
                    raise
                continue  # a target that cannot be read is an error of the table that it is of
            if delivered == name:
                raise other_topic_error(place)

    async def check(self, table: Table) -> str:
        """Check that the target is that of this table, or that there is none; see the port."""
        self._check_table(table)
        target = self._target(table)
        if not await target.exists():
            return "ok, the target will be created"
        if self.sink.mode == "mirror" and await target.is_reshaped(table.shape.digest):
            return f"ok, the mirror will be loaded again: {RESHAPED}"
        return "ok"

    async def backfill(self, table: Table, role: str) -> Backfill | None:
        """The backfill in the target; see the port."""
        if self.sink.mode == "mirror":
            raise UnsupportedError("a mirror has the rows of its source, so it takes no backfill")
        target = self._target(table, role)
        position, range = await target.position(), await target.range()
        as_commanded = {name: value for name, value in range.items() if name != "run"}
        return None if position is None else Backfill(position, as_commanded)

    @asynccontextmanager
    async def open_for_backfill(self, table: Table, role: str) -> AsyncIterator[DeltaSink]:
        """The sink of a backfill; see the port. Its rows are appended, beside those of the daemon."""
        sink = await DeltaSink.open(self._target(table, role), self._files, table.shape)
        sink.backfill = await self.backfill(table, role)
        try:
            yield sink
        finally:
            await sink.close()

    async def deliver_part(
        self, table: Table, number: int, job: Job, position: Position, write: Write, role: str | None = None
    ) -> Delivered:
        """Write the data files of a part; see the port. The version at the end of the job names them."""
        return await parts.deliver(self._target(table), job, self._files, write)

    @property
    def _files(self) -> MakeFiles:
        return partial(DataFiles, compression=self.sink.compression, file_bytes=self.sink.file_size)

    async def move(self, table: Table, to: Position | None) -> None:
        """Set a table's position; see the port. A mirror has all rows up to its position, and so cannot skip any."""
        if self.sink.mode == "mirror" and to is not None and await self.position(table) is not None:
            raise SinkError("a mirror cannot skip versions of its source", hint=f"First {self.before_reset}")
        await super().move(table, to)

    @asynccontextmanager
    async def lease(self, patience: float) -> AsyncIterator[Lease]:
        """Objects beside the targets; see the port."""
        place = self.sink.path
        yield StoredLease(open_private(place, self.config.options(place)), self.config.pipeline, patience)

    def dataset(self, table: Table) -> tuple[str, str]:
        """The target; see the port."""
        return "delta", self.sink.places(table.topic)["path"]

    def _check_table(self, table: Table) -> None:
        """Check that a mirror of a table would have all of its rows."""
        for name, text in self.sink.refusals(table):
            raise ConfigError(f"table {table.name!r:.200}: `{name}`: {text}")

    def _target(self, table: Table, role: str = "") -> Target:
        place = self.sink.places(table.topic)["path"]
        storage = open_storage(place, self.config.options(place))
        sink = self.sink
        layout = Layout(
            sink.partition_by,
            sink.on_missing_column,
            mirror_mode(change_feed=sink.change_feed) if sink.mode == "mirror" else CHANGELOG_MODE,
            checkpoint_interval=sink.checkpoint_interval,
            log_cleanup=sink.log_cleanup,
            compaction=Compaction(sink.compression, sink.file_size) if sink.compaction else None,
        )
        return Target(storage, app_id(self.config.pipeline, table.name), layout, SystemClock(), role=role)
