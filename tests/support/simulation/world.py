"""Tables and their writers: versions of every kind, and the change rows that each version means to a reader.

A table's past may be replaced, too: it is then another timeline. No row is in two timelines but in the versions that they share.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

import orjson

from cdfd.delta import paths
from tests.support.simulation.files import PROTOCOL, Action, Change, File, Row, checkpoint, parquet, schema_string
from tests.support.simulation.storage import Disk
from tests.support.simulation.weather import Weather


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """The meaning of a version to a reader that follows the table.

    Attributes:
        changes: its change rows.
        files: that hold them.
        width: columns of the table.
        live: its files afterwards.
        since: the time of its commit, in seconds since the beginning.
        entry: its log entry, whole.
    """

    changes: tuple[Change, ...]
    files: frozenset[str]
    width: int
    live: tuple[File, ...]
    since: float
    entry: bytes

    def rows(self) -> Counter[Change]:
        return Counter((change[0], *change[1 : self.width + 1]) for change in self.changes)

    def live_rows(self) -> Counter[Change]:
        return Counter(("insert", *row[: self.width]) for file in self.live for row in file.live())


@dataclass(slots=True, eq=False)
class Timeline:
    """A table's versions, by number."""

    table_id: str
    versions: dict[int, Meaning] = field(default_factory=dict)

    @property
    def tip(self) -> int:
        return max(self.versions, default=-1)


