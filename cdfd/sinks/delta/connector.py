"""The configured Delta sink: a table for each topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from cdfd.changes.position import Position
from cdfd.config.settings import Settings, Table
from cdfd.progress.ledger import app_id
from cdfd.sinks.base import Connector, StageTimer, unmeasured
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.settings import DeltaSettings
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.sources import Sources
from cdfd.sinks.delta.target import Layout, Target
from cdfd.storage.location import open_storage
from cdfd.tail.clock import SystemClock


class DeltaConnector(Connector):
    """The `Connector` of targets. Readers of a target see whole versions of the source, so a version is one delivery, whatever its size."""

    place = "the target"
    before_reset = "remove or rename the target"
    whole_versions = True

    def __init__(self, sink: DeltaSettings, config: Settings) -> None:
        self._sink = sink
        self._config = config

    @asynccontextmanager
    async def opened(self, table: Table, stage: StageTimer = unmeasured) -> AsyncIterator[DeltaSink]:
        """The sink of a table; see the port."""
        files = partial(DataFiles, compression=self._sink.compression, file_bytes=self._sink.file_size)
        sources = Sources(table.shape) if self._sink.on_missing_column == "follow" else None
        sink = await DeltaSink.open(self._target(table), files, sources)
        try:
            yield sink
        finally:
            await sink.close()

    async def position(self, table: Table) -> Position | None:
        """The position in the target; see the port."""
        return await self._target(table).position()

    async def check(self, table: Table) -> str:
        """Check that the target is a changelog of this table, or that there is none; see the port."""
        state = await self._target(table).exists()
        return "ok" if state else "ok, the target will be created"

    def dataset(self, table: Table) -> tuple[str, str]:
        """The target; see the port."""
        return "delta", self._place(table)

    def _place(self, table: Table) -> str:
        return self._sink.places(table.topic)["path"]

    def _target(self, table: Table) -> Target:
        place = self._place(table)
        storage = open_storage(place, self._config.storage.options(place))
        layout = Layout(self._sink.partition_by, self._sink.on_missing_column, self._sink.checkpoint_interval)
        return Target(storage, app_id(self._config.pipeline, table.name), layout, SystemClock())
