"""Change rows of every table of the set: cdfd, delta-rs, and pyarrow decoding the same columns of the same files.

`python -m bench.changes` takes a process for each table, in which all readers read it in turn: three rounds after one that does not count.
`--quick` takes fewer tables, and one round.

Ratios are the peer's seconds by ours, so that more is better. CPU seconds are those of all threads, user and system.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from bench.table_set import TABLES, BenchTable

ROOT = Path(__file__).parents[1]
CORES = 2
QUICK = ("large-file", "rs-updates", "spark-updates", "files-10k", "wide", "nested", "deletion-vectors", "snappy")

Measured = dict[str, float]
Work = Callable[[], int]


def cdfd_batches(table: BenchTable) -> Work:
    """cdfd, batch by batch."""
    import cdfd

    read, path = cdfd.changes, table.path()
    return lambda: sum(len(batch) for batch in read(path, 0, columns=table.columns))


def cdfd_table(table: BenchTable) -> Work:
    """cdfd, into one table."""
    import cdfd

    read, path = cdfd.changes, table.path()
    return lambda: len(read(path, 0, columns=table.columns).read_all())


def load_cdf(table: BenchTable) -> Work:
    """delta-rs, into one table."""
    import pyarrow as pa
    from deltalake import DeltaTable

    path, columns = table.path(), None if table.columns is None else list(table.columns)
    return lambda: len(pa.table(DeltaTable(path).load_cdf(0, columns=columns)))


def load_cdf_batches(table: BenchTable) -> Work:
    """delta-rs, batch by batch."""
    import pyarrow as pa
    from deltalake import DeltaTable

    path, columns = table.path(), None if table.columns is None else list(table.columns)

    def rows() -> int:
        feed = DeltaTable(path).load_cdf(0, columns=columns)
        return sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(feed))

    return rows


def pyarrow_files(table: BenchTable) -> Work:
    """pyarrow, decoding each file once a version, on two threads. Nothing is kept."""
    return _decoding(table, keep=False)


def pyarrow_table(table: BenchTable) -> Work:
    """The same, and everything is kept."""
    return _decoding(table, keep=True)


def _decoding(table: BenchTable, *, keep: bool) -> Work:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(CORES)
    files = _files(table)
    # Columns of a single file side by side; otherwise files side by side.
    alone = len(files) < CORES

    def decoded(file: tuple[str, list[str]]) -> Any:
        path, columns = file
        rows_of_file = pq.ParquetFile(path).read(columns=columns, use_threads=alone)
        return rows_of_file if keep else rows_of_file.num_rows

    def rows() -> int:
        with ThreadPoolExecutor(CORES) as pool:
            decodings = list(pool.map(decoded, files))
        return sum(each.num_rows if keep else each for each in decodings)

    return rows


def _files(table: BenchTable) -> list[tuple[str, list[str]]]:
    """The files that the versions of a table read, each once a version, with the columns to read of them."""
    import asyncio

    import pyarrow.parquet as pq

    from cdfd.log.stream import PlanStream
    from cdfd.log.table import Table
    from cdfd.scan.projection import Projections

    source = Table.open(table.path())
    projections, columns_of_files = Projections(), []

    async def plans() -> list[Any]:
        stream: PlanStream = source.stream()
        newest = (await source.log.header()).version
        with source.tailer(replacements=True) as tailer:
            return [version.plan async for version in stream.versions(tailer, 0, newest)]

    columns_by_schema: dict[Any, Any] = {}
    for plan in asyncio.run(plans()):
        for path, kind in {scan.path: scan.change_type for scan in plan.scans}.items():
            schema = plan.schema if table.columns is None else plan.schema.select(table.columns)
            file = f"{table.path()}/{path}"
            key = kind is None, plan.schema.names
            if key not in columns_by_schema:
                columns_by_schema[key] = projections.of(schema, pq.read_schema(file)).names(kind)
            columns_of_files.append((file, columns_by_schema[key]))
    return columns_of_files


READERS: dict[str, Callable[[BenchTable], Work]] = {
    reader.__name__: reader
    for reader in (cdfd_batches, load_cdf_batches, pyarrow_files, cdfd_table, load_cdf, pyarrow_table)
}


def measure(work: Work) -> Measured:
    start, cpu = time.perf_counter(), time.process_time()
    count = work()
    return {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu, "rows": count}


def rounds_of(table: BenchTable, rounds: int, names: Iterable[str]) -> dict[str, list[Measured]]:
    """Measurements of each reader in this process, taken in turn: one list for each, empty where delta-rs cannot read the table."""
    from deltalake.exceptions import DeltaError

    works = {name: READERS[name](table) for name in names}
    taken: dict[str, list[Measured]] = {name: [] for name in works}
    # The first round fills caches, and does not count.
    for round_ in range(rounds + 1):
        for name, work in list(works.items()):
            try:
                cost = measure(work)
            except (DeltaError, ValueError):
                if not name.startswith("load_cdf"):
                    raise
                del works[name]
                continue
            if round_:
                taken[name].append(cost)
    return taken


def compare(table: BenchTable, rounds: int, names: Iterable[str]) -> dict[str, list[Measured]]:
    """The same in a process of its own."""
    table.path()
    command = [sys.executable, "-m", "bench.changes", "measure", table.name, str(rounds), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    taken: dict[str, list[Measured]] = json.loads(done.stdout.splitlines()[-1])
    rows = {int(each["rows"]) for name in taken if not name.startswith("pyarrow") for each in taken[name]}
    if len(rows) > 1:
        raise SystemExit(f"{table.name}: not the same rows: {rows}")
    return taken


Pair = tuple[str, str, str]
PAIRS: tuple[Pair, ...] = (
    ("batches / pyarrow", "cdfd_batches", "pyarrow_files"),
    ("table / pyarrow", "cdfd_table", "pyarrow_table"),
    ("batches / load_cdf", "cdfd_batches", "load_cdf_batches"),
    ("table / load_cdf", "cdfd_table", "load_cdf"),
)


def ratios(taken: dict[str, list[Measured]], ours: str, peer: str, clock: str) -> list[float]:
    """The peer's seconds by ours, round by round."""
    return [theirs[clock] / mine[clock] for mine, theirs in zip(taken[ours], taken[peer], strict=False)]


