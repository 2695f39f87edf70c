"""Where to start and stop, as users say it."""

import asyncio
import contextlib
import json
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta.commit import serialize
from cdfd.delta.types import schema as schemas
from cdfd.errors import CdfdError, ConfigError, GapError, LogError, NotATableError, NotFoundError
from cdfd.log.bounds import Start, parse_bound
from cdfd.log.log import DeltaLog
from cdfd.log.start import (
    StartPosition,
    check_range,
    start_position,
    start_version,
    state_version,
    until_version,
    wait_for_start,
)
from cdfd.log.tailer import Tailer
from cdfd.log.watch import Backoff, PollWatch
from tests.support.lake import BEGINNING, SCHEMA, Lake, checkpoint, entry_path, manual_clock, rows, run, table
from tests.support.manual_time import ManualClock

LATER = BEGINNING + 10 * 365 * 86_400_000
"""A time, in ms since the Unix epoch, after whatever a test writes."""


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(BEGINNING / 1000, UTC) + timedelta(seconds=seconds)


async def hourly(clock: ManualClock, versions: int) -> Lake:
    """A table whose versions are an hour apart; version 0 is at the beginning."""
    lake = Lake(clock)
    writer = await table(lake, 1, clock)
    for version in range(1, versions):
        clock.advance(3600)
        await writer.insert(rows(version))
    return lake


def started(lake: Lake, start: Start) -> int:
    return run(start_version(DeltaLog(lake), start, LATER))


def ended(lake: Lake, until: Start | None) -> int | None:
    return run(until_version(DeltaLog(lake), until))


@pytest.fixture
def five() -> Lake:
    return run(hourly(manual_clock(), 5))


