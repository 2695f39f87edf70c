"""A real broker for tests that request one, and topics that no other test uses.

`broker` is shared by all tests of a run, in all its processes. Tests that stop, kill or set up a broker in their own way start their own:
`with Broker(...) as broker`, after `needs_broker`.
"""

import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from cdfd.demo.writer import TableWriter
from tests.support.kafka.broker import Broker
from tests.support.kafka.installation import missing
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.proxy import Proxy
from tests.support.kafka.reading import Record, read_topic
from tests.support.kafka.shared import SharedBroker, shared_broker
from tests.support.lake import rows


@pytest.fixture(scope="session")
def needs_broker() -> None:
    """Skip where no broker can be started; fail there in continuous integration."""
    if (reason := missing()) is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def broker(needs_broker: None, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[SharedBroker]:
    """A broker of this run's. Take a topic of your own."""
    own = tmp_path_factory.getbasetemp()
    # A test that runs other tests says where its broker is.
    place = os.environ.get("CDFD_TEST_BROKER") or (own if worker_id == "master" else own.parent)
    with shared_broker(Path(place)) as shared:
        yield shared


@pytest.fixture(scope="session")
def admin(broker: SharedBroker) -> Iterator[KafkaAdminClient]:
    """Everything that can be done to `broker`'s topics."""
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="session")
def broker_behind(needs_broker: None) -> Iterator[tuple[Proxy, Broker]]:
    """A broker behind a network that can be made to fail. Modules that use it are a unit of `tests.support.distribution`."""
    # By default it looks every ten seconds for transactions whose time is up.
    attentive = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with Proxy() as proxy, Broker(behind=proxy.port, properties=attentive) as broker:
        proxy.connect(broker.address("BEHIND"))
        yield proxy, broker


@pytest.fixture
def proxy(broker_behind: tuple[Proxy, Broker]) -> Iterator[Proxy]:
    """The network, which is in order again afterwards."""
    yield broker_behind[0]
    broker_behind[0].resume()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics and pipelines that begins with the test's, and that no other test has."""
    readable = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    return f"{readable}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(name: str) -> str:
    """The name of a topic that no other test has. There is none of this name yet; see `create`."""
    return name


@pytest.fixture
def create(admin: KafkaAdminClient) -> Callable[..., str]:
    """`create(topic, partitions=1, **config)`: make a topic and wait for it; underscores in names of settings become dots."""

    def made(topic: str, partitions: int = 1, **config: str) -> str:
        configs = {key.replace("_", "."): value for key, value in config.items()}
        wanted = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}}
        admin.create_topics(wanted, wait_for_metadata=True)
        return topic

    return made


@pytest.fixture
def read(broker: SharedBroker) -> Callable[..., list[Record]]:
    """`read(topic, at_least=0, timeout=60, committed=True)`: all its records, by partition and offset; see `read_topic`."""

    def records(topic: str, **options: Any) -> list[Record]:
        return read_topic(broker.bootstrap_servers, topic, **options)

    return records


@pytest.fixture
def pipeline(broker: SharedBroker, tmp_path: Path, name: str) -> Pipeline:
    """One of `broker`'s."""
    return Pipeline(tmp_path, name, broker.bootstrap_servers, broker.bootstrap_servers)


@pytest.fixture
def table(pipeline: Pipeline) -> TableWriter:
    """The pipeline's table, with three rows at version 1."""
    table = pipeline.table()
    do(table.insert(rows(0, 1, 2)))
    return table


@pytest.fixture
def proxied(proxy: Proxy, broker_behind: tuple[Proxy, Broker], tmp_path: Path, name: str) -> Pipeline:
    """One whose daemon's connections go through `proxy`."""
    return Pipeline(tmp_path, name, proxy.address, broker_behind[1].bootstrap_servers)
