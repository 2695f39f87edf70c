"""One Spark for all of these tests: they run one after the other in one worker process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kafka.conftest import broker, name, needs_broker, read
from tests.spark.installation import missing
from tests.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker", "name", "needs_broker", "read", "spark"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with delta-spark, the Kafka connector and nothing of ours registered. Skips where there is none; fails there in CI."""
    if (reason := missing()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with session() as opened:
        yield opened
