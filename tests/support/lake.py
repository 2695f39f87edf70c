"""Tables for tests of what moves: made by the demo's writer, in memory or in a folder, under a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

import pyarrow as pa

from cdfd.delta import paths
from cdfd.demo.writer import TableWriter
from cdfd.log.log import DeltaLog
from cdfd.runtime.clock import Clock
from cdfd.storage.base import Stat, Storage
from tests.support import checkpoint_layout
from tests.support.manual_time import ManualClock
from tests.support.memory_storage import MemoryStorage

T = TypeVar("T")

WITHIN = 120  # seconds until a test gives up; nothing waits for it otherwise
BEGINNING = 1_767_225_600_000  # 2026-01-01T00:00:00Z
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def run(scenario: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(WITHIN):
            return await scenario

    return asyncio.run(bounded())


def manual_clock() -> ManualClock:
    return ManualClock(BEGINNING)


def rows(*ids: int, v: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.string())}, schema=SCHEMA)


def entry_path(version: int) -> str:
    return f"{paths.LOG}/{paths.commit_name(version)}"


async def table(storage: Storage, versions: int, clock: Clock, table_id: str = "T", first_id: int = 0) -> TableWriter:
    """A table of `versions` versions: version 0 creates it, each later one inserts a row, whose `id` is `first_id` plus its version."""
    writer = TableWriter(storage, SCHEMA, clock=clock, table_id=table_id)
    await writer.create()
    for version in range(1, versions):
        await writer.insert(rows(first_id + version))
    return writer


async def checkpoint(storage: Storage, version: int) -> None:
    """Write a classic checkpoint, and no hint at it."""
    state = await DeltaLog(storage).snapshot(version)
    adds: list[dict[str, Any]] = [
        {
            "path": add.path,
            "partitionValues": list(add.partition_values.items()),
            "size": add.size,
            "modificationTime": add.modification_time,
            "dataChange": False,
        }
        for add in state.live()
    ]
    metadata = {
        "id": state.metadata.id,
        "format": {"provider": "parquet", "options": []},
        "schemaString": state.metadata.schema_string,
        "partitionColumns": list(state.metadata.partition_columns),
        "configuration": list(state.metadata.configuration.items()),
    }
    protocol = {
        "minReaderVersion": state.protocol.min_reader_version,
        "minWriterVersion": state.protocol.min_writer_version,
        "readerFeatures": sorted(state.protocol.reader_features or ()),
        "writerFeatures": sorted(state.protocol.writer_features or ()),
    }
    actions = [{"protocol": protocol}, {"metaData": metadata}, *({"add": add} for add in adds)]
    for name, data in checkpoint_layout.single(version, actions).items():
        await storage.put(f"{paths.LOG}/{name}", data)


class Lake(MemoryStorage):
    """A store in memory that takes its times from a clock, records its calls, and lets a test act before each call.

    Attributes:
        calls: (method, path or prefix) of each call.
        before: called before each call with the same; a test may change the store there.
    """

    def __init__(self, clock: Clock, uri: str = "memory://orders") -> None:
        super().__init__(uri, now_ms=clock.now_ms)
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda method, path: None

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._note("read", path)
        return await super().read(path, start, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        self._note("list", prefix)
        async for stat in super().list(prefix, start_after):
            yield stat

    async def stat(self, path: str) -> Stat:
        self._note("stat", path)
        return await super().stat(path)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        self._note("open", path)
        return super().open_input_file(path, size)

    def bytes_of(self, path: str) -> bytes:
        return self._objects[path].data

    def replace(self, path: str, data: bytes, modified_ms: int | None = None) -> None:
        """Put an object while another call is under way, or with another time."""
        self._objects[path] = type(self._objects[path])(data, self._now_ms() if modified_ms is None else modified_ms)

    def copy_from(self, other: Lake) -> None:
        """Have what another store has, too."""
        self._objects.update(other._objects)

    def forget(self, *beginnings: str) -> None:
        """Remove the objects whose paths begin so."""
        for path in [path for path in self._objects if path.startswith(beginnings)]:
            del self._objects[path]

    def _note(self, method: str, path: str) -> None:
        self.calls.append((method, path))
        self.before(method, path)
