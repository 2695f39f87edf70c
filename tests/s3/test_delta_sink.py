"""A changelog in a bucket, whatever the store answers."""

from dataclasses import replace
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

import cdfd
from cdfd.changes.position import Position
from cdfd.errors import FencedError, SinkError
from cdfd.progress.ledger import app_id
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.storage.location import open_storage
from cdfd.tables.vacuum import removable, remove
from cdfd.tail.clock import SystemClock
from cdfd.tail.log import DeltaLog
from tests.s3.fixtures import new_bucket
from tests.s3.proxy import Asked, Fault, Proxy
from tests.s3.server import Server

OWNERS = count(1)
QUICK = {"read_timeout": "300ms", "connect_timeout": "500ms", "deadline": 5}


async def opened(uri: str, server: Server) -> DeltaSink:
    store = open_storage(uri, server.options(**QUICK))
    target = Target(store, app_id("shop", "orders"), Layout(), SystemClock(), owner=next(OWNERS))
    return await DeltaSink.open(target, partial(DataFiles, compression="zstd", file_bytes=1 << 20))


async def deliver(sink: DeltaSink, version: int) -> None:
    """Deliver a version with one row, whose only column is its number."""
    delivery = await sink.begin(Position("T", version))
    await delivery.write(pa.record_batch({"n": [version]}))
    await delivery.commit(Position("T", version + 1))


def rows(uri: str, server: Server) -> list[int]:
    found: list[int] = cdfd.snapshot(uri, storage_options=server.options()).read_all()["n"].to_pylist()
    return sorted(found)


async def test_each_version_once_and_the_newer_process_wins(server: Server) -> None:
    uri = f"s3://{new_bucket(server)}/copies/orders"
    first = await opened(uri, server)
    await deliver(first, 0)
    second = await opened(uri, server)
    assert await second.last_position() == Position("T", 1)
    with pytest.raises(FencedError):
        await deliver(first, 1)
    await deliver(second, 1)
    assert rows(uri, server) == [0, 1]


def is_commit(asked: Asked) -> bool:
    return asked.method == "PUT" and "_delta_log" in asked.path


@pytest.mark.parametrize(
    "fault",
    [
        Fault("answer", 2, 503, "SlowDown"),
        Fault("answer", 2, 500, "InternalError"),
        Fault("reset", 2),
        Fault("lost", 1),
        Fault("lost", 100),
        Fault("stall", 1),
        Fault("answer", 100, 503, "SlowDown"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.times}",
)
async def test_a_commit_whose_outcome_is_unclear(moto_server: Server, bucket: str, proxy: Proxy, fault: Fault) -> None:
    """The store may have written the version, although the answer is an error or lost."""
    uri, reached = f"s3://{bucket}/copies/orders", Server(proxy.url)
    sink = await opened(uri, reached)
    await deliver(sink, 0)
    proxy.faults = [replace(fault, concerns=is_commit)]
    for version in range(1, 4):
        try:
            await deliver(sink, version)
        except SinkError:
            proxy.faults = []
            sink = await opened(uri, reached)
            at = await sink.last_position()
            assert at in (Position("T", version), Position("T", version + 1))
            if at == Position("T", version):
                await deliver(sink, version)
    assert rows(uri, moto_server) == [0, 1, 2, 3]


async def test_vacuum_of_a_bucket(server: Server) -> None:
    uri = f"s3://{new_bucket(server)}/copies/orders"
    sink = await opened(uri, server)
    await deliver(sink, 0)
    store = open_storage(uri, server.options())
    for path in ("orphan", "day=1/orphan", "_hidden/orphan", "other/_delta_log/0", "other/part"):
        await store.put(path, b"1")
    log = DeltaLog(store)
    later = SystemClock().now_ms() + 8 * 86_400_000
    assert (await removable(log, SystemClock().now_ms())).files == ()
    found = await removable(log, later)
    assert [file.path for file in found.files] == ["orphan", "day=1/orphan"]
    await remove(store, found.files)
    assert (await removable(log, later)).files == ()
    await deliver(sink, 1)
    assert rows(uri, server) == [0, 1]