class TestWords:
    @pytest.mark.parametrize(
        ("start", "version"),
        [
            *[("earliest", 0), ("latest", 5), (" LATEST ", 5), ("now", 5), (3, 3), ("3", 3), (0, 0), (4, 4), (9, 9)],
            *[(-1, 4), ("-1", 4), ("-2", 3), (" -5 ", 0), (np.int64(3), 3), (np.int32(-1), 4)],
            *[("after 3", 4), ({"after": 3}, 4), ({"after": "-1"}, 5), ("After -2", 4), ({"after": np.int64(0)}, 1)],
        ],
    )
    def test_word_or_number_begins_at_its_version(self, five: Lake, start: Start, version: int) -> None:
        assert started(five, start) == version

    @pytest.mark.parametrize(
        ("until", "version"), [(None, None), ("now", 4), ("latest", 4), (2, 2), ("2", 2), (99, 99), (-1, 4), ("-2", 3)]
    )
    def test_word_or_number_ends_at_its_version(self, five: Lake, until: Start | None, version: int | None) -> None:
        assert ended(five, until) == version

    @pytest.mark.parametrize(
        "word",
        [
            "",
            "soon",
            "--1",
            "3.5",
            "1 hour",
            "ago",
            "1 year ago",
            "-1 h ago",
            "yesterday",
            "²",
            "٣",
            "2026-13-01",
            "9" * 5000,
        ],
    )
    def test_what_is_no_start(self, five: Lake, word: str) -> None:
        with pytest.raises(ConfigError, match="neither a version, nor a timestamp"):
            started(five, word)

    @pytest.mark.parametrize(
        ("word", "told"), [("", "neither a version"), ("soon", "neither"), ("earliest", "cannot end")]
    )
    def test_what_is_no_end(self, five: Lake, word: str, told: str) -> None:
        with pytest.raises(ConfigError, match=told):
            ended(five, word)

    @pytest.mark.parametrize("word", ["after latest", "after earliest", "after after 3", {"after": "now"}])
    def test_nothing_comes_after_a_word(self, five: Lake, word: Start) -> None:
        with pytest.raises(ConfigError, match=r"nothing comes after .* Give a version or a time"):
            started(five, word)

    @pytest.mark.parametrize(
        "value", [{}, {"before": 3}, {"after": 3, "before": 5}, {"after": {"after": 3}}, "after", "after soon"]
    )
    def test_what_is_no_exclusive_start(self, five: Lake, value: Any) -> None:
        with pytest.raises(ConfigError, match="neither a version, nor a timestamp"):
            started(five, value)

    def test_no_range_ends_after(self, five: Lake) -> None:
        with pytest.raises(ConfigError, match="a range cannot end after a bound"):
            ended(five, "after 3")

    def test_more_versions_back_than_there_are(self, five: Lake) -> None:
        for call in (started, ended):
            with pytest.raises(LogError, match=r"there is no version -6: the newest is 4, of 20.*Z, and is version -1"):
                call(five, -6)

    @pytest.mark.parametrize("time_ms", [10**16, -(10**16)])
    def test_a_newest_version_at_a_time_that_python_has_not(self, time_ms: int) -> None:
        lake = Lake(ManualClock(time_ms))
        run(table(lake, 2, manual_clock()))
        with pytest.raises(LogError, match=f"the newest is 1, of {time_ms} ms since 1970"):
            started(lake, -9)

    @pytest.mark.parametrize(
        "value", [True, False, None, 1.0, float("nan"), b"1", [1], Path("1"), 2**64, "9" * 19, Decimal(1), object()]
    )
    def test_what_is_of_another_type(self, value: Any) -> None:
        with pytest.raises(ConfigError, match=r"neither a version|at most 64 bits"):
            parse_bound(value)

    @given(st.one_of(st.text(), st.integers(), st.floats(), st.datetimes(), st.dates(), st.booleans(), st.binary()))
    def test_anything_else_is_an_error_of_ours(self, value: Any) -> None:
        with contextlib.suppress(ConfigError):
            assert isinstance(parse_bound(value), int | str | datetime | timedelta)

    def test_moments_without_a_zone_are_utc(self) -> None:
        assert parse_bound("2026-01-01") == datetime(2026, 1, 1, tzinfo=UTC)
        assert parse_bound("2026-01-01T02:00:00+02:00") == datetime(2026, 1, 1, tzinfo=UTC)
        assert parse_bound("2026-01-01T00:00:00Z") == datetime(2026, 1, 1, tzinfo=UTC)
        assert parse_bound(datetime(2026, 1, 1)) == datetime(2026, 1, 1, tzinfo=UTC)  # noqa: DTZ001 - that is the point

    @pytest.mark.parametrize(
        ("text", "delta"),
        [
            ("1 hour ago", timedelta(hours=1)),
            ("30m ago", timedelta(minutes=30)),
            (" 2  DAYS  ago ", timedelta(days=2)),
            ("1w ago", timedelta(weeks=1)),
            ("90 secs ago", timedelta(seconds=90)),
        ],
    )
    def test_time_ago_is_parsed_as_a_duration(self, text: str, delta: timedelta) -> None:
        assert parse_bound(text) == delta

    def test_longer_ago_than_any_table(self) -> None:
        for text in ("9999999999 weeks ago", "101 years ago", "36526 days ago"):
            with pytest.raises(ConfigError):
                parse_bound(text)
        # Before now, or after it, they are beyond the years of a datetime.
        for duration in (timedelta.min, timedelta.max):
            with pytest.raises(ConfigError, match="longer ago than 100 years"):
                parse_bound({"after": duration})

    def test_dates_and_milliseconds(self) -> None:
        midnight = datetime(2026, 1, 1, tzinfo=UTC)
        assert parse_bound(date(2026, 1, 1)) == midnight
        assert parse_bound(1767225600000) == parse_bound("1767225600000") == midnight
        # Twelve digits are a version, and so are seconds since the epoch, which have ten.
        assert parse_bound("176722560000") == 176722560000
        assert parse_bound(1767225600) == 1767225600

    def test_start_in_a_folder_without_a_table_is_refused(self) -> None:
        for start in ("earliest", "latest", 0, -1, "2026-01-01", "1 hour ago"):
            with pytest.raises(NotATableError, match="not a Delta table"):
                started(Lake(manual_clock()), start)
        with pytest.raises(NotATableError, match="not a Delta table"):
            ended(Lake(manual_clock()), "now")


