"""The destination of rows: a topic with transactions, which outlives processes, and the `Sink` port of one process over it.

The topic checks the rows: at each commit it compares the newly visible rows with the meaning of the table's versions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from cdfd.errors import FencedError, SinkError
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.sinks.base import Delivery, Sink
from cdfd.sinks.cursor import Cursor, order
from tests.support.simulation.files import Change
from tests.support.simulation.weather import Process, Weather
from tests.support.simulation.world import Timeline, World

Seen = tuple[int, int, int, Change]
"""Version, timestamp, ordinal, and the change."""


class Topic:
    """The delivered rows of one table, and the position that was committed with them.

    Attributes:
        world: the table.
        exactly_once: whether it keeps the position; where it does not, rows may come again.
        epoch: counts those who opened it; only the last one may commit.
        position: what is delivered next.
        timelines: of the table, those that explain all rows so far.
        on_missing: what the daemon may do where a file is gone.
        resets: how often it was emptied.
        first_version: the first one that the daemon chose to deliver.
        recorded: the version that was recorded in the ledger last, -1 if none was.
        name: of the table's loop: the table's name, or with several sinks the table's and the sink's, `t0@one`.
        outage: how its sink fails now: its calls fail, or hang; None: it works.
    """

    def __init__(
        self, world: World, weather: Weather, *, exactly_once: bool, on_missing: str, name: str | None = None
    ) -> None:
        self.world = world
        self.name = name or world.name
        self.outage: Literal["fails", "hangs"] | None = None
        self.works = asyncio.Event()
        self.exactly_once = exactly_once
        self.on_missing = on_missing
        self.epoch = 0
        self.position: Position | None = None
        self.timelines: list[Timeline] | None = None
        self.resets = 0
        self.rows = 0
        self.first_version = 0
        self.recorded = -1
        self._before: Position | None = None
        self._end: Position | None = None
        self._weather = weather
        self._part: Counter[Change] = Counter()
        self._ordinal = 0
        self._given_up = 0
        self._opened = 0

    async def reach(self) -> None:
        """Called by each request. It waits while the sink hangs.

        Raises:
            SinkError: the sink fails.
        """
        if self.outage == "hangs":
            await self.works.wait()
        elif self.outage == "fails":
            raise SinkError("the sink is down", retriable=True)

    def whole(self) -> int:
        """The last version that is delivered whole, -1 where none is."""
        position = self.position
        return -1 if position is None or position.phase == "snapshot" else position.version - 1

    def lose(self) -> None:
        """Be emptied: rows and position are gone."""
        self._before, self.position = self.position, None
        self.timelines = None
        self.epoch += 1
        self.resets += 1
        self._part.clear()
        self._ordinal = 0

    def note_recorded(self, version: int) -> None:
        """The ledger records this version as delivered. So are the versions before one that was given up for a snapshot."""
        if version > max(self.whole(), self.first_version - 1, self._given_up - 1) and not self.resets:
            self._violate(f"the ledger is told of version {version}, and {self.whole()} is delivered")

    def commit(self, begun: Position, following: Position, rows: Sequence[Seen]) -> None:
        """Rows and position become visible."""
        self._weather.note(self.name, "delivered", begun, following, len(rows))
        self.rows += len(rows)
        self._check_place(begun, following)
        restarted = self._end != begun
        if restarted:
            self._part.clear()
            self._ordinal = 0
        if self._opened != self.epoch:
            self._opened = self.epoch
            if not self.world.has_entry(begun.basis):
                self.timelines = None  # the entry that tells histories of one id apart is gone: docs/reliability.md
        if self.timelines is None:
            self.timelines = [timeline for timeline in self.world.timelines if timeline.table_id == begun.table_id]
        # The table may have forked since, with the same versions so far.
        self._branch()
        if following != begun and not _restarts(begun, following):
            self._check_rows(begun, following, rows)
        elif rows:
            self._violate(f"rows without progress at {begun}")
        else:
            self._part.clear()
            self._ordinal = 0
        if begun.phase == "stream" and following.phase == "snapshot":
            self._given_up = begun.version
        self._end = following
        if self.exactly_once or self.position is None or order(following) > order(self.position):
            self.position = following

    def _branch(self) -> None:
        assert self.timelines is not None
        whole = self.whole()
        for timeline in self.world.timelines:
            if timeline not in self.timelines and any(_same(timeline, known, whole) for known in self.timelines):
                self.timelines.append(timeline)

    def _check_place(self, begun: Position, following: Position) -> None:
        position, world = self.position, self.world
        if position is None or (not self.exactly_once and self.recorded < 0 and begun != self._end):
            self.first_version, self.timelines = begun.version, None
            if position is None or begun.table_id != position.table_id:
                self.position = begun
            before, self._before = self._before, None
            if before is not None and not world.disturbed and begun.phase == "stream" and order(begun) > order(before):
                self._violate(f"goes on at {begun} although only what is before {before} was delivered")
        elif self.exactly_once and begun != position:
            self._violate(f"a delivery begins at {begun}, the topic stands at {position}")
        elif order(begun) > order(position) and begun.phase == "stream":
            self._violate(f"a delivery begins at {begun}, after {position}: what is between is left out")
        if (
            begun.phase == "stream"
            and following.phase == "snapshot"
            and not (world.lost and self.on_missing == "snapshot")
        ):
            self._violate(f"goes from {begun} to {following} although no file is gone")

    def _check_rows(self, begun: Position, following: Position, rows: Sequence[Seen]) -> None:
        """Every version that ends with this delivery has all its rows, each once and in order; one that does not end is a part."""
        by_version: dict[int, list[Seen]] = {}
        for row in rows:
            by_version.setdefault(row[0], []).append(row)
        if list(by_version) != sorted(by_version) or any(
            not begun.version <= at <= following.version for at in by_version
        ):
            self._violate(f"versions {list(by_version)} between {begun} and {following}")
        for version in range(begun.version, max(following.version, begun.version + 1)):
            of_version = by_version.get(version, [])
            last = self._ordinal - 1 if version == begun.version else -1
            if [row[2] for row in of_version] != list(range(last + 1, last + 1 + len(of_version))):
                self._violate(f"version {version} has the ordinals {[row[2] for row in of_version]} after {last}")
            if len({row[1] for row in of_version}) > 1:
                self._violate(f"version {version} has several timestamps")
            seen = Counter(row[3] for row in of_version)
            if version == begun.version:
                seen += self._part
            self._check_version(begun, version, seen, whole=version < following.version)
        ends_within = following.version == begun.version or following.version in by_version
        self._part = seen if ends_within else Counter()
        self._ordinal = self._ordinal + len(rows) if ends_within else 0
        if ends_within and (
            following.version != begun.version or self._ordinal != following.ordinal or not following.part
        ):
            self._violate(f"a part ends at {following} with {self._ordinal} rows before it")

    def _check_version(self, begun: Position, version: int, seen: Counter[Change], *, whole: bool) -> None:
        assert self.timelines is not None
        snapshot = begun.phase == "snapshot" and version == begun.version
        explained = [
            timeline for timeline in self.timelines if self._explains(timeline, version, snapshot, seen, whole)
        ]
        if explained:
            self.timelines = explained
            return
        expected = [
            dict(meaning.live_rows() if snapshot else meaning.rows())
            for timeline in self.timelines
            if (meaning := timeline.versions.get(version)) is not None
        ]
        self._violate(f"version {version}{' (snapshot)' * snapshot} has the rows {dict(seen)}, not {expected}")

    def _explains(self, timeline: Timeline, version: int, snapshot: bool, seen: Counter[Change], whole: bool) -> bool:
        meaning = timeline.versions.get(version)
        if meaning is None:
            return False
        expected = meaning.live_rows() if snapshot else meaning.rows()
        # A writer that replaces a table removes its files, too.
        gone = self.on_missing == "skip" and (self.world.lost or "replaced" in self.world.disturbed)
        return seen == expected if whole and not gone else seen <= expected

    def _violate(self, what: str) -> None:
        self._weather.violate(f"{self.name}: {what}")


def _restarts(begun: Position, following: Position) -> bool:
    """Whether versions are given up for a snapshot."""
    return following.phase == "snapshot" and (begun.phase == "stream" or begun.version != following.version)


def _same(one: Timeline, other: Timeline, up_to: int) -> bool:
    return one.table_id == other.table_id and all(
        one.versions.get(version) is other.versions.get(version) for version in range(up_to + 1)
    )


class TransactionalSink(Sink):
    """The `Sink` port over a topic. `open` fences those who opened it before."""

    def __init__(self, topic: Topic, process: Process, weather: Weather) -> None:
        self.topic = topic
        self.process = process
        self.weather = weather
        self.cursor = Cursor(topic.position if topic.exactly_once else None)
        self._epoch = topic.epoch
        self._delivery: TransactionalDelivery | None = None

    @classmethod
    async def open(cls, topic: Topic, process: Process, weather: Weather) -> TransactionalSink:
        process.check()
        await process.reach()
        await topic.reach()
        await weather.pass_by("sink: slow")
        process.check()
        if weather.strikes("sink: opening fails"):
            raise SinkError("no broker answers", retriable=True)
        topic.epoch += 1
        weather.note(topic.name, "opened by process", process.number)
        return cls(topic, process, weather)

    async def last_position(self) -> Position | None:
        return self.cursor.position

    async def begin(self, position: Position) -> TransactionalDelivery:
        self.process.check()
        self.cursor.begin(position)
        self._delivery = TransactionalDelivery(self, position)
        return self._delivery

    async def close(self) -> None:
        if self._delivery is not None:
            await self._delivery.abort()
        self.cursor.close()

    async def call(self, failure: str) -> None:
        """Simulate one request: delay it, and fail it if the weather says so."""
        self.process.check()
        await self.process.reach()
        await self.topic.reach()
        await self.weather.pass_by("sink: slow")
        self.process.check()
        self.require_latest()
        if self.weather.strikes(failure):
            raise SinkError("the broker did not answer in time", retriable=True)

    def require_latest(self) -> None:
        if self._epoch != self.topic.epoch:
            raise FencedError("another producer has the transactional id")


class TransactionalDelivery(Delivery):
    """A transaction."""

    def __init__(self, sink: TransactionalSink, position: Position) -> None:
        self._sink = sink
        self._position = position
        self._rows: list[Seen] = []
        self._ended = False

    async def start_version(self, version: Version) -> None:
        self._sink.process.check()

    async def write(self, batch: pa.RecordBatch) -> None:
        assert not self._ended
        await self._sink.call("sink: write fails")
        *table, kinds, versions, times, ordinals = batch.columns
        rows = zip(kinds.to_pylist(), *(column.to_pylist() for column in table), strict=True)
        times = times.view(pa.int64())  # a datetime costs more than all the rest of a row
        self._rows += zip(versions.to_pylist(), times.to_pylist(), ordinals.to_pylist(), rows, strict=True)

    async def commit(self, following: Position) -> None:
        """Once the request is on its way it takes effect, whatever becomes of who sent it, but for a producer that is fenced meanwhile."""
        sink, cursor = self._sink, self._sink.cursor
        cursor.check(following, rows=bool(self._rows))
        cursor.mark_uncertain()
        await sink.call("sink: commit fails")
        answer = asyncio.get_running_loop().create_future()
        delay = sink.weather.random.choice((0, 0, sink.weather.latency, 4 * sink.weather.latency))
        asyncio.get_running_loop().call_later(delay, self._take_effect, following, answer)
        await answer
        if sink.weather.strikes("sink: commit of unknown outcome"):
            raise SinkError("the connection was lost before the commit was answered", retriable=True)
        cursor.advance(following)
        self._ended = True

    def _take_effect(self, following: Position, answer: asyncio.Future[None]) -> None:
        try:
            self._sink.require_latest()
            self._sink.topic.commit(self._position, following, self._rows)
        except FencedError as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(None)

    async def abort(self) -> None:
        if not self._ended:
            self._ended = True
            self._sink.cursor.abandon()
            await asyncio.sleep(0)
