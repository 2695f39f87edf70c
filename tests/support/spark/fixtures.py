"""A real Spark for whatever asks for one: one for all tests of a worker process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.kafka.fixtures import broker, name, needs_broker, read
from tests.support.spark.installation import missing
from tests.support.spark.session import SMALL_QUERIES, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker", "name", "needs_broker", "needs_spark", "read", "registered", "spark"]


@pytest.fixture(scope="session")
def needs_spark() -> None:
    """Skip where no Spark can run; fail there in continuous integration."""
    if (reason := missing()) is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def spark(needs_spark: None) -> Iterator[SparkSession]:
    """A session with delta-spark and the Kafka connector, in which no source or sink of cdfd is registered."""
    with session(options=SMALL_QUERIES) as spark_session:
        yield spark_session


@pytest.fixture(scope="session")
def registered(spark: SparkSession) -> None:
    """The session has our formats."""
    import cdfd.spark

    cdfd.spark.register(spark)
