"""`engine.kind: spark`: the tables that it takes, and what a daemon makes of the reports of a query; without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("pyspark")

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.deliver.monitor import Monitor
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.spark.engine import queries
from cdfd.spark.engine.feed import SparkFeed, check
from cdfd.spark.engine.queries import source_options
from cdfd.spark.source.backlog import Backlog
from cdfd.spark.source.offsets import Offset
from cdfd.spark.source.options import SourceOptions


class Progress(SimpleNamespace):
    """A report: of a micro-batch with rows, or of an idle trigger."""

    def __init__(self, second: int, number: int, rows: int | None, version: int, newest: int | None = None) -> None:
        backlog = None if newest is None else Backlog(newest, 0)
        end = Offset(Position("T", version), 0, "stream", backlog=backlog).to_json()
        source = {"endOffset": end, "latestOffset": end}
        super().__init__(
            timestamp=f"2026-01-01T00:00:{second:02}.000Z",
            batchId=number,
            numInputRows=rows or 0,
            durationMs={"latestOffset": 1} if rows is None else {"latestOffset": 1, "addBatch": 2},
            json=json.dumps({"batchId": number, "numInputRows": rows or 0, "sources": [source]}),
        )


class Query:
    """A query that has begun no trigger yet."""

    name, id, isActive = "p.orders", "1", True

    def __init__(self) -> None:
        self.recentProgress: list[Progress] = []
        self.status = {"isDataAvailable": False, "isTriggerActive": False}

    @property
    def lastProgress(self) -> Progress | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def stop(self) -> None:
        self.isActive = False


class Events(Monitor):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def started(self, position: Position) -> None:
        self.events.append(("started", position.version))

    def found_version(self, newest: int) -> None:
        self.events.append(("newest", newest))

    def at_tip(self, listed: int = -1) -> None:
        self.events.append(("at tip",))

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        self.events.append(("committed", following.version, sum(rows.values())))


def configuration(table: Mapping[str, object]) -> Settings:
    document = {
        "pipeline": "p",
        "tables": [table],
        "sink": {"kind": "kafka", "bootstrap_servers": "a:1"},
        "progress": {"ledger": "none"},
        "engine": {"kind": "spark", "spark": {"checkpoint": "/checkpoints"}},
    }
    return parse(json.dumps(document), {})


def events_of(*polls: Callable[[Query], object]) -> list[tuple[Any, ...]]:
    """The events of a query, which each poll finds changed in that way."""
    query, events, following = Query(), Events(), iter(polls)
    sessions: Any = SimpleNamespace(get=lambda: None)

    async def watch() -> None:
        stop = asyncio.Event()

        async def wait(*_: object) -> bool:
            change = next(following, None)
            stop.set() if change is None else change(query)
            return stop.is_set()

        table: Any = SimpleNamespace(uri="lake/orders")
        missing: Any = None
        clock: Any = SimpleNamespace(wait=wait)
        await SparkFeed(missing, table, {}, sessions, stop, events, clock).run()

    with patch.object(queries, "start", return_value=query):
        asyncio.run(watch())
    assert not query.isActive
    return events.events


def reports(*progresses: Progress, idle: bool = False) -> Callable[[Query], object]:
    def change(query: Query) -> None:
        query.recentProgress = [*query.recentProgress, *progresses]
        query.status = {"isDataAvailable": not idle, "isTriggerActive": False}

    return change


def test_a_query_that_has_reported_nothing_is_not_at_the_tip() -> None:
    """Its status is that of an idle query, whatever there is to read."""
    assert events_of(lambda query: None) == []


def test_a_micro_batch_after_an_idle_trigger_counts() -> None:
    """The report of an idle trigger has the number of the next micro-batch."""
    idle, batch = Progress(0, 4, None, 7), Progress(1, 4, 12, 8)
    events = events_of(reports(idle, idle=True), reports(batch), reports(Progress(2, 5, None, 8), idle=True))
    assert events == [
        ("started", 7),
        ("newest", 6),
        ("committed", 7, 0),
        ("at tip",),
        ("newest", 7),
        ("committed", 8, 12),
        ("newest", 7),
        ("at tip",),
    ]


def test_micro_batches_between_two_polls_count() -> None:
    first = [Progress(0, 3, 10, 5), Progress(1, 4, 11, 6)]
    later = [Progress(2, 5, 12, 7), Progress(3, 6, 13, 8), Progress(4, 7, None, 8)]
    events = events_of(reports(*first), reports(*later, idle=True))
    assert [each for each in events if each[0] == "committed"] == [
        ("committed", 5, 10),
        ("committed", 6, 11),
        ("committed", 7, 12),
        ("committed", 8, 13),
    ]


def test_newest_version_is_that_of_the_backlog() -> None:
    """The latest offset is the end of the micro-batch, so that a query that catches up would never lag."""
    assert ("newest", 90) in events_of(reports(Progress(0, 0, 10, 5, newest=90)))


@pytest.mark.parametrize("name", ["a,b", "a as b", " a", '["a"]', "ä"])
def test_options_of_spark_have_any_names(name: str) -> None:
    """Options of Spark have several names in one text."""
    config = configuration(
        {
            "uri": "s3://lake/orders",
            "key": [name, "id"],
            "columns": [name, "id", {"name": "v", "as": f"{name} 2"}],
            "allowed_roots": ["s3://lake/a,b", "s3://lake/c"],
            "path_prefixes": {"dbfs:/mnt/day=1": "s3://lake/a,b"},
        }
    )
    check(config)
    (table,) = config.listed
    options = SourceOptions.parse({"path": table.uri, **source_options(config, table)})
    assert options.rows.key == table.rows.key == (name, "id")
    assert options.columns == table.rows.shape.columns
    assert options.allowed_roots == tuple(table.allowed_roots)
    assert dict(options.path_prefixes) == table.path_prefixes == {"dbfs:/mnt/day=1": "s3://lake/a,b"}
