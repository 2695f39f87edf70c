"""A table that changes in every way while a daemon delivers its changes, and whether all of them arrived exactly once.

The expected changes come from `cdfd.changes`, which other tests compare with other readers. The expected live rows come from delta-rs.
"""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

import cdfd
from cdfd.demo.writer import TableWriter
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from cdfd.storage.location import open_storage
from tests.support.fold import SIGN
from tests.support.kafka.reading import Record, read_topic
from tests.support.lake import SCHEMA, rows

MOVED = 1_000_000_000
"""The number that an update adds to a key that it changes."""


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a table. For one in a store, `options` are delta-rs's, for all its users but the daemon."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)

    def storage(self) -> Storage:
        """Its root."""
        return open_storage(self.uri, self.options) if self.options else LocalStorage(self.uri, sync=False)

    def delta(self) -> DeltaTable:
        """The table as delta-rs opens it."""
        return DeltaTable(self.uri, storage_options=dict(self.options) or None)


class Writing:
    """A thread that commits for the length of a `with`: the same for the same seed, as far as it gets.

    Args:
        place: of the table, a new one.
        seed: decides everything.
        pause: seconds between two commits, at most.
        burst: rows of the large versions, one in sixteen; none of them where 0.
    """

    def __init__(self, place: Location, seed: int, *, pause: float = 0.02, burst: int = 0) -> None:
        self.table = TableWriter(place.storage(), SCHEMA)
        self._random = Random(seed)
        self._pause = pause
        self._burst = burst
        self._next = 0
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer")

    def stop(self) -> None:
        """No more commits after this."""
        self._stop.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Self:
        asyncio.run(self.table.create())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._random.uniform(0, self._pause)):
                asyncio.run(self._step())
        except BaseException as error:  # noqa: BLE001 -- `stop` raises it, in the test's own thread
            self._failed = error

    async def _step(self) -> None:
        table, random = self.table, self._random
        some = random.sample(range(self._next + 1), min(self._next + 1, 4))
        held = _held(table.rows(), some)
        match random.randrange(16):
            case 0 if held:
                await table.update(_among(held), {"v": pc.scalar(f"u{table.version}")})
            case 1 if held:
                await table.update(pc.field("id") == held[0], {"id": pc.field("id") + MOVED})
            case 2:
                await table.merge(rows(*held, *self._fresh(2), v=f"m{table.version}"), "id")
            case 3 if held:
                await table.delete(_among(held))
            case 4:
                await table.delete(pc.field("id") < -1)  # a version without rows
            case 5:
                await table.optimize()
            case 6 if len(table.schema) < 4:
                await table.add_column(pa.field(f"c{len(table.schema)}", pa.int32()))
            case 7:
                await self._several_files()
            case 8 if self._burst:
                await table.insert(rows(*self._fresh(self._burst), v=f"b{table.version}"))
            case _:
                await table.insert(rows(*self._fresh(random.randint(1, 5)), v=f"i{table.version}"))

    async def _several_files(self) -> None:
        table = self.table
        parts = [rows(*self._fresh(3), v=f"s{table.version}") for _ in range(3)]
        await table.commit("WRITE", [await table._add(part) for part in parts])

    def _fresh(self, count: int) -> range:
        self._next += count
        return range(self._next - count, self._next)


def _among(ids: Sequence[int]) -> pc.Expression:
    return pc.is_in(pc.field("id"), pa.array(ids, pa.int64()))


def _held(table: pa.Table, ids: Sequence[int]) -> list[int]:
    numbers: list[int] = pc.filter(table["id"], pc.is_in(table["id"], pa.array(ids, pa.int64()))).to_pylist()
    return sorted(numbers)


class Place(NamedTuple):
    """Where a change is in the history of its table."""

    version: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Change:
    """The content of a record or of a change row."""

    sign: int
    id: int
    v: str | None


History = Mapping[Place, Change]


def history(place: Location, start: int = 0, *, snapshot: bool = False) -> History:
    """All changes of a table since a version; or its live rows at that version, and all changes after it."""
    changes: dict[Place, Change] = {}
    uri, options = place.uri, place.options
    readers = [cdfd.snapshot(uri, start, storage_options=options)] if snapshot else []
    if start + snapshot <= place.delta().version():
        readers.append(cdfd.changes(uri, start + snapshot, key="id", storage_options=options))
    for reader in readers:
        for batch in reader:
            for row in batch.to_pylist():
                changes[Place(row["_commit_version"], row["_change_ordinal"])] = _change(row)
    return changes


def _change(row: Mapping[str, Any]) -> Change:
    return Change(SIGN[row["_change_type"]], row["id"], row["v"])


def await_records(bootstrap_servers: str, topic: str, count: int, **options: Any) -> list[Record]:
    """The records that a `read_committed` reader gets of a topic, once it has `count` records or the wait is over."""
    try:
        return read_topic(bootstrap_servers, topic, at_least=count, **options)
    except TimeoutError as error:
        records = read_topic(bootstrap_servers, topic, **options)
        # The caller compares them, which says more than the number. pytest shows this if it fails.
        print(f"{len(records)} of {count} records of {topic} came in time: {error}")
        return records


def check(table: Location, records: Iterable[Record], expected: History) -> None:
    """Every change is there exactly once, per key in order, and folded they are the table."""
    changes: dict[Place, Change] = {}
    newest: dict[bytes | None, tuple[int, Place]] = {}
    twice: Counter[Place] = Counter()
    astray: list[tuple[bytes | None, Place, int]] = []
    for record in records:
        if record.value is None:
            continue
        row = json.loads(record.value)
        place = Place(row["_commit_version"], row["_change_ordinal"])
        if place in changes:
            twice[place] += 1
        changes[place] = _change(row)
        partition, before = newest.get(record.key, (record.partition, Place(-1, -1)))
        if record.partition != partition or place <= before:
            astray.append((record.key, place, record.partition))
        newest[record.key] = (record.partition, place)
    _none("lost", expected.keys() - changes.keys())
    _none("delivered twice", twice)
    _none("from nowhere", changes.keys() - expected.keys())
    _none("not as they were", {place for place, change in changes.items() if change != expected[place]})
    _none("out of order", astray)
    _check_fold(table, changes.values())


def _none(what: str, places: Iterable[Any]) -> None:
    wrong = sorted(places)
    assert not wrong, f"{len(wrong)} {what}: {wrong[:5]} ... {wrong[-1]}"


def _check_fold(table: Location, changes: Iterable[Change]) -> None:
    folded: Counter[tuple[int, str | None]] = Counter()
    for change in changes:
        folded[change.id, change.v] += change.sign
    live = pa.table(table.delta().scan())
    there = Counter(zip(live["id"].to_pylist(), live["v"].to_pylist(), strict=True))
    assert {row: count for row, count in folded.items() if count} == there
