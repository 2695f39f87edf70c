"""Many tables in one daemon: the cost of idle tables, and the delivery of busy tables next to them.

`python -m bench.many` starts a broker, writes the tables, and runs a daemon that discovers them. It writes its section of `bench/README.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bench.processes import cpu_seconds
from bench.results import write
from bench.run import machine
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.kafka.broker import Broker

ROOT = Path(__file__).parents[1]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
START_SECONDS = 900.0
SETTLE_SECONDS = 90.0
"""Rest before the measurement: threads and connections that are not needed end within it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of a process at one moment: seconds of all cores, MB of resident memory, threads and TCP connections."""

    at: float
    cpu: float
    rss_mb: float
    threads: int
    connections: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
        rss = re.search(r"VmRSS:\s+(\d+)", status)
        assert rss is not None
        return cls(time.monotonic(), cpu_seconds(pid), int(rss[1]) / 1024, int(fields[17]), _connections(pid))


def _connections(pid: int) -> int:
    """Established TCP connections."""
    own = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(entry.path)
        except OSError:
            continue
        if link.startswith("socket:"):
            own.add(link[8:-1])
    connections = 0
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            connections += fields[3] == "01" and fields[9] in own
    return connections


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": list(ids), "v": [f"value {each}" for each in ids]}, schema=SCHEMA)


async def create(lake: Path, count: int) -> list[TableWriter]:
    writers = [TableWriter(LocalStorage(lake / f"t{number:04}", sync=False), SCHEMA) for number in range(count)]
    for writer in writers:
        await writer.create()
        await writer.insert(rows(0, 10))
    return writers


@contextmanager
def daemon(folder: Path, servers: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    config = folder / "many.yaml"
    config.write_text(
        json.dumps(
            {
                "pipeline": f"many-{os.getpid()}",
                "tables": [{"discover": f"{folder}/lake/*", "key": ["id"]}],
                "sink": {"kind": "kafka", "bootstrap_servers": servers, "topics": {"partitions": 1}},
                "progress": {"ledger": str(folder / "ledger")},
                "http": {"listen": f"127.0.0.1:{port}"},
            }
        )
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cdfd", "run", "-c", config], stdout=log, stderr=log, cwd=ROOT
        )
    try:
        yield process
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def total(text: str, name: str) -> float:
    """The sum of a metric over its series."""
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    )


def wait_until(port: int, count: int) -> float:
    """Wait until so many tables are at the tip; seconds."""
    began = time.monotonic()
    while time.monotonic() - began < START_SECONDS:
        time.sleep(1)
        try:
            text = metrics(port)
        except OSError:
            continue
        at_tip = sum('state="at_tip"' in line and line.endswith(" 1.0") for line in text.splitlines())
        if at_tip >= count:
            return time.monotonic() - began
    raise SystemExit(f"not all {count} tables are at the tip after {START_SECONDS:g} s")


async def commit(writers: Sequence[TableWriter], seconds: float) -> int:
    """Each table gets a commit of ten rows a second; the number of commits."""
    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        start = time.monotonic()
        for writer in writers:
            await writer.insert(rows(count, 10))
            count += 1
        await asyncio.sleep(max(0.0, 1 - (time.monotonic() - start)))
    return count


def quantile(text: str, before: str, share: float) -> float:
    """An upper bound of a quantile of the time from commit to delivery, from the buckets of the histogram."""
    name = "cdfd_commit_to_delivery_seconds_bucket"

    def buckets(of: str) -> dict[str, float]:
        figures: dict[str, float] = {}
        for line in of.splitlines():
            if line.startswith(name):
                bound = re.search(r'le="([^"]+)"', line)
                assert bound is not None
                figures[bound[1]] = figures.get(bound[1], 0) + float(line.rpartition(" ")[2])
        return figures

    now, then = buckets(text), buckets(before)
    counts = {bound: count - then.get(bound, 0) for bound, count in now.items()}
    wanted = share * counts["+Inf"]
    return min(float(bound) for bound, count in counts.items() if count >= wanted)


def measure(tables: int, busy: int, seconds: float) -> list[str]:
    port = 19_464
    with tempfile.TemporaryDirectory(prefix="cdfd-many-") as name, Broker() as broker:
        folder = Path(name)
        writers = asyncio.run(create(folder / "lake", tables))
        with daemon(folder, broker.bootstrap_servers, port) as process:
            start = wait_until(port, tables)
            started = Usage.of(process.pid)
            time.sleep(SETTLE_SECONDS)
            first = Usage.of(process.pid)
            time.sleep(seconds)
            last = Usage.of(process.pid)
            before = metrics(port)
            loaded = Usage.of(process.pid)
            commits = asyncio.run(commit(writers[:busy], seconds))
            deadline = time.monotonic() + 60
            while total(metrics(port), "cdfd_lag_versions") and time.monotonic() < deadline:
                time.sleep(0.2)
            after, end = metrics(port), Usage.of(process.pid)
    idle = (last.cpu - first.cpu) / (last.at - first.at)
    load = (end.cpu - loaded.cpu) / (end.at - loaded.at)
    delivered = total(after, "cdfd_commits_total") - total(before, "cdfd_commits_total")
    return [
        "| what | figure |",
        "|---|---|",
        f"| {tables} tables: from the start of the process until all are at the tip | {start:.0f} s, {started.cpu:.0f} s of processor time |",
        f"| {tables} idle tables: processor time | {100 * idle:.1f} % of one core |",
        f"| {tables} idle tables: resident memory | {last.rss_mb:.0f} MB |",
        f"| {tables} idle tables: threads | {last.threads} |",
        f"| {tables} idle tables: connections to the broker | {last.connections} |",
        f"| {busy} busy tables among them: commits delivered | {delivered:.0f} of {commits}, {commits / seconds:.0f} a second |",
        f"| {busy} busy tables: processor time | {100 * load:.0f} % of one core |",
        f"| {busy} busy tables: commit to delivery | p50 ≤ {quantile(after, before, 0.5):g} s, p99 ≤ {quantile(after, before, 0.99):g} s |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--busy", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dry", action="store_true", help="print the figures only")
    options = parser.parse_args()
    lines = measure(options.tables, options.busy, options.seconds)
    print("\n".join(lines))
    if not options.dry:
        command = f"python -m bench.many --tables {options.tables} --busy {options.busy} --seconds {options.seconds:g}"
        write("many tables", f"`{command}`: {machine()}.", lines)


if __name__ == "__main__":
    main()