class TestRanges:
    @pytest.mark.parametrize(("first", "last"), [(0, 4), (4, 4), (5, 4), (3, 2), (2, 9), (0, -1)])
    def test_what_there_is_and_what_is_empty(self, five: Lake, first: int, last: int) -> None:
        run(check_range(DeltaLog(five), first, last))

    @pytest.mark.parametrize(
        ("first", "last", "error", "said"),
        [
            (6, 4, LogError, r"there is no version 6 yet; the newest is 4, of 20\d\d-.*Z \(table memory://orders\)"),
            (
                4,
                2,
                ConfigError,
                r"from version 4 to 2 goes backwards \(table memory://orders\)\. The newest is 4, of 20",
            ),
        ],
    )
    def test_range_that_cannot_be_is_refused(
        self, five: Lake, first: int, last: int, error: type[CdfdError], said: str
    ) -> None:
        with pytest.raises(error, match=said):
            run(check_range(DeltaLog(five), first, last))

    @pytest.mark.parametrize(
        ("first", "last", "said"), [(3, 2, "from version 3 to 2 goes backwards"), (5, 4, "there is no version 5 yet")]
    )
    def test_snapshot_after_the_end_is_refused(self, five: Lake, first: int, last: int, said: str) -> None:
        run(check_range(DeltaLog(five), last, last, snapshot=True))
        with pytest.raises(CdfdError, match=said):
            run(check_range(DeltaLog(five), first, last, snapshot=True))


class TestCleanedLogs:
    async def test_the_oldest_version_that_can_be_read(self) -> None:
        """Clean-up may remove a checkpoint and leave entries after it. The table's state at these entries is unknown."""

        lake = await hourly(manual_clock(), 9)
        await checkpoint(lake, 5)
        await checkpoint(lake, 7)
        lake.forget(*map(entry_path, range(3)))
        log = DeltaLog(lake)
        assert await start_version(log, "earliest") == 5
        assert (await log.header(5)).version == 5
        lake.forget(*map(entry_path, range(6)))
        assert await start_version(log, "earliest") == 6

    @pytest.mark.parametrize(("replaces", "first"), [(True, 4), (False, 3)], ids=["rows", "no rows"])
    async def test_the_schema_before_the_oldest_version_is_needed_for_the_rows_that_it_deletes(
        self, replaces: bool, first: int
    ) -> None:
        lake = Lake(manual_clock())
        writer = await table(lake, 3, manual_clock())
        writer.schema = pa.schema([("id", pa.int64()), ("w", pa.string())])
        removes = [writer._remove(file) for file in tuple(writer._files.values())] if replaces else []
        await writer.commit("OVERWRITE", [writer._metadata(), *removes])
        await writer.insert(pa.table({"id": [4], "w": ["a"]}))
        assert await start_version(DeltaLog(lake), "earliest") == 0
        assert (await DeltaLog(lake).header_before(3)).schema.names == ("id", "v")
        await checkpoint(lake, 3)
        lake.forget(*map(entry_path, range(3)))
        assert await start_version(DeltaLog(lake), "earliest") == first
        for start in ("earliest", first):
            assert (await start_position(DeltaLog(lake), start, LATER)).version == first
        if replaces:
            with pytest.raises(GapError, match="version 3 replaces the schema and deletes rows") as caught:
                await start_position(DeltaLog(lake), 3, LATER)
            assert "version 4" in str(caught.value.hint)

    async def test_a_version_that_is_gone(self) -> None:
        lake = await hourly(manual_clock(), 5)
        await checkpoint(lake, 3)
        lake.forget(*map(entry_path, range(3)))
        with pytest.raises(GapError, match=r"version 2 is no longer in the log; the oldest is 3.*memory://orders"):
            await start_version(DeltaLog(lake), 2)
        assert await start_version(DeltaLog(lake), 3) == 3


