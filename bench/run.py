"""Measures everything that has a target, ours and the peer's in turn, and writes the tables into `bench/README.md`.

`python -m bench.run` runs all of it; `--only changes list` some, `--only kafka` those that deliver to Kafka, `--only spark` those on Spark,
`--only spark-cluster` those on a cluster of it; `--runs 9` more often; `--dry` leaves the README as it is. Every measurement is a process of
its own (on Spark, a session); the first round (page cache, warm-up) does not count; figures are medians.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from bench import results, tables
from bench.delivery.figures import DELIVERY
from bench.delivery.spark import versions
from bench.figure import HEADER, Figure
from bench.latency import COMMITS, commit_to_row_ms
from bench.processes import CDFD, alternating, bare_mb, probe, process, python
from bench.spark.cluster import SPARK_CLUSTER
from bench.spark.figures import SPARK, spark

DELTA_RS = "import pyarrow as pa, deltalake; TABLE = deltalake.DeltaTable(URI)"
PACKAGES = ("pyarrow", "numpy", "orjson", "deltalake", "kafka-python")


def change_rows(runs: int) -> Iterator[Figure]:
    uri = tables.changes_table()
    for where, pool in (("", None), (", memory by `ARROW_DEFAULT_MEMORY_POOL=jemalloc`", "jemalloc")):
        environment = {} if pool is None else {"ARROW_DEFAULT_MEMORY_POOL": pool}
        figures = alternating(
            runs,
            ours=partial(probe, "changes_cdfd", uri, **environment),
            peer=partial(probe, "changes_delta_rs", uri, **environment),
        )
        ours, peer = (figures[who]["count"] / figures[who]["seconds"] / 1e6 for who in ("ours", "peer"))
        if figures["ours"]["count"] != figures["peer"]["count"]:
            raise SystemExit(f"not the same rows: {figures}")
        name = f"change rows into Arrow ({figures['ours']['count'] / 1e6:.2f} M rows){where}"
        yield Figure(name, f"{ours:.2f} M/s", f"{peer:.2f} M/s (`load_cdf`)", ours / peer, "×", 1.0, 1.2, more=True)


def first_call(runs: int) -> Iterator[Figure]:
    uri = tables.changes_table()
    figures = alternating(
        runs,
        ours=partial(python, "import cdfd; sum(map(len, cdfd.changes(URI)))", uri),
        peer=partial(python, f"{DELTA_RS}; sum(map(len, pa.RecordBatchReader.from_stream(TABLE.load_cdf())))", uri),
    )
    ours, peer = figures["ours"]["seconds"], figures["peer"]["seconds"]
    name = "the first read of a process, with its start and imports, batch by batch (3.23 M rows)"
    yield Figure(name, f"{ours:.2f} s", f"{peer:.2f} s (`load_cdf`)", peer / ours, "×", 0.8, 1.0, more=True)


def json_lines(runs: int) -> Iterator[Figure]:
    uri = tables.changes_table()
    output = tables.DATA / "tail.jsonl"
    command = [*CDFD, "tail", uri, "--from", "0", "--until", "now", "-o", str(output), "--overwrite"]
    figures = alternating(runs, ours=lambda: process(*command))["ours"]
    with output.open("rb") as lines:
        rows = sum(1 for _ in lines)
    size = output.stat().st_size / 1e6
    output.unlink()
    rate = rows / figures["seconds"] / 1e6
    name = f"change rows as JSON lines, process start included ({rows / 1e6:.2f} M rows, {size:.0f} MB)"
    yield Figure(name, f"{rate:.2f} M/s", "", rate, " M/s", 0.6, 1.5, more=True)


def list_files(runs: int) -> Iterator[Figure]:
    uri = tables.many_files(tables.MILLIONS_OF_FILES)
    figures = alternating(
        runs,
        ours=lambda: probe("list_cdfd", uri),
        file_uris=lambda: probe("list_delta_rs_uris", uri),
        get_add_actions=lambda: probe("list_delta_rs_actions", uri),
    )
    if len({measured["count"] for measured in figures.values()}) != 1:
        raise SystemExit(f"not the same files: {figures}")
    ours = figures.pop("ours")
    memory = "peak memory above imports"
    for field, unit, places, what in (("seconds", "s", 2, "time"), ("memory_mb", "MB", 0, memory)):
        best = min(measured[field] for measured in figures.values())
        peers = ", ".join(f"{measured[field]:,.{places}f} {unit} (`{name}`)" for name, measured in figures.items())
        name = f"open a table of 1 M live files and list them: {what}"
        yield Figure(name, f"{ours[field]:,.{places}f} {unit}", peers, ours[field] / best, "×", 1.0, 0.5)
    figures = alternating(
        runs,
        ours=partial(process, *CDFD, "inspect", uri),
        file_uris=partial(python, f"{DELTA_RS}; TABLE.file_uris()", uri),
        get_add_actions=partial(python, f"{DELTA_RS}; pa.table(TABLE.get_add_actions())", uri),
    )
    seconds = {who: measured["seconds"] for who, measured in figures.items()}
    ours, best = seconds["ours"], min(seconds["file_uris"], seconds["get_add_actions"])
    peers = f"{seconds['file_uris']:.2f} s (`file_uris`), {seconds['get_add_actions']:.2f} s (`get_add_actions`)"
    yield Figure("`cdfd inspect` of that table, the whole process", f"{ours:.2f} s", peers, ours / best, "×", 0.5, 0.3)


def resume(runs: int) -> Iterator[Figure]:
    uri = tables.many_files(tables.MILLIONS_OF_FILES)
    figures = alternating(runs, ours=lambda: probe("resume", uri, "13"))["ours"]
    ours = f"{figures['seconds'] * 1000:.1f} ms, {figures['read_mb']:.2f} MB read, {figures['memory_mb']:.0f} MB memory"
    name = "resume at a position to the first batch, 1 M live files, after imports"
    yield Figure(name, ours, "", figures["seconds"] * 1000, " ms", 50, 50)


def apply(runs: int) -> Iterator[Figure]:
    few, many = (tables.many_files(count) for count in (tables.FEW_FILES, tables.MILLIONS_OF_FILES))
    figures = alternating(runs, both=lambda: probe("apply", few, many))["both"]
    few_us, many_us = (figures[who] * 1e6 for who in ("few", "many"))
    ours = f"{many_us:.2f} µs at 1 M, {few_us:.2f} µs at 1 k"
    yield Figure(
        "one commit of one file applied: 1 M against 1 k live files", ours, "", many_us / few_us, "×", 1.2, 1.0
    )


def start_up(runs: int) -> Iterator[Figure]:
    figures = alternating(
        runs,
        module=lambda: process(sys.executable, "-c", "import cdfd"),
        reader=lambda: process(sys.executable, "-c", "import cdfd; cdfd.changes"),
        help=lambda: process(*CDFD, "--help"),
        bare=lambda: process(sys.executable, "-c", "pass"),
    )
    bare = f"{figures['bare']['seconds']:.3f} s (`python -c pass`)"
    for who, what in (("module", "`import cdfd`"), ("help", "`cdfd --help`")):
        seconds = figures[who]["seconds"]
        yield Figure(what, f"{seconds:.3f} s", bare, seconds, " s", 0.3, 0.15)
    seconds = figures["reader"]["seconds"]
    what = "the same with what the first `cdfd.changes` imports (Arrow, most of it)"
    yield Figure(what, f"{seconds:.3f} s", bare, seconds, " s")


def latency(runs: int) -> Iterator[Figure]:
    taken = sorted(ms for _ in range(max(1, runs // 3)) for ms in commit_to_row_ms(CDFD))
    p50, p99 = median(taken), quantiles(taken, n=100)[-1]
    name = f"commit file's appearance to row on standard output ({len(taken)} commits of one file; {COMMITS} a process)"
    yield Figure(name, f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", "", p50, " ms", 10, 5)


def s3(runs: int) -> Iterator[Figure]:
    # Imported here: it needs what only the development extras have.
    from bench.s3_rows import compare

    for figures in compare(min(runs, 3)):
        (ours, peer), (cpu, peer_cpu) = figures.rows, figures.cpu
        name = f"change rows from S3 into Arrow: {figures.what} (worst round {figures.worst:.2f}×)"
        yield Figure(
            name,
            f"{ours / 1e6:.2f} M/s, {cpu:.2f} s of CPU",
            f"{peer / 1e6:.2f} M/s, {peer_cpu:.2f} s (`load_cdf`)",
            ours / peer,
            "×",
            figures.target,
            more=True,
        )


def memory(runs: int) -> Iterator[Figure]:
    bare = bare_mb()
    for files in (20, 1):
        uri = tables.big_commit(files)
        tail = [*CDFD, "tail", uri, "--from", "0", "--until", "now", "-o", os.devnull]
        figures = alternating(
            min(runs, 5),
            tail=partial(process, *tail),
            changes=partial(probe, "changes_streamed", uri),
        )
        for who, what in (("tail", "`cdfd tail -o /dev/null`"), ("changes", "`cdfd.changes`, batch by batch")):
            peak = figures[who]["peak_mb"] - bare
            name = f"peak memory above a bare interpreter's, 5 M rows in {files} file{'s' * (files > 1)}: {what}"
            ours = f"{peak:.0f} MB, {figures[who]['seconds']:.1f} s"
            yield Figure(name, ours, f"{bare:.0f} MB (Python alone)", peak, " MB", 400, 250)
    uri = tables.long_strings()
    figures = alternating(min(runs, 5), changes=partial(probe, "first_changes", uri, "20000"))
    peak = figures["changes"]["peak_mb"] - bare
    name = "peak memory above a bare interpreter's, one file of 1 M rows, each a string of 1 MB from a dictionary: the first 20,000 rows"
    yield Figure(
        name,
        f"{peak:.0f} MB, {figures['changes']['seconds']:.1f} s",
        f"{bare:.0f} MB (Python alone)",
        peak,
        " MB",
        300,
        150,
    )


Benchmarks = Mapping[str, Callable[[int], Iterable[Figure]]]
Figures = Callable[[Sequence[str], int], Iterable[Figure]]
"""Figures of these names, of so many runs."""


READING: Benchmarks = {
    "changes": change_rows,
    "first": first_call,
    "json": json_lines,
    "list": list_files,
    "resume": resume,
    "apply": apply,
    "start": start_up,
    "latency": latency,
    "memory": memory,
}

STORE: Benchmarks = {"s3": s3}

GROUPS: Mapping[str, Iterable[str]] = {"s3": STORE, "kafka": DELIVERY, "spark": SPARK, "spark-cluster": SPARK_CLUSTER}


def of_each(benchmarks: Benchmarks) -> Figures:
    """The figures of benchmarks that have nothing in common."""
    return lambda names, runs: (figure for name in names for figure in benchmarks[name](runs))


def machine() -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    hardware = f"{len(os.sched_getaffinity(0))} cores ({cpu}), {ram:.0f} GB RAM"
    return f"{hardware}, Linux {platform.release()}, Python {platform.python_version()}, {versions}"


def measured(figures: Iterable[Figure]) -> list[str]:
    """The lines of a table, each said as soon as it is known."""
    lines = list(HEADER)
    print("\n".join(lines), flush=True)
    for figure in figures:
        lines.append(figure.line())
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=[*READING, *GROUPS, *DELIVERY, *SPARK, *SPARK_CLUSTER], default=[*READING, *GROUPS]
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print the tables, leave the README as it is")
    settings = parser.parse_args()
    asked = [each for name in settings.only for each in GROUPS.get(name, [name])]
    arguments = " ".join(sys.argv[1:])
    command = f"`python -m bench.run{' ' + arguments if arguments else ''}`"
    preface = f"{command}: medians of {settings.runs} runs on {machine()}, load {os.getloadavg()[0]:.1f} before"
    sections: Mapping[str, tuple[Iterable[str], Figures, bool]] = {
        "measured": (READING, of_each(READING), False),
        "from s3": (STORE, of_each(STORE), False),
        "delivered": (DELIVERY, of_each(DELIVERY), True),
        "on spark": (SPARK, spark, True),
        "on a cluster": (SPARK_CLUSTER, of_each(SPARK_CLUSTER), True),
    }
    for section, (benchmarks, figures, on_spark) in sections.items():
        if names := [name for name in benchmarks if name in asked]:
            lines = measured(figures(names, settings.runs))
            if not settings.dry:
                results.write(section, f"{preface}, {versions()}." if on_spark else f"{preface}.", lines)


if __name__ == "__main__":
    main()
