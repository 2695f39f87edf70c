"""A daemon under pressure: one huge version, one topic that refuses, one store that throttles, and many tables that must not notice.

`make overnight ONLY=chaos` runs 100 busy tables beside a version of two million rows. `CDFD_BACKLOG_TABLES`,
`CDFD_BACKLOG_ROWS` and `CDFD_BACKLOG_PERIOD` (seconds between commits of a table) set more.
"""

import asyncio
import os
import random
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient

from cdfd.demo.writer import TableWriter
from tests.support.kafka.broker import Broker
from tests.support.kafka.daemon_process import Daemon, configure, until
from tests.support.kafka.history import Location
from tests.support.kafka.node import free_ports
from tests.support.lake import SCHEMA, rows
from tests.support.s3.fixtures import bucket, moto_server, proxy
from tests.support.s3.proxy import Fault, Proxy
from tests.support.s3.server import Server, s3_section

__all__ = ["bucket", "moto_server", "proxy"]

TABLES = int(os.environ.get("CDFD_BACKLOG_TABLES", "100"))
ROWS = int(os.environ.get("CDFD_BACKLOG_ROWS", "2000000"))
ROWS_OF_A_FILE = 2_000_000
PERIOD = float(os.environ.get("CDFD_BACKLOG_PERIOD", "20"))
"""Seconds between two commits of a busy table."""
P99_SECONDS = 2.0
START_SECONDS = 900.0
CALM_SECONDS = 30.0
START_LOOK_SECONDS = 5.0
SCRAPE_SECONDS = 15.0
"""Between two scrapes, as Prometheus has it. Each takes a millisecond for each table, and the tables would notice more of them."""
POLL = {"interval": "1s", "max_interval": "5s"}
"""The defaults. Other tests poll more often, which costs hundreds of tables more than their commits do."""
OUTAGE_SECONDS = 20.0
PROBE_SECONDS = 5.0
PRESSURE_SECONDS = 60.0
"""Shortest time under pressure; a version of many rows takes longer."""


