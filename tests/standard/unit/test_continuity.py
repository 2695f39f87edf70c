"""Tables that are replaced while they are read: whatever the moment, a reader gives versions of one history in order, or an error.

The replacement happens between two steps of the store, and each test goes through all of them, so that no moment is left out.
"""

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from cdfd.api import _range
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError, GapError, LogError, NotFoundError, StorageError, TableChangedError
from cdfd.log.log import DeltaLog
from cdfd.log.start import start_position, until_version
from cdfd.log.stream import PlanStream
from cdfd.log.table import Table
from cdfd.log.tailer import Tailer
from cdfd.log.watch import Backoff, PollWatch
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.scan.table_files import TableFiles
from cdfd.storage.base import Stat, fetch_each
from cdfd.storage.local import LocalStorage
from tests.support.faulty_storage import FaultyStorage
from tests.support.feeding import MemoryPlace, feed
from tests.support.lake import SCHEMA, Lake, checkpoint, entry_path, manual_clock, rows, table
from tests.support.manual_time import ManualClock
from tests.support.memory_storage import MemoryStorage
from tests.support.sampling import sample

Files = dict[str, bytes]
Found = tuple[str, int, frozenset[str]]
"""A version as read: whether as changes or as a snapshot, its number, and its data files."""

TICKS = 120
"""Seconds, by its own clock, after which a waiting reader is stopped. It checks everything once in a minute."""


# --- tables ---


@dataclass(frozen=True)
class History:
    """A table that may be put at a place: its files, and what its versions give."""

    files: Files
    changes: Sequence[Found]
    live: Sequence[Found]

    def continues(self, versions: Sequence[Found]) -> bool:
        """Whether that is what a reader of this table gives, up to some version."""
        if not versions:
            return True
        first = versions[0]
        if first[0] == "snapshot":
            return first[1] < len(self.live) and self.live[first[1]] == first and self._has(versions[1:], first[1] + 1)
        return self._has(versions, first[1])

    def ended(self, versions: Sequence[Found]) -> bool:
        """Whether that is all that a reader of this table gives."""
        return self.continues(versions) and bool(versions) and versions[-1][1] == len(self.changes) - 1

    def _has(self, versions: Sequence[Found], start: int) -> bool:
        return list(versions) == list(self.changes[start : start + len(versions)])


async def history(versions: int, table_id: str = "T", *, of: History | None = None, common: int = 0) -> History:
    """A table of so many versions; of another one, the first `common` are the same."""
    clock = manual_clock()
    store = MemoryStorage(now_ms=clock.now_ms)
    for path, data in ({} if of is None else of.files).items():
        version = path.rpartition("/")[2].partition(".")[0]
        if not path.startswith("_delta_log/") or int(version) < common:
            await store.put(path, data)
    if not common:
        await table(store, versions, clock, table_id, first_id=0 if of is None else 1000)
    writer = TableWriter(store, SCHEMA, clock=clock, table_id=table_id, version=common - 1)
    for version in range(common, versions if common else 0):
        await writer.insert(rows(1000 + version))
    return await described(store)


async def described(store: MemoryStorage) -> History:
    log, changes, live = DeltaLog(store), [], []
    newest = await log.latest_version()
    async for version in PlanStream(log).versions(tailer_of(log, manual_clock()), 0, newest):
        changes.append(change_of(version))
        live.append(change_of(await PlanStream(log).snapshot(version.plan.version)))
    files = [stat.path async for stat in store.list("")] + [stat.path async for stat in store.list("_delta_log/")]
    return History({path: await store.read(path) for path in files}, changes, live)


def change_of(version: Version) -> Found:
    plan = version.plan
    kind = "snapshot" if plan.origin == "snapshot" else "changes"
    return kind, plan.version, frozenset(scan.path for scan in plan.scans)


def tailer_of(log: DeltaLog, clock: ManualClock) -> Tailer:
    return Tailer(log, PollWatch(clock), clock, Backoff(1.0, 4.0))


# --- stores, and how a table in them is replaced ---


class Memory(MemoryStorage):
    """Every writing has an identity of its own."""

    async def clear(self, *, log_only: bool = False) -> None:
        self._objects.clear()


class Tagged(Memory):
    """A store like S3: writes of the same bytes at one time have the same tag, and announced objects are read ahead."""

    remote = True

    def __init__(self) -> None:
        super().__init__(now_ms=lambda: 1_767_225_600_000)
        self._ahead: dict[str, tuple[bytes, Stat]] = {}

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        if path in self._objects:
            self._ahead.setdefault(path, (self._objects[path].data, self._stat(path)))

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        held = self._ahead.pop(path, None)
        return await super().fetch(path, length) if held is None else (held[0][:length], held[1])

    def _stat(self, path: str) -> Stat:
        stat = super()._stat(path)
        return replace(stat, identity=hashlib.md5(self._objects[path].data).hexdigest())


