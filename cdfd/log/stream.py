"""Plans a table's versions in order: log entries in, `ChangePlan`s out. The stream keeps the state that planning needs.

The state is a header (protocol and metadata). The table's files are loaded once a commit cannot be planned without them. From then on, each
commit updates them. Versions are planned while earlier ones are delivered, and handed over in batches.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from cdfd.delta import paths
from cdfd.delta.actions import CommitInfo
from cdfd.delta.commit import Commit
from cdfd.delta.header import Header, PartialHeader
from cdfd.delta.protocol import in_commit_timestamps_enabled, may_have_in_commit_timestamps
from cdfd.delta.snapshot import COMPACT_AT, Snapshot
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema
from cdfd.delta.types.schema_change import compare
from cdfd.errors import LogError, NotFoundError, Within
from cdfd.log.entry import LogEntry, is_large
from cdfd.log.listing import LiveListing, list_live
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import log_path
from cdfd.log.tailer import Tailer
from cdfd.model.commit_time import SKEW_MS, commit_timestamp, file_time
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Touched, Version
from cdfd.plan.planner import needs_snapshot, plan, plan_listed_snapshot, plan_snapshot, wants_snapshot
from cdfd.plan.refining import refine
from cdfd.plan.resnapshot import NumberedFiles
from cdfd.plan.row_options import AS_STORED, RowOptions

logger = logging.getLogger("cdfd.changes")

LOOK_BACK, LOCAL_LOOK_BACK = 400, 10_000
"""Versions before the first one whose modification times count, at most: of a remote log as many as fit in a page of S3's listing, and of a
local one as many as take two seconds.
"""


@dataclass(slots=True)
class PlanStream:
    """Plans a table's versions in order.

    Attributes:
        log: of the table.
        rows: the options of the rows.
        target: the schema that readers bring all versions into, whose names the options have; None: each version keeps its own.
        files: the files of an incremental snapshot, which versions may touch.
        unrefined: versions that are not refined, because parts of them were delivered as they are; see `continue_from`.
        header: the table as of the version that was planned last.
        info: `commitInfo` of the version that was planned last; None if it has none.
    """

    log: DeltaLog
    rows: RowOptions = AS_STORED
    target: TableSchema | None = None
    files: NumberedFiles | None = None
    unrefined: set[int] = field(default_factory=set)
    header: Header | None = None
    info: CommitInfo | None = None
    _said: set[str] = field(default_factory=set)
    _stateless: bool = False
    _snapshot: Snapshot | None = None
    _timestamp: int | None = None
    _table_id: str | None = None

    def continue_from(self, *positions: Position) -> None:
        """Plan versions as they were begun: those of positions whose parts were delivered without refinement stay without it."""
        self.unrefined.update(position.version for position in positions if position.is_unrefined)

    async def snapshot(
        self,
        version: int | None = None,
        tailer: Tailer | None = None,
        *,
        by_statistics: bool = True,
        all_files: bool = False,
    ) -> Version:
        """The live rows of a version (None: the newest) as a plan of inserts. `versions` may continue after it.

        The plan has the row counts of files, where the log has them.

        Args:
            version: to read.
            tailer: of the table.
            by_statistics: whether files are left out by their statistics, too. A checkpoint of the version that is written later may not have
                them. So a reader that stores how many parts it has delivered leaves files out by their partition values alone.
            all_files: whether the plan also has the files without a row for the filter.

        Raises:
            CdfdError: see `DeltaLog.snapshot`; also for a table with another id than `tailer` knows.
        """
        where = None if all_files else self.rows.shape.where
        while True:
            async with _same_table(tailer):
                with_stats = where is not None and by_statistics
                state = await self.log.snapshot(version, with_stats=with_stats, with_counts=True)
            planned = await self._snapshot_version(state, tailer, plan_snapshot)
            if planned is not None and where is not None:
                from cdfd.plan.shape.pruning import prune

                # Parsing the statistics of a file takes some 100 microseconds.
                planned = replace(planned, plan=await asyncio.to_thread(prune, planned.plan, where, self.target))
            if planned is not None:
                return planned

    async def listed_snapshot(
        self, version: int | None = None, tailer: Tailer | None = None, *, least_bytes: int = 0
    ) -> tuple[Version, LiveListing] | None:
        """The same with a plan without scans, and where the log lists the files. `versions` may continue after it.

        None if the version has no checkpoint, or one of fewer than `least_bytes` bytes. Raises what `snapshot` does.
        """
        while True:
            async with _same_table(tailer):
                live = await list_live(self.log, version, least_bytes=least_bytes)
            if live is None:
                return None
            planned = await self._snapshot_version(live.state, tailer, plan_listed_snapshot)
            if planned is not None:
                return planned, live

    async def _snapshot_version(
        self, state: Snapshot, tailer: Tailer | None, plan_state: Callable[[Snapshot, int], ChangePlan]
    ) -> Version | None:
        """A state as a version; None if the log was written again meanwhile."""
        if tailer is not None:
            tailer.check_id(state.metadata.id, state.version)
        with Within(self.log.storage.uri, state.version):
            try:
                entry = await self.log.entry(state.version)
            except NotFoundError:
                # A checkpoint may outlive its log entry. Then its time is the only one known for the version.
                segment = await self.log.segment(state.version)
                if segment.checkpoint is None or segment.checkpoint.version != state.version:
                    await self.log.history.confirm()
                    raise LogError("the newest log entry has vanished", version=state.version, retriable=True) from None
                timestamp, digest = file_time(segment.checkpoint.files[0].modified_ms), None
            else:
                # An in-commit timestamp does not depend on others.
                stated = in_commit_timestamps_enabled(state.header.metadata)
                before, digest = None if stated else await self._time_before(state.header, state.version), entry.digest
                timestamp = commit_timestamp(entry.commit, state.header, entry.stat.modified_ms, before)
        if not await self.log.history.confirm():
            return None
        self.header, self._snapshot, self._timestamp = state.header, None, timestamp
        self._table_id = None if tailer is None else tailer.table_id
        with Within(self.log.storage.uri, state.version):
            # The files are sorted: a million of them in a second.
            version_plan = await asyncio.to_thread(plan_state, state, timestamp)
        return Version(version_plan, self._table_id or state.metadata.id, digest=digest)

    async def versions(self, tailer: Tailer, start: int, until: int | None = None) -> AsyncGenerator[Version, None]:
        """Plans of the versions from `start` on, as they are committed.

        Raises:
            CdfdError: see `Tailer.entries` and `plan`; it names table and version.
        """
        loaded = await self._begin(tailer, start)
        self._table_id = tailer.table_id
        async with aclosing(tailer.entries(start, until)) as entries:
            async for entry in entries:
                version = entry.commit.version
                if version == start and loaded not in (None, self.log.history.restarts):
                    # The loaded state belongs to the log before it was written again.
                    self.header = None
                    await self._begin(tailer, start)
                    while not await tailer.confirm():
                        self.header = None
                        await self._begin(tailer, start)
                with Within(self.log.storage.uri, version, log_path(paths.commit_name(version))):
                    yield await self._plan(entry)

    async def begin(self, tailer: Tailer, start: int) -> Header | None:
        """Protocol and metadata of version `start`, or of the version before if `start` does not exist yet. None if neither exists.

        Raises:
            CdfdError: see `versions`; only for the log before the first entry.
        """
        await self._begin(tailer, start)
        try:
            commit = (await self.log.entry(start)).commit
            if self.header is None:
                return PartialHeader(commit.version, commit.protocol, commit.metadata).finish()
            return self.header.apply(commit)
        except (LogError, NotFoundError):
            return self.header  # the tailer reports a damaged entry, or waits for one that is being written

    async def _begin(self, tailer: Tailer, start: int) -> int | None:
        """Load the state before `start` if it is not known. Returns `History.restarts` as of before; None if nothing was loaded."""
        loaded = None
        if start > 0 and (self.header is None or self.header.version != start - 1):
            loaded = self.log.history.restarts
            async with _same_table(tailer):
                self.header = await self.log.header_before(start)
            self._timestamp = await self._time_before(self.header, start, tailer)
        if self.header is not None:
            tailer.check_id(self.header.metadata.id, start)
        return loaded

    async def _time_before(self, header: Header, version: int, tailer: Tailer | None = None) -> int | None:
        """The time of the version before; None if its entry is gone. The tailer learns the times of some versions.

        Times are adjusted to increase from one version to the next, because a store may count in seconds and writers' clocks may differ. This
        reads the times of earlier versions too, so that a version has the same time wherever reading starts.

        Args:
            header: in force before the version, or at it.
            version: the first one to read.
            tailer: of the table.
        """
        times: list[int] = []
        remote = self.log.storage.remote
        async with aclosing(self.log.stats_before(version, LOOK_BACK if remote else LOCAL_LOOK_BACK)) as entries:
            async for entry in entries:
                times.append(file_time(entry.modified_ms))
                # A remote log is listed in any case.
                if times[-1] < times[0] - SKEW_MS and not remote:
                    break
        # A process that starts again knows the rhythm so. A pace that knows a commit keeps what it has learned.
        if tailer is not None and tailer.pace is not None and tailer.pace.commit is None:
            tailer.learn(times[::-1])
        if may_have_in_commit_timestamps(header.protocol, header.metadata):
            for number, time in enumerate(times):
                try:
                    commit = (await self.log.entry(version - 1 - number)).commit
                except NotFoundError:
                    break  # log clean-up removed it since
                if commit.in_commit_timestamp is not None:
                    # It may be ahead of the files after it. Those before it do not count.
                    times[number:] = [commit.in_commit_timestamp]
                    break
                if time < times[0] - SKEW_MS:
                    break
        return max((time + number for number, time in enumerate(times)), default=None)

    async def _plan(self, entry: LogEntry) -> Version:
        commit, previous = entry.commit, self.header
        if previous is None:
            header = PartialHeader(commit.version, commit.protocol, commit.metadata).finish()
        else:
            header = previous.apply(commit)
            if self._snapshot is None:
                self._snapshot = await self._state_before(commit, previous)
        if self.target is None and previous is not None and previous.schema != header.schema:
            self.rows.shape.check_change(previous.schema, header.schema)
        if previous is None or commit.protocol is not None or commit.metadata is not None:
            self.log.check_managed(header)
        timestamp = commit_timestamp(commit, header, entry.stat.modified_ms, self._timestamp)
        derive = partial(self._derive, commit, header, timestamp)
        # A schema may have 40,000 columns.
        large = commit.metadata is not None or is_large(commit, self._snapshot)
        version_plan, after, touched = await asyncio.to_thread(derive) if large else derive()
        # Log why a version is not refined: once for each reason.
        if version_plan.unrefined is not None and version_plan.unrefined not in self._said:
            self._said.add(version_plan.unrefined)
            extra = {"table": self.log.storage.uri, "version": version_plan.version}
            logger.warning("version %d is not refined: %s", version_plan.version, version_plan.unrefined, extra=extra)
        self._snapshot = None if after is None else self.log.warn_of_mismatches(after)
        self.header, self._timestamp, self.info = header, timestamp, commit.info
        change = mapped_before = None
        if previous is not None and previous.schema != header.schema:
            change = (await asyncio.to_thread(compare, previous.schema, header.schema)) or None
            if (
                header.schema.mapping is ColumnMappingMode.NONE
                and previous.schema.mapping is not ColumnMappingMode.NONE
            ):
                mapped_before = previous.schema
        table_id = self._table_id or header.metadata.id
        return Version(version_plan, table_id, change, commit.only_txns, entry.digest, touched, mapped_before)

    def _derive(
        self, commit: Commit, header: Header, timestamp: int
    ) -> tuple[ChangePlan, Snapshot | None, Touched | None]:
        """The plan of a commit, the state after it if it is needed, and the files of an incremental snapshot that it touches.

        Changes nothing: a thread runs it, and goes on after a cancellation.
        """
        previous, before, where, meant = self.header, self._snapshot, self.rows.shape.where, None
        if before is not None:
            # Each pass over packed actions would create them once more.
            commit = replace(commit, removes=tuple(commit.removes))
            meant = before.meant(commit.removes)
        version_plan = plan(
            commit, header, timestamp, changes=self.rows.changes, previous=previous, before=before, meant=meant
        )
        if self.target is None and commit.metadata is not None and (earlier := version_plan.earlier_schema) is not None:
            self.rows.shape.check_names(earlier, header.schema)
        if where is not None:
            from cdfd.plan.shape.pruning import prune

            version_plan = prune(version_plan, where, self.target)
        if previous is not None:
            begun = commit.version in self.unrefined
            version_plan = refine(version_plan, commit, header, previous, self.rows, begun=begun)
        after = None if before is None else before.apply(commit, meant)
        if after is not None and len(after.overlay) >= COMPACT_AT:
            after = after.compact(with_tombstones=False)
        return version_plan, after, None if self.files is None else self.files.touched(commit)

    async def _state_before(self, commit: Commit, previous: Header) -> Snapshot | None:
        """The state that the rows of a commit depend on; None if they do not."""

        def depends() -> tuple[bool, bool]:
            needed = needs_snapshot(commit, previous, self.rows.changes)
            return needed, needed or (not self._stateless and wants_snapshot(commit, previous, self.rows.changes))

        is_needed, is_wanted = await asyncio.to_thread(depends) if is_large(commit) else depends()
        if not is_wanted:
            return None
        try:
            while True:
                state = await self.log.snapshot(commit.version - 1)
                if await self.log.history.confirm():  # it belongs to the same log
                    return state
        except (LogError, NotFoundError) as error:
            if is_needed or error.retriable:
                raise
            # Log clean-up leaves entries behind whose state before is gone. Almost all removes name the right deletion vector.
            self._stateless = True
            return None


@asynccontextmanager
async def _same_table(tailer: Tailer | None) -> AsyncIterator[None]:
    """Check the table's id after an error: a log that became shorter may belong to another table, which is then the error."""
    try:
        yield
    except LogError:
        if tailer is not None and tailer.table_id is not None:
            await tailer.check_table()
        raise