class World:
    """One table in a store, and its writer.

    Attributes:
        timelines: all timelines so far; the last one is the table's current one.
        disturbed: events from which readers need not recover by themselves.
        lost: data files that are gone although some version needs them.
        passed: returns the version that readers have reached; log clean-up mostly keeps later ones.
        restorable: returns the number of versions, from the first one on, of which a backup may be restored.
        halt: ends the processes that follow.
    """

    def __init__(self, number: int, weather: Weather, disk: Disk, *, disturbances: bool, checkpoints: bool) -> None:
        self.name = f"t{number}"
        self.disk = disk
        self.timelines: list[Timeline] = []
        self.disturbed: set[str] = set()
        self.lost: set[str] = set()
        self.passed: Callable[[], int] = lambda: 0
        self.restorable: Callable[[], int] = lambda: self.now.tip
        self.halt: Callable[[], Awaitable[None]]
        self._number = number
        self._weather = weather
        self._random: Random = weather.random
        self._files = 0
        self._commits = 0
        self._width = 2
        self._live: tuple[File, ...] = ()
        self._checkpoints = checkpoints
        self._disturbances = disturbances
        self._meaning: Meaning | None = None
        self._loop = asyncio.get_running_loop()
        disk.entered = self._entered

    @property
    def now(self) -> Timeline:
        return self.timelines[-1]

    def has_entry(self, version: int) -> bool:
        """Whether the log entry of a version is there."""
        return f"{paths.LOG}/{paths.commit_name(version)}" in self.disk.blobs

    async def write(self, versions: int, pause: float) -> None:
        """Create the table and commit about so many versions, in bursts."""
        await asyncio.sleep(self._random.choice((0, 0, 5)))
        await self._create()
        while versions > 0:
            await asyncio.sleep(self._random.expovariate(1 / pause))
            for _ in range(min(versions, self._random.choice((1, 1, 1, 2, 6)))):
                versions -= 1
                await self.step()

    async def step(self) -> None:
        """Commit something."""
        if self._weather.strikes("writer: clock jumps"):
            self.disk.skew_ms = self._random.choice((-3_600_000, -9_000, 0, 400, 3_600_000))
        steps = [self._insert] * 4 + [self._update, self._rewrite, self._hide] * 2
        steps += [self._optimize, self._widen, self._nothing, self._txn]
        steps += [self._checkpoint] * self._checkpoints
        if self._disturbances and self._random.random() < 0.25:
            steps = [self._replace, self._vacuum] + [self._restore] + [self._clean] * self._checkpoints
        await self._random.choice(steps)()

    async def _create(self) -> None:
        self._width, self._live = 2, ()
        self.timelines.append(Timeline(f"{self.name}-{len(self.timelines)}"))
        await self._commit([PROTOCOL, self._metadata()], ())

    def _metadata(self) -> Action:
        configuration = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
        fields = {"id": self.now.table_id, "format": {"provider": "parquet", "options": {}}}
        fields |= {"schemaString": schema_string(self._width), "partitionColumns": [], "configuration": configuration}
        return {"metaData": fields}

    async def _insert(self) -> None:
        files = [self._file(self._new_rows()) for _ in range(self._random.choice((1, 1, 2, 4)))]
        self._live += tuple(files)
        await self._commit([file.action("add") for file in files], _changes("insert", files), _paths(files))

    async def _update(self) -> None:
        """With change data files: one, or two of which the second one may hold the images before."""
        if not self._live:
            return
        old = self._random.choice(self._live)
        rows = old.live()
        changed = [(row[0], f"u{self._files}", row[2]) for row in rows[:2]]
        new = self._file(changed + rows[2:])
        self._live = (*(file for file in self._live if file is not old), *((new,) if new.rows else ()))
        images = [
            (kind, *row)
            for before, after in zip(rows, changed, strict=False)
            for kind, row in (("update_preimage", before), ("update_postimage", after))
        ]
        actions = [old.action("remove"), *([new.action("add")] if new.rows else [])]
        parts = [images[:2], images[2:]] if len(images) > 2 and self._random.random() < 0.5 else [images]
        names = []
        for number, part in enumerate(parts):
            path, data = (
                f"_change_data/cdc-{self._files}-{number}.parquet",
                parquet(tuple(part), self._width, typed=True),
            )
            self.disk.put(path, data)
            names.append(path)
            actions.append({"cdc": {"path": path, "partitionValues": {}, "size": len(data), "dataChange": False}})
        await self._commit(actions, images, names)

    async def _rewrite(self) -> None:
        """A delete without change data: the file's rows go, and those that stay come back in another one."""
        if not self._live:
            return
        old = self._random.choice(self._live)
        kept = [self._file(old.live()[1:])] if len(old.live()) > 1 else []
        self._live = (*(file for file in self._live if file is not old), *kept)
        changes = _changes("delete", [old]) + _changes("insert", kept)
        await self._commit(
            [old.action("remove"), *(file.action("add") for file in kept)], changes, _paths([old, *kept])
        )

    async def _hide(self) -> None:
        """A delete by a deletion vector."""
        chosen = [file for file in self._live if file.live()]
        if not chosen:
            return
        old = self._random.choice(chosen)
        row = self._random.choice(sorted(set(range(len(old.rows))) - old.hidden))
        new = replace(old, hidden=old.hidden | {row})
        self._live = tuple(new if file is old else file for file in self._live)
        await self._commit([old.action("remove"), new.action("add")], [("delete", *old.rows[row])], _paths([old]))

    async def _optimize(self) -> None:
        rows = [row for file in self._live for row in file.live()]
        actions = [file.action("remove", data_change=False) for file in self._live]
        self._live = (self._file(rows),) if rows else ()
        await self._commit([*actions, *(file.action("add", data_change=False) for file in self._live)], ())

    async def _widen(self) -> None:
        self._width = 3
        await self._commit([self._metadata()], ())

    async def _nothing(self) -> None:
        await self._commit([], ())

    async def _txn(self) -> None:
        await self._commit([{"txn": {"appId": "etl", "version": self.now.tip}}], ())

    async def _checkpoint(self) -> None:
        version = self.now.tip
        meaning = self.now.versions[version]
        rows = [PROTOCOL, self._metadata(), *(file.action("add") for file in meaning.live)]
        self.disk.put(f"{paths.LOG}/{version:020d}.checkpoint.parquet", checkpoint(rows))
        if self._random.random() < 0.7:
            hint = orjson.dumps({"version": version, "size": len(rows)})
            self.disk.put(f"{paths.LOG}/_last_checkpoint", hint)
        if self._random.random() < 0.5:
            self._remove_entries(min(version, self.passed()))

    async def _replace(self) -> None:
        """Delete the table; most often there is another one in its place soon."""
        self._disturb("replaced")
        for path in list(self.disk.blobs):
            self.disk.remove(path)
        await asyncio.sleep(self._random.choice((0, 0.01, 2, 90)))
        await self._create()
        for _ in range(self._random.choice((0, 3, 8))):
            await self._insert()

    async def _restore(self) -> None:
        """Put back a backup of the table as it was at some version, and write on from there. Careful operators stop all readers before."""
        if self._random.random() < 0.5:
            await asyncio.sleep(self._random.choice((0, 5, 30)))
            await self.halt()
        versions = min(self.now.tip, self.restorable())
        if versions < 1:
            return
        self._disturb("restored")
        version = self._random.randrange(versions)
        kept = {number: meaning for number, meaning in self.now.versions.items() if number <= version}
        self.timelines.append(Timeline(self.now.table_id, kept))
        self._live, self._width = kept[version].live, kept[version].width
        newer = paths.commit_name(version + 1)
        for path in self.disk.names(f"{paths.LOG}/"):
            if path.rpartition("/")[2] >= newer[:20]:
                self.disk.remove(path)
        for number, meaning in kept.items():  # the backup has what log clean-up has removed since
            if not self.has_entry(number):
                self._meaning = meaning
                self.disk.put(f"{paths.LOG}/{paths.commit_name(number)}", meaning.entry)
        if self._random.random() < 0.5:  # a copy, whose files are as old as the copy
            for path in self.disk.names(f"{paths.LOG}/"):
                self.disk.put(path, self.disk.blobs[path].data)
        for _ in range(self._random.choice((0, 1, 5))):
            await self._insert()

    async def _vacuum(self) -> None:
        """Remove a file that some version needs."""
        needed = sorted({path for meaning in self.now.versions.values() for path in meaning.files} - self.lost)
        if needed:
            path = self._random.choice(needed)
            self._disturb(f"lost {path}")
            self.lost.add(path)
            self.disk.remove(path)

    async def _clean(self) -> None:
        """Log clean-up that is faster than those who follow."""
        await self._checkpoint()
        self._disturb("cleaned")
        self._remove_entries(self.now.tip)

    def _remove_entries(self, before: int) -> None:
        """Remove what is older than the newest checkpoint that is not after version `before`."""
        logs = self.disk.names(f"{paths.LOG}/0")
        points = [int(path[11:31]) for path in logs if ".checkpoint." in path]
        oldest = max((point for point in points if point <= before), default=0)
        for path in logs:
            if int(path[11:31]) < oldest:
                self.disk.remove(path)

    def _disturb(self, how: str) -> None:
        self.disturbed.add(how.split()[0])
        self._weather.note(self.name, how)

    def _new_rows(self) -> list[Row]:
        first = self._number * 1_000_000 + self._files * 10
        extra = first % 7 if self._width > 2 else None
        return [(first + number, "a", extra) for number in range(1 + self._files % 3)]

    def _file(self, rows: list[Row]) -> File:
        path = f"part-{self._files}.parquet"
        self._files += 1
        data = parquet(tuple(rows), self._width)
        if rows:
            self.disk.put(path, data)
        return File(path, tuple(rows), len(data))

    async def _commit(self, actions: list[Action], changes: Iterable[Change], files: Iterable[str] = ()) -> None:
        """Write the next version; where another was first, the one after it."""
        self._commits += 1
        # Of two histories no entries are the same: writers give each commit a number of its own, or its time.
        info = {"timestamp": 0, "operation": "WRITE", "txnId": str(self._commits)}
        lines = [{"commitInfo": info}, *actions]
        data = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        self._meaning = Meaning(tuple(changes), frozenset(files), self._width, self._live, self._loop.time(), data)
        version = self.now.tip + 1
        path = f"{paths.LOG}/{paths.commit_name(version)}"
        self._weather.note(self.name, "commits", version)
        if not self.disk.remote and self._weather.strikes("writer: partial"):
            self.disk.put(path, data[: self._random.choice((0, len(data) // 2))])
            await asyncio.sleep(self._random.choice((0, 0.05, 0.3)))
            if path not in self.disk.blobs:
                return  # another writer has replaced the table meanwhile
        self.disk.put(path, data)

    def _entered(self, path: str) -> None:
        """A version is there: the writer's, or one in which a daemon keeps its progress."""
        name = paths.parse_name(path.rpartition("/")[2]) if path.startswith(f"{paths.LOG}/") else None
        if name is None or name.kind != "commit":
            return
        meaning, self._meaning = self._meaning, None
        if meaning is None:
            entry = self.disk.blobs[path].data
            meaning = Meaning((), frozenset(), self._width, self._live, self._loop.time(), entry)
        self.now.versions[name.version] = meaning


def _changes(kind: str, files: Iterable[File]) -> list[Change]:
    return [(kind, *row) for file in files for row in file.live()]


def _paths(files: Iterable[File]) -> list[str]:
    return [file.path for file in files]
