"""Measures Trevni, ours and the peer's in turn, and writes the table into `bench/README.md`: `python -m bench.trevni`.

`--rows` rows of ten columns of numbers and strings, and a tenth of them of nested columns. `--dry` leaves the README as it is. Run it on a
quiet machine: the load is printed, and is in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

import cdfd.trevni as trevni
from bench.figure import HEADER, Figure
from bench.trevni import rows
from tests.trevni import reference

ROOT = Path(__file__).parents[2]
README = ROOT / "bench" / "README.md"
DATA = ROOT / "bench" / "data" / "trevni"
JAVA = "1.11.3"


def ours(name: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.trevni.probe", name, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def java(*command: object, heap: str = "3g") -> float:
    [answer] = reference.answers(JAVA, [command], [f"-Xmx{heap}"])
    return int(answer) / 1e9


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
    taken: dict[str, list[float]] = {}
    memory: list[float] = []
    for _ in range(runs):
        for name, seconds in (
            ("scan", ours("scan", flat)["seconds"]),
            ("java scan", java("scan", flat)),
            ("parquet", ours("parquet", parquet)["seconds"]),
            ("one column", ours("scan", flat, "amount")["seconds"]),
            ("write", ours("write", small, DATA / "out.trv")["seconds"]),
            ("java write", java("write", small, DATA / "out-java.trv")),
            ("nested", ours("scan", nested)["seconds"]),
            ("java nested", java("scan", nested)),
        ):
            taken.setdefault(name, []).append(seconds)
        if large_count:
            memory.append(ours("batches", large(large_count))["memory_mb"])
    t = {name: median(found) for name, found in taken.items()}
    with trevni.TrevniFile(flat) as file:
        stored = [int(file.blocks(number).stored.sum()) for number in range(10)]
    share = stored[file.metadata.number("amount")] / sum(stored)
    cost = t["one column"] / t["scan"]
    found = [
        _against("scan of all columns into Arrow", millions, "Java", t["scan"], t["java scan"], 5, 15),
        _against("the same", "same codec", "`pyarrow.parquet`", t["scan"], t["parquet"], 0.35, 0.7),
        Figure(f"one of ten columns ({share:.0%} of the bytes) against all", f"{t['one column']:.3f} s", "", cost, "×"),
        _against("write", f"{count / 1e7:g} M rows", "Java", t["write"], t["java write"], 3, 10),
        _against("arrays in arrays", f"{count / 1e7:g} M rows", "Java", t["nested"], t["java nested"], 3, 10),
    ]
    if memory:
        size = large(large_count).stat().st_size / 1e9
        name = f"memory above imports, scanning {size:.1f} GB batch by batch"
        found.append(Figure(name, f"{median(memory):.0f} MB", "", median(memory), " MB", 200, 100))
    return found


def _against(what: str, of: str, peer: str, own: float, other: float, target: float, moonshot: float) -> Figure:
    return Figure(
        f"{what} ({of})", f"{own:.2f} s", f"{other:.2f} s ({peer})", other / own, "×", target, moonshot, more=True
    )


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
    text = "\n".join([preface, "", *table])
    print(text)
    if not arguments.dry:
        page = README.read_text()
        pattern = r"(<!-- trevni: begin -->\n).*?(\n?<!-- trevni: end -->)"
        README.write_text(
            re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2].lstrip()}", page, flags=re.DOTALL)
        )


if __name__ == "__main__":
    main()