class TestTimestamps:
    @pytest.mark.parametrize(
        ("seconds", "first", "last"),
        [
            (-1, 0, -1),
            (0, 0, 0),
            (0.001, 1, 0),
            (3599.999, 1, 0),
            (3600, 1, 1),
            (3600.0005, 2, 1),  # between two milliseconds
            (4 * 3600, 4, 4),
            (4 * 3600 + 1, 5, 4),
            (1e6, 5, 4),
        ],
    )
    def test_the_first_not_before_and_the_last_not_after(
        self, five: Lake, seconds: float, first: int, last: int
    ) -> None:
        assert started(five, moment(seconds)) == first
        assert ended(five, moment(seconds)) == last
        # Versions after a time are those that a range up to that time has not.
        assert started(five, {"after": moment(seconds)}) == last + 1

    def test_time_ago_is_found_by_the_clock(self, five: Lake) -> None:
        log, clock = DeltaLog(five), manual_clock()
        clock.advance(5 * 3600)
        now = clock.now_ms()
        assert run(start_version(log, "2 hours ago", now)) == 3
        assert run(until_version(log, "90 minutes ago", now)) == 3
        assert run(start_version(log, "30 minutes ago", now)) == 5

    def test_a_state_older_than_the_table(self, five: Lake) -> None:
        oldest = re.escape(moment(0).isoformat(timespec="milliseconds").replace("+00:00", "Z"))
        for wanted in ("2020-01-01", date(2020, 1, 1), moment(-1)):
            with pytest.raises(LogError, match=rf"no version from 20.* or before; the oldest is 0, of {oldest}"):
                run(state_version(DeltaLog(five), wanted))
        assert run(state_version(DeltaLog(five), moment(0))) == 0
        assert run(state_version(DeltaLog(five), "-1")) == 4
        assert run(state_version(DeltaLog(five), "earliest")) == 0
        assert run(state_version(DeltaLog(five), None)) is None

    async def test_every_millisecond_counts(self) -> None:
        """Seconds as floats lose some of them."""

        clock = ManualClock(1_700_000_000_123)
        lake = Lake(clock)
        await table(lake, 1, clock)
        for millisecond in range(123, 400):
            at = datetime(2023, 11, 14, 22, 13, 20, millisecond * 1000, UTC)
            assert await start_version(DeltaLog(lake), at) == (0 if millisecond == 123 else 1)
            assert await until_version(DeltaLog(lake), at) == 0

    def test_time_of_another_zone_is_the_same_moment(self, five: Lake) -> None:
        zone = timezone(timedelta(hours=-5))
        assert started(five, moment(7200).astimezone(zone)) == 2
        assert started(five, moment(7200).astimezone(zone).isoformat()) == 2

    async def test_times_that_do_not_increase_are_made_to(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 4, clock)  # all in the same millisecond
        log = DeltaLog(lake)
        assert [await start_version(log, moment(n / 1000), LATER) for n in range(5)] == [0, 1, 2, 3, 4]
        assert [await until_version(log, moment(n / 1000)) for n in range(5)] == [0, 1, 2, 3, 3]


def with_in_commit_timestamps(lake: Lake, version: int, **settings: str) -> bytes:
    """A log entry that turns the feature on."""
    metadata = {
        "id": "T",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schemas.serialize(schemas.from_arrow(SCHEMA)),
        "partitionColumns": [],
        "configuration": {"delta.enableInCommitTimestamps": "true", **settings},
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}
    return serialize([("commitInfo", in_commit(version)), ("protocol", protocol), ("metaData", metadata)])


def in_commit(version: int) -> dict[str, object]:
    # Half an hour after the hour: not what the modification time says.
    return {"inCommitTimestamp": BEGINNING + version * 3_600_000 + 1_800_000, "operation": "WRITE"}


async def half_past(versions: int, enabled: int, **settings: str) -> Lake:
    lake = await hourly(manual_clock(), max(enabled, 1))
    for version in range(enabled, versions):
        entry = serialize([("commitInfo", in_commit(version))])
        first = with_in_commit_timestamps(lake, version, **settings)
        await lake.put(entry_path(version), first if version == enabled else entry)
    return lake


