"""Resolves the start and the end of a range, as users write them, to versions of a log."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cdfd.delta import paths
from cdfd.delta.protocol import in_commit_timestamps_enabled, may_have_in_commit_timestamps
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import ConfigError, GapError, LogError, NotFoundError, Within
from cdfd.log.bounds import After, Bound, Start, parse_bound
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import log_path
from cdfd.log.tailer import Tailer
from cdfd.model.commit_time import SKEW_MS, file_time
from cdfd.plan.row_options import RowOptions
from cdfd.runtime.clock import SystemClock
from cdfd.runtime.times import iso

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a reader without a saved position starts.

    Attributes:
        table_id: `metaData.id` in force before that version, or at it if it is a snapshot or 0. Positions keep it.
        version: the first version to deliver.
        snapshot: whether to deliver its live rows instead of its changes.
        digest: hash of the last log entry that the start depends on; None if there is none.
    """

    table_id: str
    version: int
    snapshot: bool = False
    digest: str | None = field(default=None, compare=False)


async def wait_for_start(tailer: Tailer, start: Start) -> int:
    """The first version to deliver of a table that may not exist yet. If it does not, `latest` means everything.

    Raises:
        ConfigError, LogError: see `start_version`; also for a version after the next one.
    """
    bound = await _await_start(tailer, parse_bound(start))
    first = await start_version(tailer.log, bound, tailer.clock.now_ms())
    if _is_version(bound):
        await check_version_exists(tailer.log, first, await tailer.log.latest_version() + 1)
    return first


async def wait_for_start_position(tailer: Tailer, start: Start) -> StartPosition:
    """The same as `start_position`, for a table that may not exist yet."""
    bound: Bound = "snapshot" if start == "snapshot" else parse_bound(start)
    return await start_position(tailer.log, await _await_start(tailer, bound), tailer.clock.now_ms())


async def start_position(log: DeltaLog, start: Start | Bound, now_ms: int) -> StartPosition:
    """Where a reader without a saved position starts. `snapshot` means the live rows of the newest version, then later changes.

    Args:
        log: of an existing table.
        start: from the configuration.
        now_ms: the current time, in ms since the Unix epoch.

    Raises:
        ConfigError, LogError: see `start_version` and `DeltaLog.header`; also for a version after the next one.
        TableChangedError: the table is replaced meanwhile.
    """
    snapshot, wanted = start == "snapshot", None if start == "snapshot" else parse_bound(start)
    while True:
        header = await log.header()
        version = header.version if wanted is None else await start_version(log, wanted, now_ms)
        if _is_version(wanted):
            await check_version_exists(log, version, header.version + 1)
        basis = version if snapshot else version - 1
        digest = await log.digest(basis) if basis >= 0 else None
        if basis != header.version:
            header = await (log.header(0) if basis < 0 else log.header_before(version))
        if await log.history.confirm():
            return StartPosition(header.metadata.id, version, snapshot, digest)


def _is_version(bound: Bound | None) -> bool:
    return isinstance(bound.bound if isinstance(bound, After) else bound, int)


async def _await_start(tailer: Tailer, start: Bound) -> Bound:
    """The start, once the table exists."""
    appeared = await tailer.wait_for_table()
    return "earliest" if appeared and start == "latest" else start


async def start_version(log: DeltaLog, start: Start | Bound, now_ms: int | None = None) -> int:
    """The first version to deliver.

    `earliest` is the oldest version whose changes can be read: its log entry exists, and the table's state and the schema of the rows that
    it deletes are known. `latest` is the version after the newest. A timestamp is the first version not before it, which may also be the
    version after the newest. `After` excludes the version, or versions of that very millisecond.

    Raises:
        ConfigError: not a start.
        GapError: that version is no longer in the log.
        LogError: a time in the future, or more versions back than exist.
    """
    bound = parse_bound(start)
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    exclusive = isinstance(bound, After)
    match await _resolve(log, bound, now_ms):
        case "earliest":
            first = await log.earliest_state()
            if first > 0 and await log.replaces_rows(first):
                with contextlib.suppress(GapError):
                    await log.header_before(first)
                    return first
                first += 1
            return first
        case int(version):
            version += exclusive
            earliest = await log.earliest_version()
            if version < earliest:
                raise GapError(
                    f"version {version} is no longer in the log; the oldest is {earliest}",
                    table=log.storage.uri,
                    version=version,
                    hint="Log clean-up removed it; start at `earliest`, or from a snapshot",
                )
            return version
        case datetime() as moment:
            milliseconds = (moment - _EPOCH) // _MILLISECOND + 1 if exclusive else -((_EPOCH - moment) // _MILLISECOND)
            first = await _first_since(log, milliseconds)
            if milliseconds > now_ms and first > (newest := await log.latest_version()):
                raise LogError(
                    f"{iso((moment - _EPOCH) // _MILLISECOND)} is in the future; {await _describe(log, newest, 'newest')}",
                    table=log.storage.uri,
                    hint="Start at `latest` for the commits made from now on",
                )
            return first
        case _:
            return await log.latest_version() + 1


