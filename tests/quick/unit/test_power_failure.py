"""A completed write is on the device: first the content of a file, then its name, then the files that depend on it."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from cdfd.config.parser import parse
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.model.control import EMPTY
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import SystemClock
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.base import Sink, connector
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.log_actions import mirror_mode
from cdfd.sinks.delta.mirror.sink import MirrorSink
from cdfd.sinks.delta.mirror.state import MirrorOptions
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.files.formats import JsonLines, Parquet, RowsFormat
from cdfd.sinks.files.sink import FilesSink
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.local import LocalStorage
from tests.support.change_rows import Row, change_rows
from tests.support.power_failure import Device

APP = app_id("shop", "orders")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device.watch(tmp_path, monkeypatch, frozenset({".lock"}))


def rows(kind: str, *ids: int) -> pa.RecordBatch:
    return change_rows([Row(kind, 0, number) for number in ids])


def at(version: int) -> Position:
    return Position("T", version)


async def deliver(sink: Sink, version: int, *batches: pa.RecordBatch) -> None:
    delivery = await sink.begin(at(version))
    for batch in batches:
        await delivery.write(batch)
    await delivery.commit(at(version + 1))


@pytest.mark.parametrize("method", ["put_if_absent", "put"])
async def test_a_file_is_synced_then_named_then_its_folder_is_synced(device: Device, method: str) -> None:
    store = LocalStorage(device.folder / "lake")
    write: Callable[[str, bytes], Awaitable[None]] = getattr(store, method)
    for path in ("orders/_delta_log/0.json", "orders/_delta_log/1.json", "orders/part-0.parquet"):
        await write(path, b"x" * 100_000)
        assert device.lost() == ()
    assert [each.name for each in device.namings] == ["0.json", "1.json", "part-0.parquet"]
    assert all(each.synced for each in device.namings)


async def test_a_file_that_is_replaced(device: Device) -> None:
    store = LocalStorage(device.folder)
    for content in (b"one", b"two"):
        await store.put("a", content)
        assert device.lost() == ()


async def test_nothing_is_synced_without_sync(device: Device) -> None:
    await LocalStorage(device.folder / "lake", sync=False).put_if_absent("a/b", b"x")
    assert device.syncs == 0
    assert device.lost() == ("lake",)


@pytest.mark.parametrize(
    ("sink", "durable"), [("kind: files", True), ("kind: files, fsync: false", False), ("kind: delta", True)]
)
async def test_delivery_is_lost_only_if_fsync_is_off(device: Device, sink: str, durable: bool) -> None:
    out = device.folder / "out"
    settings = parse(f"{{pipeline: shop, tables: [{{uri: orders}}], sink: {{{sink}, path: {out}}}}}")
    async with connector(settings).open(settings.listed[0]) as orders_sink:
        await deliver(orders_sink, 0, rows("insert", 1))
        assert device.lost() == (() if durable else ("out",))
        assert bool(device.syncs) is durable


@pytest.mark.parametrize("rows_format", [JsonLines(), Parquet()], ids=["jsonl", "parquet"])
async def test_files_of_a_sink_are_on_the_device_after_each_commit(device: Device, rows_format: RowsFormat) -> None:
    folder = device.folder / "out" / "orders"
    sink = await FilesSink.open(folder, rows_format)
    await deliver(sink, 0, rows("insert", *range(5000)))
    assert device.lost() == ()
    await deliver(sink, 1)
    assert device.lost() == ()
    await deliver(sink, 2, rows("insert", 1), rows("insert", 2))
    assert device.lost() == ()
    await sink.set_control(EMPTY.begin("a", ""))
    assert device.lost() == ()
    await deliver_chunk(sink, at(3))
    assert device.lost() == ()
    await sink.close()
    assert all(each.synced for each in device.namings)
    # The position after the rows is written before them, and one sync makes both names durable.
    expected = dict.fromkeys(("_position.json", "_position.next.json"), ())
    rows_lost = ("out/orders/_position.next.json",)
    assert [each.lost for each in device.namings] == [expected.get(each.name, rows_lost) for each in device.namings]
    assert sum(each.name.endswith(rows_format.suffix) for each in device.namings) == 3


async def deliver_chunk(sink: Sink, position: Position) -> None:
    plan = ChangePlan(position.version - 1, 0, TableSchema(StructType(()), ()), (), "snapshot")
    chunk = await sink.begin_chunk(position, Version(plan, "T"))
    await chunk.write(rows("insert", 1))
    await chunk.commit_control(sink.control)


@pytest.mark.parametrize("mirrored", [False, True])
async def test_a_version_is_named_once_its_files_are_on_the_device(device: Device, mirrored: bool) -> None:
    mode = mirror_mode(change_feed=True)
    layout = Layout(checkpoint_interval=2, mode=mode) if mirrored else Layout(checkpoint_interval=2)
    target = Target(LocalStorage(device.folder / "orders"), APP, layout, SystemClock())
    files = partial(DataFiles, compression="snappy", file_bytes=1 << 20)
    sink: Sink
    if mirrored:
        sink = await MirrorSink.open(target, files, MirrorOptions(("id",), True, SpillSpace()))
    else:
        sink = await DeltaSink.open(target, files)
    # So many deleted rows that their deletion vector is a file.
    many = range(0, 100_000, 7)
    for version, batches in enumerate([[rows("insert", *range(100_000))], [rows("delete", *many)], []]):
        await deliver(sink, version, *batches)
        assert device.lost() == ()
    await sink.close()
    assert device.lost() == ()
    assert all(each.synced for each in device.namings)
    names = [each.name for each in device.namings]
    assert "_last_checkpoint" in names
    assert any(name.endswith(".bin") for name in names) is mirrored
    # Each file, entry and checkpoint is on the device before the next one gets its name.
    assert [each.lost for each in device.namings] == [()] * len(names)


async def test_a_ledger_is_on_the_device_after_each_record(device: Device) -> None:
    ledger = TableLedger(LocalStorage(device.folder / "ledger"), SystemClock())
    for version in range(12):
        await ledger.record(APP, version, "T")
        assert device.lost() == ()
    assert all(each.synced and not each.lost for each in device.namings)