class TestInCommitTimestamps:
    @pytest.mark.parametrize(
        ("hours", "first", "last"), [(-1, 0, -1), (0.5, 0, 0), (1, 1, 0), (40.5, 40, 40), (60, 50, 49)]
    )
    async def test_from_the_first_version_on(self, hours: float, first: int, last: int) -> None:
        log = DeltaLog(await half_past(50, 0))
        assert await start_version(log, moment(hours * 3600), LATER) == first
        assert await until_version(log, moment(hours * 3600)) == last

    @pytest.mark.parametrize(
        ("hours", "first"),
        [(-1, 0), (0, 0), (2, 2), (2.1, 3), (9, 9), (9.5, 10), (10.5, 10), (10.6, 11), (30, 30), (99, 50)],
    )
    async def test_time_is_found_on_both_sides_of_the_enablement(self, hours: float, first: int) -> None:
        settings = {"delta.inCommitTimestampEnablementVersion": "10"}
        log = DeltaLog(await half_past(50, 10, **settings))
        assert await start_version(log, moment(hours * 3600), LATER) == first

    @pytest.mark.parametrize(("milliseconds", "first"), [(-1, 0), (0, 10), (1, 11)])
    async def test_at_the_time_of_enablement(self, milliseconds: int, first: int) -> None:
        """Older files may have any time, such as that of a copy."""
        lake = await half_past(50, 10, **{"delta.inCommitTimestampEnablementVersion": "10"})
        for version in range(10):
            lake.replace(entry_path(version), lake.bytes_of(entry_path(version)), BEGINNING + 100 * 3_600_000)
        time = moment(10.5 * 3600 + milliseconds / 1000)
        assert await start_version(DeltaLog(lake), time, LATER) == first
        assert await until_version(DeltaLog(lake), time) == (10 if milliseconds >= 0 else 9)

    async def test_times_count_after_the_feature_was_switched_off(self) -> None:
        """Files of versions 1 and 2 are five seconds later than their in-commit timestamps. Version 0 is three seconds older than these."""
        lake = await half_past(3, 1, **{"delta.inCommitTimestampEnablementVersion": "1"})
        for version, written in enumerate((5_397_000, 5_405_000, 9_005_000)):
            lake.replace(entry_path(version), lake.bytes_of(entry_path(version)), BEGINNING + written)
        off = with_in_commit_timestamps(lake, 3, **{"delta.enableInCommitTimestamps": "false"})
        await lake.put(entry_path(3), off.partition(b"\n")[2])
        lake.replace(entry_path(3), lake.bytes_of(entry_path(3)), BEGINNING + 4 * 3_600_000)
        log = DeltaLog(lake)
        for version in (1, 2):
            time = moment(version * 3600 + 1800)
            assert await start_version(log, time, LATER) == version
            assert await until_version(log, time) == version
        assert await start_version(log, moment(4 * 3600), LATER) == 3

    async def test_few_entries_are_read(self) -> None:
        lake = await half_past(1000, 0)
        await checkpoint(lake, 999)
        lake.calls.clear()
        assert await start_version(DeltaLog(lake), moment(777 * 3600), LATER) == 777
        assert [method for method, _ in lake.calls].count("read") < 20

    async def test_only_what_is_left_of_the_log_is_looked_at(self) -> None:
        lake = await half_past(20, 0)
        await checkpoint(lake, 10)
        lake.forget(*map(entry_path, range(10)))
        assert await start_version(DeltaLog(lake), moment(0), LATER) == 10
        assert await start_version(DeltaLog(lake), moment(15 * 3600), LATER) == 15

    async def test_log_clean_up_after_the_listing(self) -> None:
        lake = await half_past(20, 0)
        await checkpoint(lake, 10)

        def clean_up(method: str, path: str) -> None:
            if method == "read":
                lake.forget(*map(entry_path, range(10)))

        lake.before = clean_up
        assert await start_version(DeltaLog(lake), moment(15 * 3600), LATER) == 15

    async def test_entry_that_is_missing_is_named(self) -> None:
        lake = await half_past(20, 0)
        await checkpoint(lake, 15)
        lake.before = lambda method, path: lake.forget(entry_path(10)) if path == entry_path(10) else None
        with pytest.raises(NotFoundError, match="version 10"):
            await start_version(DeltaLog(lake), moment(15 * 3600), LATER)

    @pytest.mark.parametrize("hours", [18, 30])
    async def test_entry_that_is_being_written_has_no_time_yet(self, hours: int) -> None:
        lake = await half_past(20, 0)
        await lake.put(entry_path(20), b"")
        assert await start_version(DeltaLog(lake), moment(hours * 3600), LATER) == min(hours, 20)
        assert await until_version(DeltaLog(lake), moment(30 * 3600)) == 19

    @pytest.mark.parametrize("version", ["x", "-3", "", "99", "9" * 5000])
    async def test_a_version_of_enablement_that_is_none(self, version: str) -> None:
        settings = {"delta.inCommitTimestampEnablementVersion": version}
        log = DeltaLog(await half_past(5, 2, **settings))
        with pytest.raises(LogError, match="inCommitTimestampEnablementVersion"):
            await start_version(log, moment(0), LATER)

    async def test_an_entry_without_one(self) -> None:
        lake = await half_past(5, 0)
        await lake.put(entry_path(2), json.dumps({"commitInfo": {"operation": "WRITE"}}).encode())
        with pytest.raises(LogError, match=r"the commit has none.*version 2"):
            await start_version(DeltaLog(lake), moment(3 * 3600), LATER)


