"""Costs in requests of each operation of a daemon or a reader, counted by a proxy."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa
import pytest

import cdfd
from cdfd.demo.writer import TableWriter
from cdfd.log import log_files
from cdfd.log.log import DeltaLog
from cdfd.runtime.clock import SystemClock
from cdfd.storage.base import Stat
from cdfd.storage.location import open_storage
from cdfd.storage.s3.client import client_for
from cdfd.storage.s3.options import parse
from cdfd.storage.s3.storage import S3Storage
from tests.support.lake import SCHEMA, WITHIN, checkpoint, rows
from tests.support.s3.proxy import Proxy
from tests.support.s3.server import Server


def options(proxy: Proxy) -> dict[str, object]:
    return Server(proxy.url).options()


async def new_table(server: Server, uri: str, versions: int = 3) -> TableWriter:
    """A table of that many versions; its first creates it, each later one adds a file."""
    writer = TableWriter(open_storage(uri, server.options()), SCHEMA, clock=SystemClock(), table_id="T")
    await writer.create()
    for version in range(1, versions):
        await writer.insert(rows(version))
    return writer


def summary(proxy: Proxy) -> list[str]:
    """The requests: method, and the end of the name."""
    return [f"{asked.method} {asked.path[-8:] or 'list'}" for asked in proxy.asked]


class Following:
    """`cdfd.follow` in a task, row batches in a queue."""

    def __init__(self, uri: str, start: int, proxy: Proxy) -> None:
        self.batches: asyncio.Queue[pa.RecordBatch] = asyncio.Queue()
        self._task = asyncio.create_task(self._follow(uri, start, proxy))

    async def _follow(self, uri: str, start: int, proxy: Proxy) -> None:
        async with aclosing(cdfd.follow(uri, start, storage_options=options(proxy), poll_interval=0.05)) as batches:
            async for batch in batches:
                self.batches.put_nowait(batch)

    async def batch(self) -> pa.RecordBatch:
        taking = asyncio.create_task(self.batches.get())
        await asyncio.wait((taking, self._task), return_when=asyncio.FIRST_COMPLETED, timeout=WITHIN)
        if not taking.done():
            taking.cancel()
            await self._task
        return taking.result()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def polls(proxy: Proxy, version: int, count: int) -> None:
    """Wait until a version was asked for that often."""
    async with asyncio.timeout(WITHIN):
        while proxy.count("GET", f"{version:020d}.json") < count:
            await asyncio.sleep(0.01)


async def test_at_the_tip_of_a_table(moto_server: Server, bucket: str, proxy: Proxy) -> None:
    """A poll is one GET, a commit its log entry and its file; nothing is listed."""
    uri = f"s3://{bucket}/t"

    writer = await new_table(moto_server, uri)
    reader = Following(uri, 2, proxy)
    await reader.batch()
    await polls(proxy, 3, 2)

    proxy.asked.clear()
    await polls(proxy, 3, 4)
    assert {(asked.method, asked.path) for asked in proxy.asked} == {("GET", f"t/_delta_log/{3:020d}.json")}

    await writer.insert(rows(3))
    await reader.batch()
    await polls(proxy, 4, 1)
    mine = [asked for asked in proxy.asked if f"{4:020d}" not in asked.path]
    while mine[0].path.endswith(f"{3:020d}.json") and mine[1].path == mine[0].path:
        mine = mine[1:]  # polls
    # One request checks the entry of the version before: the table may have been re-created during the wait.
    assert [asked.method for asked in mine] == ["GET", "HEAD", "GET"]
    assert mine[2].path.endswith(".parquet")
    await reader.end()


async def test_a_resume(moto_server: Server, bucket: str, proxy: Proxy) -> None:
    """From a position to the first row: nine requests, one for each log entry since the last checkpoint, and a look at one again."""
    uri = f"s3://{bucket}/t"

    await new_table(moto_server, uri, 30)
    near = open_storage(uri, moto_server.options())
    await checkpoint(near, 20)
    await near.put("_delta_log/_last_checkpoint", b'{"version":20,"size":1}')
    reader = Following(uri, 29, proxy)
    await reader.batch()
    await reader.end()
    asked = [each for each in proxy.asked if f"{30:020d}" not in each.path]  # the look at what comes next
    entries = [each for each in asked if each.path.endswith(".json")]
    assert [each.method for each in entries].count("HEAD") == 1, summary(proxy)
    assert len(entries) == 9 + 1, summary(proxy)
    assert len(asked) <= 9 + len(entries), summary(proxy)


def test_catching_up_asks_ahead(moto_server: Server, bucket: str, proxy: Proxy) -> None:
    """Each log entry and each file is one GET, several at a time."""
    uri = f"s3://{bucket}/t"
    asyncio.run(new_table(moto_server, uri, 40))
    proxy.delay = 0.02
    actual = cdfd.changes(uri, 1, 39, storage_options=options(proxy)).read_all()
    assert actual.column("id").to_pylist() == list(range(1, 40))
    assert actual.column("_commit_version").to_pylist() == list(range(1, 40))
    for version in range(1, 40):
        assert proxy.count("GET", f"{version:020d}.json") <= 3, version
    assert proxy.count("GET", ".parquet") == 39
    # Entries are looked at again in runs, which grow: a look at the last one and a listing for each.
    looks = [asked for asked in proxy.asked if asked.method == "HEAD"]
    listings = [asked for asked in proxy.asked if not asked.path]
    assert len(looks) <= 5
    assert len(listings) <= 5 + 5


async def test_a_long_log_is_listed_from_its_last_checkpoint_on(
    moto_server: Server, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sweep, page by page: of the names before the checkpoint, only the first page is listed."""
    monkeypatch.setattr(log_files, "FIRST_NAMES", 10)
    uri = f"s3://{bucket}/t"

    near = open_storage(uri, moto_server.options())
    await new_table(moto_server, uri, 3)
    entry = await near.read(f"_delta_log/{2:020d}.json")
    many = (near.put(f"_delta_log/{version:020d}.json", entry) for version in range(3, 130))
    await asyncio.gather(*many)
    await checkpoint(near, 100)
    await near.put("_delta_log/_last_checkpoint", b'{"version":100,"size":1}')
    log = DeltaLog(S3Storage(bucket, "t", client_for(parse(options(proxy))), page=10))
    segment = await log.segment()
    assert (segment.version, len(segment.commits)) == (129, 29)
    # The checkpoint and 30 entries, ten to a page, and `_last_checkpoint` twice: as a file, and in the listing. And the first page.
    assert [asked.method for asked in proxy.asked] == ["GET"] * 6
    assert proxy.count("GET", "_last_checkpoint") == 1


