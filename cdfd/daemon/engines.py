"""The engines by `engine.kind`: what runs the loops of tables, and what takes the jobs of large versions.

The daemon's own loops hand large versions to an `Engine`; with `engine.kind: spark`, the loops are queries of Spark's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.daemon.supervision.supervisor import Loop
from cdfd.deliver.admission import Admission
from cdfd.deliver.assignment import Assignment, Engine, measure_here
from cdfd.deliver.configured import open_table
from cdfd.deliver.deliverer import PART_BYTES
from cdfd.deliver.large_versions import LargeVersions
from cdfd.deliver.monitor import Monitor
from cdfd.errors import ConfigError
from cdfd.runtime.clock import Clock
from cdfd.runtime.registry import ENGINES
from cdfd.scan.splits import Measured, Part, Split
from cdfd.sinks.base import Sink, connector
from cdfd.sinks.jobs import Delivered
from cdfd.spark.engine import feed as spark_feed

OpenLoop = Callable[[settings.Table, asyncio.Event, Monitor], AbstractAsyncContextManager[Loop]]
"""Opens the loop of a table, which ends where the event is set."""


class Embedded:
    """`engine.kind: embedded`: this process does it all.

    Attributes:
        threshold: bytes of files from which a version is a job; None for none.
        part_bytes: bytes of files of a part of a job.
    """

    def __init__(self, config: Settings) -> None:
        self.config = config
        self.threshold: int | None = None
        self.part_bytes = PART_BYTES

    def check(self) -> None:
        """Whether the engine can work with the rest of the configuration.

        Raises:
            ConfigError: a package is missing, or the engine does not fit the sink or the settings of a table.
        """

    def jobs(self, admission: Admission) -> AbstractAsyncContextManager[Engine]:
        """The engine of large versions, released at the end. Raises what `check` does."""
        return nullcontext(EmbeddedEngine(admission))

    def loops(self, path: Path, clock: Clock) -> AbstractAsyncContextManager[OpenLoop] | None:
        """Opens the loops of tables, and releases them at the end; None for the daemon's own. `path` is the configuration file."""
        return None


class Auto(Embedded):
    """`engine.kind: auto`: Spark has the large versions, which are jobs; this process has the others."""

    def __init__(self, config: Settings) -> None:
        super().__init__(config)
        self.threshold, self.part_bytes = config.engine.spark.threshold, config.engine.spark.part_size

    def check(self) -> None:
        """With a sink that takes parts, and PySpark; see `Embedded`."""
        if not connector(self.config).takes_parts:
            raise ConfigError(
                "`engine.kind: auto` needs a Delta sink, or a Kafka sink with `delivery: exactly_once`: "
                "others cannot take a version in parts",
                hint="Use `engine.kind: embedded`",
            )
        require_spark()

    def jobs(self, admission: Admission) -> AbstractAsyncContextManager[Engine]:
        """Spark, looked for with the first job; see `Embedded`."""
        self.check()
        return spark_engine(self.config)


class OnSpark(Auto):
    """`engine.kind: spark`: queries of Spark's are the loops."""

    def check(self) -> None:
        """With a sink that takes parts, PySpark, and tables that Spark can read; see `Embedded`."""
        spark_feed.check(self.config)
        require_spark()

    def loops(self, path: Path, clock: Clock) -> AbstractAsyncContextManager[OpenLoop]:
        """Queries; see `Embedded`."""
        return spark_feed.feeds(self.config, path, clock)


def engine_of(config: Settings) -> Embedded:
    """The engine that is configured."""
    engine: Embedded = ENGINES.load(config.engine.kind)(config)
    return engine


def require_spark() -> None:
    """Raise `ConfigError` if PySpark is not installed."""
    if find_spec("pyspark") is None:
        raise ConfigError("the engine needs PySpark, which is not installed", hint="pip install 'cdfd[spark]'")


@asynccontextmanager
async def spark_engine(config: Settings) -> AsyncIterator[Engine]:
    """An engine on Spark, let go at the end. PySpark is installed: see `require_spark`."""
    # Importing PySpark takes a while, and most do without.
    from cdfd.spark.engine.engine import SparkEngine
    from cdfd.spark.engine.sessions import Sessions

    engine = SparkEngine(Sessions(config.engine.spark, f"cdfd-{config.pipeline}"))
    try:
        yield engine
    finally:
        await engine.close()


def large_versions(
    config: Settings, table: settings.Table, sink: Sink, engine: Engine, stop: asyncio.Event
) -> LargeVersions | None:
    """The delivery of a table's large versions; None if its sink takes no parts."""
    if not connector(config).takes_parts:
        return None
    kind, assign = engine_of(config), partial(Assignment.of, config, table.name)
    planning = config.engine.spark.snapshot_planning
    uri = open_table(config, table).uri
    return LargeVersions(uri, sink, assign, engine, kind.threshold, kind.part_bytes, stop, planning)


@dataclass(eq=False)
class EmbeddedEngine:
    """The `Engine` port in this process, one part after the other: for what was begun on a cluster that is no longer configured."""

    admission: Admission

    async def measure(self, assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
        """See the port."""
        return await measure_here(assignment, splits)

    async def deliver(self, assignment: Assignment, parts: Sequence[Part]) -> list[Delivered]:
        """See the port."""
        delivered = list[Delivered]()
        for number, part in parts:
            async with self.admission.admit(part.size):
                delivered += await assignment.deliver(number, part)
        return delivered