class TestLateTables:
    @pytest.mark.parametrize(("start", "version"), [("latest", 0), ("earliest", 0), (1, 1)])
    async def test_what_a_table_begins_with_is_later_than_now(
        self, start: Start, version: int, clock: ManualClock, lake: Lake
    ) -> None:
        tailer = Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0))
        waiting = asyncio.create_task(wait_for_start(tailer, start))
        await clock.wait_for_sleepers()
        await table(lake, 3, clock)
        clock.advance(1)
        assert await waiting == version
        assert await wait_for_start(tailer, "latest") == 3

    async def test_what_is_no_start_is_said_before_it_is_waited(self, clock: ManualClock) -> None:
        tailer = Tailer(DeltaLog(Lake(clock)), PollWatch(clock), clock, Backoff(1.0, 8.0))
        with pytest.raises(ConfigError, match="neither a version"):
            await wait_for_start(tailer, "tomorrow")


class TestBeginnings:
    """Of a table of five hourly versions, an hour after the last of them."""

    NOW = BEGINNING + 5 * 3_600_000

    @pytest.mark.parametrize(
        ("start", "version", "snapshot"),
        [
            ("snapshot", 4, True),
            ("latest", 5, False),
            ("earliest", 0, False),
            (0, 0, False),
            (5, 5, False),
            (moment(3600), 1, False),
            (moment(4 * 3600 + 1), 5, False),
            (moment(5 * 3600), 5, False),
            (-1, 4, False),
            ("-5", 0, False),
            ("3 hours ago", 2, False),
            ("10 minutes ago", 5, False),
            ("after 4", 5, False),
            ({"after": 0}, 1, False),
            ({"after": moment(3600)}, 2, False),
            ("after 3 hours ago", 3, False),
        ],
    )
    def test_beginning_is_a_version_or_its_snapshot(
        self, five: Lake, start: Start, version: int, snapshot: bool
    ) -> None:
        assert run(start_position(DeltaLog(five), start, self.NOW)) == StartPosition("T", version, snapshot)

    @pytest.mark.parametrize(
        ("start", "told"),
        [
            (6, "there is no version 6 yet; the newest is 4, of 20.*up to 5"),
            ("99", "there is no version 99 yet; the newest is 4, of 20"),
            ({"after": 5}, "there is no version 6 yet; the newest is 4, of 20"),
            ({"after": moment(5 * 3600)}, r"2026-01-01T05:00:00\.000Z is in the future"),
            (moment(5 * 3600 + 0.001), r"2026-01-01T05:00:00\.001Z is in the future; the newest is 4, of 20"),
            ("2099-01-01", "2099-01-01.* is in the future"),
        ],
    )
    def test_a_table_that_has_not_come_so_far(self, five: Lake, start: Start, told: str) -> None:
        with pytest.raises(LogError, match=f"{told}.*"):
            run(start_position(DeltaLog(five), start, self.NOW))
        clock = ManualClock(self.NOW)
        tailer = Tailer(DeltaLog(five), PollWatch(clock), clock, Backoff(1.0, 8.0))
        with pytest.raises(LogError, match=told):
            run(wait_for_start(tailer, start))

    def test_a_moment_to_come_that_a_commit_has_reached(self, five: Lake) -> None:
        """Clocks of writers may be ahead."""
        assert run(start_position(DeltaLog(five), moment(4 * 3600), BEGINNING)) == StartPosition("T", 4)

    @pytest.mark.parametrize("start", ["snapshot", "latest"])
    def test_a_newest_entry_that_is_half_written_is_not_made_durable(self, five: Lake, start: Start) -> None:
        """The hash of half an entry would be another one than that of the whole entry, for ever."""
        whole = five.bytes_of(entry_path(4))
        five.replace(entry_path(4), whole[: len(whole) // 2])
        with pytest.raises(LogError, match="not valid JSON"):
            run(start_position(DeltaLog(five), start, self.NOW))
        five.replace(entry_path(4), whole)
        assert run(start_position(DeltaLog(five), start, self.NOW)).version == (4 if start == "snapshot" else 5)
