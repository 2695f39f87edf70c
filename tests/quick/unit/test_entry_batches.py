"""Entries that are read together, by a reader that is behind: the same ones as one by one, whatever happens to them meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from cdfd.delta.commit import serialize
from cdfd.errors import GapError, LogError, NotFoundError, TableChangedError
from cdfd.log import entry_batches, entry_reader
from cdfd.log.entry import LogEntry
from cdfd.log.entry_batches import MAX_ENTRIES, MIN_RUN
from cdfd.log.log import DeltaLog
from cdfd.log.tailer import Tailer
from cdfd.log.watch import Backoff, PollWatch
from cdfd.storage.base import Stat
from cdfd.storage.local import LocalStorage
from tests.support.lake import Lake, entry_path, rows, table
from tests.support.manual_time import ManualClock
from tests.support.memory_storage import MemoryStorage
from tests.support.threads import turns_during

VERSIONS = 200


class Counting(Lake):
    """A store that counts the entries that were asked for at once."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.together: list[list[str]] = []

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        self.together.append(list(paths))
        return await super().fetch_many(paths, length)

    def first_read_of(self, version: int, data: bytes) -> bytes:
        """Until its second read, the entry of a version has these bytes; those it has then."""
        whole, times = self.bytes_of(entry_path(version)), 0

        def before(method: str, path: str) -> None:
            nonlocal times
            if (method, path) == ("read", entry_path(version)):
                times += 1
                if times == 2:
                    self.replace(path, whole)

        self.replace(entry_path(version), data)
        self.before = before
        return whole


def tailer(lake: Lake, clock: ManualClock) -> Tailer:
    return Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0))


async def collect(reader: Tailer, versions: list[int]) -> None:
    async for entry in reader.entries(0):
        versions.append(entry.commit.version)


async def gather(entries: AsyncIterator[LogEntry], collected: list[LogEntry]) -> None:
    async for entry in entries:
        collected.append(entry)


async def entries(lake: Lake, clock: ManualClock, until: int, start: int = 0) -> list[LogEntry]:
    return [entry async for entry in tailer(lake, clock).entries(start, until)]


async def test_a_reader_that_is_behind_asks_for_many(clock: ManualClock) -> None:
    lake = Counting(clock)
    await table(lake, VERSIONS, clock)
    actual = await entries(lake, clock, VERSIONS - 1)
    one_by_one = [await DeltaLog(lake).entry(version) for version in range(VERSIONS)]
    assert actual == one_by_one
    sizes = [len(paths) for paths in lake.together]
    assert sizes[0] == 2
    assert max(sizes) == MAX_ENTRIES
    assert len(sizes) < VERSIONS / 16


async def test_one_that_keeps_up_asks_for_one(clock: ManualClock) -> None:
    lake = Counting(clock)
    writer = await table(lake, 1, clock)
    log = DeltaLog(lake)
    await log.entry(0)
    for version in range(1, 3 * MIN_RUN):
        with pytest.raises(NotFoundError):
            await log.entry(version)
        await writer.insert(rows(version))
        await log.entry(version)
    assert lake.together == []


async def test_others_get_their_turn(clock: ManualClock) -> None:
    lake = Counting(clock)
    await table(lake, VERSIONS, clock)
    assert await turns_during(entries(lake, clock, VERSIONS - 1)) >= VERSIONS / entry_batches.YIELD_EVERY - MIN_RUN


@pytest.mark.parametrize("remote", [False, True])
async def test_others_get_more_turns_if_entries_are_large(remote: bool, clock: ManualClock) -> None:
    """Entries of a remote store may have been prefetched."""
    lake = Counting(clock)
    await table(lake, 20, clock)
    size = 0
    for version in range(1, 20):
        lake.replace(entry_path(version), lake.bytes_of(entry_path(version)) + b" " * 50_000 + b"\n")
        size += 50_000
    lake.remote = remote
    log = DeltaLog(lake)

    async def read() -> None:
        for version in range(20):
            await log.entry(version)

    assert await turns_during(read()) >= size // entry_reader.YIELD_BYTES


@pytest.mark.parametrize("missing", range(MIN_RUN + 1, 40, 5))
async def test_a_gap_comes_after_all_before_it(missing: int, clock: ManualClock) -> None:
    lake = Counting(clock)
    await table(lake, 60, clock)
    lake.forget(entry_path(missing))
    actual: list[int] = []
    with pytest.raises(GapError) as caught:
        await collect(tailer(lake, clock), actual)
    assert actual == list(range(missing))
    assert caught.value.version == missing


@pytest.mark.parametrize("cut", [0, 1, -2])
@pytest.mark.parametrize("version", [5, 20, 58, 59])
async def test_one_that_is_half_written_is_read_again(version: int, cut: int, clock: ManualClock) -> None:
    """The first look at it, together with others, finds nothing, half a line, or all but the last brace."""

    lake = Counting(clock)
    await table(lake, 60, clock)
    expected = await entries(lake, clock, 59)
    lake.first_read_of(version, lake.bytes_of(entry_path(version))[:cut])
    lake.together.clear()
    assert [entry.commit for entry in await entries(lake, clock, 59)] == [entry.commit for entry in expected]
    assert any(entry_path(version) in paths for paths in lake.together)


