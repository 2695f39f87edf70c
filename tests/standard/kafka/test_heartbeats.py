"""Heartbeats on a real broker: consumers tell a quiet table from a dead daemon, and the ledger of a quiet table moves."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from cdfd.cli.commands import check as checking
from cdfd.config.parser import load
from cdfd.errors import SinkError
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.base import connector
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.local import LocalStorage
from tests.support.axes import under_test
from tests.support.kafka.daemon_process import configure, until
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker


def beats(broker: SharedBroker, topic: str, at_least: int) -> list[dict[str, Any]]:
    records = read_topic(broker.bootstrap_servers, topic, at_least=at_least)
    assert all(record.key is not None and record.value is not None for record in records)
    actual = [json.loads(record.value or b"") for record in records]
    assert [record.key for record in records] == [each["table"].encode() for each in actual]
    return actual


def renewed(pipeline: Pipeline) -> int | None:
    ledger = TableLedger(LocalStorage(pipeline.ledger), SystemClock())
    entry = asyncio.run(ledger.position(app_id(pipeline.name, "orders")))
    return None if entry is None or entry.version != 0 else entry.last_updated


def test_a_quiet_table_and_one_that_is_not_there(
    broker: SharedBroker, admin: KafkaAdminClient, pipeline: Pipeline, tmp_path: Path
) -> None:
    do_nothing = {"uri": str(tmp_path / "missing")}
    pipeline.table()
    pipeline.configure(beside=[do_nothing], heartbeat={"interval": "100ms"})
    topic = f"_cdfd_heartbeat.{pipeline.name}"
    with pipeline.daemon() as daemon:
        until(lambda: renewed(pipeline) is not None)
        first = renewed(pipeline)
        assert first is not None
        # Nothing happens, and yet the position gets a newer time.
        until(lambda: (renewed(pipeline) or 0) > first)
        count = len(beats(broker, topic, 8))
        actual = beats(broker, topic, count + 4)
        daemon.stop()
    orders = [each for each in actual if each["table"] == "orders"]
    assert orders[-1] == orders[-1] | {
        "pipeline": pipeline.name,
        "topic": pipeline.topic,
        "state": "at_tip",
        "delivered_version": 0,
        "table_version": 0,
        "lag_versions": 0,
        "lag_seconds": 0.0,
    }
    assert [each["ts_ms"] for each in orders] == sorted({each["ts_ms"] for each in orders})
    assert {each["state"] for each in actual if each["table"] == "missing"} == {"starting"}
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    assert described["topic"][topic]["cleanup.policy"]["value"] == "compact"


def test_a_check_names_the_topics_of_the_daemon_itself(pipeline: Pipeline, create: Callable[..., str]) -> None:
    pipeline.table()
    signals = "_cdfd_signals." + pipeline.name
    pipeline.configure(heartbeat={"interval": "1s"}, controls={"notifications": True, "signals": ["pause"]})
    missing = f"_cdfd_heartbeat.{pipeline.name}, {pipeline.name}.notifications"
    text, code = checking.run(pipeline.config)
    assert code == 0
    assert text.endswith(f"\ntopics of the daemon  ok, will be created: {missing}, {signals}\n")

    create(signals)
    text, code = checking.run(pipeline.config)
    assert code == 1
    assert f"topic {signals} accepts compressed records" in text


@pytest.mark.parametrize("producer", under_test("producer", ["kafka-python", "librdkafka"]))
async def test_records_of_both_producers_and_a_topic_that_cannot_be(
    broker: SharedBroker, tmp_path: Path, name: str, producer: str
) -> None:
    sink = {"producer": producer}
    config = load(configure(tmp_path, name, broker.bootstrap_servers, [{"uri": str(tmp_path / "t")}], sink=sink))

    async with connector(config).announcing(f"{name}.beats") as write:
        await write([(b"a", b"1"), (b"b", b"2")])
        await write([(b"a", b"3")])
    async with connector(config).announcing("no/such name") as write:
        for _ in range(2):  # each call tries again
            with pytest.raises(SinkError, match="no/such name"):
                await write([(b"a", b"1")])
    records = read_topic(broker.bootstrap_servers, f"{name}.beats", at_least=3)
    assert [(record.key, record.value) for record in records] == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
