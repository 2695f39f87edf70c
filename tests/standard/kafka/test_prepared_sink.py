"""A sink that a standby prepares: it does not fence the leader, and opening it takes all that was prepared."""

import asyncio
import time

import pytest
from kafka import KafkaAdminClient

from cdfd.config.parser import parse
from cdfd.config.table import Table
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.connector import KafkaConnector
from cdfd.sinks.kafka.transactions import sink as sinks
from cdfd.sinks.kafka.transactions.sink import Connected
from tests.support.kafka.daemon_process import until
from tests.support.kafka.shared import SharedBroker
from tests.support.kafka.sinking import at, deliver, rows


def connector_of(broker: SharedBroker, name: str, table: str) -> KafkaConnector:
    sink = f"{{kind: kafka, bootstrap_servers: '{broker.bootstrap_servers}'}}"
    config = parse(f"pipeline: {name}\ntables: [{{uri: /lake/{table}, topic: {name}.{table}}}]\nsink: {sink}", {})
    made = config.sink.connector(config)
    assert isinstance(made, KafkaConnector)
    return made


@pytest.fixture
def connector(broker: SharedBroker, name: str) -> KafkaConnector:
    return connector_of(broker, name, "orders")


async def prepare(connector: KafkaConnector, table: Table) -> Connected:
    """The connections of a table whose topic is there."""
    await connector.prepare(table)
    (prepared,) = connector._prepared.values()
    connected = prepared.result()
    assert connected is not None
    return connected


async def test_preparing_creates_no_topic(connector: KafkaConnector) -> None:
    (table,) = connector._config.listed
    await connector.prepare(table)
    assert [each.result() for each in connector._prepared.values()] == [None]
    async with connector.open(table) as sink:
        assert await sink.last_position() is None


async def test_leader_delivers_on_while_a_standby_prepares(
    connector: KafkaConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = connector._config.listed
    standby = KafkaConnector(connector._config, connector._sink)
    async with connector.open(table) as leader:
        await deliver(leader, rows(1))
        await standby.prepare(table)
        await deliver(leader, rows(2))
        await standby.prepare(table)
        await deliver(leader, rows(3))
    monkeypatch.setattr(sinks, "connect", _refuse)
    async with standby.open(table) as sink:
        assert await sink.last_position() == at(3)
        await deliver(sink, rows(4))


async def test_the_first_delivery_asks_for_nothing_that_is_prepared(connector: KafkaConnector) -> None:
    """After its election, a standby does not wait for metadata of the topics, nor for the coordinator of its transactions."""
    (table,) = connector._config.listed
    async with connector.open(table) as leader:
        await deliver(leader, rows(1))
    connected = await prepare(connector, table)
    producer = connected.producer
    assert isinstance(producer, KafkaPythonProducer)
    for topic in connector.destination(table).needed():
        assert producer._metadata.partitions_for_topic(topic.name)
    await asyncio.to_thread(until, lambda: producer._manager._transaction_coordinator is not None)
    await connector.retain(())


async def test_connections_that_were_lost_are_made_anew(
    connector: KafkaConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = connector._config.listed
    async with connector.open(table) as leader:
        await deliver(leader, rows(1))
    connected = await prepare(connector, table)
    connected.admin.close()
    connected.newest.close()
    async with connector.open(table) as sink:
        assert await sink.last_position() == at(1)


async def test_positions_of_a_topic_that_was_created_again_are_read_from_its_beginning(
    broker: SharedBroker, name: str, admin: KafkaAdminClient, connector: KafkaConnector
) -> None:
    """Also if it is longer than the topic before."""
    (table,), other = connector._config.listed, connector_of(broker, name, "items")
    standby = KafkaConnector(connector._config, connector._sink)
    async with connector.open(table) as leader:
        for number in range(3):
            await deliver(leader, rows(number))
    await prepare(standby, table)
    progress = connector.destination(table).progress.name
    await asyncio.to_thread(admin.delete_topics, [progress])
    async with connector.open(table) as leader:
        await deliver(leader, rows(3), following=at(9))
    async with other.open(other._config.listed[0]) as leader:
        for number in range(5):
            await deliver(leader, rows(number))
    await standby.prepare(table)
    await prepare(standby, table)
    async with standby.open(table) as sink:
        assert await sink.last_position() == at(9)


async def test_connections_that_are_not_needed_are_closed(connector: KafkaConnector) -> None:
    (table,) = connector._config.listed
    async with connector.open(table):
        pass
    connected = await prepare(connector, table)
    await connector.retain(())
    deadline = time.monotonic() + 30
    while not connected.producer._closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_connections_of_a_table_that_has_vanished_are_closed(connector: KafkaConnector) -> None:
    (table,) = connector._config.listed
    async with connector.open(table):
        pass
    connected = await prepare(connector, table)
    await connector.retain([table])
    assert connector._prepared
    await connector.retain([])
    assert not connector._prepared
    await asyncio.to_thread(until, lambda: connected.producer._closed)


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("it connects again")