MAX_VERSIONS, MAX_FILES = 512, 4096
"""Versions that are planned and not yet taken, at most, and files in them; beyond either, planning waits.

One transaction delivers as many. It takes as long as reading some twenty files of one row.
"""


async def version_batches(
    versions: AsyncGenerator[Version, None], max_versions: int = MAX_VERSIONS, max_files: int = MAX_FILES
) -> AsyncGenerator[list[Version], None]:
    """The planned versions, in order: one at a time at the tip of a table, and in catch-up as many as were planned meanwhile.

    The error that ends `versions` is raised after all versions before it. `versions` is closed with this generator.
    """
    planned: asyncio.Queue[Version | None] = asyncio.Queue()
    room = asyncio.Event()
    files = 0

    async def plan() -> None:
        nonlocal files
        async for version in versions:
            while planned.qsize() >= max_versions or files >= max_files:
                room.clear()
                await room.wait()
            files += len(version.plan.scans)
            planned.put_nowait(version)

    planner = asyncio.create_task(plan())
    # The end of planning follows the planned versions in the queue, also after an error.
    planner.add_done_callback(lambda _: planned.put_nowait(None))
    try:
        while True:
            batch = []
            version = await planned.get()
            while version is not None:
                files -= len(version.plan.scans)
                room.set()
                batch.append(version)
                if planned.empty():
                    break
                version = planned.get_nowait()
            if batch:
                yield batch
            if version is None:
                await planner
                return
    finally:
        planner.cancel()
        await asyncio.gather(planner, return_exceptions=True)
        await versions.aclose()
