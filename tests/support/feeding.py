"""Running a feed in tests: into memory or files, with a hook at everything that the sink is asked for."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.deliver.deliverer import Limits
from cdfd.deliver.feed import Feed
from cdfd.deliver.mailbox import Mailbox
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.rates import Rates
from cdfd.deliver.resuming import Policies
from cdfd.log.log import DeltaLog
from cdfd.log.table import Table
from cdfd.model.control import Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.row_options import RowOptions
from cdfd.runtime.clock import SystemClock
from cdfd.scan.execute import Execution
from cdfd.scan.table_files import TableFiles
from cdfd.sinks.base import Delivery, Sink
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.files.formats import JsonLines
from cdfd.sinks.files.sink import FilesSink
from cdfd.storage.local import LocalStorage
from tests.support.lake import Lake
from tests.support.manual_time import ManualClock
from tests.support.memory_sink import Delivered, MemorySink

Row = dict[str, Any]
Hook = Callable[[str, Any], None]


class Crash(Exception):
    """An error that is not cdfd's. It acts like a kill."""


class Hooked(Sink):
    """A sink that tells a hook of everything before it happens, and of commits afterwards too. The hook may raise."""

    stores_control = True

    def __init__(self, sink: Sink, hook: Hook) -> None:
        self.sink = sink
        self.hook = hook
        self.lost_position = sink.lost_position

    @property
    def control(self) -> Control:
        return self.sink.control

    @property
    def needs_snapshot(self) -> str | None:
        return self.sink.needs_snapshot

    async def set_control(self, control: Control, to: Position | None = None) -> None:
        self.hook("control", control)
        await self.sink.set_control(control, to)
        self.hook("controlled", control)

    async def begin_chunk(self, position: Position, version: Version) -> Delivery:
        self.hook("begin chunk", position)
        return _HookedChunk(await self.sink.begin_chunk(position, version), self.hook)

    def hasten(self) -> None:
        self.hook("hasten", None)
        self.sink.hasten()

    async def last_position(self) -> Position | None:
        return await self.sink.last_position()

    async def begin(self, position: Position) -> Delivery:
        self.hook("begin", position)
        return _HookedDelivery(await self.sink.begin(position), self.hook)

    async def close(self) -> None:
        await self.sink.close()


class _HookedDelivery(Delivery):
    def __init__(self, delivery: Delivery, hook: Hook) -> None:
        self.delivery = delivery
        self.hook = hook

    async def start_version(self, version: Version) -> None:
        self.hook("version", version)
        await self.delivery.start_version(version)

    async def write(self, batch: pa.RecordBatch) -> None:
        self.hook("write", batch)
        await self.delivery.write(batch)

    async def commit(self, following: Position) -> None:
        self.hook("commit", following)
        await self.delivery.commit(following)
        self.hook("committed", following)

    async def abort(self) -> None:
        self.hook("abort", None)
        await self.delivery.abort()


class _HookedChunk(_HookedDelivery):
    async def write(self, batch: pa.RecordBatch) -> None:
        self.hook("write chunk", batch)
        await self.delivery.write(batch)

    async def commit_control(self, control: Control, to: Position | None = None) -> None:
        self.hook("commit chunk", control)
        await self.delivery.commit_control(control, to)
        self.hook("chunk committed", control)

    async def abort(self) -> None:
        self.hook("abort chunk", None)
        await self.delivery.abort()


class MemoryPlace:
    """Where sinks of one feed come and go."""

    def __init__(self, folder: Path | None = None) -> None:
        self.delivered: list[Delivered] = []

    async def open(self) -> Sink:
        return MemorySink(self.delivered)

    def rows(self) -> list[Row]:
        return [row for delivery in self.delivered for batch in delivery.batches for row in batch.to_pylist()]


class FilesPlace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> Sink:
        return await FilesSink.open(self.folder, JsonLines(), fsync=False)

    def rows(self) -> list[Row]:
        files = sorted(self.folder.glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


class DeltaPlace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> Sink:
        target = Target(LocalStorage(self.folder), "cdfd/shop/orders", Layout(), SystemClock(), owner=1)
        return await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1 << 20))

    def rows(self) -> list[Row]:
        """The rows in the order of the commits."""
        entries = sorted((self.folder / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
        files = [action["add"]["path"] for action in actions if "add" in action]
        return [row for file in files for row in pq.read_table(self.folder / file).to_pylist()]


Place = MemoryPlace | FilesPlace | DeltaPlace


async def feed(
    lake: Lake, place: Place, clock: ManualClock, until: int | None = None, hook: Hook = lambda *_: None, **options: Any
) -> None:
    """Run a feed into `place` until version `until` is delivered, or something else ends it."""
    limits = Limits(options.pop("part_bytes", 1 << 30), max_bytes=options.pop("max_bytes", 0))
    on_missing = options.pop("on_missing", None)
    stop, rates = options.pop("stop", asyncio.Event()), options.pop("rates", Rates())
    recorder, monitor = options.pop("recorder", None), options.pop("monitor", Monitor())
    mailbox = options.pop("mailbox", None) or Mailbox()
    rows = RowOptions(**{each.name: options.pop(each.name) for each in fields(RowOptions) if each.name in options})

    def watched(event: str, about: Any) -> None:
        hook(event, about)
        if event == "committed" and until is not None and about.version > until:
            stop.set()

    table = Table(DeltaLog(lake), TableFiles(lake, LocalStorage))
    execution = Execution(table.files, rows, workers=2, **({} if on_missing is None else {"on_missing": on_missing}))
    sink = await place.open()
    try:
        with table.tailer(clock) as tailer:
            policies = Policies(rows=rows, **options)
            await Feed(
                table,
                Hooked(sink, watched),
                execution,
                tailer,
                policies,
                stop,
                limits,
                recorder,
                monitor,
                mailbox=mailbox,
                rates=rates,
            ).run()
    finally:
        await sink.close()


def ids(place: Place) -> list[tuple[str, int, int]]:
    return [(row["_change_type"], row["_commit_version"], row["id"]) for row in place.rows()]


async def position(place: Place) -> Position | None:
    sink = await place.open()
    try:
        return await sink.last_position()
    finally:
        await sink.close()
