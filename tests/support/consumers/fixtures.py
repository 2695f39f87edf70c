"""Consumers for tests that ask for them: one of each for all tests of a run's process. The broker is that of Kafka's fixtures."""

import os
from collections.abc import Iterator

import pytest

from tests.support.consumers.connect import Connect, connect
from tests.support.consumers.installation import missing
from tests.support.consumers.postgres import Postgres, postgres
from tests.support.installation import missing_package
from tests.support.kafka.shared import SharedBroker
from tests.support.schema_registry import Registry, serving

__all__ = ["database", "registry", "worker"]


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    """A PostgreSQL server. Take a table of your own."""
    need(missing_package("psql"))
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def worker(broker: SharedBroker) -> Iterator[Connect]:
    """A worker of Kafka Connect. Take a connector of your own."""
    need(missing())
    with connect(broker.bootstrap_servers) as started:
        yield started


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """A schema registry. Topics have subjects of their own."""
    with serving() as started:
        yield started


def need(reason: str | None) -> None:
    """Skip where a consumer cannot run, for a reason; fail there in continuous integration."""
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
