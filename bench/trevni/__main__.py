"""Measures Trevni, ours and the peer's in turn, and writes the table into `bench/README.md`: `python -m bench.trevni`.

`--rows` rows of ten columns of numbers and strings, and a tenth of them of nested columns. `--dry` leaves the README as it is. Run it on a
quiet machine: the load is printed, and is in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

import cdfd.trevni as trevni
from bench import results
from bench.figure import HEADER, Figure
from bench.trevni import rows
from bench.trevni.probe import TIMES
from tests.support.trevni import reference

ROOT = Path(__file__).parents[2]
DATA = ROOT / "bench" / "data" / "trevni"
JAVA = "1.11.3"


def ours(name: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.trevni.probe", name, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def java(*command: object, heap: str = "3g") -> dict[str, float]:
    """The least seconds of three times, and processor seconds of one: those of the process without its start and end."""
    answers, cpu = _with_cpu([command], heap)
    _, start = _with_cpu([], heap)
    preparation = 0.0
    if command[0] == "write":
        # It reads the rows before it writes them.
        preparation = (_with_cpu([("scan", command[1])], heap)[1] - start) / TIMES
    return {"seconds": int(answers[0]) / 1e9, "cpu": (cpu - start - preparation) / TIMES}


def _with_cpu(commands: list[tuple[object, ...]], heap: str) -> tuple[list[str], float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answers = reference.answers(JAVA, commands, [f"-Xmx{heap}"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return answers, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def written(count: int) -> tuple[Path, Path, Path, Path]:
    """Rows as Trevni and as Parquet, fewer rows to write, and nested ones."""
    DATA.mkdir(parents=True, exist_ok=True)
    flat, parquet, small, nested = (
        DATA / f"{name}-{count}" for name in ("flat.trv", "parquet", "small.trv", "nested.trv")
    )
    if not flat.exists():
        table = rows.flat(count)
        trevni.write_table(table, flat)
        pq.write_table(table, parquet, compression="snappy")
        trevni.write_table(table.slice(0, count // 10), small)
        trevni.write_table(rows.nested(count // 10), nested)
    return flat, parquet, small, nested


def large(count: int) -> Path:
    """A file of about 2 GB, written batch by batch."""
    path = DATA / f"large-{count}.trv"
    if not path.exists():
        part = rows.flat(1_000_000)
        with trevni.TrevniWriter(path, part.schema, codec="null") as writer:
            for start in range(0, count, part.num_rows):
                writer.write_table(part.slice(0, min(part.num_rows, count - start)))
    return path


def figures(count: int, large_count: int, runs: int) -> list[Figure]:
    flat, parquet, small, nested = written(count)
    millions = f"{count / 1e6:g} M rows"
    taken: dict[str, list[dict[str, float]]] = {}
    memory: list[float] = []
    for _ in range(runs):
        for name, figure in (
            ("scan", ours("scan", flat)),
            ("java scan", java("scan", flat)),
            ("parquet", ours("parquet", parquet)),
            ("one column", ours("scan", flat, "amount")),
            ("write", ours("write", small, DATA / "out.trv")),
            ("java write", java("write", small, DATA / "out-java.trv")),
            ("nested", ours("scan", nested)),
            ("java nested", java("scan", nested)),
        ):
            taken.setdefault(name, []).append(figure)
        if large_count:
            memory.append(ours("batches", large(large_count))["memory_mb"])
    with trevni.TrevniFile(flat) as file:
        stored = {
            column.name: int(file.blocks(number).stored.sum()) for number, column in enumerate(file.metadata.columns)
        }
    share = stored["amount"] / sum(stored.values())
    one, all_ = (median(each["cpu"] for each in taken[name]) for name in ("one column", "scan"))
    tenth = f"{count / 1e7:g} M rows"
    figures = []
    for unit in ("seconds", "cpu"):
        t = {name: [each[unit] for each in measured] for name, measured in taken.items()}
        figures += [
            _against("scan of all columns into Arrow", millions, unit, "Java", t["scan"], t["java scan"], 5, 15),
            _against("the same", "same codec", unit, "`pyarrow.parquet`", t["scan"], t["parquet"], 0.35, 0.7),
            _against("write", tenth, unit, "Java", t["write"], t["java write"], 3, 10),
            _against("arrays in arrays", tenth, unit, "Java", t["nested"], t["java nested"], 3, 10),
        ]
    figures.append(
        Figure(
            f"one of ten columns ({share:.0%} of the bytes) against all, processor time",
            f"{one:.3f} s",
            "",
            one / all_,
            "×",
        )
    )
    if memory:
        size = large(large_count).stat().st_size / 1e9
        name = f"memory above imports, scanning {size:.1f} GB batch by batch"
        figures.append(Figure(name, f"{median(memory):.0f} MB", "", median(memory), " MB", 200, 100))
    return figures


def _against(
    what: str, of: str, unit: str, peer: str, own: list[float], other: list[float], target: float, moonshot: float
) -> Figure:
    """The median of the runs' ratios. The worst one is in the line, too."""
    ratios = [theirs / mine for mine, theirs in zip(own, other, strict=True)]
    name = f"{what} ({of}){', processor time' if unit == 'cpu' else ''}"
    ours_, theirs_ = f"{median(own):.3f} s", f"{median(other):.3f} s ({peer}); worst {min(ratios):.2f}×"
    return Figure(name, ours_, theirs_, median(ratios), "×", target, moonshot, more=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--large", type=int, default=30_000_000, help="rows of the large file; 0 for none")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    table = [*HEADER, *(figure.line() for figure in figures(arguments.rows, arguments.large, arguments.runs))]
    preface = (
        f"`python -m bench.trevni --runs {arguments.runs}`: medians of {arguments.runs} runs on {os.cpu_count()} cores, "
        f"pyarrow {pa.__version__}, trevni-core {JAVA}. Load of the machine before {before:.1f}, at the end {os.getloadavg()[0]:.1f}."
    )
    print("\n".join([preface, "", *table]))
    if not arguments.dry:
        results.write("trevni", preface, table)


if __name__ == "__main__":
    main()
