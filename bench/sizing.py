"""The costs of a daemon for each row, byte, version and table, by sink and form: the figures of `cdfd plan` and docs/sizing.md.

`python -m bench.sizing` starts a broker, runs a daemon for each sink and form, and writes `cdfd/daemon/sizing/costs.json`.
`python -m bench.sizing --check` runs a pipeline of many tables, and compares what `cdfd plan` says with what the daemon took.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from bench.many import Usage, metrics, total, wait_until
from bench.processes import peak_mb
from bench.run import machine
from bench.table_set import long_notes
from bench.tables import orders
from cdfd.daemon.sizing.estimate import Costs, SinkCosts
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.kafka.broker import Broker
from tests.support.kafka.node import free_ports
from tests.support.schema_registry import serving

ROOT = Path(__file__).parents[1]
COSTS = ROOT / "cdfd" / "daemon" / "sizing" / "costs.json"
SECONDS = 240.0
TABLES = 100
"""Tables at rest, for the memory and the processor time of one."""
REST_SECONDS = 20.0
SMALL_TABLES, SMALL_SECONDS = 20, 20
"""Tables that get a small version each second, and for how long."""
SHAPES: Mapping[str, tuple[Callable[[int, int], pa.Table], int]] = {
    "narrow": (lambda first, count: orders(first, count).select(["id", "amount"]), 1_000_000),
    "orders": (orders, 500_000),
    "wide": (lambda first, count: long_notes(first, count, 400), 100_000),
}
"""Rows of three widths, and how many of them a version has."""
VERSIONS = 3

FORMS: Mapping[str, Mapping[str, Any]] = {
    "kafka/json": {"kind": "kafka"},
    "kafka/debezium": {"kind": "kafka", "format": "debezium"},
    "kafka/avro": {"kind": "kafka", "format": "avro"},
    "files/jsonl": {"kind": "files"},
    "files/parquet": {"kind": "files", "format": "parquet"},
    "delta/changelog": {"kind": "delta"},
}


def calibration() -> float:
    """Processor seconds of a fixed piece of work, by which figures of another machine, or of another hour, can be compared."""
    document = {"id": 7, "name": "a name", "values": list(range(50))}

    def work() -> float:
        began = time.process_time()
        data = b"x" * (1 << 20)
        for _ in range(60):
            hashlib.blake2b(data).digest()
        for _ in range(40_000):
            orjson.loads(orjson.dumps(document))
        column = np.arange(2_000_000, dtype=np.int64)
        for _ in range(10):
            column = np.sort(column[::-1])
        return time.process_time() - began

    return median(work() for _ in range(5))


@dataclass
class Bench:
    """A lake of tables, and daemons that deliver them.

    Args:
        folder: an empty one.
        broker: of topics.
        registry: address of the schema registry.
    """

    folder: Path
    broker: Broker
    registry: str

    def __post_init__(self) -> None:
        (self.port,) = free_ports(1)

    def table(self, name: str, schema: pa.Schema) -> TableWriter:
        """A new table of the lake."""
        writer = TableWriter(LocalStorage(self.folder / "lake" / name, sync=False), schema)
        asyncio.run(writer.create())
        return writer

    def sink(self, form: str, run: str) -> dict[str, Any]:
        """The section of a sink."""
        section: dict[str, Any] = dict(FORMS[form])
        if section["kind"] != "kafka":
            return section | {"path": str(self.folder / f"out-{run}")}
        topics = {"prefix": f"{run}.", "partitions": 2}
        section |= {"bootstrap_servers": self.broker.bootstrap_servers, "topics": topics}
        return section | ({"schema_registry": {"url": self.registry}} if "avro" in form else {})

    def configure(self, form: str, run: str, start: str = "latest") -> Path:
        """The configuration of all tables of the lake."""
        path = self.folder / f"{run}.yaml"
        document = {
            "pipeline": run,
            "tables": [{"discover": f"{self.folder}/lake/*", "key": ["id"], "start": start}],
            "sink": self.sink(form, run),
            "progress": {"ledger": str(self.folder / f"ledger-{run}")},
            "http": {"listen": f"127.0.0.1:{self.port}"},
        }
        path.write_text(json.dumps(document))
        return path

    @contextmanager
    def daemon(self, config: Path, tables: int) -> Iterator[subprocess.Popen[bytes]]:
        """A daemon with all tables at the tip."""
        with config.with_suffix(".log").open("wb") as log:
            command = [sys.executable, "-m", "cdfd", "run", "-c", str(config)]
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        try:
            wait_until(self.port, tables)
            yield process
            process.terminate()
            process.wait(30)
        finally:
            process.kill()
            process.wait()

    def delivered(self, rows: float) -> None:
        """Return once so many rows are delivered."""
        deadline = time.monotonic() + SECONDS
        while total(metrics(self.port), "cdfd_rows_total") < rows:
            if time.monotonic() > deadline:
                raise SystemExit(f"not {rows:,.0f} rows within {SECONDS:g} s")
            time.sleep(0.1)

    def written(self, run: str) -> int:
        """Bytes of the topics or files of a run."""
        places = [*self.folder.glob(f"out-{run}"), *(self.broker.folder / "data").glob(f"{run}.*")]
        files = (file for place in places for file in place.rglob("*") if file.is_file())
        return sum(file.stat().st_size for file in files if file.suffix not in (".index", ".timeindex"))


def measure_form(bench: Bench, form: str) -> SinkCosts:
    """Large versions of rows of three widths, then small versions of many tables."""
    run = f"s{form.replace('/', '-')}-{os.getpid()}"
    large = {
        name: bench.table(f"{name}-{form.replace('/', '-')}", make(0, 1).schema) for name, (make, _) in SHAPES.items()
    }
    narrow = SHAPES["narrow"][0]
    small = [
        bench.table(f"small{number}-{form.replace('/', '-')}", narrow(0, 1).schema) for number in range(SMALL_TABLES)
    ]
    there = len(list((bench.folder / "lake").iterdir()))
    rows_of, bytes_of, seconds_of, written_of = [], [], [], []
    done = 0.0
    with bench.daemon(bench.configure(form, run), there) as process:
        time.sleep(3)
        resting = Usage.of(process.pid)
        for name, (make, count) in SHAPES.items():
            asyncio.run(large[name].insert(make(0, 1000)))  # the first delivery of a table imports and connects
            done += 1000
            bench.delivered(done)
            before, size, written = Usage.of(process.pid), 0, bench.written(run)
            for number in range(VERSIONS):
                asyncio.run(large[name].insert(make((number + 1) * count, count)))
                size += max(file.size for file in large[name]._files.values())
                done += count
                bench.delivered(done)
            seconds_of.append(Usage.of(process.pid).cpu - before.cpu)
            rows_of.append(VERSIONS * count)
            bytes_of.append(size)
            written_of.append(bench.written(run) - written)
        peak = peak_mb(process.pid)
        rest_cores = _cores(process.pid, 5.0)
        before = Usage.of(process.pid)
        count = 0
        for second in range(SMALL_SECONDS):
            start = time.monotonic()
            for writer in small:
                asyncio.run(writer.insert(narrow(second * 10, 10)))
                count += 1
            time.sleep(max(0.0, 1 - (time.monotonic() - start)))
        bench.delivered(done + 10 * count)
        after = Usage.of(process.pid)
    version_ms = ((after.cpu - before.cpu) - rest_cores * (after.at - before.at)) / count * 1e3
    row_seconds, byte_seconds = fit(rows_of, bytes_of, seconds_of)
    print(f"{form}: rows {rows_of}, bytes {bytes_of}, processor seconds {seconds_of}", flush=True)
    row_bytes, written_share = fit(rows_of, bytes_of, written_of)
    cores = measure_load(bench, form, there, done + 10 * count)
    return SinkCosts(
        round(row_seconds * 1e6, 4),
        round(byte_seconds * 1e9, 3),
        round(version_ms, 3),
        round(cores, 2),
        round(row_bytes, 1),
        round(written_share, 3),
        round(max(0.0, peak - resting.rss_mb) * 1.048576, 1),
    )


def measure_load(bench: Bench, form: str, tables: int, rows: float) -> float:
    """Cores that a daemon keeps busy while it delivers all tables from their beginning."""
    config = bench.configure(form, f"l{form.replace('/', '-')}-{os.getpid()}", "earliest")
    with config.with_suffix(".log").open("wb") as log:
        command = [sys.executable, "-m", "cdfd", "run", "-c", str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
    try:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError):
                if total(metrics(bench.port), "cdfd_rows_total"):
                    break
            time.sleep(0.02)
        before = Usage.of(process.pid)
        bench.delivered(rows)
        after = Usage.of(process.pid)
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    return (after.cpu - before.cpu) / (after.at - before.at)


def fit(rows: Sequence[float], sizes: Sequence[float], amounts: Sequence[float]) -> tuple[float, float]:
    """The shares of each row and of each byte that explain amounts best, relative to each; neither is negative."""
    weights = 1 / np.array(amounts)
    matrix = np.array([rows, sizes]).T * weights[:, None]
    both, *_ = np.linalg.lstsq(matrix, np.ones(len(amounts)), rcond=None)
    if min(both) < 0:
        kept = int(np.argmax(both))
        column = matrix[:, kept]
        both = np.zeros(2)
        both[kept] = column @ np.ones(len(amounts)) / (column @ column)
    return float(both[0]), float(both[1])


def _cores(pid: int, seconds: float) -> float:
    before = Usage.of(pid)
    time.sleep(seconds)
    after = Usage.of(pid)
    return (after.cpu - before.cpu) / (after.at - before.at)


def measure_rest(bench: Bench) -> tuple[float, float, float]:
    """MB of a daemon with one table, MB and cores of each further table, all at rest after one delivery to a topic."""
    schema = orders(0, 1).schema
    usages = []
    for count in (1, TABLES):
        writers = [bench.table(f"rest{count}-{number}", schema) for number in range(count)]
        there = len(list((bench.folder / "lake").iterdir()))
        with bench.daemon(bench.configure("kafka/json", f"rest{count}-{os.getpid()}"), there) as process:
            for writer in writers:
                asyncio.run(writer.insert(orders(0, 10)))
            bench.delivered(10 * count)
            time.sleep(REST_SECONDS)
            cores = _cores(process.pid, REST_SECONDS)
            usages.append((there, Usage.of(process.pid).rss_mb * 1.048576, cores))
    (few, base, first), (many, more, all_cores) = usages
    return base, (more - base) / (many - few), max(0.0, (all_cores - first) / (many - few))


def expansion() -> float:
    """Bytes of rows in memory for each byte of a data file."""
    import pyarrow.parquet as pq

    rows = orders(0, 200_000)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return float(round(rows.nbytes / sink.getvalue().size, 2))


@contextmanager
def bench() -> Iterator[Bench]:
    """A bench in a folder of its own."""
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="cdfd-sizing-"))
        registry = stack.enter_context(serving())
        broker = stack.enter_context(Broker())
        (Path(name) / "lake").mkdir()
        yield Bench(Path(name), broker, registry.url)


def measure(forms: Sequence[str]) -> Costs:
    """All costs."""
    pace = calibration()
    with bench() as first:
        base, table_mb, table_cores = measure_rest(first)
    sinks = {}
    for form in forms:
        with bench() as fresh:
            sinks[form] = measure_form(fresh, form)
    pace = median((pace, calibration(), calibration()))
    when = datetime.now(UTC).date().isoformat()
    said = f"measured on {when}: {machine()}"
    return Costs(sinks, round(base, 1), round(table_mb, 3), round(table_cores, 6), expansion(), said, round(pace, 4))


def check(tables: int = 20, seconds: int = 30) -> list[tuple[str, float, float]]:
    """The figures of `cdfd plan` for a pipeline of small and large versions, and what its daemon took: name, predicted, measured."""
    scale = calibration() / Costs.of(json.loads(COSTS.read_text())).calibration
    with bench() as lake:
        writers = [lake.table(f"t{number:03}", orders(0, 1).schema) for number in range(tables)]
        config = lake.configure("kafka/json", f"check-{os.getpid()}")
        with lake.daemon(config, tables) as process:
            for writer in writers:
                asyncio.run(writer.insert(orders(0, 10)))
            rows = 10.0 * tables
            lake.delivered(rows)
            before, counted = Usage.of(process.pid), metrics(lake.port)
            began = time.monotonic()
            for second in range(seconds):
                start = time.monotonic()
                for number, writer in enumerate(writers):
                    count = 200_000 if number == second % tables and second % 3 == 0 else 50
                    asyncio.run(writer.insert(orders(second * 1000, count)))
                    rows += count
                time.sleep(max(0.0, 1 - (time.monotonic() - start)))
            lake.delivered(rows)
            took, after, last = time.monotonic() - began, Usage.of(process.pid), metrics(lake.port)
            peak = peak_mb(process.pid) * 1.048576
        command = [sys.executable, "-m", "cdfd", "plan", "-c", str(config), "--json"]
        document = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=120).stdout)
    mean = document["total"]["mean"]
    costs = Costs.of(json.loads(COSTS.read_text()))
    # The first version of each table came before the measurement, and the command counts by the hour.
    sink = costs.sinks["kafka/json"]
    first_size = mean["size"] - sum_of(last, counted, "cdfd_bytes_read_total")
    work = sink.seconds(mean["versions"] - 2 * tables, mean["rows"] - 10 * tables, mean["size"] - max(first_size, 0))
    resting = costs.table_cores * tables * took
    return [
        # The daemon started after the version that creates a table.
        ("versions", mean["versions"] - tables, total(last, "cdfd_commits_total")),
        ("rows", mean["rows"], rows),
        ("bytes", mean["size"], total(last, "cdfd_bytes_read_total")),
        ("processor seconds", (work + resting) * scale, after.cpu - before.cpu),
        ("memory, MB", document["memory"] / 1e6, peak),
    ]


def sum_of(last: str, first: str, name: str) -> float:
    """The increase of a counter."""
    return total(last, name) - total(first, name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=__doc__)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--check", action="store_true", help="compare with a run instead")
    options = parser.parse_args()
    document: dict[str, Any] = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    if options.check:
        compared = check()
        for name, predicted, measured in compared:
            print(f"{name}: predicted {predicted:,.1f}, measured {measured:,.1f}, {predicted / measured - 1:+.0%}")
        document["check"] = {name: [round(predicted, 1), round(measured, 1)] for name, predicted, measured in compared}
    else:
        document |= asdict(measure(options.forms))
    COSTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