async def test_a_short_log_is_listed_once_beside_its_last_checkpoint(
    moto_server: Server, bucket: str, proxy: Proxy
) -> None:
    """Two requests at a time: one round trip."""
    uri = f"s3://{bucket}/t"
    near = open_storage(uri, moto_server.options())
    await new_table(moto_server, uri, 30)
    await checkpoint(near, 20)
    await near.put("_delta_log/_last_checkpoint", b'{"version":20,"size":1}')
    log = DeltaLog(open_storage(uri, options(proxy)))
    segment = await log.segment()
    assert (segment.version, len(segment.commits)) == (29, 9)
    assert sorted(asked.path for asked in proxy.asked) == ["", "t/_delta_log/_last_checkpoint"]


async def test_a_checkpoint_written_after_the_listing_is_found_by_another(moto_server: Server, bucket: str) -> None:
    uri = f"s3://{bucket}/t"
    near = open_storage(uri, moto_server.options())
    await new_table(moto_server, uri, 30)
    listed = asyncio.Event()

    class Raced(S3Storage):
        async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
            async for stat in super().list(prefix, start_after):
                yield stat
            listed.set()

        async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
            await listed.wait()
            await checkpoint(near, 20)
            await near.put("_delta_log/_last_checkpoint", b'{"version":20,"size":1}')
            return await super().read(path, start, length)

    log = DeltaLog(Raced(bucket, "t", client_for(parse(moto_server.options()))))
    segment = await asyncio.wait_for(log.segment(), WITHIN)
    assert segment.checkpoint is not None
    assert (segment.version, segment.checkpoint.version, len(segment.commits)) == (29, 20, 9)


def test_opening_a_table_without_checkpoints_reads_its_log_once(moto_server: Server, bucket: str, proxy: Proxy) -> None:
    uri = f"s3://{bucket}/t"
    asyncio.run(new_table(moto_server, uri, 30))
    assert cdfd.changes(uri, 0, storage_options=options(proxy)).read_all().num_rows == 29
    # For the header of the newest version, and for that of each of them in turn.
    assert proxy.count("GET", ".json") <= 2 * 30
    assert proxy.count("GET", ".parquet") == 29
    assert sum("list-type" in asked.query for asked in proxy.asked) <= 4
