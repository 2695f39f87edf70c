"""A cluster for all tests of this folder, and an application on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.cluster.application import Application, application
from tests.support.cluster.standalone import Standalone
from tests.support.kafka.fixtures import broker, name, needs_broker
from tests.support.spark.installation import missing

__all__ = ["broker", "cluster", "driver", "name", "needs_broker"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers of one core each. Skips where no Spark can run; fails there in continuous integration."""
    if (reason := missing()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with Standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def driver(cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """An application for the tests of a module."""
    with application(cluster, tmp_path_factory.mktemp("driver")) as started:
        yield started
