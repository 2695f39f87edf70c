"""Heartbeats: regular, in every state, and without effect on anything else when they fail."""

import asyncio
import json
import logging
from collections.abc import Sequence

import pytest

from cdfd.config.parser import parse
from cdfd.daemon.heartbeats import Heartbeats
from cdfd.daemon.http.status import Status
from cdfd.errors import ConfigError, SinkError
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, at, configuration, table_monitor, version


class Topic:
    """Takes records, or refuses them."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self.away = False

    async def write(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        if self.away:
            raise SinkError("the broker is away", retriable=True)
        self.records += records


async def test_one_for_each_table_at_each_interval() -> None:
    clock, topic = ManualClock(NOW_MS), Topic()
    status = Status(configuration(), clock)
    orders = table_monitor(status, "orders")
    orders.started(at(4))
    orders.oldest_pending(version(4, NOW_MS - 2500))
    task = asyncio.create_task(Heartbeats(status, topic.write, clock).run(10))
    await clock.wait_for_sleepers()
    clock.advance(10)
    await clock.wait_for_sleepers()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    records = topic.records
    assert [key for key, _ in records] == [b"orders", b"customers"] * 2
    first, _, later, _ = (json.loads(value) for _, value in records)
    assert (first["ts_ms"], later["ts_ms"]) == (NOW_MS, NOW_MS + 10_000)
    assert (first["state"], first["delivered_version"], first["lag_versions"]) == ("catching_up", 3, 1)
    assert (first["lag_seconds"], later["lag_seconds"]) == (2.5, 12.5)


async def test_a_failure_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock, topic = ManualClock(NOW_MS), Topic()
    beats = Heartbeats(Status(configuration(), clock), topic.write, clock)

    with caplog.at_level(logging.INFO):
        for away in (True, True, False, False):
            topic.away = away
            await beats.beat()
    assert [record.message for record in caplog.records] == [
        "cannot write heartbeats: the broker is away; deliveries continue",
        "heartbeats are written again",
    ]
    assert len(topic.records) == 4


def test_heartbeats_need_a_sink_with_topics() -> None:
    with pytest.raises(ConfigError, match=r"heartbeat\.interval: needs a Kafka sink"):
        parse("pipeline: p\ntables: [{uri: t}]\nsink: {kind: files, path: o}\nheartbeat: {interval: 30s}\n", {})
