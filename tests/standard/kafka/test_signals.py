"""The topic of signals on a real broker, also one that was deleted and created again."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from cdfd.config.parser import load
from cdfd.errors import SinkError
from cdfd.sinks.base import connector
from cdfd.sinks.own_topics import Signal, Signals
from tests.support.kafka.daemon_process import configure
from tests.support.kafka.shared import SharedBroker


def send(broker: SharedBroker, topic: str, *values: bytes) -> None:
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers)) as producer:
        for value in values:
            producer.send(topic, value).get(30)


async def take(signals: Signals, count: int) -> list[Signal]:
    taken: list[Signal] = []
    async with asyncio.timeout(30):
        while len(taken) < count:
            for signal in await signals.poll():
                taken.append(signal)
                await signals.done(signal)
    return taken


@pytest.mark.parametrize("running", [False, True], ids=["down", "running"])
async def test_signals_of_a_topic_that_was_created_again(
    broker: SharedBroker,
    admin: KafkaAdminClient,
    create: Callable[..., str],
    tmp_path: Path,
    name: str,
    running: bool,
) -> None:
    config = load(configure(tmp_path, name, broker.bootstrap_servers, [{"uri": str(tmp_path / "t")}]))
    topic = f"_cdfd_signals.{name}"

    def create_again(*values: bytes) -> None:
        admin.delete_topics([topic])
        create(topic, compression_type="uncompressed", max_message_bytes="131072")
        send(broker, topic, *values)

    async with connector(config).signals() as signals:
        send(broker, topic, b"a", b"b")
        assert [signal.place for signal in await take(signals, 2)] == [f"{topic}-0", f"{topic}-1"]
        if running:
            create_again(b"c", b"d", b"e")
            with pytest.raises(SinkError, match="deleted or created again"):
                await take(signals, 1)
    if not running:
        create_again(b"c", b"d", b"e")
    async with connector(config).signals() as signals:
        taken = await take(signals, 3)
    assert [signal.value for signal in taken] == [b"c", b"d", b"e"]
    (suffix,) = {signal.place.removeprefix(f"{topic}-{signal.offset}@") for signal in taken}
    # A place of this topic is no place of the one before, also after another start.
    send(broker, topic, b"f")
    async with connector(config).signals() as signals:
        assert [(each.value, each.place) for each in await take(signals, 1)] == [(b"f", f"{topic}-3@{suffix}")]