class Disk(LocalStorage):
    async def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


Store = Memory | Disk
Swap = Callable[[Store, Files], Iterator[Awaitable[None]]]
"""The steps of a replacement, between which a reader may read."""


async def put_all(store: Store, files: Files) -> None:
    for path in sorted(files):
        await store.put(path, files[path])


def at_once(store: Store, files: Files) -> Iterator[Awaitable[None]]:
    """The folder is renamed away and another one renamed to its place."""

    async def swap() -> None:
        await store.clear()
        await put_all(store, files)

    yield swap()


def removed_first(store: Store, files: Files) -> Iterator[Awaitable[None]]:
    """The table is removed. Later another one is created, file by file."""
    yield store.clear()
    for path in sorted(files):
        yield store.put(path, files[path])


def copied_over(store: Store, files: Files) -> Iterator[Awaitable[None]]:
    """Files are copied over the table one by one, in order of their names.

    A shorter table would leave a log whose end is the old table's. A reader that starts then takes it for one log.
    """
    for path in sorted(files):
        yield store.put(path, files[path])


SWAPS: list[Swap] = [at_once, removed_first, copied_over]
STORES: list[Callable[[Path], Store]] = [
    lambda folder: Memory(),
    lambda folder: Tagged(),
    lambda folder: Disk(folder, sync=False),
]


class OneByOne(FaultyStorage):
    """Each file is a step, also where several are asked for."""

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        return await fetch_each(self, paths, length)


class Stage:
    """A store whose table is replaced from its step number `moment` on, one step of the replacement at each of its own."""

    def __init__(self, store: Store, moment: int, swap: Iterator[Awaitable[None]]) -> None:
        self.left = moment
        self.done = False
        self._swap = swap
        self.storage = OneByOne(store, before=self._step, after=self._step)

    async def _step(self, method: str, path: str) -> None:
        self.left -= 1
        if self.left < 0 and not self.done:
            step = next(self._swap, None)
            if step is None:
                self.done = True
            else:
                await step


# --- readers ---


@dataclass
class Reading:
    """The versions that a reader returned, and its end: an error, or a timeout."""

    entries: list[Found] = field(default_factory=list)
    error: CdfdError | None = None
    waits: bool = False
    busy: int = 0
    """Steps of the store until it first waited."""


Reader = Callable[[Table, Tailer, int], AsyncIterator[Version]]


async def from_zero(table: Table, tailer: Tailer, last: int) -> AsyncIterator[Version]:
    """`cdfd tail --from earliest`."""
    async for version in table.stream().versions(tailer, 0):
        yield version


async def from_within(table: Table, tailer: Tailer, last: int) -> AsyncIterator[Version]:
    async for version in table.stream().versions(tailer, 2):
        yield version


async def from_snapshot(table: Table, tailer: Tailer, last: int) -> AsyncIterator[Version]:
    """`cdfd tail --snapshot`."""
    stream = table.stream()
    first = await stream.snapshot(None, tailer)
    yield first
    async for version in stream.versions(tailer, first.plan.version + 1):
        yield version


async def of_range(table: Table, tailer: Tailer, last: int) -> AsyncIterator[Version]:
    """`cdfd.changes`."""
    first, last, _ = await _range(table, 0, None)
    async for version in table.stream().versions(tailer, first, last):
        yield version


async def read(store: FaultyStorage, reader: Reader, last: int) -> Reading:
    """Run a reader until it has given version `last`, fails, or has waited long enough."""
    clock, reading = manual_clock(), Reading()
    source = Table(DeltaLog(store), TableFiles(store, LocalStorage))

    async def follow() -> None:
        tailer = tailer_of(source.log, clock)
        async with contextlib.aclosing(reader(source, tailer, last)) as versions:
            async for version in versions:
                reading.entries.append(change_of(version))
                if version.plan.version == last:
                    return

    task = asyncio.create_task(follow())
    try:
        reading.busy = await patiently(task, clock, store)
    except CdfdError as error:
        reading.error = error
    reading.waits = task.cancelled()
    return reading


