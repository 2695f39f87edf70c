"""Clients in Python, Node, Go and C read the same committed records of a topic: keys, values, headers, tombstones."""

from collections.abc import Sequence

import pytest

from tests.support.consumers import clients
from tests.support.consumers.fixtures import need
from tests.support.consumers.installation import ConsumerError
from tests.support.consumers.life import NESTED, SCALARS, Life
from tests.support.consumers.living import ABORTED, deliver
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.reading import Record, read_topic
from tests.support.kafka.shared import SharedBroker

PARTITIONS = 3


@pytest.fixture(scope="module")
def published(broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A topic of CloudEvents with tombstones. In each partition, transactions were aborted, the last one too."""
    folder = tmp_path_factory.mktemp("clients")
    pipeline = Pipeline(folder, f"clients-{folder.name}", broker.bootstrap_servers, broker.bootstrap_servers)
    topics = {"prefix": f"{pipeline.name}.", "partitions": PARTITIONS}
    pipeline.configure(sink={"format": "cloudevents", "tombstones": "always", "topics": topics})
    deliver(pipeline, Life(pipeline.uri, 6, columns=(*SCALARS, *NESTED)), 6)
    return pipeline


@pytest.fixture(scope="module")
def records(published: Pipeline) -> list[Record]:
    """As kafka-python reads them."""
    everything = read_topic(published.direct, published.topic, committed=False)
    assert {record.partition for record in everything if record.value == ABORTED} == set(range(PARTITIONS))
    committed = read_topic(published.direct, published.topic)
    assert ABORTED not in {record.value for record in committed}
    assert None in {record.value for record in committed}
    return _headers_in_order(committed)


def test_franz_go(published: Pipeline, records: list[Record]) -> None:
    need(clients.missing("franz-go"))
    assert _headers_in_order(clients.franz_go(published.direct, published.topic)) == records


def test_kafkajs_with_a_codec_for_lz4(published: Pipeline, records: list[Record]) -> None:
    need(clients.missing("kafkajs"))
    assert _headers_in_order(clients.kafkajs(published.direct, published.topic)) == records


def test_kafkajs_alone_cannot_read_lz4(published: Pipeline) -> None:
    need(clients.missing("kafkajs"))
    with pytest.raises(ConsumerError, match="LZ4 compression not implemented"):
        clients.kafkajs(published.direct, published.topic, lz4=False)


def test_platformatic_leaves_out_only_the_last_transaction_that_a_producer_aborted(
    published: Pipeline, records: list[Record]
) -> None:
    """Of those in one fetch. The page says what to do."""
    need(clients.missing("@platformatic/kafka"))
    actual = clients.platformatic(published.direct, published.topic, len(records))
    by_place = {(record.partition, record.offset): record for record in records}
    committed = [record for record in _headers_in_order(actual) if record.value != ABORTED]
    assert len(committed) < len(actual)
    assert all(by_place[record.partition, record.offset] == record for record in committed)


def test_kcat(published: Pipeline, records: list[Record]) -> None:
    need(clients.missing("kcat"))
    actual = clients.kcat(published.direct, published.topic)
    assert actual == [record._replace(headers=()) for record in records]


def _headers_in_order(records: Sequence[Record]) -> list[Record]:
    return [record._replace(headers=tuple(sorted(record.headers))) for record in records]