async def fixed_bound(log: DeltaLog, bound: Bound) -> Bound:
    """The same bound, whatever versions come later, and whenever it is resolved.

    Raises:
        LogError: more versions back than exist.
    """
    fixed = await _resolve(log, bound, SystemClock().now_ms())
    return After(fixed) if isinstance(bound, After) and not isinstance(fixed, str) else fixed


async def until_version(log: DeltaLog, until: Start | Bound | None, now_ms: int | None = None) -> int | None:
    """The last version to deliver; None for no end. `now` is the newest version, a timestamp the last version not after it.

    Raises:
        ConfigError: not an end.
        LogError: more versions back than exist.
    """
    bound = None if until is None else parse_bound(until)
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    match None if bound is None else await _resolve(log, bound, now_ms):
        case None:
            return None
        case _ if isinstance(bound, After):
            raise ConfigError(
                "a range cannot end after a bound", hint="`after` begins a range; end at a version or a time"
            )
        case "earliest":
            raise ConfigError("a range cannot end at `earliest`", hint="Use `now`, or a version")
        case int(version):
            return version
        case datetime() as moment:
            return await _first_since(log, (moment - _EPOCH) // _MILLISECOND + 1) - 1
        case _:
            return await log.latest_version()


async def state_version(log: DeltaLog, version: Start | Bound | None) -> int | None:
    """The version whose state to read; None for the newest. A timestamp is the last version not after it.

    `earliest` is the oldest version whose state is known.

    Raises:
        ConfigError: not a version.
        LogError: no version as old as that time can be read any more.
    """
    bound = None if version is None else parse_bound(version)
    if bound == "earliest":
        return await log.earliest_state()
    until = await until_version(log, bound)
    if until is not None and isinstance(bound, datetime | timedelta) and until < (oldest := await log.earliest_state()):
        raise LogError(
            f"the log has no version from {version!s:.100} or before; {await _describe(log, oldest, 'oldest')}",
            table=log.storage.uri,
            hint=f"Ask for version {oldest}, or a later time",
        )
    return until


async def check_range(log: DeltaLog, first: int, last: int, *, snapshot: bool = False) -> None:
    """Raise an error for a range that begins after the next version, or goes backwards. An empty range does neither.

    Args:
        log: of the table.
        first, last: the range.
        snapshot: whether the live rows at `first` come first. Then it must exist, and not be after `last`.

    Raises:
        ConfigError: the range goes backwards; the error names both ends.
        LogError: see `check_version_exists`.
    """
    if first <= last + (not snapshot):
        return
    newest = await log.latest_version()
    await check_version_exists(log, first, newest + (not snapshot))
    raise ConfigError(
        f"the range from version {first} to {last} goes backwards",
        table=log.storage.uri,
        hint=(await _describe(log, newest, "newest")).replace("the", "The", 1),
    )


async def check_version_exists(log: DeltaLog, version: int, last: int) -> None:
    """Raise an error for a version after `last`, which is the newest version or the next one.

    Raises:
        LogError: it names the newest version and its time.
    """
    if version > last:
        newest = await log.latest_version()
        raise LogError(
            f"there is no version {version} yet; {await _describe(log, newest, 'newest')}",
            table=log.storage.uri,
            hint=f"Start at `latest`, or at a version up to {last}; end at `now`",
        )


async def check_rows_from(log: DeltaLog, rows: RowOptions, first: int, last: int | None = None) -> TableSchema:
    """Check that a table has all that rows from a version on need, up to `last` (None: the newest); the schema there.

    Raises:
        ConfigError, MissingColumnError: as `RowOptions.check` and `Shape.check_names` say.
        LogError: see `DeltaLog.header`.
    """
    newest = await log.header()
    end = newest if last is None or not first <= last < newest.version else await log.header(last)
    header = end if first >= end.version else await log.header(first)
    with Within(log.storage.uri):
        rows.check(end.schema, header.schema, newest.schema)
        for later in (end, newest):
            rows.shape.check_names(header.schema, later.schema)
    return end.schema


async def _resolve(log: DeltaLog, bound: Bound, now_ms: int) -> int | str | datetime:
    """A bound that no longer depends on the newest version or on the current time; of `After`, the one that it excludes."""
    if isinstance(bound, After):
        bound = bound.bound
    if isinstance(bound, timedelta):
        return _EPOCH + timedelta(milliseconds=now_ms) - bound
    if not isinstance(bound, int) or bound >= 0:
        return bound
    newest = await log.latest_version()
    if newest + 1 + bound < 0:
        raise LogError(
            f"there is no version {bound}: {await _describe(log, newest, 'newest')}, and is version -1",
            table=log.storage.uri,
            hint="The oldest is `earliest`",
        )
    return newest + 1 + bound


async def _describe(log: DeltaLog, version: int, which: str) -> str:
    """`the newest is 5, of 2026-01-01T00:00:00.000Z`, without the time if the version only has a checkpoint."""
    try:
        entry = await log.entry(version)
        enabled = in_commit_timestamps_enabled((await log.header(version)).metadata)
    except NotFoundError:
        return f"the {which} is {version}"
    in_commit = entry.commit.in_commit_timestamp if enabled else None
    milliseconds = entry.stat.modified_ms if in_commit is None else in_commit
    try:
        moment = iso(milliseconds)
    except OverflowError:  # Python has no times before the year 1 and after 9999
        moment = f"{milliseconds} ms since 1970"
    return f"the {which} is {version}, of {moment}"


async def _first_since(log: DeltaLog, wanted_ms: int) -> int:
    """The first version not before a time in ms since the Unix epoch; the one after the newest if all are before it."""
    while True:
        times = list[tuple[int, int, int]]()  # version, ms of its file, and as in `cdfd.model.commit_time`
        complete = 1
        async for name, stat in log.list_names():
            if name.kind == "commit":
                modified = stat.modified_ms
                times.append((name.version, modified, file_time(modified, times[-1][2] + 1 if times else 0)))
                complete = len(times) if stat.size else complete
        if not times:
            await log.earliest_version()
        del times[complete:]  # the writers of empty entries at the end may have just created them
        try:
            return await _first_listed(log, times, wanted_ms)
        except NotFoundError:
            # Log clean-up may have removed the oldest entries since.
            if await log.earliest_version() <= times[0][0]:
                raise


async def _first_listed(log: DeltaLog, times: Sequence[tuple[int, int, int]], wanted_ms: int) -> int:
    """The same among these versions."""
    newest = times[-1][0]
    header = await log.header(newest)
    if not in_commit_timestamps_enabled(header.metadata):
        first_in_commit = None
    else:
        enabled = header.metadata.configuration.get("delta.inCommitTimestampEnablementVersion", "0")
        # No version has more digits. Python raises an error for integers of several thousand digits.
        if not (re.fullmatch("[0-9]{1,19}", enabled) and int(enabled) <= newest):
            raise LogError(
                f"delta.inCommitTimestampEnablementVersion is {enabled!r:.80}, which is not a version of the table",
                table=log.storage.uri,
                version=newest,
                hint="Start at a version instead of a timestamp",
            )
        first_in_commit = max(times[0][0], int(enabled))
    if first_in_commit is not None and await _in_commit(log, first_in_commit) <= wanted_ms:
        # Times of older files do not count: their clock may have been ahead.
        # In-commit timestamps always increase.
        low, high = first_in_commit, newest + 1
        while low < high:
            middle = (low + high) // 2
            if await _in_commit(log, middle) < wanted_ms:
                low = middle + 1
            else:
                high = middle
        return low
    end = newest + 1 if first_in_commit is None else first_in_commit
    switched = may_have_in_commit_timestamps(header.protocol, header.metadata)
    return await _first_by_file(log, [each for each in times if each[0] < end], wanted_ms, end, switched=switched)


async def _first_by_file(
    log: DeltaLog, times: Sequence[tuple[int, int, int]], wanted_ms: int, end: int, *, switched: bool
) -> int:
    """The same among versions whose times are those of their files, unless in-commit timestamps were enabled then; `end` if there is none.

    `switched`: whether later versions may have in-commit timestamps although an earlier one has none.
    """
    # In-commit timestamps differ from the times of files in either direction.
    stated: int | None = 0
    before = -1
    for version, modified_ms, time in times:
        if time < wanted_ms - SKEW_MS:
            before = time
            continue
        if switched or stated is not None:
            stated = (await log.entry(version)).commit.in_commit_timestamp
        before = file_time(modified_ms, before + 1) if stated is None else stated
        if before >= wanted_ms:
            return version
    return end


async def _in_commit(log: DeltaLog, version: int) -> int:
    time = (await log.entry(version)).commit.in_commit_timestamp
    if time is None:
        raise LogError(
            "in-commit timestamps are enabled, but the commit has none",
            table=log.storage.uri,
            version=version,
            path=log_path(paths.commit_name(version)),
        )
    return time
