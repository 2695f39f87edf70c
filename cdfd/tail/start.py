"""Where to start and where to stop, as users say it, to versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cdfd.delta.protocol import in_commit_timestamps_enabled
from cdfd.errors import ConfigError, GapError, LogError
from cdfd.tail.log import DeltaLog
from cdfd.tail.segment import SegmentBuilder
from cdfd.tail.tailer import Tailer

Start = int | str | datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a reader begins that has no position.

    Attributes:
        table_id: `metaData.id`.
        version: the first version to deliver.
        snapshot: whether its live rows are delivered, instead of its changes.
    """

    table_id: str
    version: int
    snapshot: bool = False


async def awaited_start(tailer: Tailer, start: Start) -> int:
    """The first version to deliver of a table that may not be there yet: `latest` of one that has yet to appear is all of it.

    Raises:
        ConfigError, LogError: as `start_version` and `check_reached` say.
    """
    start = await _awaited(tailer, start)
    version = await start_version(tailer.log, start)
    if not isinstance(parsed(start), str):
        check_reached(start, version, await tailer.log.latest_version(), tailer.clock.now_ms(), tailer.log.storage.uri)
    return version


async def awaited_beginning(tailer: Tailer, start: Start) -> Beginning:
    """The same as `beginning`, of a table that may not be there yet."""
    return await beginning(tailer.log, await _awaited(tailer, start), tailer.clock.now_ms())


async def beginning(log: DeltaLog, start: Start, now_ms: int) -> Beginning:
    """Where a reader begins that has no position. `start` may be `snapshot`: the live rows of the newest version, then what follows.

    Args:
        log: of the table, which is there.
        start: as the configuration says it.
        now_ms: the time.

    Raises:
        ConfigError, LogError: as `start_version`, `check_reached` and `DeltaLog.header` say.
    """
    header = await log.header()
    if start == "snapshot":
        return Beginning(header.metadata.id, header.version, snapshot=True)
    version = await start_version(log, start)
    check_reached(start, version, header.version, now_ms, log.storage.uri)
    return Beginning(header.metadata.id, version)


def check_reached(start: Start, version: int, newest: int, now_ms: int, table: str) -> None:
    """Refuse a start that the table has not come to: a version beyond the next one, or a moment that is still to come.

    Args:
        start: as users say it.
        version: what `start_version` makes of it.
        newest: the newest version of the table.
        now_ms: the time.
        table: its URI.

    Raises:
        LogError: naming the newest version. It is about this table, and passes once the table has come so far.
    """
    wanted = parsed(start)
    if isinstance(wanted, int) and wanted > newest + 1:
        raise LogError(
            f"the start is version {wanted}, but the newest version of the table is {newest}",
            table=table,
            hint=f"Start at `latest`, or at a version up to {newest + 1}",
        )
    if isinstance(wanted, datetime) and version > newest and wanted > _EPOCH + now_ms * _MILLISECOND:
        raise LogError(
            f"the start is {wanted.isoformat()}, which is still to come",
            table=table,
            hint=f"Start at `latest`; the newest version of the table is {newest}",
        )


async def _awaited(tailer: Tailer, start: Start) -> Start:
    """The start, once the table is there."""
    if start != "snapshot":
        parsed(start)
    appeared = await tailer.wait_for_table()
    return "earliest" if appeared and start != "snapshot" and parsed(start) == "latest" else start


