"""Where to start and where to stop, as users say it, to versions."""

from __future__ import annotations

from datetime import UTC, datetime

from cdfd.delta.protocol import in_commit_timestamps_enabled
from cdfd.errors import ConfigError, GapError
from cdfd.tail.log import DeltaLog

Start = int | str | datetime


async def start_version(log: DeltaLog, start: Start) -> int:
    """The first version to deliver.

    `earliest` is the oldest whose log entry is there, `latest` the one after the newest, a timestamp the first not before it.

    Raises:
        ConfigError: not a start, or a timestamp after the newest version's.
        GapError: that version is no longer in the log.
    """
    match parsed(start):
        case "latest":
            return await log.latest_version() + 1
        case "earliest":
            return await log.earliest_version()
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
            times = await commit_times(log)
            wanted = int(moment.timestamp() * 1000)
            return next((version for version, time in times if time >= wanted), times[-1][0] + 1)
        case other:
            raise _unclear(other)


async def until_version(log: DeltaLog, until: Start | None) -> int | None:
    """The last version to deliver, None for no end. `now` is the newest; a timestamp means the last version not after it.

    Raises:
        ConfigError: not an end.
    """
    match None if until is None else parsed(until):
        case None:
            return None
        case "now" | "latest":
            return await log.latest_version()
        case int(version):
            return version
        case datetime() as moment:
            wanted = int(moment.timestamp() * 1000)
            times = await commit_times(log)
            return max((version for version, time in times if time <= wanted), default=times[0][0] - 1)
        case other:
            raise _unclear(other)


def parsed(text: Start) -> int | str | datetime:
    """A version, a moment, or a word. Moments without a zone are UTC."""
    if isinstance(text, int):
        return text
    if isinstance(text, datetime):
        return text if text.tzinfo else text.replace(tzinfo=UTC)
    word = text.strip()
    if word.isdigit():
        return int(word)
    try:
        return parsed(datetime.fromisoformat(word))
    except ValueError:
        return word.lower()


def _unclear(word: object) -> ConfigError:
    return ConfigError(
        f"{word!r} is neither a version, nor a timestamp, nor a known word", hint="Known: earliest, latest, now"
    )


async def commit_times(log: DeltaLog) -> list[tuple[int, int]]:
    """(version, commit timestamp in ms) of every log entry that is there, by the rule of `changes.plan.commit_timestamp`."""
    times: list[tuple[int, int]] = []
    async for name, stat in log.list_names():
        if name.kind == "commit":
            floor = times[-1][1] + 1 if times else stat.modified_ms
            times.append((name.version, max(stat.modified_ms, floor)))
    if not times:
        await log.earliest_version()
    header = await log.header()
    if not in_commit_timestamps_enabled(header.metadata):
        return times
    enabled = int(header.metadata.configuration.get("delta.inCommitTimestampEnablementVersion") or 0)
    return [(version, await _in_commit(log, version, time) if version >= enabled else time) for version, time in times]


async def _in_commit(log: DeltaLog, version: int, modified_ms: int) -> int:
    info = (await log.entry(version)).commit.info
    return modified_ms if info is None or info.in_commit_timestamp is None else info.in_commit_timestamp
