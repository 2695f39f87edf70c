"""The folder of a files sink: whose it is, what was delivered into it, and where it stands. Blocking.

    .lock                  held by the one process that delivers into it
    _position.json         the table's id and the position, moved on after every delivery
    _position.next.json    the position after the delivery that is being committed
    <first position>…      a delivery's rows (`delivery_name`)
    .cdfd-<random>.tmp     rows on their way

Renaming the rows' file is the commit. `_position.next.json` is written before it and becomes `_position.json` after it. Where there are no
rows, `_position.json` is the commit itself. So after a crash at most one delivery is beyond it. The name of its file tells the position,
and `_position.next.json` has what the name has no place for: the hash of the log entry.

Consumers may be able to write into the folder. So it is opened once, its files are reached through its descriptor, and no symbolic link is
followed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from typing import Any

from cdfd.changes.position import Position
from cdfd.errors import FencedError, SinkError
from cdfd.sinks.cursor import order
from cdfd.sinks.files.names import DeliveryName, delivery_name, parse_delivery_name
from cdfd.storage.durable import is_temporary, make_folder, open_new, put, replace, sync_folder, temporary_name

_LOCK = ".lock"
_POSITION = "_position.json"
_NEXT = "_position.next.json"
_FORMAT = 1
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Its fields are a dozen words: what is larger is no position.
_POSITION_BYTES = 64 << 10


class DeliveryFolder:
    """A folder that this process owns until `close`. `OSError`s are the caller's to translate.

    Args:
        path: the folder; created where it is missing.
        sync: whether what is committed is synced to the device first.
        mode: of files, before the process's umask; of folders that are created, who may read files may search.

    Raises:
        FencedError: another process delivers into the folder.
        SinkError: what is in it does not fit together, or it is a symbolic link.
    """

    def __init__(self, path: str, *, sync: bool, mode: int = 0o600) -> None:
        self.path = os.path.abspath(path)
        self.sync = sync
        self._mode = mode
        make_folder(self.path, mode=mode | 0o100 | (mode & 0o444) >> 2, sync=sync)
        self._folder: int | None = _open_folder(self.path)
        self._lock: int | None = None
        try:
            self._lock = self._acquire()
            self._start, self._delivered = _read_position(self._descriptor, self.path, _POSITION)
            self._recover()
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> Position | None:
        """What is to be delivered next, None where nothing was ever delivered."""
        return self._start if self._delivered else None

    def temporary(self) -> tuple[str, int]:
        """A new file for rows on their way: its name, and a descriptor that the caller closes."""
        name = temporary_name()
        return name, open_new(self._descriptor, name, self._mode)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def commit(self, rows: str | None, first: Position, following: Position, suffix: str) -> None:
        """Make a delivery count: `rows` is the name of its complete, synced file, None where there are no rows."""
        if rows is not None:
            if self._start is None:
                # Whose rows these are must be known before there are any.
                self._write_position(first, delivered=False)
            # The sync after the next rename makes this name durable, too. Where a power failure keeps that one alone, the hash is not known.
            put(self._descriptor, _NEXT, _serialized(following, True), mode=self._mode, sync=self.sync)
            self._publish(rows, delivery_name(first, following, suffix))
            self._make_current(following)
        else:
            self._write_position(following, delivered=True)

    def close(self) -> None:
        """Let another process deliver into the folder."""
        for descriptor in (self._lock, self._folder):
            if descriptor is not None:
                os.close(descriptor)
        self._lock = self._folder = None

    @property
    def _descriptor(self) -> int:
        if self._folder is None:
            raise SinkError("the folder is closed", path=self.path)
        return self._folder

    def _acquire(self) -> int:
        # Nobody else may open it: whoever can, can lock it.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        lock = os.open(_LOCK, flags, 0o600, dir_fd=self._descriptor)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FencedError(
                "another daemon delivers into this folder",
                path=self.path,
                hint="Stop it, or give each daemon and each table a folder of its own",
            ) from None
        except OSError:
            os.close(lock)
            raise
        return lock

    def _publish(self, rows: str, name: str) -> None:
        folder = self._descriptor
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)  # the lock makes this check good enough
            raise SinkError(
                "there is a file already where a delivery is to go",
                path=os.path.join(self.path, name),
                hint="Move it out of the folder",
            )
        os.rename(rows, name, src_dir_fd=folder, dst_dir_fd=folder)
        if self.sync:
            sync_folder(folder)

    def _write_position(self, position: Position, *, delivered: bool) -> None:
        replace(self._descriptor, _POSITION, _serialized(position, delivered), mode=self._mode, sync=self.sync)
        self._start, self._delivered = position, delivered

    def _make_current(self, following: Position) -> None:
        """`_position.next.json`, which says `following`, becomes `_position.json`."""
        os.replace(_NEXT, _POSITION, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        if self.sync:
            sync_folder(self._descriptor)
        self._start, self._delivered = following, True

    def _recover(self) -> None:
        """Move the position over deliveries that were committed after it was written; remove what was not."""
        names = os.listdir(self._descriptor)
        for name in names:
            if is_temporary(name):
                os.unlink(name, dir_fd=self._descriptor)
        start = _moved_on(self.path, names, self._start, _read_position(self._descriptor, self.path, _NEXT)[0])
        if start is not None and start != self._start:
            self._write_position(start, delivered=True)
        self.remove(_NEXT)


def peek(path: str) -> Position | None:
    """What is to be delivered next into a folder, None where nothing ever was. Changes nothing, so another process may be delivering.

    Raises:
        OSError: the folder cannot be read; one that does not exist is as good as empty.
        SinkError: what is in it does not fit together.
    """
    try:
        folder = _open_folder(path)
    except FileNotFoundError:
        return None
    try:
        names = os.listdir(folder)
        # The position after the names: a delivery that ends in between is in neither or in the position, and never only half told.
        # What is gone from the one place meanwhile is in the other one.
        prepared, _ = _read_position(folder, path, _NEXT)
        start, was_delivered = _read_position(folder, path, _POSITION)
    finally:
        os.close(folder)
    following = _moved_on(path, names, start, prepared)
    return following if was_delivered or following != start else None


def _open_folder(path: str) -> int:
    try:
        return os.open(path, _FOLDER)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            refuse_link(path)
        raise


def refuse_link(path: str) -> None:
    """`SinkError` where the folder is a symbolic link."""
    if os.path.islink(path):
        hint = "Let `sink.path` name the folder that the link leads to"
        raise SinkError("the folder is a symbolic link", path=path, hint=hint)


def _read_position(folder: int, path: str, name: str) -> tuple[Position | None, bool]:
    path = os.path.join(path, name)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None, False
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_POSITION_BYTES)
    try:
        return _parse_position(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise SinkError(
            f"the position of the sink cannot be read: {error}",
            path=path,
            hint="Restore the file, or deliver into an empty folder",
        ) from error


def _moved_on(path: str, names: list[str], start: Position | None, prepared: Position | None) -> Position | None:
    """The position `start` moved over the deliveries that were committed after it was written.

    Args:
        path: the folder, for messages.
        names: of the files in it.
        start: the position that was written.
        prepared: the position after the last delivery that was tried.
    """
    table_id = "" if start is None else start.table_id
    found = [delivery for name in names if (delivery := parse_delivery_name(name, table_id)) is not None]
    if start is None:
        if found:
            raise SinkError(
                f"there are deliveries in the folder but no {_POSITION}",
                path=path,
                hint="Restore the file, or deliver into an empty folder",
            )
        return None
    for delivery in _beyond(found, start):
        if not delivery.begins_at(start):
            raise SinkError(
                f"the next delivery would begin at {start}, but there is one of a later version already",
                path=os.path.join(path, delivery.name),
                hint=f"Restore what is missing or the right {_POSITION}, or deliver into an empty folder",
            )
        start = prepared if prepared == delivery.following else delivery.following
    return start


def _beyond(deliveries: list[DeliveryName], start: Position) -> list[DeliveryName]:
    """Deliveries at or after a position, in order."""
    beyond = [delivery for delivery in deliveries if order(delivery.first) >= order(start)]
    return sorted(beyond, key=lambda delivery: order(delivery.first))


def _serialized(position: Position, delivered: bool) -> bytes:
    return json.dumps({"format": _FORMAT, **position.fields(), "delivered": delivered}).encode() + b"\n"


def _parse_position(told: Any) -> tuple[Position, bool]:
    if not isinstance(told, dict):
        told = {}
    if told.get("format") != _FORMAT:
        raise ValueError(f"its format is {told.get('format')!r}, not {_FORMAT}")
    expected = {"table_id": str, "version": int, "part": int, "phase": str, "ordinal": int, "delivered": bool}
    for field, kind in expected.items():
        if type(told.get(field)) is not kind:
            raise ValueError(f"its {field} is {told.get(field)!r}")
    if told["phase"] not in ("snapshot", "stream") or min(told["version"], told["part"], told["ordinal"]) < 0:
        raise ValueError("it is no position")
    digest = told.get("digest")
    if digest is not None and not isinstance(digest, str):
        raise ValueError(f"its digest is {digest!r}")
    position = Position(told["table_id"], told["version"], told["part"], told["phase"], told["ordinal"], digest)
    return position, told["delivered"]