async def start_version(log: DeltaLog, start: Start) -> int:
    """The first version to deliver.

    `earliest` is the oldest one whose changes can be read: its log entry is there, and what the table was like is known. `latest` is the
    version after the newest, a timestamp the first version not before it, which may be that one too.

    Raises:
        ConfigError: not a start.
        GapError: that version is no longer in the log.
    """
    match parsed(start):
        case "earliest":
            return await _earliest(log)
        case int(version):
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
            return await _first_since(log, -((_EPOCH - moment) // _MILLISECOND))
        case _:
            return await log.latest_version() + 1


async def until_version(log: DeltaLog, until: Start | None) -> int | None:
    """The last version to deliver, None for no end. `now` is the newest; a timestamp means the last version not after it.

    Raises:
        ConfigError: not an end.
    """
    match None if until is None else parsed(until):
        case None:
            return None
        case "earliest":
            raise ConfigError("the oldest version is where to start, not where to end", hint="Say `now`, or a version")
        case int(version):
            return version
        case datetime() as moment:
            return await _first_since(log, (moment - _EPOCH) // _MILLISECOND + 1) - 1
        case _:
            return await log.latest_version()


def parsed(text: Start) -> int | str | datetime:
    """A version, a moment, or `earliest` or `latest` (`now` is the same). Moments without a zone are UTC.

    Raises:
        ConfigError: anything else.
    """
    if isinstance(text, int):
        if text < 0:
            raise ConfigError(f"there is no version {text}", hint="Versions count from 0")
        return text
    if isinstance(text, datetime):
        return text if text.tzinfo else text.replace(tzinfo=UTC)
    word = text.strip()
    if word.lower() in ("earliest", "latest", "now"):
        return "earliest" if word.lower() == "earliest" else "latest"
    try:
        return int(word) if word.isascii() and word.isdigit() else parsed(datetime.fromisoformat(word))
    except ValueError:
        raise ConfigError(
            f"{text!r:.200} is neither a version, nor a timestamp, nor a known word",
            hint="Known: earliest, latest, now",
        ) from None


async def _earliest(log: DeltaLog) -> int:
    """Log clean-up may leave entries before the oldest checkpoint: nothing says what the table was like then."""
    oldest = await log.earliest_version()
    if oldest == 0:
        return 0
    builder = SegmentBuilder(None)
    async for name, stat in log.list_names():
        builder.take(name, stat)
        if builder.checkpoint is not None:
            return max(builder.checkpoint.version, oldest)
    return oldest


async def _first_since(log: DeltaLog, wanted_ms: int) -> int:
    """The first version not before a moment in ms since the Unix epoch; the one after the newest where all are before it."""
    times = [each async for each in _modification_times(log)]
    if not times:
        await log.earliest_version()
    first_in_commit = await _first_in_commit(log, times[0][0], times[-1][0])
    if first_in_commit is not None and await _in_commit(log, first_in_commit) < wanted_ms:
        return await _bisect(log, wanted_ms, first_in_commit + 1, times[-1][0] + 1)
    end = times[-1][0] + 1 if first_in_commit is None else first_in_commit
    return next((version for version, time in times if version >= end or time >= wanted_ms), end)


async def _modification_times(log: DeltaLog) -> AsyncIterator[tuple[int, int]]:
    """(version, modification time in ms) of every log entry that is there, monotonic as in `changes.plan.commit_timestamp`."""
    last: int | None = None
    async for name, stat in log.list_names():
        if name.kind == "commit":
            last = stat.modified_ms if last is None else max(stat.modified_ms, last + 1)
            yield name.version, last


async def _first_in_commit(log: DeltaLog, oldest: int, newest: int) -> int | None:
    """The first version in the log with an in-commit timestamp, None where the feature is not enabled."""
    header = await log.header(newest)
    if not in_commit_timestamps_enabled(header.metadata):
        return None
    enabled = header.metadata.configuration.get("delta.inCommitTimestampEnablementVersion", "0")
    if not (enabled.isascii() and enabled.isdigit() and int(enabled[:20]) <= newest):
        raise LogError(
            f"delta.inCommitTimestampEnablementVersion is {enabled!r}, which is no version of the table",
            table=log.storage.uri,
            version=newest,
            hint="Start at a version instead of a timestamp",
        )
    return max(oldest, int(enabled))


def check_range(first: int, last: int, table: str) -> None:
    """Refuse a range that goes backwards; one that is empty (from the version after the newest one on) is none.

    Raises:
        ConfigError: naming both ends.
    """
    if first > last + 1:
        raise ConfigError(
            f"the range from version {first} to {last} goes backwards",
            table=table,
            hint=f"The newest is {last} or later",
        )


async def _bisect(log: DeltaLog, wanted_ms: int, low: int, high: int) -> int:
    """The first version in `[low, high)` not before a moment, else `high`. In-commit timestamps only ever increase."""
    while low < high:
        middle = (low + high) // 2
        if await _in_commit(log, middle) < wanted_ms:
            low = middle + 1
        else:
            high = middle
    return low


async def _in_commit(log: DeltaLog, version: int) -> int:
    entry = await log.entry(version)
    time = None if entry.commit.info is None else entry.commit.info.in_commit_timestamp
    if time is None:
        raise LogError(
            "in-commit timestamps are enabled, but the commit has none", table=log.storage.uri, version=version
        )
    return time
