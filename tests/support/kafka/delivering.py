"""A table delivered from its beginning to its end, in this process, by a daemon's loop with one engine or another."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdfd.config.settings import Settings
from cdfd.daemon import assembly
from cdfd.deliver.assignment import Engine
from cdfd.deliver.monitor import Monitor
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.base import connector
from tests.support.kafka.reading import Record, read_topic, wait_for_markers, without_processing_time


@dataclass(frozen=True)
class Delivering:
    """One table of a pipeline.

    Attributes:
        servers: of the cluster.
        name: of the pipeline.
        uri: of the table.
        more: of its configuration.
        sink: more of `sink`.
        spark: more of `engine.spark`.
    """

    servers: str
    name: str
    uri: str
    more: Mapping[str, Any]
    sink: Mapping[str, Any]
    spark: Mapping[str, Any] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{self.name}.rows"

    def settings(self, kind: str = "embedded", part_size: int = 300_000) -> Settings:
        table = {"uri": self.uri, "name": "rows", "topic": self.topic, "start": "earliest"} | dict(self.more)
        topics = {"prefix": f"{self.name}.", "partitions": 3, "transactions": True}
        return Settings.model_validate(
            {
                "pipeline": self.name,
                "tables": [table],
                "sink": {"kind": "kafka", "bootstrap_servers": self.servers, "topics": topics} | dict(self.sink),
                "progress": {"ledger": "none"},
                "poll": {"interval": 0.05, "max_interval": 0.1},
                "engine": {"kind": kind, "spark": {"threshold": 1, "part_size": part_size, **self.spark}},
                "http": {"listen": None},
            }
        )

    async def deliver(
        self,
        newest: int,
        engine: Engine | None = None,
        *,
        part_size: int = 300_000,
        stop_when: Callable[[], bool] | None = None,
    ) -> Noted:
        """Deliver what is not delivered, up to a version, or until something is so.

        With an engine, each version that has files is a job of its.
        """
        config = self.settings("embedded" if engine is None else "auto", part_size)
        return await run_loop(config, newest, engine, stop_when)

    async def forget(self) -> None:
        """As if nothing had been delivered; what is in the topic stays there."""
        config = self.settings()
        await connector(config).move(config.tables[0], None)

    def records(self) -> list[Record]:
        wait_for_markers(self.servers, self.topic)
        return read_topic(self.servers, self.topic)

    def since(self, before: Sequence[Record]) -> list[Record]:
        """Records that are not among those before."""
        known = {(record.partition, record.offset) for record in before}
        return [record for record in self.records() if (record.partition, record.offset) not in known]

    def transactions(self) -> list[dict[str, Any]]:
        """The topic's records about versions, without their times."""
        return [json.loads(record.value or b"") for record in read_topic(self.servers, f"{self.name}.transactions")]


class Noted(Monitor):
    """A monitor that counts the committed rows, and stops the loop at a version."""

    def __init__(self, stop: asyncio.Event, newest: int) -> None:
        self.rows: Counter[str] = Counter()
        self._stop = stop
        self._newest = newest

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        self.rows.update(rows)
        if following.version > self._newest:
            self._stop.set()


async def run_loop(
    config: Settings, newest: int, engine: Engine | None = None, stop_when: Callable[[], bool] | None = None
) -> Noted:
    """Run the loop of a configuration's table up to a version, or until something is so; with an engine instead of the configured one."""
    stop = asyncio.Event()
    noted = Noted(stop, newest)
    async with assembly.shared(config, SystemClock()) as shared:
        own = shared if engine is None else replace(shared, engine=engine)
        async with assembly.feed(own, config.tables[0], stop, noted) as feed, asyncio.timeout(240):
            running = asyncio.create_task(feed.run())
            while stop_when is not None and not running.done() and not stop.is_set():
                if await asyncio.to_thread(stop_when):
                    stop.set()
                await asyncio.sleep(0.05)
            await running
    return noted


def contents(records: Sequence[Record]) -> Counter[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]:
    """Keys, values and headers. Which of the headers come first is up to what else was encoded with a record."""
    return Counter(
        (record.key, without_processing_time(record.value), tuple(sorted(record.headers))) for record in records
    )


def in_order(records: Sequence[Record]) -> bool:
    """Whether the records of each key are in one partition, in the order of the table's changes."""
    newest: dict[bytes | None, tuple[int, tuple[int, int]]] = {}
    for record in records:
        if record.key is None or record.value is None:
            continue
        row = json.loads(record.value)
        place = (row["_commit_version"], row["_change_ordinal"])
        partition, before = newest.get(record.key, (record.partition, (-1, -1)))
        if partition != record.partition or place <= before:
            return False
        newest[record.key] = (record.partition, place)
    return True