async def patiently(task: asyncio.Task[None], clock: ManualClock, store: FaultyStorage, pause: float = 0) -> int:
    """Return when a task has ended; it is cancelled after it has waited long enough. How many steps it took until it first waited.

    `pause`: seconds of real time for the task's threads, each time before the clock is advanced.
    """
    busy = 0
    for tick in range(TICKS):
        sleeping = asyncio.ensure_future(clock.wait_for_sleepers())
        await asyncio.wait((task, sleeping), return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        busy = len(store.steps) if not tick else busy
        if pause:
            await asyncio.sleep(pause)
        if task.done():
            task.result()
            return busy
        clock.advance(1)
    task.cancel()
    await asyncio.wait((task,))
    return busy


async def delivered(store: FaultyStorage, place: MemoryPlace, last: int, start: str) -> CdfdError | None:
    """Run a daemon's loop until version `last` is delivered, it fails, or it has waited long enough; what it fails of."""
    clock = manual_clock()
    task = asyncio.create_task(feed(store, place, clock, last, start=start))
    try:
        await patiently(task, clock, store, 0.001)
    except CdfdError as error:
        return error
    return None


def check(reading: Reading, old: History, new: History, moment: int) -> None:
    """Check the rules for a reader of a table that is replaced: versions of one table, or an error."""
    about = (moment, reading.error, reading.waits, [each[:2] for each in reading.entries])
    assert old.continues(reading.entries) or new.continues(reading.entries), about
    if reading.error is not None:
        assert isinstance(reading.error, TableChangedError | LogError | StorageError), about
    elif reading.waits:
        # A reader that waits without an error has returned all versions of the new table.
        assert new.ended(reading.entries) or not reading.entries, about


OTHERS = {
    "another table, shorter": (2, "U", 0),
    "another table, as long": (6, "U", 0),
    "another table, longer": (12, "U", 0),
    "an older state": (3, "T", 3),
    "an older state that went on": (9, "T", 3),
    "a copy that went another way": (6, "T", 1),
    "one that was made anew with the same id": (9, "T", 0),
    "the same, and more": (9, "T", 6),
}
VERSIONS = 6
REPLACED = [
    (swap, other) for swap in SWAPS for other in OTHERS if swap is not copied_over or OTHERS[other][0] >= VERSIONS
]
SAMPLE = sample(REPLACED, 4)


@pytest.mark.parametrize(
    ("swap", "other"), SAMPLE, ids=[f"{swap.__name__}-{other.replace(' ', '_')}" for swap, other in SAMPLE]
)
@pytest.mark.parametrize(
    "reader", [from_zero, from_within, from_snapshot, of_range], ids=lambda reader: reader.__name__
)
@pytest.mark.parametrize("make", sample(STORES, 1))
async def test_reader_of_a_replaced_table_gives_one_history(
    make: Callable[[Path], Store], reader: Reader, swap: Swap, other: str, tmp_path: Path
) -> None:
    old = await history(VERSIONS)
    versions, table_id, common = OTHERS[other]
    new = await history(versions, table_id, of=old, common=common)
    last = max(VERSIONS, versions) - 1
    store = make(tmp_path / "undisturbed")
    await put_all(store, old.files)
    undisturbed = await read(OneByOne(store), reader, last)
    assert undisturbed.error is None
    # Each step has a moment before and one after; those after the first wait are alike.
    moments = 2 * (undisturbed.busy + 3)
    for moment in range(0, moments, 1 if isinstance(store, Memory) else 5):
        store = make(tmp_path / str(moment))
        await put_all(store, old.files)
        stage = Stage(store, moment, swap(store, new.files))
        check(await read(stage.storage, reader, last), old, new, moment)


def rows_of(place: MemoryPlace) -> list[tuple[int, int]]:
    return [(row["_commit_version"], row["id"]) for row in place.rows()]


@pytest.mark.parametrize("other", sample(OTHERS, 4))
@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize("make", sample(STORES, 1))
async def test_daemon_of_a_replaced_table_delivers_one_history(
    make: Callable[[Path], Store], start: str, other: str, tmp_path: Path
) -> None:
    """Its table is replaced while it is down, or at any moment after that. All delivered rows are of one table."""

    old = await history(VERSIONS)
    versions, table_id, common = OTHERS[other]
    new = await history(versions, table_id, of=old, common=common)
    own = [(version, 1000 + version) for version in range(max(common, 1), versions)]
    shared = [(version, version) for version in range(1, VERSIONS)]
    expected = [shared, shared[: max(common - 1, 0)] + own]
    until = 3
    for moment in range(0, 60, 1 if make is STORES[0] else 7):
        store, place = make(tmp_path / str(moment)), MemoryPlace()
        held = {path: data for path, data in old.files.items() if not path.startswith("_") or int(path[11:31]) <= until}
        await put_all(store, held)
        await feed(OneByOne(store), place, manual_clock(), until, start=start)
        await put_all(store, old.files)
        stage = Stage(store, moment, at_once(store, new.files))
        error = await delivered(stage.storage, place, max(VERSIONS, versions) - 1, start)
        rows = rows_of(place)
        if start == "snapshot":
            # The rows of the snapshot have its version, and come in any order.
            rows = [(row, row) for row in sorted(row for version, row in rows if version == until)] + rows[until:]
        assert rows in [some[: len(rows)] for some in expected], (moment, error, rows)
        if moment == 0:
            assert (error is None) == (common > until), error
            if common <= until:
                assert isinstance(error, TableChangedError), error


class TestEntriesThatAreListed:
    """An entry that a position was made from is listed, and cannot be read: no log clean-up removed it."""

    async def test_it_is_waited_for(self) -> None:
        mine = await history(4)
        other = await history(6, of=mine, common=2)
        store, readable = Memory(), False

        async def unless_readable(method: str, path: str) -> None:
            if path == entry_path(3) and method != "list" and not readable:
                raise NotFoundError("not yet", path=path)

        await put_all(store, mine.files)
        digest = await DeltaLog(store).digest(3)
        assert digest is not None
        await store.clear()
        await put_all(store, other.files)
        tailer = tailer_of(DeltaLog(FaultyStorage(store, unless_readable)), manual_clock())
        with pytest.raises(StorageError, match="listed, but does not exist") as caught:
            await tailer.resume(Position("T", 4, digest=digest))
        assert caught.value.retriable
        readable = True
        with pytest.raises(TableChangedError, match="version 3 is not the one that was read"):
            await tailer.resume(Position("T", 4, digest=digest))

    async def test_one_that_is_empty_as_it_was(self) -> None:
        store = Memory()
        await table(store, 3, manual_clock())
        await store.put(entry_path(3), b"")
        empty = (await DeltaLog(store).entry(3)).digest
        tailer = tailer_of(DeltaLog(store), manual_clock())
        await tailer.resume(Position("T", 4, digest=empty))
        with pytest.raises(StorageError, match="listed, but does not exist"):
            await tailer.resume(Position("T", 4, digest="of some bytes"))


class TestLostCommits:
    """A checkpoint that is newer than the newest commit: what the commits changed is lost."""

    @staticmethod
    async def lake(clock: ManualClock, *, hint: bool) -> Lake:
        store = Lake(clock)
        await table(store, 8, clock)
        await checkpoint(store, 7)
        if hint:
            await store.put("_delta_log/_last_checkpoint", b'{"version":7,"size":9}')
        store.forget(entry_path(6), entry_path(7))
        return store

    @pytest.mark.parametrize("hint", [False, True])
    async def test_that_is_a_gap(self, hint: bool, clock: ManualClock) -> None:
        log = DeltaLog(await self.lake(clock, hint=hint))
        told = "checkpoint of version 7, but its newest commit is version 5"
        for asked in (log.latest_version, log.header, partial(until_version, log, "now")):
            with pytest.raises(GapError, match=told):
                await asked()
        for start in ("snapshot", "latest", "earliest", 3):
            with pytest.raises(GapError, match=told):
                await start_position(log, start, clock.now_ms())

    @pytest.mark.parametrize("hint", [False, True])
    async def test_the_checkpoint_s_rows_can_be_read(self, hint: bool) -> None:
        log = DeltaLog(await self.lake(manual_clock(), hint=hint))
        assert (await log.snapshot()).version == 7
        assert len((await log.snapshot(7)).live()) == 7
        assert (await PlanStream(log).snapshot()).plan.version == 7

    @pytest.mark.parametrize("start", [4, 6])
    async def test_a_reader_that_comes_there_does_not_wait(self, start: int, clock: ManualClock) -> None:
        store = OneByOne(await self.lake(clock, hint=True))
        source = Table(DeltaLog(store), TableFiles(store, LocalStorage))
        actual = []
        with pytest.raises(GapError, match="versions 6 to 7 are missing, although the log continues to version 7"):
            await collect(source.stream().versions(tailer_of(source.log, clock), start), actual)
        assert [version.plan.version for version in actual] == list(range(start, 6))

    async def test_one_that_was_at_the_tip(self, clock: ManualClock) -> None:
        store = Lake(clock)
        await table(store, 6, clock)
        log = DeltaLog(store)
        actual: list[Version] = []
        task = asyncio.create_task(collect(PlanStream(log).versions(tailer_of(log, clock), 0), actual))
        await clock.wait_for_sleepers()
        store.copy_from(await self.lake(clock, hint=False))
        with pytest.raises((TableChangedError, GapError)):
            await patiently(task, clock, OneByOne(store))
        assert len(actual) == 6


async def collect(versions: AsyncIterator[Version], collected: list[Version]) -> None:
    async for version in versions:
        collected.append(version)
