"""A daemon over the fakes: the parts of the real one, put together as `cdfd.daemon.assembly` does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from random import Random

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.daemon.http.metrics import Metrics, TableMetrics
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.daemon.supervision.signals import STOP_SECONDS
from cdfd.daemon.supervision.supervisor import Supervisor
from cdfd.deliver.admission import Admission
from cdfd.deliver.deliverer import Limits
from cdfd.deliver.feed import Feed
from cdfd.deliver.recorder import Recorder
from cdfd.deliver.resuming import Policies
from cdfd.errors import CdfdError, InternalError, MissingFileError
from cdfd.log.log import DeltaLog
from cdfd.log.table import Table
from cdfd.log.tailer import Tailer
from cdfd.log.watch import Backoff, SharedTip, SharedWatch, Watch
from cdfd.runtime.shared_results import SharedResults
from cdfd.scan.execute import Execution
from cdfd.scan.joined import Scanned
from cdfd.scan.table_files import TableFiles
from cdfd.sinks.ledger.ledger import Ledger, LedgerEntry, NoLedger, app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.sinks.ledger.table_ledger import TableLedger
from tests.support.simulation.loop import VirtualClock
from tests.support.simulation.sink import Topic, TransactionalSink
from tests.support.simulation.storage import Disk, FailingStorage, UnreliableWatch
from tests.support.simulation.weather import Host, Process, Weather

PIPELINE = "simulation"
TABLES = 3


@dataclass(frozen=True, slots=True)
class Settled:
    """The configuration of a run.

    Attributes:
        ledger: `table`, `source` or `none`.
        start: of tables, as in the configuration.
        on_missing: what to do if a file is gone.
        exactly_once: whether the sink keeps positions. If not, the ledger's positions count.
        limits: of a delivery.
        poll, max_poll, ledger_seconds: seconds.
    """

    ledger: str
    start: str | int
    on_missing: str
    exactly_once: bool
    limits: Limits
    poll: float
    max_poll: float
    ledger_seconds: float

    @classmethod
    def of(cls, random: Random) -> Settled:
        exactly_once = random.random() < 0.85
        ledger = random.choice(("table", "table", "source", "none")) if exactly_once else "table"
        limits = Limits(
            random.choice((1, 900, 1 << 30)),
            random.choice((1, 5, 100_000)),
            random.choice((0, 4000, 1 << 30)),
            random.choice((0.01, 10.0)),
        )
        # Without positions in the sink, a daemon that dies before it records one in the ledger restarts at the version that is newest then.
        starts = ("snapshot", "earliest", "earliest", 1, "latest")[: 5 if exactly_once else 4]
        return cls(
            ledger,
            random.choice(starts),
            random.choice(("fail", "fail", "skip", "snapshot")),
            exactly_once,
            limits,
            random.choice((0.1, 1.0)),
            random.choice((5.0, 20.0)),
            random.choice((0.1, 5.0)),
        )


class _Inline(Execution):
    """Reads files one after the other, where it is called: threads would make two runs of one seed differ."""

    def _parallel_scans(self) -> int:
        return 1


class Watchful(TableMonitor):
    """The monitor of one table, which checks each error that it receives."""

    weather: Weather
    process: Process

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        super().failed(error, retry_in)
        self._look(error, "failed")

    def error(self, error: CdfdError) -> None:
        super().error(error)
        self._look(error, "error")

    def _look(self, error: CdfdError, how: str) -> None:
        if not self.process.alive:
            return  # a task that ran after the kill, and was not cancelled yet
        self.weather.note(self.table.name, how, error.family, error.what)
        if not isinstance(error, CdfdError) or isinstance(error, InternalError):
            self.weather.violate(f"{self.table.name}: {error!r} is no error of ours")
        elif how == "failed" and error.table is None:
            self.weather.violate(f"{self.table.name}: an error without a table: {error!r}")


@dataclass(slots=True)
class CheckedLedger:
    """A ledger that reports a violation if it records an undelivered version.

    Attributes:
        inner: the real one.
        topics: by appId.
    """

    inner: Ledger
    topics: Mapping[str, Topic]
    weather: Weather

    @property
    def uri(self) -> str:
        return self.inner.uri

    async def position(self, app_id: str) -> LedgerEntry | None:
        return await self.inner.position(app_id)

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        topic = self.topics[app_id]
        topic.note_recorded(version)
        await self.inner.record(app_id, version, table_id, digest)
        topic.recorded = version

    async def close(self) -> None:
        await self.inner.close()


@cache
def _configured() -> tuple[Settings, dict[str, TableMetrics]]:
    tables = "".join(f"  - {{uri: s3://lake/t{number}}}\n" for number in range(TABLES))
    text = f"pipeline: {PIPELINE}\ntables:\n{tables}sink: {{kind: files, path: /nowhere}}\nprogress: {{ledger: none}}\n"
    config, metrics = parse(text, {}), Metrics("0", native=True)
    return config, {table.name: metrics.table(table.name) for table in config.tables}


class Daemon:
    """One process of the daemon: the supervisor with a feed for each table.

    Args:
        number: of the process.
        settled: the configuration.
        topics: of all tables, by name.
        ledger: where the ledger's table is.
        weather: of the run.
        recover: whether it resumes at the ledger's position if the sink has lost its own.
        host: its machine, if that may fail by itself.
    """

    def __init__(
        self,
        number: int,
        settled: Settled,
        topics: Mapping[str, Topic],
        ledger: Disk,
        weather: Weather,
        *,
        recover: bool,
        host: Host | None = None,
    ) -> None:
        self.process = Process(number, host=host)
        self.clock = VirtualClock()
        self.stop = asyncio.Event()
        self.began = self.clock.monotonic()
        self._settled = settled
        self._topics = topics
        self._weather = weather
        self._recover = recover
        self._by_app = {app_id(PIPELINE, name): topic for name, topic in topics.items()}
        self._shared = self._ledger(ledger) if settled.ledger != "source" else None
        self._admission = Admission(2)
        config, metrics = _configured()
        tables = {table.name: table for table in config.listed}
        self.monitors = {
            name: Watchful(tables[topic.world.name], metrics[topic.world.name], self.clock)
            for name, topic in topics.items()
        }
        for monitor in self.monitors.values():
            monitor.weather, monitor.process = weather, self.process
        several = any(name != topic.world.name for name, topic in topics.items())
        self._tips = {topic.world.name: SharedTip(self.clock) for topic in topics.values() if several}
        self._results = SharedResults[Scanned](lambda scanned: scanned.rows.nbytes)
        shares_tables = several and host is None
        supervisor = Supervisor(self.stop, self.clock, weather.random, shares_tables=lambda: shares_tables)
        for name in topics:
            supervisor.add(name, partial(self._feed, name), self.monitors[name])
        weather.note("process", number, "starts")
        self.task = asyncio.create_task(supervisor.run(), name=f"process {number}")

    def _ledger(self, disk: Disk) -> Ledger:
        storage, jitter = FailingStorage(disk, self.process), self._weather.random.random
        match self._settled.ledger:
            case "table":
                ledger: Ledger = TableLedger(storage, self.clock, jitter=jitter)
            case "source":
                ledger = SourceLedger(storage, self.clock, jitter=jitter)
            case _:
                ledger = NoLedger()
        return CheckedLedger(ledger, self._by_app, self._weather)

    @asynccontextmanager
    async def _feed(self, name: str, stop: asyncio.Event) -> AsyncIterator[Feed]:
        topic, settled, clock, monitor = self._topics[name], self._settled, self.clock, self.monitors[name]
        disk = topic.world.disk
        storage = FailingStorage(disk, self.process)
        table = Table(DeltaLog(storage), TableFiles(storage, lambda uri: storage))
        ledger = self._shared or self._ledger(disk)
        recorder = Recorder(ledger, app_id(PIPELINE, name), settled.ledger_seconds, clock, monitor)
        watch: Watch = UnreliableWatch(disk, clock)
        tip = self._tips.get(topic.world.name)
        if tip is not None:
            watch = SharedWatch(tip, watch)
        try:
            sink = await TransactionalSink.open(topic, self.process, self._weather)
            try:
                with nullcontext() if tip is None else self._results.reader(topic.world.name) as reader:
                    yield Feed(
                        table,
                        sink,
                        _Inline(table.files, workers=1, shared=reader, **self._on_missing()),
                        Tailer(table.log, watch, clock, Backoff(settled.poll, settled.max_poll)),
                        Policies(
                            settled.start,
                            on_missing_file=settled.on_missing,
                            recover_from_ledger=self._recover,
                            ledger_counts=not settled.exactly_once,
                        ),
                        stop,
                        settled.limits,
                        recorder if settled.ledger != "none" else None,
                        monitor,
                        self._admission,
                    )
            finally:
                await sink.close()
        finally:
            watch.close()

    def _on_missing(self) -> dict[str, object]:
        def skip(error: MissingFileError) -> None:
            self._weather.note("skipped", error.path)

        return {"on_missing": skip} if self._settled.on_missing == "skip" else {}

    async def kill(self) -> None:
        """As `kill -9`: nothing that it still does has an effect."""
        self._weather.note("process", self.process.number, "killed")
        self.process.alive = False
        self.task.cancel()
        await asyncio.wait((self.task,))

    async def end(self) -> bool:
        """As SIGTERM; whether it stopped by itself in time."""
        self._weather.note("process", self.process.number, "is stopped")
        self.stop.set()
        await asyncio.wait((self.task,), timeout=STOP_SECONDS)
        in_time = self.task.done()
        await self.close()
        return in_time

    async def close(self) -> None:
        """End what is left of it."""
        self.task.cancel()
        await asyncio.wait((self.task,))
        if self._shared is not None:
            await self._shared.close()
        self.process.alive = False
