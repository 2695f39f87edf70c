"""The demo with Kafka: a writer changes a table, `cdfd run` delivers every change, and a consumer reads the committed records."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from cdfd.api import changes
from cdfd.demo.show import PATIENCE_SECONDS, SHOWN, create_table, place_of, say, say_latency, say_result, steps
from cdfd.errors import SinkError
from cdfd.log.table import Table
from cdfd.model.columns import CHANGE_TYPE, COMMIT_VERSION

_CONFIG = """\
pipeline: {name}
tables:
  - uri: {table}
    topic: {topic}
    key: [order_id]
    start: earliest
sink:
  kind: kafka
  bootstrap_servers: {servers}
progress: {{ledger: {ledger}}}
poll: {{interval: 100ms, max_interval: 1s}}
http: {{listen: null}}
"""


def run(servers: str, where: str | None) -> None:
    """Run the demo with a cluster, in a folder or a store. None: in a temporary folder.

    The topics remain. They belong to a separate pipeline.

    Raises:
        CdfdError: the delivered changes do not add up to the table, or something failed.
    """
    with place_of(where) as (lake, folder):
        asyncio.run(_show(servers, lake, folder))


async def _show(servers: str, lake: str, folder: Path) -> None:
    table = Table.open(f"{lake}/orders")
    writer = await create_table(table)
    name = f"demo-{uuid.uuid4().hex[:6]}"
    topic = f"{name}.orders"
    config = folder / "shop.yaml"
    ledger = f"{lake}/ledger" if table.log.storage.remote else str(folder.resolve() / "ledger")
    told = {
        "name": name,
        "table": json.dumps(table.uri),
        "topic": topic,
        "servers": servers,
        "ledger": json.dumps(ledger),
    }
    config.write_text(_CONFIG.format(**told))
    say(f"A Delta table at {table.uri}, a topic {topic} at {servers}, and\n\n  $ cdfd run -c shop.yaml\n")
    say("".join(f"    {line}\n" for line in config.read_text().splitlines()))
    reader, latencies = _Reader(servers, topic), list[float]()
    with _daemon(config) as daemon, reader:
        for title, step in steps(writer):
            say(f"\n-- {title}")
            before = reader.rows
            began = time.monotonic()
            version = await step()
            committed = writer.committing
            delivered = await asyncio.to_thread(changes, table.uri, version, version)
            rows = (await asyncio.to_thread(delivered.read_all)).num_rows
            await asyncio.to_thread(reader.wait_for, before + rows, daemon)
            if rows:
                # The first one includes the start of the daemon and the creation of the topic.
                latencies.append(1000 * (reader.arrived[version] - max(committed, began)))
    say_result(f"{reader.rows} records applied by key", reader.folded.values(), writer)
    say_latency(writer, "a consumer of committed records", latencies[1:])


@contextmanager
def _daemon(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "cdfd", "--log-level", "warning", "run", "-c", str(config)]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(12)
        finally:
            process.kill()


@dataclass(slots=True)
class _Reader:
    """A consumer that prints committed records, folds them by key, and notes their arrival times."""

    servers: str
    topic: str
    rows: int = 0
    folded: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    _more: Condition = field(default_factory=Condition)
    _stop: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def __enter__(self) -> _Reader:
        self._thread = Thread(target=self._read, name="cdfd-demo-reader", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_SECONDS)

    def wait_for(self, rows: int, daemon: subprocess.Popen[bytes]) -> None:
        """Wait until a number of rows is read. `SinkError` if none arrive, or if the daemon has ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._more:
            while self.rows < rows:
                self._more.wait(0.2)
                if daemon.poll() is not None:
                    raise SinkError(f"the daemon ended with {daemon.returncode}", hint="See its output above")
                if time.monotonic() > deadline:
                    raise SinkError(f"nothing was delivered for {PATIENCE_SECONDS:.0f} s")

    def _read(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self.servers.split(","),
            isolation_level="read_committed",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )
        try:
            partitions: set[int] = set()
            while not partitions and not self._stop.is_set():
                try:
                    partitions = consumer.partitions_for_topic(self.topic) or set()
                except KafkaError:
                    partitions = set()
                self._stop.wait(0.05)
            consumer.assign([TopicPartition(self.topic, partition) for partition in partitions])
            consumer.seek_to_beginning()
            while not self._stop.is_set():
                records = [record for records in consumer.poll(timeout_ms=50).values() for record in records]
                now = time.monotonic()
                for number, record in enumerate(records):
                    row = json.loads(record.value)
                    if number < SHOWN:
                        say(
                            f"{record.topic}-{record.partition}@{record.offset} {record.key.decode()} {record.value.decode()}"
                        )
                    elif number == SHOWN:
                        say(f"... and {len(records) - SHOWN} more")
                    self.arrived.setdefault(row[COMMIT_VERSION], now)
                    if row[CHANGE_TYPE] in ("insert", "update_postimage"):
                        self.folded[record.key] = row
                    elif row[CHANGE_TYPE] == "delete":
                        self.folded.pop(record.key, None)
                with self._more:
                    self.rows += len(records)
                    self._more.notify_all()
        finally:
            consumer.close()
