"""The configured files sink: a folder for each topic."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from cdfd.config.settings import Settings, Table
from cdfd.errors import SinkError
from cdfd.model.position import Position
from cdfd.runtime.registry import FILE_FORMATS
from cdfd.sinks.base import Connector, StageTimer, other_topic_error, unmeasured
from cdfd.sinks.files.folder import delivered_table, read_position, refuse_link
from cdfd.sinks.files.formats import RowsFormat
from cdfd.sinks.files.settings import FilesSettings
from cdfd.sinks.files.sink import FilesSink
from cdfd.sinks.lease import Lease
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.stored_lease import StoredLease
from cdfd.storage.durable import explain, nearest_existing
from cdfd.storage.local import LocalStorage


@dataclass(eq=False)
class FilesConnector(Connector):
    """The `Connector` of folders. Each version has its own file, because people read them."""

    place = "the folder"
    one_version = True
    before_reset = "move all files out of the sink's folder"

    config: Settings
    sink: FilesSettings

    @asynccontextmanager
    async def open(self, table: Table, stage: StageTimer = unmeasured) -> AsyncIterator[FilesSink]:
        """The sink of a table; see the port."""
        rows: RowsFormat = FILE_FORMATS.load(self.sink.format)()
        folder, mode, name = self._folder(table), int(self.sink.mode, 8), app_id(self.config.pipeline, table.name)
        await self.position(table)  # nothing is created if the position is in another folder
        sink = await FilesSink.open(folder, rows, fsync=self.sink.fsync, mode=mode, table=name)
        try:
            yield sink
        finally:
            await sink.close()

    def dataset(self, table: Table) -> tuple[str, str]:
        """The folder; see the port."""
        return "file", os.path.abspath(self._folder(table))

    async def check(self, table: Table) -> str:
        """Check that the folder can be written, or created; see the port."""
        folder = self._folder(table)
        refuse_link(folder)
        place = nearest_existing(folder)
        if not os.path.isdir(place):
            raise SinkError("the path is not a folder", path=place, hint="Choose another path")
        # The sink also opens files in the folder, which may belong to another user.
        inside = (os.path.join(folder, name) for name in (".lock", "_position.json"))
        for path in (place, *filter(os.path.exists, inside)):
            if not os.access(path, os.W_OK | (os.X_OK if path == place else os.R_OK), effective_ids=True):
                raise SinkError("the folder cannot be written to", path=path, hint="Check its owner and permissions")
        return "ok" if place == folder else "ok, the folder will be created"

    async def position(self, table: Table) -> Position | None:
        """The position in the folder; see the port.

        Raises:
            SinkError: it has none, but the folder of another topic has one of this table.
        """
        folder = self._folder(table)
        try:
            position = await asyncio.to_thread(read_position, folder)
            if position is None:
                await asyncio.to_thread(self._check_topic, table)
        except OSError as error:
            raise explain(error, "read the folder", folder, SinkError) from error
        return position

    def _check_topic(self, table: Table) -> None:
        name, others = app_id(self.config.pipeline, table.name), self.config.topics_beside(table)
        with suppress(FileNotFoundError), os.scandir(self.sink.path) as entries:
            for entry in entries:
                delivered = ""
                # A folder that cannot be read is an error of the table that it is of.
                if entry.name not in others and entry.is_dir(follow_symlinks=False):
                    with suppress(OSError, SinkError):
                        delivered = delivered_table(entry.path)
                if delivered == name:
                    raise other_topic_error(entry.path)

    async def move(self, table: Table, to: Position | None) -> None:
        """Only forward; see the port. An error names the folder."""
        try:
            await super().move(table, to)
        except SinkError as error:
            raise error.within(path=self._folder(table)) from None

    @asynccontextmanager
    async def lease(self, patience: float) -> AsyncIterator[Lease]:
        """Objects beside the folders; see the port. A power failure may take them, because it ends the processes too."""
        yield StoredLease(LocalStorage(self.sink.path, sync=False, mode=0o600), self.config.pipeline, patience)

    def _folder(self, table: Table) -> str:
        return os.path.join(self.sink.path, table.topic)
