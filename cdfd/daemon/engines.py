"""Settings to what executes plans: which engine there is, and what it is given to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec

from cdfd.config import settings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.daemon.loop import spark_feed
from cdfd.daemon.loop.admission import Admission
from cdfd.daemon.loop.deliverer import PART_BYTES
from cdfd.daemon.loop.large_versions import EmbeddedEngine, LargeVersions
from cdfd.daemon.loop.monitor import Monitor
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.jobs.assignment import Assignment, Engine
from cdfd.sinks.base import Sink
from cdfd.sinks.kafka.configured import destination
from cdfd.sinks.kafka.progress.positions import progress_end
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from cdfd.tables.configured import open_table


def check_engine(config: Settings) -> None:
    """Whether the engine that is configured can work with the rest.

    Raises:
        UnsupportedError: not with that sink.
        ConfigError: PySpark is missing.
    """
    kind, sink = config.engine.kind, config.sink
    if kind == "embedded":
        return
    if kind == "spark":
        spark_feed.check(config)
    elif not isinstance(sink, KafkaSettings) or sink.delivery != "exactly_once":
        raise UnsupportedError(
            "`engine.kind: auto` needs a Kafka sink with `delivery: exactly_once`: others cannot tell which parts of a version are delivered",
            hint="Use `engine.kind: embedded`",
        )
    require_spark()


def require_spark() -> None:
    """`ConfigError` where PySpark is not installed."""
    if find_spec("pyspark") is None:
        raise ConfigError("Spark is wanted, and PySpark is not installed", hint="pip install 'cdfd[spark]'")


@asynccontextmanager
async def engine(config: Settings, admission: Admission) -> AsyncIterator[Engine]:
    """The engine of large versions, let go at the end. It looks for Spark with its first job.

    Raises:
        ConfigError, UnsupportedError: as `check_engine`.
    """
    check_engine(config)
    if config.engine.kind == "embedded":
        yield EmbeddedEngine(admission)
        return
    async with spark_engine(config) as made:
        yield made


@asynccontextmanager
async def spark_engine(config: Settings) -> AsyncIterator[Engine]:
    """An engine on Spark, let go at the end.

    Raises:
        ConfigError: PySpark is not installed.
    """
    require_spark()
    # Importing PySpark takes a while, and most do without.
    from cdfd.spark.engine import SparkEngine
    from cdfd.spark.sessions import Sessions

    made = SparkEngine(Sessions(config.engine.spark, f"cdfd-{config.pipeline}"))
    try:
        yield made
    finally:
        await made.close()


def large_versions(
    config: Settings, table: settings.Table, sink: Sink, engine: Engine, stop: asyncio.Event, monitor: Monitor
) -> LargeVersions | None:
    """What delivers large versions of a table; None where its sink knows of no parts."""
    found = config.sink
    if not isinstance(found, KafkaSettings) or not isinstance(sink, KafkaSink) or found.delivery != "exactly_once":
        return None
    on_spark = config.engine.kind != "embedded"
    spark = config.engine.spark
    return LargeVersions(
        open_table(config, table).uri,
        sink,
        partial(Assignment.of, config, table.name),
        partial(progress_end, destination(config, found, table)),
        engine,
        spark.threshold if on_spark else None,
        spark.part_size if on_spark else PART_BYTES,
        stop,
        monitor,
    )
