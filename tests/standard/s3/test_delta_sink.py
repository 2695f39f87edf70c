"""A changelog or a mirror in a bucket, whatever the store answers."""

from dataclasses import replace
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

import cdfd
from cdfd.errors import FencedError, SinkError
from cdfd.log.log import DeltaLog
from cdfd.log.vacuum import removable, remove
from cdfd.model.columns import VersionColumns, change_schema, constant_type
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.log_actions import mirror_mode
from cdfd.sinks.delta.mirror.sink import MirrorSink
from cdfd.sinks.delta.mirror.state import MirrorOptions
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.ledger.ledger import app_id
from cdfd.storage.location import open_storage
from tests.support.s3.fixtures import new_bucket
from tests.support.s3.proxy import Asked, Fault, Proxy
from tests.support.s3.server import Server
from tests.support.sampling import sample

OWNERS = count(1)
QUICK = {"read_timeout": "300ms", "connect_timeout": "500ms", "deadline": 5}


async def open_sink(uri: str, server: Server) -> DeltaSink:
    store = open_storage(uri, server.options(**QUICK))
    target = Target(store, app_id("shop", "orders"), Layout(), SystemClock(), owner=next(OWNERS))
    return await DeltaSink.open(target, partial(DataFiles, compression="zstd", file_bytes=1 << 20))


async def deliver(sink: DeltaSink, version: int) -> None:
    """Deliver a version with one row, whose only column is its number."""
    delivery = await sink.begin(Position("T", version))
    await delivery.write(pa.record_batch({"n": [version]}))
    await delivery.commit(Position("T", version + 1))


def rows(uri: str, server: Server) -> list[int]:
    numbers: list[int] = cdfd.snapshot(uri, storage_options=server.options()).read_all()["n"].to_pylist()
    return sorted(numbers)


async def test_each_version_once_and_the_newer_process_wins(server: Server) -> None:
    uri = f"s3://{new_bucket(server)}/copies/orders"
    first = await open_sink(uri, server)
    await deliver(first, 0)
    second = await open_sink(uri, server)
    assert await second.last_position() == Position("T", 1)
    with pytest.raises(FencedError):
        await deliver(first, 1)
    await deliver(second, 1)
    assert rows(uri, server) == [0, 1]


def is_commit(asked: Asked) -> bool:
    return asked.method == "PUT" and "_delta_log" in asked.path


FAULTS = [
    Fault("answer", 2, 503, "SlowDown"),
    Fault("answer", 2, 500, "InternalError"),
    Fault("reset", 2),
    Fault("lost", 1),
    Fault("lost", 100),
    Fault("stall", 1),
    Fault("answer", 100, 503, "SlowDown"),
]


@pytest.mark.parametrize("fault", sample(FAULTS, 2), ids=lambda fault: f"{fault.kind}-{fault.times}")
async def test_a_commit_whose_outcome_is_unclear(moto_server: Server, bucket: str, proxy: Proxy, fault: Fault) -> None:
    """The store may have written the version, although the answer is an error or lost."""
    uri, reached = f"s3://{bucket}/copies/orders", Server(proxy.url)
    sink = await open_sink(uri, reached)
    await deliver(sink, 0)
    proxy.faults = [replace(fault, concerns=is_commit)]
    for version in range(1, 4):
        try:
            await deliver(sink, version)
        except SinkError:
            proxy.faults = []
            sink = await open_sink(uri, reached)
            at = await sink.last_position()
            assert at in (Position("T", version), Position("T", version + 1))
            if at == Position("T", version):
                await deliver(sink, version)
    assert rows(uri, moto_server) == [0, 1, 2, 3]


async def open_mirror(uri: str, server: Server) -> MirrorSink:
    layout = Layout(checkpoint_interval=2, mode=mirror_mode(change_feed=True))
    store = open_storage(uri, server.options(**QUICK))
    target = Target(store, app_id("shop", "orders"), layout, SystemClock(), owner=next(OWNERS))
    files = partial(DataFiles, compression="zstd", file_bytes=1 << 20)
    return await MirrorSink.open(target, files, MirrorOptions(("n",), True, SpillSpace()))


async def mirror(sink: MirrorSink, version: int) -> None:
    """Deliver a version that inserts its number and 1,000 others, and deletes those of the version before it."""
    schema = pa.schema([("n", pa.int64())])
    delivery = await sink.begin(Position("T", version))
    for kind, number in (("insert", version), ("delete", version - 1)):
        if number >= 0:
            numbers = pa.array(
                [*([number] if kind == "insert" else []), *range(1000 * (number + 1), 1000 * (number + 2))]
            )
            typed = pa.RecordBatch.from_arrays(
                [numbers, constant_type(kind, len(numbers))], schema=pa.schema([*schema, change_schema(schema)[1]])
            )
            await delivery.write(VersionColumns(version, 1_767_225_600_000).complete(typed, 0))
    await delivery.commit(Position("T", version + 1))


def mirrored(version: int) -> list[int]:
    """The rows of a mirror after a version."""
    return [*range(version + 1), *range(1000 * (version + 1), 1000 * (version + 2))]


async def test_a_mirror_and_the_newer_process_wins(server: Server) -> None:
    uri = f"s3://{new_bucket(server)}/copies/orders"
    first = await open_mirror(uri, server)
    await mirror(first, 0)
    await mirror(first, 1)
    assert rows(uri, server) == mirrored(1)
    second = await open_mirror(uri, server)
    assert await second.last_position() == Position("T", 2)
    with pytest.raises(FencedError, match="another process has taken the target over"):
        await mirror(first, 2)
    assert rows(uri, server) == mirrored(1)
    await mirror(second, 2)
    await mirror(second, 3)
    assert rows(uri, server) == mirrored(3)


@pytest.mark.parametrize("fault", sample(FAULTS, 2), ids=lambda fault: f"{fault.kind}-{fault.times}")
async def test_a_commit_of_a_mirror_whose_outcome_is_unclear(
    moto_server: Server, bucket: str, proxy: Proxy, fault: Fault
) -> None:
    """Rows are deleted once, also if the daemon does not learn that the store has written the version."""
    uri, reached = f"s3://{bucket}/copies/orders", Server(proxy.url)
    sink = await open_mirror(uri, reached)
    await mirror(sink, 0)
    proxy.faults = [replace(fault, concerns=is_commit)]
    for version in range(1, 4):
        try:
            await mirror(sink, version)
        except SinkError:
            proxy.faults = []
            sink = await open_mirror(uri, reached)
            at = await sink.last_position()
            assert at in (Position("T", version), Position("T", version + 1))
            if at == Position("T", version):
                await mirror(sink, version)
        assert rows(uri, moto_server) == mirrored(version)


async def test_vacuum_of_a_bucket(server: Server) -> None:
    uri = f"s3://{new_bucket(server)}/copies/orders"
    sink = await open_sink(uri, server)
    await deliver(sink, 0)
    store = open_storage(uri, server.options())
    for path in ("orphan", "day=1/orphan", "_hidden/orphan", "other/_delta_log/0", "other/part"):
        await store.put(path, b"1")
    log = DeltaLog(store)
    later = SystemClock().now_ms() + 8 * 86_400_000
    assert (await removable(log, SystemClock().now_ms())).files == ()
    actual = await removable(log, later)
    assert [file.path for file in actual.files] == ["orphan", "day=1/orphan"]
    await remove(store, actual.files)
    assert (await removable(log, later)).files == ()
    await deliver(sink, 1)
    assert rows(uri, server) == [0, 1]
