"""Kafka and a mirror in one daemon, against two daemons with a sink each: processor time, bytes read, and the time to deliver.

`python -m bench.several_sinks` starts a broker, writes a table, and measures a backlog and then a second of work at the tip, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.processes import cpu_seconds
from bench.tables import orders
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.kafka.broker import Broker

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all processes together: seconds of processor and MB read from files; seconds until everything was delivered."""

    cpu: float
    read_mb: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon, and its metrics."""

    process: subprocess.Popen[bytes]
    port: int

    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def read_mb(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("rchar:"))

    def delivered(self) -> list[float]:
        """The version that each sink has."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
                text: str = answer.read().decode()
        except OSError:
            return []
        return [
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("cdfd_delivered_version{")
        ]


@contextmanager
def daemon(folder: Path, name: str, sinks: Mapping[str, object], port: int) -> Iterator[Daemon]:
    config = folder / f"{name}.yaml"
    document = {
        "pipeline": f"bench-{uuid.uuid4().hex[:8]}",
        "tables": [{"uri": str(folder / "orders"), "key": ["id"], "start": "earliest"}],
        "progress": {"ledger": str(folder / f"{name}-ledger")},
        "http": {"listen": f"127.0.0.1:{port}"},
        **({"sinks": sinks} if len(sinks) > 1 else {"sink": next(iter(sinks.values()))}),
    }
    config.write_text(json.dumps(document))
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "cdfd", "run", "-c", config], stderr=log, cwd=ROOT)
    try:
        yield Daemon(process, port)
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def wait(daemons: Sequence[Daemon], version: int) -> None:
    """Wait until both sinks have a version."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        versions = [each for daemon in daemons for each in daemon.delivered()]
        if len(versions) == 2 and min(versions) >= version:
            return
        time.sleep(0.1)
    raise SystemExit("not delivered")


def measure(writer: TableWriter, folder: Path, servers: str, together: bool, tip: int) -> tuple[Cost, Cost]:
    """The costs of the backlog, and of `tip` commits at the tip."""
    run = folder / uuid.uuid4().hex[:8]
    run.mkdir()
    (run / "orders").symlink_to(folder / "orders")
    sinks = {
        "events": {
            "kind": "kafka",
            "bootstrap_servers": servers,
            "topics": {"prefix": f"{run.name}.", "partitions": 4},
        },
        "mirror": {"kind": "delta", "path": str(run / "copies"), "mode": "mirror", "compaction": False},
    }
    groups = [sinks] if together else [{name: sink} for name, sink in sinks.items()]
    with ExitStack() as stack:
        began = time.monotonic()
        daemons = [
            stack.enter_context(daemon(run, f"d{number}", group, 19460 + number)) for number, group in enumerate(groups)
        ]
        wait(daemons, writer.version)
        backlog = cost(daemons, began)
        before = cost(daemons, began)
        time.sleep(1)
        began = time.monotonic()
        for _ in range(tip):
            asyncio.run(writer.insert(orders(10_000_000 + 200 * writer.version, 200)))
            time.sleep(0.05)
        wait(daemons, writer.version)
        after = cost(daemons, began)
        return backlog, Cost(after.cpu - before.cpu, after.read_mb - before.read_mb, after.seconds)


def cost(daemons: Sequence[Daemon], began: float) -> Cost:
    cpu, read = sum(each.cpu() for each in daemons), sum(each.read_mb() for each in daemons)
    return Cost(cpu, read, time.monotonic() - began)


async def create(folder: Path, versions: int, rows: int) -> TableWriter:
    first = orders(0, rows)
    writer = TableWriter(LocalStorage(folder / "orders", sync=False), first.schema)
    await writer.create()
    for number in range(versions):
        await writer.insert(orders(number * rows, rows))
    return writer


def main() -> None:
    """Print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--tip", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as name:
        folder = Path(name)
        writer = asyncio.run(create(folder, options.versions, options.rows))
        with Broker() as broker:
            figures: dict[bool, list[tuple[Cost, Cost]]] = {True: [], False: []}
            for _ in range(options.runs):
                for together in (False, True):
                    figures[together].append(measure(writer, folder, broker.bootstrap_servers, together, options.tip))
                    print("one daemon " if together else "two daemons", *figures[together][-1], flush=True)
    for place, what in enumerate(("backlog", "tip")):
        for field in ("cpu", "read_mb", "seconds"):
            one, two = (median(getattr(run[place], field) for run in figures[each]) for each in (True, False))
            print(f"{what}, {field}: one daemon {one:.2f}, two daemons {two:.2f}, ratio {one / two:.2f}")


if __name__ == "__main__":
    main()
