"""Delivers change rows to files of a local folder exactly once: one file for each delivery with rows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedWriter, FileIO
from threading import Lock
from typing import BinaryIO, Self

import pyarrow as pa

from cdfd.errors import SinkError
from cdfd.model.control import Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.tasks import in_thread
from cdfd.sinks.base import Delivery, Sink
from cdfd.sinks.cursor import Cursor, DeliveryState, check_move, require_open
from cdfd.sinks.files.folder import DeliveryFolder
from cdfd.sinks.files.formats import RowsFormat, RowsWriter
from cdfd.sinks.files.names import chunk_name, delivery_name
from cdfd.storage.durable import explain

_BUFFER = 256 * 1024


@dataclass(eq=False)
class FilesSink(Sink):
    """The `Sink` port over a folder; open it with `FilesSink.open`.

    A file appears in the folder exactly when its delivery is committed. Its name begins with the version (`delivery_name`), and names sort in
    the order of delivery. A consumer may remove files, except the last one.

    Worker threads do the work, one call at a time, so that a cancelled call has ended before the next one starts.
    """

    folder: DeliveryFolder
    rows: RowsFormat
    cursor: Cursor
    _lock: Lock = field(default_factory=Lock, init=False)
    _delivery: FileDelivery | None = field(default=None, init=False)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        rows: RowsFormat,
        *,
        fsync: bool = True,
        mode: int = 0o600,
        table: str = "",
    ) -> Self:
        """Take over a folder, create it if missing, and read its position.

        Args:
            path: the folder, for one table only.
            rows: the format of the files.
            fsync: whether a commit syncs the files to the device. Without it, a power failure can lose deliveries.
            mode: of files, before the process's umask.
            table: see `DeliveryFolder`.

        Raises:
            FencedError: another process delivers into the folder.
            SinkError: the folder cannot be used, or its files are inconsistent.
        """
        with _translate_errors("open the folder", os.fspath(path)):
            folder = await asyncio.to_thread(DeliveryFolder, os.fspath(path), sync=fsync, mode=mode, table=table)
        return cls(folder, rows, Cursor(folder.position))

    async def last_position(self) -> Position | None:
        """The next position to deliver; see the port."""
        return self.cursor.position

    stores_control = True

    @property
    def control(self) -> Control:
        """The stored control; see the port."""
        return self.folder.control

    async def set_control(self, control: Control, to: Position | None = None) -> None:
        """Write `_position.json`; see the port. A position can only move forward, because files are not taken back."""
        current = self.cursor.position
        assert current is not None
        if to is not None:
            hint = "Stop the daemon, move all files out of the folder, then run `cdfd progress set`"
            check_move("the folder", current, to, hint)
        await super().set_control(control, to)

    async def begin_chunk(self, position: Position, version: Version) -> FileDelivery:
        """Start a file with rows of an incremental snapshot; see the port."""
        snapshot, delivery = self.control.snapshot, await self.begin(position)
        ordinal = 0 if snapshot is None else snapshot.ordinal
        delivery.chunk = chunk_name(version.plan.version, ordinal, self.rows.suffix)
        return delivery

    async def begin(self, position: Position) -> FileDelivery:
        """Start a delivery; see the port. Creates no file until there are rows."""
        self.cursor.begin(position)
        self._delivery = FileDelivery(self.folder, self.rows, self.cursor, self._lock, position)
        return self._delivery

    async def close(self) -> None:
        """Abort the current delivery, if any, and release the folder to other processes."""
        if self._delivery is not None:
            await self._delivery.abort()
        self.cursor.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock, _translate_errors("close", self.folder.path):
            self.folder.close()


@dataclass(frozen=True, slots=True)
class _Spool:
    """A temporary file that gets the rows of a delivery.

    Attributes:
        name: in the folder.
        file: open.
        writer: into the file.
    """

    name: str
    file: BinaryIO
    writer: RowsWriter


@dataclass(eq=False)
class FileDelivery(Delivery):
    """A delivery into a `FilesSink`: a temporary file, once there are rows.

    Attributes:
        chunk: the name of its file, if that has rows of an incremental snapshot; otherwise empty.
    """

    folder: DeliveryFolder
    rows: RowsFormat
    cursor: Cursor
    lock: Lock
    position: Position
    chunk: str = field(default="", init=False)
    _spool: _Spool | None = field(default=None, init=False)
    _state: DeliveryState = field(default="open", init=False)

    async def start_version(self, version: Version) -> None:
        """Does nothing, because each row has its version."""

    @in_thread
    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch to the temporary file. Returns when it is written, before a sync."""
        with self.lock, _translate_errors("write", self.folder.path):
            require_open(self._state, self.position)
            # Until the batch is complete, because a partial batch must never be committed.
            self._state = "failed"
            if batch.num_rows:
                if self._spool is None:
                    name, descriptor = self.folder.temporary()
                    file = BufferedWriter(FileIO(descriptor, "w"), _BUFFER)
                    self._spool = _Spool(name, file, self.rows.writer(file))
                self._spool.writer.write(batch)
            self._state = "open"

    @in_thread
    def commit(self, following: Position) -> None:
        """Sync and rename the file; without rows, only write the position. See the port."""
        self._end(following)

    @in_thread
    def commit_control(self, control: Control, to: Position | None = None) -> None:
        """Sync and rename the file of an incremental snapshot, and store a control; without rows also another position. See the port."""
        following = to or self.folder.position
        assert following is not None
        self._end(following, control)

    @in_thread
    def abort(self) -> None:
        """Remove the temporary file. Does nothing after a commit."""
        with self.lock, _translate_errors("abort", self.folder.path):
            if self._state == "ended":
                return
            self._state = "ended"
            self.cursor.abandon()
            if self._spool is not None:
                self._spool.writer.discard()
                # The rows are discarded, so a flush may fail, as on a full disk. The file is closed in any case.
                with suppress(OSError):
                    self._spool.file.close()
                self.folder.remove(self._spool.name)

    def _end(self, following: Position, control: Control | None = None) -> None:
        with self.lock, _translate_errors("commit", self.folder.path):
            require_open(self._state, self.position)
            if control is None:
                self.cursor.check(following, rows=self._spool is not None)
                name, control = delivery_name(self.position, following, self.rows.suffix), self.folder.control
            else:
                self.cursor.check_chunk()
                assert self.chunk or self._spool is None
                name = self.chunk
            self._state = "failed"
            rows = None
            if self._spool is not None:
                rows = self._spool.name
                self._spool.writer.finish()
                self._spool.file.flush()
                if self.folder.sync:
                    os.fsync(self._spool.file.fileno())
                self._spool.file.close()
            self.cursor.mark_uncertain()
            self.folder.commit(rows, name, self.position, following, control)
            self.cursor.advance(following)
            self._spool = None
            self._state = "ended"


@contextmanager
def _translate_errors(doing: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, doing, path, SinkError) from error
    except pa.ArrowException as error:
        raise SinkError(f"cannot {doing} the rows: {error}", path=path) from error
