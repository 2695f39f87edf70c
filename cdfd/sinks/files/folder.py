"""The folder of a files sink: its owner, its deliveries and its position. Blocking.

    .lock                  locked by the process that delivers into the folder
    _position.json         the table's id, the position and the control, updated after every delivery
    _position.next.json    the same after the delivery that is being committed
    <first position>…      a delivery's rows (`delivery_name`)
    <version>.z-resnapshot…  rows of an incremental snapshot (`chunk_name`)
    .cdfd-<random>.tmp     rows of the current delivery

Renaming the file with the rows is the commit. `_position.next.json` is written before it and becomes `_position.json` after it. Writing
`_position.json` is itself the commit of a delivery without rows. So after a crash at most one delivery is missing in `_position.json`. The
name of its file has the position, and `_position.next.json` has the hash of the log entry, which the name lacks. The name of a file of a
incremental snapshot has no position: `_position.next.json` names the file, and counts if the file is there.

Consumers may have the right to write into the folder. So the folder is opened once, its files are accessed by its descriptor, and symbolic
links are not followed.
"""

import dataclasses
import errno
import fcntl
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cdfd.errors import FencedError, SinkError
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Position
from cdfd.sinks.cursor import order
from cdfd.sinks.files.names import CHUNK, parse_delivery_name
from cdfd.storage.durable import is_temporary, make_folder, open_new, put, replace, sync_folder, temporary_name

_LOCK = ".lock"
_POSITION = "_position.json"
_NEXT = "_position.next.json"
_FORMAT = 1
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A position is much smaller. A larger file is invalid.
_POSITION_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class _Kept:
    """The contents of `_position.json` or `_position.next.json`.

    Attributes:
        position: the next position to deliver; None without a file.
        delivered: whether anything was ever delivered.
        control: of the table.
        file: the file with the rows of the delivery; empty if it has none.
        table: the table of a pipeline that it is of; see `app_id`. Empty where an earlier version of cdfd wrote it.
    """

    position: Position | None = None
    delivered: bool = False
    control: Control = EMPTY
    file: str = ""
    table: str = ""