class Beside(threading.Thread):
    """Work beside that of the test, until the block ends. `run` ends once `_ends` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self._ends = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.set()
        self.join()


class Meter(Beside):
    """Samples the resident memory of a process each second.

    Attributes:
        samples: in MiB.
    """

    def __init__(self, pid: int) -> None:
        super().__init__("meter")
        self.samples: list[float] = []
        self._pid = pid

    def run(self) -> None:
        while not self._ends.wait(1.0):
            match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self._pid}/status").read_text())
            self.samples.append(int(match[1]) / 1024 if match else 0.0)


class Busy(Beside):
    """Commits to each of many tables once in `PERIOD`, evenly spread.

    Attributes:
        commits: so far.
    """

    def __init__(self, writers: list[TableWriter]) -> None:
        super().__init__("busy writers")
        self.commits = 0
        self._writers = writers

    def run(self) -> None:
        began = time.monotonic()
        while not self._ends.wait(max(0.0, began + self.commits * PERIOD / len(self._writers) - time.monotonic())):
            writer = self._writers[self.commits % len(self._writers)]
            writer._files.clear()  # it would keep all rows
            asyncio.run(writer.insert(rows(self.commits)))
            self.commits += 1


def created(place: Location) -> TableWriter:
    writer = TableWriter(place.storage(), SCHEMA)
    asyncio.run(writer.create())
    return writer


async def commit_huge(writer: TableWriter, count: int) -> int:
    """One version of so many rows, in files of two million."""
    actions = []
    for first in range(0, count, ROWS_OF_A_FILE):
        ids = np.arange(first, min(count, first + ROWS_OF_A_FILE))
        table = pa.table({"id": ids, "v": pa.array(ids % 1000).cast(pa.string())}, schema=SCHEMA)
        actions.append(await writer._add(table))
        writer._files.clear()
    return await writer.commit("WRITE", actions)


@contextmanager
def refusing(broker: Broker, topic: str) -> Iterator[None]:
    """A topic that takes no record, however small."""
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        configs = {"max.message.bytes": "64"}
        new = {"num_partitions": 1, "replication_factor": 1, "configs": configs}
        admin.create_topics({topic: new}, wait_for_metadata=True)
    yield


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def values(text: str, name: str, tables: str) -> dict[tuple[str, str], float]:
    """Samples of a metric of tables whose names begin so, by table and by the label `le`."""
    buckets = {}
    for line in re.findall(rf"^{name}{{.*$", text, re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if labels["table"].startswith(tables):
            buckets[labels["table"], labels.get("le", "")] = float(line.rpartition(" ")[2])
    return buckets


def quantile(before: str, after: str, share: float) -> float:
    """A quantile of the seconds from commit to delivery of the busy tables, as Prometheus interpolates it."""
    name = "cdfd_commit_to_delivery_seconds_bucket"
    earlier, later = values(before, name, "busy"), values(after, name, "busy")
    counts: dict[float, float] = {}
    for key, value in later.items():
        counts[float(key[1])] = counts.get(float(key[1]), 0.0) + value - earlier.get(key, 0.0)
    wanted = share * counts[float("inf")]
    assert wanted > 0
    low, below = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= wanted:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    raise AssertionError("the last bucket has all")


def delivered(port: int, table: str) -> float | None:
    """The version that a table is delivered up to; None: there is none yet."""
    return values(scrape(port), "cdfd_delivered_version", table).get((table, ""))


def at_tip(port: int) -> int:
    """Busy tables that are at the tip."""
    try:
        text = scrape(port)
    except OSError:
        return 0
    lines = re.findall(r"^cdfd_table_state{.*} 1\.0$", text, re.MULTILINE)
    return sum('state="at_tip"' in line and 'table="busy' in line for line in lines)


@pytest.fixture
def lonely(needs_broker: None) -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def test_many_tables_do_not_notice_a_backlog_of_three_others(
    lonely: Broker, moto_server: Server, bucket: str, proxy: Proxy, tmp_path: Path, name: str
) -> None:
    (port,) = free_ports(1)
    options = {key: str(value) for key, value in moto_server.options().items()}
    writers = [created(Location(str(tmp_path / f"busy{number:03}"))) for number in range(TABLES)]
    huge, refused = created(Location(str(tmp_path / "huge"))), created(Location(str(tmp_path / "refused")))
    throttled = created(Location(f"s3://{bucket}/lake/throttled", options))
    uris = [str(tmp_path / f"busy{number:03}") for number in range(TABLES)]
    uris += [str(tmp_path / "huge"), str(tmp_path / "refused"), f"s3://{bucket}/lake/throttled"]
    s3 = s3_section(proxy.url)
    config = configure(
        tmp_path,
        name,
        lonely.bootstrap_servers,
        [{"uri": uri, "start": "earliest"} for uri in uris],
        http={"listen": f"127.0.0.1:{port}"},
        storage={"s3": s3 | {"deadline": "5s"}},
        poll=POLL,
        sink={"topics": {"prefix": f"{name}.", "partitions": 1}},
    )
    throttle = Fault("answer", 10**9, 503, "SlowDown", concerns=lambda _: random.random() < 0.7)
    with refusing(lonely, f"{name}.refused"), Daemon(config) as daemon:
        until(lambda: at_tip(port) == TABLES, START_SECONDS, every=START_LOOK_SECONDS)
        with Busy(writers) as busy, Meter(daemon.pid) as meter:
            start = scrape(port)
            time.sleep(CALM_SECONDS)
            calm = scrape(port)
            proxy.faults = [throttle]
            asyncio.run(refused.insert(rows(1)))
            for number in range(5):
                asyncio.run(throttled.insert(rows(number)))
            resting = len(meter.samples)
            asyncio.run(commit_huge(huge, ROWS))
            began = time.monotonic()
            until(lambda: delivered(port, "huge") == 1, 3600, every=SCRAPE_SECONDS)
            took = time.monotonic() - began
            time.sleep(max(0.0, PRESSURE_SECONDS - took))
            after = scrape(port)
            commits = busy.commits
        proxy.faults = []
        p50, p99, calm_p99 = quantile(calm, after, 0.5), quantile(calm, after, 0.99), quantile(start, calm, 0.99)
        pressed = meter.samples[resting:]
        half = len(pressed) // 2
        before, first, second = max(meter.samples[:resting]), max(pressed[:half]), max(pressed[half:])
        print(f"\n{TABLES} busy tables, {commits} commits; a version of {ROWS:,} rows in {took:.0f} s")
        print(f"p50 {p50:.3f} s, p99 {p99:.3f} s; p99 before the pressure {calm_p99:.3f} s")
        print(f"memory {before:.0f} MiB before the pressure, {first:.0f} and {second:.0f} MiB in its halves")
        assert daemon.wait_for("is too large")["table"] == "refused"
        assert throttle.times < 10**9 - 20, "the store throttled nothing"
        # Those of the last moment may be under way.
        assert sum(values(after, "cdfd_commits_total", "busy").values()) >= commits - TABLES
        assert p99 < P99_SECONDS
        assert second < first + 50
        until(lambda: delivered(port, "throttled") == 5)
        daemon.stop()


def test_many_tables_survive_the_loss_of_their_broker(lonely: Broker, tmp_path: Path, name: str) -> None:
    (port,) = free_ports(1)
    folders = [str(tmp_path / f"busy{number:03}") for number in range(TABLES)]
    writers = [created(Location(folder)) for folder in folders]
    config = configure(
        tmp_path,
        name,
        lonely.bootstrap_servers,
        [{"uri": folder, "start": "earliest"} for folder in folders],
        http={"listen": f"127.0.0.1:{port}"},
        sink={"topics": {"prefix": f"{name}.", "partitions": 1}},
        poll=POLL,
    )
    with Daemon(config) as daemon:
        until(lambda: at_tip(port) == TABLES, START_SECONDS, every=START_LOOK_SECONDS)
        for busy in (False, True):
            before = processor_seconds(daemon.pid)
            lonely.kill()
            with Busy(writers) if busy else nullcontext():
                probe(port, OUTAGE_SECONDS)
            cores = (processor_seconds(daemon.pid) - before) / OUTAGE_SECONDS
            lonely.start()
            began = time.monotonic()
            until(lambda: at_tip(port) == TABLES, START_SECONDS, every=1.0)
            print(
                f"\n{TABLES} tables without a broker: {cores:.2f} cores; at the tip {time.monotonic() - began:.0f} s after its return"
            )
        lonely.kill()
        probe(port, OUTAGE_SECONDS)
        began = time.monotonic()
        daemon.stop()
        print(f"ended within {time.monotonic() - began:.1f} s")


def probe(port: int, seconds: float) -> None:
    """Ask each second whether the process lives. Kubernetes kills one whose probes time out."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1.0)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PROBE_SECONDS) as answer:
            assert answer.status == 200


def processor_seconds(pid: int) -> float:
    """Processor time that a process has taken."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
