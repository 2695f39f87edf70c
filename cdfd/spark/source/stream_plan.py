"""Plans a stream: plans versions on demand, and keeps the plans until they are delivered."""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from functools import partial

from cdfd.delta.types.schema_change import SchemaChange, compare
from cdfd.errors import ConfigError, SchemaChangedError
from cdfd.log.history import replaced_error, truncated_error
from cdfd.log.listing import LiveListing
from cdfd.log.start import start_position
from cdfd.log.stream import PlanStream
from cdfd.log.table import Table
from cdfd.log.tailer import Tailer
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Phase, Position
from cdfd.model.version import Version
from cdfd.runtime.clock import SystemClock
from cdfd.scan.splits import Split, place_splits, plan_splits, shares
from cdfd.spark.engine.target import Target
from cdfd.spark.source.admission import Budget, row_counts
from cdfd.spark.source.backlog import Backlog, PendingBytes
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.partitioning import (
    LEAST_BYTES,
    PlanRange,
    Schemas,
    counted_paths,
    listed_snapshot,
    measure_splits,
)
from cdfd.spark.source.reading import execution_of
from cdfd.spark.source.snapshot_windows import SnapshotWindows, Window


@dataclass(slots=True)
class StreamPlanner:
    """Plans a stream over one table.

    Attributes:
        table: the table.
        options: of the read.
        target: the columns.
        last: the last version; None: no end.
        newest: the newest version when the last micro-batch was planned; -1 before that.
    """

    table: Table
    options: SourceOptions
    target: Target
    last: int | None = None
    newest: int = -1
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _tailer: Tailer | None = None
    _stream: PlanStream | None = None
    _next: int = -1
    _unrefined: set[int] = field(default_factory=set)
    _planned: dict[int, Version] = field(default_factory=dict)
    _listed: tuple[int, tuple[Version, LiveListing] | None] | None = None
    _windows: SnapshotWindows | None = None
    _pending: PendingBytes = field(init=False)

    def __post_init__(self) -> None:
        # Its own log: read-ahead and history of the table's log are those of the micro-batches.
        self._pending = PendingBytes(self.table.with_own_log().log, self.options.rows.changes)

    def close(self) -> None:
        """Release the tailer."""
        self._open.close()

    def delivered(self, end: Position) -> None:
        """Forget the plans before `end`, which are delivered."""
        for version in [version for version in self._planned if version < end.version]:
            del self._planned[version]
        if end.phase == "stream":
            self._listed = self._windows = None

    async def beginning(self) -> Position:
        """The start of a stream without a checkpoint.

        Raises:
            CdfdError: as `start_position` says.
        """
        position = await start_position(
            self.table.log, "snapshot" if self.options.start is None else self.options.start, SystemClock().now_ms()
        )
        phase: Phase = "snapshot" if position.snapshot else "stream"
        return Position(position.table_id, position.version, phase=phase, digest=position.digest)

    async def latest(self, start: Position, *, limited: bool) -> tuple[Position, Backlog | None]:
        """The end of the micro-batch that begins at `start`, and the backlog after it.

        The end is the newest version, or earlier if the batch is full. `limited` is False for a batch without limits.

        Raises:
            SchemaChangedError: the version at `start` has another schema than the query.
            CdfdError: as in `PlanStream.versions`.
        """
        self._continue_from(start)
        options, budget, at = self.options, Budget(), start
        if limited:
            budget = Budget(options.max_files, options.max_bytes, options.max_versions, options.max_rows)
        count = partial(row_counts, execution=execution_of(self.table, self.options))
        if at.phase == "snapshot":
            live, window = await self._snapshot_at(at, limited=budget.limits_files)
            local = _check(window.plan, window.within(at), self.table.uri)
            end = budget.take(window.plan, local.part, count)
            if window.first + end < window.total:
                self.newest = await self.table.log.latest_version()
                reached = self._within(replace(live, plan=window.plan), local, end)
                left = await self._backlog(window.plan, end, self._end(), window.after)
                return replace(reached, part=window.first + end), left
            budget.used = True
            at = at.after_version(live.digest)
        self.newest = await self._newest(at)
        newest = self._end()
        async with contextlib.aclosing(self._versions(at, newest)) as versions:
            async for version in versions:
                plan = version.plan
                if (change := self._change(version)) is not None:
                    if at == start:
                        raise SchemaChangedError(
                            f"the table's schema changed: {'; '.join(change.describe()):.500}",
                            table=self.table.uri,
                            version=plan.version,
                            hint="Everything before it is read. Restart the query from `spark.readStream`: it continues with the new schema",
                        )
                    return at, await self._backlog(plan, at.part, newest)
                if budget.versions == 0:
                    return at, await self._backlog(plan, at.part, newest)
                end = budget.take(plan, _check(plan, at, self.table.uri).part, count)
                if end < len(plan.scans):
                    reached = at if end == at.part else self._within(version, at, end)
                    return reached, await self._backlog(plan, end, newest)
                at = replace(at.after_version(version.digest), table_id=version.table_id)
                budget.versions = None if budget.versions is None else budget.versions - 1
        return at, None

    def _end(self) -> int:
        """The last version to read now."""
        return self.newest if self.last is None else min(self.newest, self.last)

    async def _backlog(self, plan: ChangePlan, part: int, newest: int, more: int = 0) -> Backlog:
        """The backlog from scan number `part` of a plan on; `more` bytes of its version are not in the plan."""
        later = await self._pending.between(plan.version + 1, newest)
        own = int(shares(plan.scans[part:]).sum()) + more
        return Backlog(newest, plan.timestamp_ms, None if later is None else own + later)

    async def listed(self, start: Position, end: Position) -> tuple[Version, LiveListing] | None:
        """The snapshot at `start`, if a micro-batch has all of it and executors list its files; None otherwise.

        Raises:
            CdfdError: as in `PlanStream.snapshot`.
        """
        whole = start.phase == "snapshot" and not start.part and end.phase == "stream"
        return await self._listing(start) if whole else None

    async def _listing(self, at: Position) -> tuple[Version, LiveListing] | None:
        """Where the files of the snapshot at a position are listed; None if it is small."""
        if self._listed is None or self._listed[0] != at.version:
            stream = self.table.stream(self.target.rows, self.target.schema)
            self._listed = at.version, await listed_snapshot(stream, self.options, at.version, await self._tail(at))
        return self._listed[1]

    async def _windows_at(self, at: Position) -> SnapshotWindows:
        """The windows of the snapshot at a position; one, if it is small."""
        if self._windows is None or self._windows.version.plan.version != at.version:
            listed, ranges = await self._listing(at), None
            if listed is None:
                stream = self.table.stream(self.target.rows, self.target.schema)
                version = await stream.snapshot(at.version, await self._tail(at), by_statistics=False)
            else:
                version, live = listed
                execution = execution_of(self.table, self.options)
                ranges = counted_paths(live, self.table, at.version, execution)
            self._windows = SnapshotWindows(version, ranges, self.table.log.storage)
        return self._windows

    async def _snapshot_at(self, at: Position, *, limited: bool) -> tuple[Version, Window]:
        """The snapshot at a position, and its scans from there on: all of them, or some; none if executors list them."""
        listed = None if limited or at.part else await self._listing(at)
        if listed is not None:
            return listed[0], Window(listed[0].plan, 0, 0, 0, 0)
        windows = await self._windows_at(at)
        return windows.version, windows.at(at.part)

    async def _snapshot_ranges(self, start: Position, end: Position) -> tuple[Version, list[PlanRange]]:
        """The snapshot at `start`, and its plan ranges up to `end`; none if it is `listed`."""
        stop = end.part if end.phase == "snapshot" else None
        if (listed := await self.listed(start, end)) is not None:
            return listed[0], []
        windows = await self._windows_at(start)
        window = windows.at(start.part)
        _check(window.plan, window.within(start), self.table.uri)
        last = window.total if stop is None else min(stop, window.total)
        ranges, part = list[PlanRange](), start.part
        while part < last:
            window = windows.at(part)
            at = start.at_part(window.first, window.ordinal) if ranges else start
            ranges.append(PlanRange(window.plan, window.within(at), None if stop is None else stop - window.first))
            part = window.end
        return windows.version, ranges

    async def plan_ranges(self, start: Position, end: Position) -> list[PlanRange]:
        """The plan ranges from `start` up to `end`, without a snapshot that is `listed`."""
        self._continue_from(start, end)
        schemas = Schemas(self.target.schema)
        portions, at = list[PlanRange](), start
        if at.phase == "snapshot":
            if at == end:
                return []
            live, ranges = await self._snapshot_ranges(at, end)
            self._check_end(live, end)
            portions += (replace(each, plan=schemas.of(each.plan, self.table.uri)) for each in ranges)
            if end.phase == "snapshot":
                return portions
            at = at.after_version()
        async with contextlib.aclosing(self._versions(at, end.basis)) as versions:
            async for version in versions:
                self._check_end(version, end)
                plan = schemas.of(version.plan, self.table.uri)
                stop = end.part if plan.version == end.version else None
                portions.append(PlanRange(plan, _check(plan, at, self.table.uri), stop))
                at = at.after_version()
        return portions

    def _check_end(self, version: Version, end: Position) -> None:
        """Refuse a repeated micro-batch, if the table has been replaced since it was planned."""
        has_digests = version.digest is not None and end.digest is not None
        if has_digests and version.plan.version == end.basis and version.digest != end.digest:
            raise replaced_error(end.basis, self.table.uri)

    def _continue_from(self, *positions: Position) -> None:
        """Plan versions as an earlier query began them; see `PlanStream.continue_from`."""
        self._unrefined.update(position.version for position in positions if position.is_unrefined)

    def _within(self, version: Version, start: Position, end: int) -> Position:
        """The position at scan number `end` of a version, for a read that begins at `start`."""
        if version.plan.refinement is not None:
            return start.at_part(end, version.plan.ordinal_of(end, 0), version.digest, version.plan.parts_id)
        execution = execution_of(self.table, self.options)
        splits: list[Split] = plan_splits(version.plan, LEAST_BYTES, start=start, end=end)
        following = place_splits(version.plan, splits, list(measure_splits(splits, execution)))[-1].following
        assert following is not None
        return start.at_part(end, following, version.digest, version.plan.parts_id)

    async def _tail(self, at: Position) -> Tailer:
        if self._tailer is None:
            tailer = self._open.enter_context(self.table.tailer(replacements=self.options.on_replace == "continue"))
            # Positions of a replaced table are not valid in the new one.
            await tailer.resume(at)
            self._tailer = tailer
        # Where the id may change within the log, the digest alone identifies the log.
        self._tailer.table_id = None if self.options.on_replace == "continue" else at.table_id
        return self._tailer

    async def _newest(self, at: Position) -> int:
        tailer = await self._tail(at)
        newest = await self.table.log.latest_version()
        if newest < at.version - 1:
            await tailer.check_table()
            raise truncated_error(newest, at.version - 1, self.table.uri)
        if newest < at.version:
            await tailer.confirm()
        return newest

    async def _versions(self, at: Position, last: int) -> AsyncGenerator[Version, None]:
        """The versions from `at` to `last`."""
        version = at.version
        while version <= last and (ready := self._planned.get(version)) is not None:
            yield ready
            version += 1
        if version > last:
            return
        if self._stream is None or self._next != version:
            self._stream = self.table.stream(self.target.rows, self.target.schema)
            self._stream.unrefined = self._unrefined
        async with contextlib.aclosing(self._stream.versions(await self._tail(at), version, last)) as versions:
            async for planned in versions:
                self._planned[planned.plan.version] = planned
                self._next = planned.plan.version + 1
                yield planned

    def _change(self, version: Version) -> SchemaChange | None:
        """The change of the read columns since the query's schema; None if there is none, or if the version is older."""
        target, schema = self.target.schema, version.plan.schema
        if version.plan.version <= self.target.version or schema == target:
            return None
        change = compare(target, schema if self.target.whole else self.target.rows.shape.select(schema))
        return change if change.added or not change.additive else None


def _check(plan: ChangePlan, at: Position, uri: str) -> Position:
    if not plan.continues(at):
        raise ConfigError(
            f"the position is after {at.part} parts of this version, but it has {len(plan.scans)} parts to read now, or other ones",
            table=uri,
            version=plan.version,
            hint="Restore the previous values of the options `changes`, `refine`, `key` and `where`, or use another checkpoint",
        )
    return at