class DeliveryFolder:
    """A folder that this process owns until `close`. The caller translates `OSError`s.

    Args:
        path: the folder; created if missing.
        sync: whether a commit syncs files to the device.
        mode: of files, before the process's umask. Users who may read files may also search created folders.
        table: the table of a pipeline that it is of, to be stored with the position; empty: unknown.

    Raises:
        FencedError: another process delivers into the folder.
        SinkError: its files are inconsistent, or it is a symbolic link.
    """

    def __init__(self, path: str, *, sync: bool, mode: int = 0o600, table: str = "") -> None:
        self.path = os.path.abspath(path)
        self.sync = sync
        self._mode = mode
        self._table = table
        make_folder(self.path, mode=mode | 0o100 | (mode & 0o444) >> 2, sync=sync)
        self._folder: int | None = _open_folder(self.path)
        self._lock: int | None = None
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._lock = os.open(_LOCK, flags, 0o600, dir_fd=self._descriptor)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FencedError(
                    "another daemon delivers into this folder",
                    path=self.path,
                    hint="Stop it, or give each daemon and each table a folder of its own",
                ) from None
            self._kept = _read_position(self._descriptor, self.path, _POSITION)
            names = os.listdir(self._descriptor)
            for name in names:
                if is_temporary(name):
                    os.unlink(name, dir_fd=self._descriptor)
            kept = _roll_forward(self.path, names, self._kept, _read_position(self._descriptor, self.path, _NEXT))
            if kept.position is not None and table:
                kept = dataclasses.replace(kept, table=table)
            if kept != self._kept:
                self._write(kept)
            self.remove(_NEXT)
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> Position | None:
        """The next position to deliver; None if nothing was ever delivered."""
        return self._kept.position if self._kept.delivered else None

    @property
    def control(self) -> Control:
        """The control that is stored with the position."""
        return self._kept.control

    def temporary(self) -> tuple[str, int]:
        """A new temporary file: its name, and a descriptor that the caller closes."""
        name = temporary_name()
        return name, open_new(self._descriptor, name, self._mode)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def commit(self, rows: str | None, name: str, first: Position, following: Position, control: Control) -> None:
        """Commit a delivery.

        Args:
            rows: the name of the complete, synced file with its rows; None without rows.
            name: of that file from then on.
            first: the position at which the delivery began.
            following: the position after it.
            control: of the table, after it.
        """
        kept = _Kept(following, True, control, "" if rows is None else name, self._table)
        if rows is None:
            self._write(kept)
            return
        if self._kept.position is None:
            # The table's id must be stored before its first rows.
            self._write(_Kept(first, False, control, table=self._table))
        # The sync after the next rename also makes this name durable. If a power failure keeps only the rows, the hash is unknown.
        put(self._descriptor, _NEXT, _serialize(kept), mode=self._mode, sync=self.sync)
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)  # no race: this process has the lock
            raise SinkError(
                "a file with the name of the delivery already exists",
                path=os.path.join(self.path, name),
                hint="Move it out of the folder",
            )
        os.rename(rows, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        if self.sync:
            sync_folder(self._descriptor)
        # Rename `_position.next.json`, which has `kept`, to `_position.json`.
        os.replace(_NEXT, _POSITION, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        if self.sync:
            sync_folder(self._descriptor)
        self._kept = kept

    def close(self) -> None:
        """Release the folder to other processes."""
        for descriptor in (self._lock, self._folder):
            if descriptor is not None:
                os.close(descriptor)
        self._lock = self._folder = None

    @property
    def _descriptor(self) -> int:
        if self._folder is None:
            raise SinkError("the folder is closed", path=self.path)
        return self._folder

    def _write(self, kept: _Kept) -> None:
        replace(self._descriptor, _POSITION, _serialize(kept), mode=self._mode, sync=self.sync)
        self._kept = kept


def read_position(path: str) -> Position | None:
    """The next position to deliver into a folder; None if nothing was ever delivered. Changes nothing, so that a daemon may be delivering.

    Raises:
        OSError: the folder cannot be read. A missing folder counts as empty.
        SinkError: its files are inconsistent.
    """
    try:
        folder = _open_folder(path)
    except FileNotFoundError:
        return None
    try:
        names = os.listdir(folder)
        # In the reverse order of a commit: a delivery that commits in between is in `_position.json`, even if not among the names.
        prepared = _read_position(folder, path, _NEXT)
        kept = _read_position(folder, path, _POSITION)
    finally:
        os.close(folder)
    current = _roll_forward(path, names, kept, prepared)
    return current.position if current.delivered else None


def delivered_table(path: str) -> str:
    """The table whose position a folder has; empty if it has none, or if that is unknown. Raises what `read_position` does."""
    folder = _open_folder(path)
    try:
        kept = _read_position(folder, path, _POSITION)
    finally:
        os.close(folder)
    return kept.table if kept.delivered else ""


def _open_folder(path: str) -> int:
    try:
        return os.open(path, _FOLDER)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            refuse_link(path)
        raise


def refuse_link(path: str) -> None:
    """`SinkError` if the folder is a symbolic link."""
    if os.path.islink(path):
        hint = "Set `sink.path` to the target of the link"
        raise SinkError("the folder is a symbolic link", path=path, hint=hint)


def _read_position(folder: int, path: str, name: str) -> _Kept:
    path = os.path.join(path, name)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return _Kept()
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_POSITION_BYTES)
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            document = {}
        if document.get("format") != _FORMAT:
            raise ValueError(f"its format is {document.get('format')!r}, not {_FORMAT}")
        delivered = document.get("delivered")
        if delivered is not True and delivered is not False:
            raise ValueError(f"delivered is {delivered!r}")
        control = Control.parse(document["control"]) if "control" in document else EMPTY
        rows, table = (str(document.get(name, "")) for name in ("file", "table"))
        return _Kept(Position.parse(document), delivered, control, rows, table)
    except (ValueError, RecursionError) as error:
        raise SinkError(
            f"the position of the sink cannot be read: {error}",
            path=path,
            hint="Restore the file, or deliver into an empty folder",
        ) from error


def _roll_forward(path: str, names: list[str], kept: _Kept, prepared: _Kept) -> _Kept:
    """The kept position, advanced over the deliveries committed after it was written.

    Args:
        path: the folder, for messages.
        names: of its files.
        kept: the contents of `_position.json`.
        prepared: the contents of `_position.next.json`: the position after the last attempted delivery.
    """
    start = kept.position
    table_id = "" if start is None else start.table_id
    deliveries = [delivery for name in names if (delivery := parse_delivery_name(name, table_id)) is not None]
    if start is None:
        if deliveries:
            raise SinkError(
                f"the folder has deliveries but no {_POSITION}",
                path=path,
                hint="Restore the file, or deliver into an empty folder",
            )
        return kept
    if CHUNK.fullmatch(prepared.file) and prepared.file in names:
        kept = prepared
    beyond = [delivery for delivery in deliveries if order(delivery.first) >= order(start)]
    for delivery in sorted(beyond, key=lambda delivery: order(delivery.first)):
        if dataclasses.replace(delivery.first, ordinal=start.ordinal) != start:
            raise SinkError(
                f"the next delivery would begin at {start}, but the folder has a later one",
                path=os.path.join(path, delivery.name),
                hint=f"Restore the missing files or the matching {_POSITION}, or deliver into an empty folder",
            )
        target = prepared.position
        start = target if target == delivery.following else delivery.following
        kept = _Kept(start, True, kept.control, table=kept.table)
    return kept


def _serialize(kept: _Kept) -> bytes:
    assert kept.position is not None
    document: dict[str, Any] = {"format": _FORMAT, **kept.position.fields(), "delivered": kept.delivered}
    if kept.control != EMPTY:
        document["control"] = kept.control.document()
    if kept.file:
        document["file"] = kept.file
    if kept.table:
        document["table"] = kept.table
    return json.dumps(document).encode() + b"\n"