async def test_one_that_is_damaged_is_an_error_after_all_before_it(clock: ManualClock) -> None:
    lake = Counting(clock)
    await table(lake, 60, clock)
    lake.replace(entry_path(30), b'{"add":')
    clock.advance(1000)
    actual: list[int] = []
    with pytest.raises(LogError) as caught:
        await collect(tailer(lake, clock), actual)
    assert (actual, caught.value.version) == (list(range(30)), 30)


async def test_the_newest_is_read_by_itself(clock: ManualClock) -> None:
    """It has whole lines, and more are to come."""

    lake = Counting(clock)
    await table(lake, 40, clock)
    newest = lake.bytes_of(entry_path(39))
    whole = newest + serialize([("txn", {"appId": "x", "version": 1})])
    lake.replace(entry_path(39), whole)
    lake.first_read_of(39, newest)
    assert (await entries(lake, clock, 39))[-1].commit.txns


async def test_what_is_held_is_let_go_by_a_look_elsewhere(clock: ManualClock) -> None:
    lake = Counting(clock)
    await table(lake, 60, clock)
    log = DeltaLog(lake)
    for version in range(20):
        await log.entry(version)
    lake.replace(entry_path(20), b"\n")
    await log.entry(5)
    assert not (await log.entry(20)).commit.adds


@pytest.mark.parametrize("versions", [30, 100])
async def test_a_table_that_is_created_anew_meanwhile(versions: int, clock: ManualClock) -> None:
    """The reader returns entries of the old table only. It raises an error before it returns an entry of the new one."""

    lake, other = Counting(clock), Lake(clock)
    await table(lake, 60, clock)
    clock.advance(1)
    await table(other, versions, clock, table_id="U", first_id=1000)
    old = await entries(lake, clock, 59)
    actual = tailer(lake, clock).entries(0)
    assert [await anext(actual) for _ in range(21)] == old[:21]
    lake.forget("")
    lake.copy_from(other)
    delivered: list[LogEntry] = []
    with pytest.raises(TableChangedError, match="its id was T and is U"):
        await gather(actual, delivered)
    assert len(delivered) < 39
    assert delivered == old[21 : 21 + len(delivered)]


async def test_large_entries_are_not_gathered(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    lake = Counting(clock)
    await table(lake, 20, clock)
    monkeypatch.setattr(entry_batches, "MAX_BYTES", max(len(lake.bytes_of(entry_path(n))) for n in range(1, 20)))
    assert len(await entries(lake, clock, 19)) == 20
    assert lake.together == []


@pytest.mark.parametrize("most", [4 << 20, 1500, 1])
@pytest.mark.parametrize("version", [None, 0, 1, 50, 199])
async def test_a_header_that_is_far_back(
    version: int | None, most: int, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    lake = Counting(clock)
    await table(lake, VERSIONS, clock)
    monkeypatch.setattr(entry_batches, "MAX_BYTES", most)
    header = await DeltaLog(lake).header(version)
    assert (header.metadata.id, header.version) == ("T", VERSIONS - 1 if version is None else version)
    asked = [path for method, path in lake.calls if method == "read"]
    assert len(asked) == len(set(asked)) == header.version + 1 + asked.count("_delta_log/_last_checkpoint")
    assert bool(lake.together) == (most > 1 and header.version > 1)


async def test_a_header_beyond_an_entry_that_is_damaged(clock: ManualClock) -> None:
    lake = Counting(clock)
    await table(lake, 60, clock)
    lake.replace(entry_path(30), b'{"metaData":')
    with pytest.raises(LogError) as caught:
        await DeltaLog(lake).header()
    assert (caught.value.version, caught.value.path) == (30, entry_path(30))


async def test_a_store_that_ends_a_batch_early(clock: ManualClock) -> None:
    class Failing(MemoryStorage):
        async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
            return ()

    lake = Failing()
    await table(lake, 20, clock)
    log = DeltaLog(lake)
    assert [(await log.entry(version)).commit.version for version in range(20)] == list(range(20))
    assert (await log.header()).metadata.id == "T"


def test_a_file_that_grows_while_others_are_read_ends_it(tmp_path: Path) -> None:
    class Growing(LocalStorage):
        def _stat_in(self, folder: int, path: str) -> Stat:
            if path == "b":
                with (tmp_path / "b").open("ab") as file:
                    file.write(b"more")
            return super()._stat_in(folder, path)

    for name in "abc":
        (tmp_path / name).write_bytes(b"some")
    actual = asyncio.run(Growing(tmp_path).fetch_many(["a", "b", "c"], 100))
    assert [stat.path for _, stat in actual] == ["a"]
