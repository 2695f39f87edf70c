"""Servers of queues, for a run of tests."""

import os
from collections.abc import Iterator

import pytest

from tests.support.queues.azurite import azurite, missing
from tests.support.queues.pubsub import PubSub, pubsub


@pytest.fixture
def pubsub_service() -> Iterator[PubSub]:
    """A stand-in for Google Pub/Sub."""
    with pubsub() as service:
        yield service


@pytest.fixture(scope="session")
def azurite_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connection string of Azurite's account. Skips without npm; fails so in continuous integration."""
    if (reason := missing()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with azurite(tmp_path_factory.mktemp("azurite")) as connection:
        yield connection
