"""The lag that the progress of a query tells."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from cdfd.errors import ConfigError
from cdfd.spark.lag import Lag, lag, lag_now
from cdfd.storage.local import LocalStorage
from tests.quick.unit.test_spark_stream import file_sizes, insert, table
from tests.support import lake

AT = "2026-01-01T00:01:30.500Z"
END = {"table_id": "T", "version": 3, "part": 0, "phase": "stream", "ordinal": 0}
START = {"first_version": 0, "first_phase": "snapshot"}
BACKLOG = {"newest": 7, "since_ms": lake.BEGINNING + 60_000, "bytes": 500}
BEHIND = END | START | {"backlog": BACKLOG}
KAFKA = {"orders": {"0": 12}}


def progress(*ends: object) -> Any:
    return SimpleNamespace(timestamp=AT, json=json.dumps({"sources": [{"endOffset": end} for end in ends]}))


def test_lag_is_that_of_each_source_of_cdfd() -> None:
    """Other sources have offsets of their own."""
    assert lag(progress(BEHIND, KAFKA, None, END | START)) == [Lag(5, 500, 30.5), Lag(0, 0, 0.0)]


def test_of_the_text_of_an_offset() -> None:
    """As Spark Connect has it in a query's progress."""
    assert lag(progress(json.dumps(BEHIND), json.dumps(KAFKA))) == [Lag(5, 500, 30.5)]


def test_of_sources_without_an_offset_that_can_be_read() -> None:
    assert lag(progress("-1", "((", None, 7)) == []


@pytest.mark.parametrize("change", [{"newest": "7"}, {"newest": None}, {"since_ms": -1}, {"bytes": True}])
def test_a_backlog_of_another_release(change: dict[str, Any]) -> None:
    assert lag(progress(BEHIND | {"backlog": BACKLOG | change})) == [Lag(0, 0, 0.0)]


def test_bytes_that_are_not_counted() -> None:
    assert lag(progress(BEHIND | {"backlog": {"newest": 3, "since_ms": 0}}))[0].bytes is None


def test_lag_now_is_counted_in_the_table(tmp_path: Path) -> None:
    path, began = table(tmp_path, 5), time.time()  # versions 0 to 4
    os.utime(Path(path, "_delta_log", f"{3:020}.json"), (began - 1000, began - 1000))
    behind = progress(END | START, KAFKA)
    assert lag(behind) == [Lag(0, 0, 0.0)]
    actual = lag_now(behind, path)
    assert (actual.versions, actual.bytes) == (2, file_sizes(path, 3, 4))
    assert 999 < actual.seconds < 1001 + time.time() - began
    at_end = progress(END | START | {"version": 5})
    assert lag_now(at_end, path) == Lag(0, 0, 0.0)
    insert(path, 4, lake.rows(9))
    assert lag_now(at_end, path).versions == 1


async def test_lag_now_is_counted_where_an_event_loop_runs(tmp_path: Path) -> None:
    """As in a notebook."""
    await lake.table(LocalStorage(str(tmp_path)), 5, lake.manual_clock())
    assert lag_now(progress(END | START), str(tmp_path)).versions == 2


def test_by_the_table_of_one_source(tmp_path: Path) -> None:
    for sources in ((), (KAFKA,), (BEHIND, BEHIND)):
        with pytest.raises(ConfigError, match=r"the progress has [02] sources of cdfd"):
            lag_now(progress(*sources), str(tmp_path))
