"""`cdfd backfill`: publishes a range of versions, or the rows of one version, again, while the daemon runs.

A backfill has its own position and transactional id. Its progress record has the range and the arguments of the command. Running the command
again resumes an interrupted backfill, and repeats a completed one.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Self

from cdfd.cli.commands.counts import quantity
from cdfd.cli.commands.progress import table_of
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.daemon import assembly
from cdfd.daemon.engines import EmbeddedEngine, require_spark, spark_engine
from cdfd.daemon.supervision.signals import INTERRUPTED, Stopping, run_until
from cdfd.deliver.admission import Admission
from cdfd.deliver.assignment import Assignment, Engine
from cdfd.deliver.configured import execution, open_table
from cdfd.deliver.deliverer import Deliverer
from cdfd.deliver.large_versions import LargeVersions
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.rates import Rates
from cdfd.deliver.resuming import check_fit
from cdfd.delta.header import Header
from cdfd.errors import CdfdError, ConfigError
from cdfd.log.bounds import parse_bound
from cdfd.log.start import check_range, start_version, until_version
from cdfd.log.stream import PlanStream, version_batches
from cdfd.log.table import versions
from cdfd.log.tailer import Tailer
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime import allocator
from cdfd.runtime.clock import SystemClock
from cdfd.runtime.progress_line import ProgressLine, is_watched
from cdfd.sinks.base import Backfill as Stored
from cdfd.sinks.base import Connector, Sink, connector

logger = logging.getLogger("cdfd.backfill")

_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
ROLE = "backfill"


@dataclass(frozen=True, slots=True)
class Request:
    """The options of the command.

    Attributes:
        table: its name in the configuration.
        start, until: as in `cdfd tail`. With `snapshot` they default to the newest version, and to the snapshot alone.
        snapshot: whether to publish the live rows at `start` first.
        id: name of a backfill that is done once, even if requested again.
        restart: start over instead of resuming an interrupted backfill.
        engine: the engine that reads and delivers. Either engine can resume a backfill of the other.
        sink: one of several sinks; None: the only one.
    """

    table: str
    start: str | None = None
    until: str | None = None
    snapshot: bool = False
    id: str | None = None
    restart: bool = False
    engine: Literal["embedded", "spark"] = "embedded"
    sink: str | None = None

    @property
    def role(self) -> str:
        """The role of its position and its producer."""
        return ROLE if self.id is None else f"{ROLE}.{self.id}"


@dataclass(frozen=True, slots=True)
class Job:
    """A backfill, as stored with its position.

    Attributes:
        first, last: range of versions, inclusive.
        snapshot: whether the live rows at `first` replace that version's changes.
        start, until: the options as given; empty if not given.
    """

    first: int
    last: int
    snapshot: bool
    start: str
    until: str

    @classmethod
    def stored(cls, backfill: Stored | None) -> Self | None:
        """The backfill that a sink stores; None if there is none."""
        job = {} if backfill is None else backfill.range
        first, last = job.get("first"), job.get("last")
        if not isinstance(first, int) or not isinstance(last, int):
            return None
        return cls(first, last, job.get("snapshot") == 1, str(job.get("from", "")), str(job.get("until", "")))

    def record(self) -> Mapping[str, str | int]:
        """The fields that the sink stores."""
        arguments = {"from": self.start, "until": self.until}
        return {"first": self.first, "last": self.last, "snapshot": int(self.snapshot)} | arguments

    def begin(self, table_id: str) -> Position:
        """Its first position."""
        return Position(table_id, self.first, phase="snapshot" if self.snapshot else "stream")

    def ended(self, position: Position) -> bool:
        """Whether it is complete."""
        return position.version > self.last

    def __str__(self) -> str:
        changes = self.first + self.snapshot
        ranges = [f"the rows of version {self.first}"] if self.snapshot else []
        if changes == self.last:
            ranges.append(f"the changes of version {changes}")
        elif changes < self.last:
            ranges.append(f"the changes of versions {changes} to {self.last}")
        return " and ".join(ranges)


def run(path: Path, request: Request) -> tuple[str, int]:
    """Publish the requested range; the text to print, and the exit code: 0 if the backfill is complete, 130 after a signal.

    Raises:
        ConfigError: the configuration or the arguments are invalid, the sink does not support backfills, or another backfill of the
            table is not complete.
        CdfdError: the backfill failed. Running the command again resumes it.
    """
    config, table = table_of(path, request.table, request.sink)
    sinks = connector(config)
    if not sinks.takes_backfills:
        hint = "For a file use `cdfd tail TABLE --from ... --until ... -o FILE`"
        raise ConfigError(f"a sink of kind {config.sink.kind} does not support backfills", hint=hint)
    if request.engine == "spark":
        if not sinks.takes_parts:
            raise ConfigError("--engine spark needs `delivery: exactly_once`", hint="Use `--engine embedded`")
        require_spark()
    if request.start is None and not request.snapshot:
        raise ConfigError("--from is required without --snapshot", hint="Give a version, a timestamp, or `earliest`")
    if request.id is not None and not _ID.fullmatch(request.id):
        raise ConfigError(
            f"--id {request.id!r:.200} is not a valid name", hint="Use letters, digits, dots, hyphens and underscores"
        )
    taken = f"{request.table}.{request.role}"
    if config.table(taken) is not None:
        raise ConfigError(f"the configuration has a table {taken}, but this backfill needs that name for its position")
    allocator.settle()
    return asyncio.run(_run(config, sinks, table, request))


async def _run(config: Settings, sinks: Connector, table: settings.Table, request: Request) -> tuple[str, int]:
    stopping = Stopping(terminated=INTERRUPTED)
    backfill = Backfill(config, sinks, table, request, stopping.event)
    await run_until(stopping.event, backfill.run())
    return f"{table.name}: {backfill.summary()}\n", 0 if backfill.ended else INTERRUPTED


@dataclass(slots=True)
class _Counts(Monitor):
    """The `Monitor` of a backfill: counts committed rows."""

    rows: dict[str, int] = field(default_factory=dict)
    position: Position | None = None

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        self.position = following
        for name, count in rows.items():
            self.rows[name] = self.rows.get(name, 0) + count


class Backfill:
    """One backfill. With Spark, executors deliver versions larger than a part, and this process delivers the others.

    Args:
        config: all settings.
        sinks: the configured sink.
        table: one of the tables.
        request: the options of the command.
        stop: set it to stop after the current delivery.

    Attributes:
        ended: whether the backfill is complete.
    """

    def __init__(
        self,
        config: Settings,
        sinks: Connector,
        table: settings.Table,
        request: Request,
        stop: asyncio.Event,
    ) -> None:
        self.ended = False
        self._config, self._sinks, self._table, self._request, self._stop = config, sinks, table, request, stop
        self._opened = open_table(config, table)
        self._clock = SystemClock()
        self._counts = _Counts()
        self._job: Job | None = None
        self._resumed: Position | None = None
        self._seconds = 0.0

    async def run(self) -> None:
        """Publish until the end, or until `stop` is set.

        Raises:
            CdfdError: as in `run` of this module.
        """
        began = time.monotonic()
        try:
            await self._run()
        except CdfdError:
            if self._counts.position is not None:
                logger.info(
                    "stopped at %s: run the same command to resume there", _position_text(self._counts.position)
                )
            raise
        finally:
            self._seconds = time.monotonic() - began

    async def _run(self) -> None:
        with self._opened.tailer(self._clock) as tailer:
            stored = await self._sinks.backfill(self._table, self._request.role)
            job = self._stored_job(stored) or await self._requested_job()
            self._job = job
            if self.ended or job.first > job.last:
                self.ended = True
                return
            embedded = self._request.engine == "embedded"
            running = contextlib.nullcontext(EmbeddedEngine(Admission(1))) if embedded else spark_engine(self._config)
            # Opening the sink fences other processes.
            async with running as engine, self._sinks.open_for_backfill(self._table, self._request.role) as sink:
                current, request = sink.backfill, self._request
                if current is not None and (request.restart or Job.stored(current) != job):
                    current = None
                if current is not None and request.id is None and job.ended(current.position):
                    current = None
                if current is None:
                    # A later version may have another id.
                    is_first = job.snapshot or job.first == 0
                    read_header = self._opened.log.header if is_first else self._opened.log.header_before
                    position = job.begin((await read_header(job.first)).metadata.id)
                    sink.move_to(position, job.record())
                else:
                    position = self._resumed = current.position
                    logger.info("resuming at %s", _position_text(position), extra={"table": self._opened.uri})
                await tailer.resume(position)
                report = ProgressLine(logger, "published", self._opened.uri, terminal=is_watched(), clock=self._clock)
                with contextlib.closing(report):
                    await self._deliver(job, position, tailer, self._deliverer(sink, engine, report))

    def summary(self) -> str:
        """The result of the backfill, for people."""
        job, counts = self._job, self._counts
        if job is None:
            return "interrupted before anything was published"
        if not str(job):
            return f"nothing to publish from version {job.first} on"
        if counts.position is None and self.ended:
            return f"{job} are already published by the backfill {self._request.id}"
        total = sum(counts.rows.values())
        rows = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.rows.items()) if count)
        published = f"{quantity(total, 'row')}{f' ({rows})' if rows else ''} in {self._seconds:.1f} s"
        resumed = "" if self._resumed is None else f", resumed at {_position_text(self._resumed)}"
        if self.ended:
            return f"{job} are published to topic {self._table.topic}{resumed}: {published}"
        stands = counts.position or self._resumed or job.begin("")
        return f"interrupted at {_position_text(stands)} of {job}{resumed}: {published}; run the same command to resume there"

    def _stored_job(self, progress: Stored | None) -> Job | None:
        """The stored backfill, if this command resumes it, or if it has an id and is complete. None: start a new one."""
        job, request = Job.stored(progress), self._request
        if job is None or request.restart:
            return None
        assert progress is not None
        ended = job.ended(progress.position)
        if ended and request.id is None:
            return None
        if (job.start, job.until, job.snapshot) != (request.start or "", request.until or "", request.snapshot):
            options = " ".join(
                [f"--from {job.start}"] * bool(job.start)
                + [f"--until {job.until}"] * bool(job.until)
                + ["--snapshot"] * job.snapshot
            )
            state = "is for" if ended else f"is not complete, it is at {_position_text(progress.position)} of"
            name = "a backfill" if request.id is None else f"the backfill {request.id}"
            raise ConfigError(
                f"{name} of this table {state} {job}",
                table=self._opened.uri,
                hint=f"Resume it with `{options}`, or discard it with --restart; use --id for several backfills",
            )
        self.ended = ended
        return job

    async def _requested_job(self) -> Job:
        """The requested range, with the table's current versions."""
        log, request = self._opened.log, self._request
        start = request.start or "latest"
        # For a snapshot, `latest` is the newest version; for changes, it is the next one.
        latest = request.snapshot and parse_bound(start) == "latest"
        first = await log.latest_version() if latest else await start_version(log, start)
        until = "now" if request.until is None else request.until
        last = first if request.snapshot and request.until is None else await until_version(log, until)
        assert last is not None
        newest = await log.latest_version()  # commits may have come meanwhile
        if max(last, first if request.snapshot else last) > newest:
            raise ConfigError(
                f"there is no version {max(first, last)} yet; the newest is {newest}",
                table=self._opened.uri,
                hint="Use `now`, or let the daemon deliver it",
            )
        await check_range(log, first, last, snapshot=request.snapshot)
        return Job(first, last, request.snapshot, request.start or "", request.until or "")

    def _deliverer(self, sink: Sink, engine: Engine, report: ProgressLine) -> Deliverer:
        large = None
        if self._sinks.takes_parts:
            # Spark delivers versions larger than a part. Without Spark, the jobs that it has started are finished.
            part = self._config.engine.spark.part_size
            large = LargeVersions(
                self._opened.uri,
                sink,
                partial(Assignment.of, self._config, self._table.name, role=self._request.role),
                engine,
                part if self._request.engine == "spark" else None,
                part,
                self._stop,
                self._config.engine.spark.snapshot_planning,
            )
        sections = self._table.limits, self._config.limits
        return Deliverer(
            self._opened.uri,
            sink,
            execution(self._config, self._opened, self._table),
            assembly.limits(self._config, self._table),
            self._stop,
            self._counts,
            report,
            Admission(1),
            self._clock,
            large,
            Rates([limit for section in sections for limit in assembly.rate_limits(section, self._clock)]),
        )

    async def _deliver(self, job: Job, position: Position, tailer: Tailer, deliverer: Deliverer) -> None:
        stream = self._opened.stream(self._table.rows)
        stream.continue_from(position)
        await self._check_configuration(stream, position, tailer)
        snapshot = partial(deliverer.snapshot, stream, position, tailer) if position.phase == "snapshot" else None
        planned = versions(tailer, stream, position.version, job.last, snapshot=snapshot)
        async with contextlib.aclosing(version_batches(planned)) as ready:
            async for group in ready:
                remaining = group
                while remaining:
                    whole = 0 if self._stop.is_set() else await deliverer.deliver(remaining, position)
                    if not whole:
                        return
                    last = remaining[whole - 1]
                    position = Position(last.table_id, last.plan.version + 1, digest=last.digest)
                    remaining = remaining[whole:]
        self.ended = True

    async def _check_configuration(self, stream: PlanStream, position: Position, tailer: Tailer) -> None:
        """Check that the configuration fits the table where the backfill begins, as the daemon does where it starts."""
        log, policies = self._opened.log, assembly.policies(self._config, self._table)
        if position.phase == "snapshot":
            header: Header | None = await log.header(position.version)
        else:
            header = await stream.begin(tailer, position.version)
        if header is not None:
            for warning in check_fit(policies, header, await log.header(), stream.header or header):
                logger.warning("%s", warning, extra={"table": self._opened.uri, "version": header.version})


def _position_text(position: Position) -> str:
    files = f", {position.part} files delivered" if position.part else ""
    return f"{'the rows of ' if position.phase == 'snapshot' else ''}version {position.version}{files}"
