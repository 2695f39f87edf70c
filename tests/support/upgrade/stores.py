"""Folders that a process leaves behind: ledgers, a source table with progress, and folders of files after each kind of crash.

The log entries of a golden folder are compared with those that are written today without random ids, and without the release's number.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

from cdfd.model.control import Control, Pause
from cdfd.model.position import Position
from cdfd.sinks.files.folder import DeliveryFolder
from cdfd.sinks.files.names import chunk_name, delivery_name
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.local import LocalStorage
from tests.support import lake
from tests.support.faulty_storage import Died
from tests.support.manual_time import ManualClock
from tests.support.upgrade.documents import CONTROLS, DIGEST, TABLE_ID

ORDERS, ITEMS, GONE = (app_id("golden", table) for table in ("orders", "items", "gone"))
SUFFIX = ".jsonl"


def digest(version: int) -> str:
    """The digest of a version of the golden stores."""
    return f"{version + 0xF0:02x}" * 8 + "01" * 8


def table_ledger(folder: Path, clock: ManualClock | None = None) -> TableLedger:
    """A ledger in a folder, which is opened by a new process."""
    return TableLedger(LocalStorage(folder, sync=False), clock or lake.manual_clock(), jitter=lambda: 0.0)


def write_ledger(folder: Path) -> None:
    """Twelve versions, and a checkpoint of the tenth."""
    asyncio.run(_write_ledger(table_ledger(folder, clock := lake.manual_clock()), clock))


async def _write_ledger(ledger: TableLedger, clock: ManualClock) -> None:
    await ledger.record(ITEMS, 4, "I")
    await ledger.record(GONE, 5, "G", digest(5))
    await ledger.forget(GONE)
    for version in range(10):
        clock.advance(1)
        await ledger.record(ORDERS, version, TABLE_ID, digest(version))
    await ledger.renew(ITEMS)


def source_ledger(folder: Path) -> SourceLedger:
    """The ledger in a source table."""
    return SourceLedger(LocalStorage(folder, sync=False), lake.manual_clock(), jitter=lambda: 0.0)


def write_source(folder: Path) -> None:
    """A table of three versions, and progress in it."""
    asyncio.run(_write_source(folder))
    for file in folder.glob("*.parquet"):
        file.unlink()


async def _write_source(folder: Path) -> None:
    await lake.table(LocalStorage(folder, sync=False), 3, lake.manual_clock())
    await source_ledger(folder).record(ORDERS, 2, "T", digest(2))
    await source_ledger(folder).record(ITEMS, 1, "T")


BEGUN = Position(TABLE_ID, 12, digest=DIGEST)
WITHIN = Position(TABLE_ID, 12, 3, "stream", 4711, DIGEST)
NEXT = Position(TABLE_ID, 13, digest=digest(12))
CHUNK = chunk_name(12, 1 << 40, SUFFIX)


def _started(folder: DeliveryFolder) -> None:
    """The first delivery has begun, and its rows are not there."""
    with _dies_at("rename"):
        _commit(folder, BEGUN, NEXT)


def _within(folder: DeliveryFolder) -> None:
    """A part of version 12 is delivered."""
    _commit(folder, BEGUN, WITHIN)


def _paused(folder: DeliveryFolder) -> None:
    """Version 12 is delivered, and the table is paused."""
    _commit(folder, BEGUN, NEXT)
    folder.commit(None, "", NEXT, NEXT, CONTROLS[0])


def _renamed(folder: DeliveryFolder) -> None:
    """The rest of version 12 is there, and the position is still that of the part before it."""
    _within(folder)
    with _dies_at("rename", after=True):
        _commit(folder, WITHIN, NEXT)


def _chunk(folder: DeliveryFolder) -> None:
    """Rows of an incremental snapshot are there, and the control is still that of before."""
    _commit(folder, BEGUN, NEXT)
    with _dies_at("rename", after=True):
        folder.commit(_rows(folder), CHUNK, NEXT, NEXT, CONTROLS[2])


def _commit(folder: DeliveryFolder, first: Position, following: Position) -> None:
    folder.commit(_rows(folder), delivery_name(first, following, SUFFIX), first, following, folder.control)


def _rows(folder: DeliveryFolder) -> str:
    name, descriptor = folder.temporary()
    with os.fdopen(descriptor, "wb") as file:
        file.write(b'{"id":1}\n')
    return name


@contextmanager
def _dies_at(function: str, *, after: bool = False) -> Iterator[None]:
    """The process dies when it calls a function of the system, or after the call."""
    real = getattr(os, function)

    def dies(*args: Any, **options: Any) -> None:
        if after:
            real(*args, **options)
        raise Died

    with patch.object(os, function, dies), suppress(Died):
        yield


FOLDERS: dict[str, tuple[Callable[[DeliveryFolder], None], Position | None, Control]] = {
    "started": (_started, None, Control()),
    "within": (_within, WITHIN, Control()),
    "paused": (_paused, NEXT, Control(Pause("ops-7", 1_767_225_600_000), recent=("ops-7",))),
    "renamed": (_renamed, NEXT, Control()),
    "chunk": (_chunk, NEXT, CONTROLS[2]),
}
"""Folders of files: what has happened, and the position and the control that a new process finds."""


def write_folder(name: str, path: Path) -> None:
    """Bring a folder of files into a state, and let its process die."""
    folder = DeliveryFolder(str(path), sync=False)
    try:
        FOLDERS[name][0](folder)
    finally:
        folder.close()


def normal_form(folder: Path) -> dict[str, Any]:
    """The files of a folder, by name. Log entries and Parquet files as their content, without random ids and the release's number."""
    content: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = _plain(path.relative_to(folder).as_posix())
        if path.is_dir():
            continue
        if "_delta_log" not in name:
            content[name] = path.read_bytes()
        elif path.suffix == ".parquet":
            content[name] = _plain(repr(pq.ParquetFile(path).read().to_pylist()))
        elif path.name == "_last_checkpoint":
            document = json.loads(path.read_bytes())
            content[name] = {key: value for key, value in document.items() if key not in ("checksum", "sizeInBytes")}
        else:
            entries = [json.loads(_plain(line)) for line in path.read_text().splitlines()]
            # A data file's size is that of its Parquet writer.
            content[name] = [entry for entry in entries if "add" not in entry]
    return content


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _plain(text: str) -> str:
    text = re.sub(r"\.cdfd-[0-9a-f]{16}\.tmp", ".cdfd-0.tmp", text)
    text = re.sub(r"cdfd/\d+\.\d+\.\d+[0-9a-z.+]*", "cdfd/0.0.0", text)
    return _UUID.sub(lambda match: match[0] if match[0] == TABLE_ID else "0", text)
