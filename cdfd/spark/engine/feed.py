"""`engine.kind: spark`: a table's loop that starts, watches and restarts a Spark query, which does the work.

The position is in the query's checkpoint. If a restarted query repeats a part, executors find the part's record and skip it. So neither the
sink nor the ledger has a position of these tables.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdfd.config import settings
from cdfd.config.parser import folder_of
from cdfd.config.settings import Settings
from cdfd.deliver.monitor import Monitor
from cdfd.errors import CdfdError, ConfigError, SchemaChangedError
from cdfd.runtime.clock import Clock
from cdfd.sinks.base import connector

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from cdfd.spark.engine.queries import Report
    from cdfd.spark.engine.sessions import Sessions

logger = logging.getLogger("cdfd.feed")

POLL_SECONDS = 0.5
"""How often to read a query's progress."""

Open = Callable[[settings.Table, asyncio.Event, Monitor], AbstractAsyncContextManager["SparkFeed"]]


@asynccontextmanager
async def feeds(config: Settings, path: Path, clock: Clock) -> AsyncIterator[Open]:
    """A function that opens a table's loop. The loops share Spark sessions, which are closed at the end of the block.

    `path` is the configuration file, which Spark's driver reads.

    Raises:
        ConfigError: PySpark is not installed.
    """
    # Importing PySpark is slow, and most daemons do not use it.
    from cdfd.spark.engine.sessions import Sessions

    sessions = Sessions(config.engine.spark, f"cdfd {config.pipeline}")
    with copy_document(config, path) as document:
        try:
            yield lambda table, stop, monitor: nullcontext(
                SparkFeed(config, table, document, sessions, stop, monitor, clock)
            )
        finally:
            await asyncio.to_thread(sessions.drop)


def check(config: Settings) -> None:
    """Check that Spark can run these tables.

    Raises:
        ConfigError: not with this sink, with patterns of folders, or with the settings of a table.
    """
    if not connector(config).takes_queries:
        raise ConfigError(
            "`engine.kind: spark` needs a Kafka sink with `delivery: exactly_once`",
            hint="Use `engine.kind: embedded`, or `auto` with a Delta sink",
        )
    if config.discoveries:
        raise ConfigError(
            "`engine.kind: spark` does not support `discover`", hint="Name each table with `uri`, or use another engine"
        )
    for table in config.listed:
        if table.on_missing_file == "snapshot":
            raise ConfigError(
                "`engine.kind: spark` does not support `on_missing_file: snapshot`",
                table=table.uri,
                hint="Use `skip`, or another engine",
            )


@contextmanager
def copy_document(config: Settings, path: Path) -> Iterator[Mapping[str, str]]:
    """Copy the configuration file, so that it does not change while Spark reads it for each micro-batch. A remote driver uses its own file.

    The copy may hold secrets. So it is in memory, readable by processes of the same user, and disappears with this process.

    Returns:
        The options of `format("cdfd-kafka")` that name the copy.
    """
    if config.engine.spark.remote is not None:
        yield {"config": str(path)}
        return
    if not hasattr(os, "memfd_create"):  # only Linux has it
        with tempfile.TemporaryDirectory(prefix="cdfd-", ignore_cleanup_errors=True) as folder:
            yield {"config": shutil.copy(path, os.path.join(folder, "cdfd.yaml")), "folder": folder_of(path)}
        return
    with open(os.memfd_create("cdfd.yaml"), "wb") as copy:
        copy.write(path.read_bytes())
        copy.flush()
        yield {"config": f"/proc/{os.getpid()}/fd/{copy.fileno()}", "folder": folder_of(path)}


@dataclass(slots=True)
class SparkFeed:
    """Delivers one table's changes with a Spark query until `stop` is set.

    Attributes:
        config: all settings.
        table: one of its tables.
        document: the options that name a file with the same settings.
        sessions: provides the Spark session.
        stop: set it to stop.
        monitor: receives positions and row counts, without change types.
        clock: the source of time.
    """

    config: Settings
    table: settings.Table
    document: Mapping[str, str]
    sessions: Sessions
    stop: asyncio.Event
    monitor: Monitor
    clock: Clock

    async def run(self) -> None:
        """Deliver until stopped. A schema change ends the query; a new query continues with the new schema.

        Raises:
            CdfdError: the query failed.
        """
        while not self.stop.is_set():
            delivered = False
            try:
                async for _ in self._reports():
                    delivered = True
            except SchemaChangedError as error:
                if self.table.on_schema_change == "stop" or not delivered:
                    raise
                logger.info("%s: restarting the query", error.what, extra={"table": self.table.uri})

    async def _reports(self) -> AsyncIterator[Report]:
        """The reports of a query, until stopped."""
        from cdfd.spark.engine import queries

        session = await asyncio.to_thread(self.sessions.get)
        query, last = None, None
        try:
            query = await asyncio.to_thread(queries.start, session, self.config, self.table, self.document)
            logger.info("query %s started", query.name, extra={"table": self.table.uri, "query": query.id})
            while not self.stop.is_set():
                reports, error, idle = await asyncio.to_thread(queries.poll, query, self.table, last)
                for report in reports:
                    if last is None:
                        self.monitor.started(report.following)
                    self.monitor.found_version(report.newest)
                    if report.delivered or last is None:
                        self.monitor.committed(report.following, [], {"other": report.rows} if report.rows else {}, 0)
                    last = report
                    yield report
                if error is not None:
                    raise error
                # A query that has not begun its first trigger is idle, too.
                if last is not None and idle:
                    self.monitor.at_tip()
                await self.clock.wait(self.stop, POLL_SECONDS)
        except CdfdError as error:
            await asyncio.to_thread(self.sessions.check, session, error)
            raise
        finally:
            if query is not None:
                await asyncio.to_thread(_stop, query)


def _stop(query: StreamingQuery) -> None:
    from cdfd.spark.engine.sessions import FAILURES

    try:
        query.stop()
    except FAILURES as error:
        logger.info("a query did not stop cleanly: %s", str(error)[:200])
