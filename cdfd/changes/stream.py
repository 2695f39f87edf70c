"""A table's plans, version by version: log entries in, `ChangePlan`s out, with the state that planning needs carried along.

The state is a header (protocol and metadata). The table's files are loaded only once a commit cannot be planned without them, and are kept
up to date from then on, at the cost of each commit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from cdfd.changes.plan import ChangePlan, Changes, commit_timestamp, file_time, needs_snapshot, plan, plan_snapshot
from cdfd.delta import paths
from cdfd.delta.header import Header, PartialHeader
from cdfd.delta.schema_change import SchemaChange, compare
from cdfd.delta.snapshot import COMPACT_AT, Snapshot
from cdfd.errors import CdfdError, GapError, LogError, NotFoundError
from cdfd.tail.log import DeltaLog, LogEntry, log_path
from cdfd.tail.tailer import Tailer

LOOK_BACK = 64
"""Versions before the first one whose times are looked at, at most."""
SKEW_MS = 10_000
"""By how much writers' clocks may differ, in ms, for times to be the same wherever reading begins."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version, planned.

    Attributes:
        plan: what it changes.
        table_id: `metaData.id` in force.
        schema_change: how the schema differs from the version before; None where it does not, or there is none.
        only_txns: the appIds of a version that holds nothing but transaction identifiers; none of any other.
        digest: hash of its log entry (see `cdfd.tail.history`); None where the entry is gone.
    """

    plan: ChangePlan
    table_id: str
    schema_change: SchemaChange | None = None
    only_txns: tuple[str, ...] = ()
    digest: str | None = None


@dataclass(slots=True)
class PlanStream:
    """Plans a table's versions in order.

    Attributes:
        log: of the table.
        changes: where change rows may come from; see `plan`.
    """

    log: DeltaLog
    changes: Changes = "auto"
    _header: Header | None = None
    _snapshot: Snapshot | None = None
    _timestamp: int | None = None

    @property
    def header(self) -> Header | None:
        """The table as of the version that was planned last."""
        return self._header

    async def snapshot(
        self, version: int | None = None, tailer: Tailer | None = None, *, with_counts: bool = False
    ) -> Version:
        """The live rows of a version (None: the newest) as a plan of inserts. `versions` may go on after it.

        `with_counts`, the plan knows how many rows each file has, where the log says it.

        Raises:
            CdfdError: as `DeltaLog.snapshot` says, and for a table that is not the one that `tailer` knows.
        """
        while True:
            async with _same_table(tailer):
                state = await self.log.snapshot(version, with_counts=with_counts)
            if tailer is not None:
                tailer.check_id(state.metadata.id, state.version)
            self._timestamp, digest = await self._timestamp_of(state)
            if await self.log.history.confirm():
                break
        self._header, self._snapshot = state.header, None
        return Version(plan_snapshot(state, self._timestamp), state.metadata.id, digest=digest)

    async def _timestamp_of(self, state: Snapshot) -> tuple[int, str | None]:
        """A version's time, and the hash of its log entry."""
        try:
            return await self._time_and_digest(state)
        except CdfdError as error:
            raise error.within(table=self.log.storage.uri, version=state.version) from None

    async def _time_and_digest(self, state: Snapshot) -> tuple[int, str | None]:
        try:
            entry = await self.log.entry(state.version)
        except NotFoundError:
            # A checkpoint may outlive its log entry; then it is the oldest thing known about that version's time.
            segment = await self.log.segment(state.version)
            if segment.checkpoint is None or segment.checkpoint.version != state.version:
                await self.log.history.confirm()
                raise LogError(
                    "the newest entry was there and is gone", version=state.version, retriable=True
                ) from None
            return file_time(segment.checkpoint.files[0].modified_ms), None
        before = await self._time_before(state.version)
        return commit_timestamp(entry.commit, state.header, entry.modified_ms, before), entry.digest

    async def versions(self, tailer: Tailer, start: int, until: int | None = None) -> AsyncGenerator[Version, None]:
        """Plans of the versions from `start` on, as they come.

        Raises:
            CdfdError: as `Tailer.entries` and `plan` say; it names table and version.
        """
        loaded = await self._begin(tailer, start)
        async with aclosing(tailer.entries(start, until)) as entries:
            async for entry in entries:
                if entry.commit.version == start and loaded not in (None, self.log.history.restarts):
                    # What was loaded is of the log before it was written again.
                    await self._begin_again(tailer, start)
                try:
                    yield await self._plan(entry)
                except CdfdError as error:
                    version = entry.commit.version
                    path = log_path(paths.commit_name(version))
                    raise error.within(table=self.log.storage.uri, version=version, path=path) from None

    async def begin(self, tailer: Tailer, start: int) -> Header | None:
        """Protocol and metadata where `versions` begins: those of version `start`, or of the one before where that is not there yet.

        None where neither is there.

        Raises:
            CdfdError: as `versions` says, of what comes before the first entry.
        """
        await self._begin(tailer, start)
        try:
            commit = (await self.log.entry(start)).commit
            if self._header is None:
                return PartialHeader(commit.version, commit.protocol, commit.metadata).finish()
            return self._header.apply(commit)
        except (LogError, NotFoundError):
            return self._header  # what is wrong with an entry, or whether it is being written, the tailer finds out

    async def _begin(self, tailer: Tailer, start: int) -> int | None:
        """Load what is before `start`, where it is not known; `History.restarts` as of before, None where nothing was loaded."""
        loaded = None
        if start > 0 and (self._header is None or self._header.version != start - 1):
            loaded = self.log.history.restarts
            async with _same_table(tailer):
                self._header = await self._header_before(start)
            self._timestamp = await self._time_before(start)
        if self._header is not None:
            tailer.check_id(self._header.metadata.id, start)
        return loaded

    async def _begin_again(self, tailer: Tailer, start: int) -> None:
        while True:
            self._header = None
            await self._begin(tailer, start)
            if await tailer.confirm():
                return

    async def _header_before(self, start: int) -> Header:
        try:
            return await self.log.header(start - 1)
        except GapError:
            # The oldest entry of a cleaned log has nothing before it but may have a checkpoint at its own version.
            return replace(await self.log.header(start), version=start - 1)

    async def _time_before(self, version: int) -> int | None:
        """The time of the version before, which is not after that of `version`; None where its entry is gone.

        Times that do not increase (a store may count in seconds, writers' clocks may differ) are made to, from one version to the next. So
        that a version has the same time wherever reading begins, this looks at those shortly before it, too.
        """
        times: list[int] = []
        async with aclosing(self.log.stats_before(version, LOOK_BACK)) as entries:
            async for entry in entries:
                times.append(entry.modified_ms + len(times))
                if entry.modified_ms < times[0] - SKEW_MS:
                    break
        return max(times, default=None)

    async def _plan(self, entry: LogEntry) -> Version:
        commit, previous = entry.commit, self._header
        if previous is None:
            header = PartialHeader(commit.version, commit.protocol, commit.metadata).finish()
        else:
            header = previous.apply(commit)
            if self._snapshot is None and needs_snapshot(commit, previous, self.changes):
                self._snapshot = await self._state_at(commit.version - 1)
        timestamp = commit_timestamp(commit, header, entry.modified_ms, self._timestamp)
        made = plan(commit, header, timestamp, changes=self.changes, previous=previous, before=self._snapshot)
        if self._snapshot is not None:
            self._snapshot = self._snapshot.apply(commit)
            if len(self._snapshot.overlay) >= COMPACT_AT:
                self._snapshot = self._snapshot.compacted()
        self._header, self._timestamp = header, timestamp
        change = None
        if previous is not None and previous.schema != header.schema:
            change = compare(previous.schema, header.schema) or None
        return Version(made, header.metadata.id, change, commit.only_txns, entry.digest)

    async def _state_at(self, version: int) -> Snapshot:
        """The state at a version, of the log that its successor is of."""
        while True:
            state = await self.log.snapshot(version)
            if await self.log.history.confirm():
                return state


@asynccontextmanager
async def _same_table(tailer: Tailer | None) -> AsyncIterator[None]:
    """A log that does not reach as far as it did may be another table's: then that is the error."""
    try:
        yield
    except LogError:
        if tailer is not None and tailer.table_id is not None:
            await tailer.check_table()
        raise
