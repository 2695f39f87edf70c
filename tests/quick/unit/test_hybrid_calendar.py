"""Dates and times that Spark wrote in its old calendar are read as it wrote them."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.errors import UnsupportedError
from cdfd.runtime import native
from cdfd.scan.parquet.hybrid_calendar import HybridCalendar
from cdfd.scan.parquet.reader import open_parquet
from tests.support.fuzz import lakes

SPARK_2 = {"org.apache.spark.version": "2.4.8"}
LEGACY = {
    "org.apache.spark.version": "4.1.1",
    "org.apache.spark.legacyDateTime": "",
    "org.apache.spark.legacyINT96": "",
}
MODERN = {"org.apache.spark.version": "4.1.1"}
EPOCH = date(1970, 1, 1)
utc = partial(datetime, tzinfo=UTC)
DAY = date(1500, 1, 10)  # the day that was called 1500-01-01
LAST = date(1582, 10, 14)  # and 1582-10-04
NEXT = date(1582, 10, 15)


@pytest.fixture(params=[True, False], ids=["cdfd-native", "pyarrow"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "built", native.built and request.param)


def julian_days(first: int, last: int) -> list[date]:
    """Each day of these Julian years, as the date that it is called."""
    days = []
    for year in range(first, last + 1):
        for month, length in enumerate([31, 29 if year % 4 == 0 else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], 1):
            # A leap day that the other calendar lacks is called March 1.
            days += [date(year, month, 1) + timedelta(day) for day in range(length)]
    return days


def table(folder: Path, *files: tuple[dict[str, Any], dict[str, str]], int96: bool = False) -> str:
    """A table of files: the columns of each, and the keys of its footer."""
    columns = {"day": pa.date32(), "at": pa.timestamp("us", "UTC")}
    actions = [lakes.protocol(), lakes.metadata(pa.schema(columns))]
    for number, (values, keys) in enumerate(files):
        rows = pa.table(values, pa.schema(columns | ({"at": pa.timestamp("us")} if int96 else {})))
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, rows.schema, store_schema=False, use_deprecated_int96_timestamps=int96) as writer:
            writer.add_key_value_metadata(keys)
            writer.write_table(rows, row_group_size=2 if len(rows) < 9 else None)
        (folder / f"{number}.parquet").write_bytes(sink.getvalue())
        actions.append(lakes.file("add", f"{number}.parquet", sink.getvalue()))
    (folder / "_delta_log").mkdir()
    (folder / lakes.commit(0)).write_bytes(lakes.entry(*actions))
    return str(folder)


def test_each_day_of_the_julian_calendar_keeps_its_date(tmp_path: Path, reader: None) -> None:
    expected = julian_days(1, 1581)
    # 0001-01-01 in the Julian calendar is two days before the one of the other.
    days = np.arange(len(expected)) + (date(1, 1, 1) - EPOCH).days - 2
    rows = {"day": pa.array(days.astype("int32")).cast(pa.date32()), "at": pa.nulls(len(days))}
    assert cdfd.snapshot(table(tmp_path, (rows, SPARK_2))).read_all()["day"].to_pylist() == expected


def test_the_calendars_meet(tmp_path: Path, reader: None) -> None:
    rows = {"day": [DAY, LAST, NEXT, None], "at": [None] * 4}
    days = cdfd.snapshot(table(tmp_path, (rows, SPARK_2))).read_all()["day"]
    assert days.to_pylist() == [date(1500, 1, 1), date(1582, 10, 4), NEXT, None]


@pytest.mark.parametrize(
    ("keys", "dates", "int96"),
    [
        ({}, False, False),
        (MODERN, False, False),
        ({"org.apache.spark.version": "3.0.1"}, False, True),
        ({**MODERN, "org.apache.spark.legacyINT96": ""}, False, True),
        ({**MODERN, "org.apache.spark.legacyDateTime": ""}, True, False),
        (LEGACY, True, True),
        (SPARK_2, True, True),
    ],
)
def test_footers_say_which_values_are_converted(keys: dict[str, str], dates: bool, int96: bool) -> None:
    calendar = HybridCalendar.of(keys.get)
    assert (calendar is not None) == (dates or int96)
    if calendar is not None:
        assert calendar.converts(pa.date32(), "INT32") == dates
        assert calendar.converts(pa.timestamp("ms", "UTC"), "INT64") == dates
        assert calendar.converts(pa.timestamp("us"), "INT96") == int96
        assert not calendar.converts(pa.timestamp("us"), "INT64")


@pytest.mark.parametrize("int96", [True, False])
@pytest.mark.parametrize(
    ("zone", "stored", "expected"),
    [
        ("UTC", utc(1500, 1, 10, 1, 2, 3, 4), utc(1500, 1, 1, 1, 2, 3, 4)),
        ("Z", utc(1582, 10, 14, 23, 59), utc(1582, 10, 4, 23, 59)),
        ("+01:00", utc(1582, 10, 14, 23, 30), utc(1582, 10, 14, 23, 30)),
        ("GMT-8", utc(1582, 10, 15, 7, 30), utc(1582, 10, 5, 7, 30)),
        # Clocks showed 12:00, eight hours behind Greenwich in Java's eyes, and 7:52:58 in fact.
        ("America/Los_Angeles", utc(1880, 5, 1, 20), utc(1880, 5, 1, 19, 52, 58)),
        ("America/Los_Angeles", utc(1890, 5, 1, 20), utc(1890, 5, 1, 20)),
        ("Europe/Dublin", utc(1870, 5, 1, 12), utc(1870, 5, 1, 12, 25, 21)),
        (None, utc(1900, 1, 1), utc(1900, 1, 1)),
    ],
)
def test_times_keep_the_date_and_the_time_of_day_of_their_zone(
    zone: str | None, stored: datetime, expected: datetime, int96: bool, tmp_path: Path, reader: None
) -> None:
    keys = LEGACY if zone is None else {**LEGACY, "org.apache.spark.timeZone": zone}
    rows = {"day": [None, None], "at": [None, stored.replace(tzinfo=None) if int96 else stored]}
    actual = cdfd.snapshot(table(tmp_path, (rows, keys), int96=int96)).read_all()["at"]
    assert actual.to_pylist() == [None, expected]


@pytest.mark.parametrize("own", ["America/Los_Angeles", ":America/Los_Angeles"])
def test_the_zone_of_a_file_that_names_none_is_that_of_the_environment(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", own)
    path = table(tmp_path, ({"day": [DAY], "at": [utc(1880, 5, 1, 20)]}, SPARK_2))
    assert cdfd.snapshot(path).read_all()["at"].to_pylist() == [utc(1880, 5, 1, 19, 52, 58)]


@pytest.mark.parametrize("zone", [None, "Mars/Olympus", "../UTC", "x" * 300, "America"])
def test_a_time_of_an_unknown_zone_is_refused(
    zone: str | None, tmp_path: Path, reader: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TZ", raising=False)
    keys = LEGACY if zone is None else {**LEGACY, "org.apache.spark.timeZone": zone}
    path = table(tmp_path, ({"day": [DAY], "at": [utc(1899, 12, 31)]}, keys))
    remedy = "environment variable TZ" if zone is None else "tzdata"
    with pytest.raises(UnsupportedError, match=rf"times before 1900 .* time zone.*0\.parquet.*{remedy}"):
        cdfd.snapshot(path).read_all()
    # Other columns can be read.
    assert cdfd.snapshot(path, columns=["day"]).read_all()["day"].to_pylist() == [date(1500, 1, 1)]


def test_rows_without_columns_are_counted(tmp_path: Path, reader: None) -> None:
    path = table(tmp_path, ({"day": [DAY, NEXT], "at": [None] * 2}, SPARK_2))
    with open_parquet(pa.OSFile(f"{path}/0.parquet")) as file:
        assert sum(batch.num_rows for batch in file.batches([], rows=10)) == 2


def test_files_of_both_calendars_are_read_by_their_own(tmp_path: Path, reader: None) -> None:
    rows = {"day": [DAY], "at": [None]}
    path = table(tmp_path, *[(rows, keys) for keys in (SPARK_2, MODERN, LEGACY, {}, SPARK_2)])
    days = cdfd.changes(path, start=0).read_all()["day"].to_pylist()
    assert days == [date(1500, 1, 1), DAY, date(1500, 1, 1), DAY, date(1500, 1, 1)]


def test_no_filter_loses_a_row(tmp_path: Path, reader: None) -> None:
    rows = {"day": [DAY, DAY, NEXT], "at": [None] * 3}
    path = table(tmp_path, (rows, SPARK_2))
    for text, count in (("day < DATE '1500-01-05'", 2), ("day = DATE '1500-01-01'", 2), ("day > DATE '1500-01-05'", 1)):
        assert cdfd.snapshot(path, where=text).read_all().num_rows == count