def lines(tables: Sequence[BenchTable], rounds: int, pairs: Sequence[Pair]) -> Iterator[str]:
    """A row for each table: for each pair the median ratio of the wall and of CPU, and the worst of both."""
    yield f"| table | rows | seconds, CPU | {' | '.join(f'{name}: wall, CPU' for name, *_ in pairs)} |"
    yield f"|---|---|---|{'---|' * len(pairs)}"
    readers = [name for name in READERS if any(name in pair for pair in pairs)]
    for table in tables:
        taken = compare(table, rounds, readers)
        ours = taken["cdfd_batches"]
        cells = [table.name, f"{ours[0]['rows'] / 1e6:.2f} M"]
        cells.append(f"{median(each['wall'] for each in ours):.2f}, {median(each['cpu'] for each in ours):.2f}")
        for _, mine, peer in pairs:
            wall, cpu = (ratios(taken, mine, peer, clock) for clock in ("wall", "cpu"))
            cells.append(f"{_with_worst(wall)}, {_with_worst(cpu)}" if wall else "cannot read it")
        yield f"| {' | '.join(cells)} |"


def _with_worst(speeds: Sequence[float]) -> str:
    return f"{median(speeds):.2f}" if len(speeds) == 1 else f"{median(speeds):.2f} ({min(speeds):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.changes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tables, one round, batch by batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=[])
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    settings = parser.parse_args()
    names = settings.only or (QUICK if settings.quick else TABLES)
    pairs = [pair for pair in PAIRS if pair[1] == "cdfd_batches"] if settings.quick else PAIRS
    load, results = os.getloadavg()[0], []
    for line in lines([TABLES[name] for name in names], 1 if settings.quick else settings.rounds, pairs):
        print(line, flush=True)
        results.append(line)
    if settings.write:
        from bench.results import write
        from bench.run import machine

        command = " ".join(sys.argv[1:])
        preface = f"`python -m bench.changes {command}`: medians of {settings.rounds} rounds, and the worst in parentheses, on {machine()}."
        write("every table", f"{preface} The load was {load:.1f} before and {os.getloadavg()[0]:.1f} after.", results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(rounds_of(TABLES[sys.argv[2]], int(sys.argv[3]), sys.argv[4:])))
    else:
        main()
