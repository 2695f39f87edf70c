"""Fixtures that the chaos tests share: those of the Kafka tests, and a broker of a test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka.broker import Broker
from tests.support.kafka.fixtures import broker, name, needs_broker, pipeline
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.proxy import Proxy

__all__ = ["broker", "name", "needs_broker", "pipeline", "proxied", "proxied_pipeline"]


@pytest.fixture
def proxied(needs_broker: None) -> Iterator[tuple[Proxy, Broker]]:
    """A broker of the test's own, behind a network of its own."""
    with Proxy() as proxy, Broker(behind=proxy.port) as broker:
        proxy.connect(broker.address("BEHIND"))
        yield proxy, broker


@pytest.fixture
def proxied_pipeline(proxied: tuple[Proxy, Broker], tmp_path: Path, name: str) -> Pipeline:
    """A pipeline whose daemons reach that broker through the network."""
    proxy, broker = proxied
    return Pipeline(tmp_path, name, proxy.address, broker.bootstrap_servers)
