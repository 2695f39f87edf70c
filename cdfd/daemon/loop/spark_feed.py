"""`engine.kind: spark`: a table's loop where a query of Spark's does the work. It is started, looked after, and started anew.

The position is in the query's checkpoint; what is delivered twice by a query that goes on from there, executors tell by their parts' records.
So neither the sink nor the ledger has a position of these tables.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cdfd.config import folder_of, settings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.daemon.loop.monitor import Monitor
from cdfd.errors import CdfdError, ConfigError, SchemaChangedError, UnsupportedError
from cdfd.tail.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from cdfd.spark.queries import Batch
    from cdfd.spark.sessions import Sessions

logger = logging.getLogger("cdfd.feed")

LOOK_SECONDS = 0.5
"""How often to ask a query how far it is."""

Open = Callable[[settings.Table, asyncio.Event, Monitor], AbstractAsyncContextManager["SparkFeed"]]


@asynccontextmanager
async def feeds(config: Settings, path: Path, clock: Clock) -> AsyncIterator[Open]:
    """What opens each table's loop, and Spark for all of them until the end.

    Args:
        config: all settings.
        path: the file that they are of, for Spark's driver to read.
        clock: time.

    Raises:
        ConfigError: PySpark is not installed.
    """
    # Importing PySpark takes a while, and most do without.
    from cdfd.spark.sessions import Sessions

    sessions = Sessions(config.engine.spark, f"cdfd {config.pipeline}")
    with kept(config, path) as document:
        try:
            yield partial(_opened, config, document, sessions, clock)
        finally:
            await asyncio.to_thread(sessions.drop)


def check(config: Settings) -> None:
    """Whether Spark can run these tables.

    Raises:
        UnsupportedError: not with that sink.
        ConfigError: not with what is said of a table.
    """
    if not isinstance(config.sink, KafkaSettings) or config.sink.delivery != "exactly_once":
        raise UnsupportedError(
            "`engine.kind: spark` needs a Kafka sink with `delivery: exactly_once`", hint="Use `engine.kind: embedded`"
        )
    for table in config.tables:
        if table.on_missing_file == "resnapshot":
            raise ConfigError(
                "on_missing_file: resnapshot is nothing that `engine.kind: spark` can do",
                table=table.uri,
                hint="Use `skip`, or another engine",
            )


@contextmanager
def kept(config: Settings, path: Path) -> Iterator[Mapping[str, str]]:
    """A copy of the file, which nobody changes while Spark reads it again for each micro-batch. A driver elsewhere has its own file.

    The copy may hold secrets. So it is in memory, open to processes of the same user, and gone with this process, however that ends.

    Returns:
        The options of `format("cdfd-kafka")` that name it.
    """
    if config.engine.spark.remote is not None:
        yield {"config": str(path)}
        return
    with _copied(path) as copy:
        yield {"config": copy, "folder": folder_of(path)}


@contextmanager
def _copied(path: Path) -> Iterator[str]:
    if not hasattr(os, "memfd_create"):  # only Linux has it
        with tempfile.TemporaryDirectory(prefix="cdfd-", ignore_cleanup_errors=True) as folder:
            yield shutil.copy(path, os.path.join(folder, "cdfd.yaml"))
        return
    with open(os.memfd_create("cdfd.yaml"), "wb") as copy:
        copy.write(path.read_bytes())
        copy.flush()
        yield f"/proc/{os.getpid()}/fd/{copy.fileno()}"


@asynccontextmanager
async def _opened(
    config: Settings,
    document: Mapping[str, str],
    sessions: Sessions,
    clock: Clock,
    table: settings.Table,
    stop: asyncio.Event,
    monitor: Monitor,
) -> AsyncIterator[SparkFeed]:
    yield SparkFeed(config, table, document, sessions, stop, monitor, clock)


@dataclass(slots=True)
class SparkFeed:
    """Has Spark deliver one table's changes until told to stop.

    Attributes:
        config: all settings.
        table: one of them.
        document: names a file that says what `config` does.
        sessions: where the session comes from.
        stop: set it to end.
        monitor: is told what can be told: positions and rows, not their types.
        clock: time.
    """

    config: Settings
    table: settings.Table
    document: Mapping[str, str]
    sessions: Sessions
    stop: asyncio.Event
    monitor: Monitor
    clock: Clock

    async def run(self) -> None:
        """Deliver until stopped. A query ends where the schema changes; another one goes on there with the new one.

        Raises:
            CdfdError: what ended the query.
        """
        moved = True
        while not self.stop.is_set():
            try:
                moved = False
                async for _ in self._batches():
                    moved = True
            except SchemaChangedError as error:
                if self.table.on_schema_change == "stop" or not moved:
                    raise
                logger.info("%s: the query is started anew", error.what, extra={"table": self.table.uri})

    async def _batches(self) -> AsyncIterator[Batch]:
        """A query's micro-batches as they are delivered, until told to stop."""
        from cdfd.spark import queries

        session = await asyncio.to_thread(self.sessions.get)
        try:
            query = await asyncio.to_thread(queries.start, session, self.config, self.table, self.document)
        except CdfdError:
            await asyncio.to_thread(self.sessions.look, session)
            raise
        logger.info("query %s started", query.name, extra={"table": self.table.uri, "query": query.id})
        try:
            async for batch in self._watched(query):
                yield batch
        except CdfdError:
            await asyncio.to_thread(self.sessions.look, session)
            raise
        finally:
            await asyncio.to_thread(_stop, query)

    async def _watched(self, query: StreamingQuery) -> AsyncIterator[Batch]:
        from cdfd.spark import queries

        known = -1
        while not self.stop.is_set():
            error = await asyncio.to_thread(queries.ended, query, self.table)
            batch = await asyncio.to_thread(queries.last_batch, query, self.table)
            if batch is not None and batch.number > known:
                self._tell(batch, first=known < 0)
                known = batch.number
                yield batch
            if error is not None:
                raise error
            if await asyncio.to_thread(queries.waits, query, self.table):
                self.monitor.waiting()
            await self.clock.wait(self.stop, LOOK_SECONDS)

    def _tell(self, batch: Batch, *, first: bool) -> None:
        if first:
            self.monitor.started(batch.following)
        if batch.newest is not None:
            self.monitor.saw(batch.newest)
        self.monitor.committed(batch.following, [], {"other": batch.rows} if batch.rows else {}, 0)


def _stop(query: StreamingQuery) -> None:
    from cdfd.spark.queries import FAILURES

    try:
        query.stop()
    except FAILURES as error:
        logger.info("a query did not end in good order: %s", str(error)[:200])
