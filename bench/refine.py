"""The cost of refinement: `python -m bench.refine [--rows 10000000]`. Each figure is the best of `--runs` (3) processes.

| figure | how it is measured |
|---|---|
| rows of the table per second, `refine: rows` | an update of 1 % of the rows rewrites all files; the time until its change rows are read |
| the same, `refine: key` | all columns of all rows are compared |
| peak memory | of the process that reads them |
| append only | reading 400 small versions with `refine: auto`, divided by reading them with `off`; the median of pairs of runs |
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 10
ROW_ID, ROW_VERSION = "_row-id", "_row-commit-version"
FIELDS = [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (
        ("id", "long"),
        ("account", "long"),
        ("amount", "double"),
        ("status", "string"),
        ("at", "timestamp"),
    )
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--read", nargs=2, metavar=("TABLE", "REFINE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(*options.read)
        return
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder:
        table, appended = Path(folder, "updated"), Path(folder, "appended")
        update(table, options.rows)
        for refine in ("off", "rows", "key"):
            runs = [measure(table, refine) for _ in range(options.runs)]
            best = min(runs, key=lambda run: run["seconds"])
            processor = min(run["processor"] for run in runs)
            memory = max(run["memory"] for run in runs) >> 20
            speed = options.rows / best["seconds"] / 1e6
            took = f"{best['seconds']:.2f} s ({processor:.2f} s of processor time)"
            print(
                f"refine {refine}: {best['rows']} change rows in {took}, {speed:.1f} M rows/s, {memory} MiB", flush=True
            )
        appends(appended, 400)
        # Processor time: other work on the machine disturbs it less.
        ratios = [measure(appended, "auto")["processor"] / measure(appended, "off")["processor"] for _ in range(9)]
        print(f"append only, auto / off: {median(ratios):.3f}")


def measure(table: Path, refine: str) -> dict[str, Any]:
    """Seconds, rows and peak memory of reading a table's last versions in a process."""
    command = [sys.executable, "-m", "bench.refine", "--read", str(table), refine]
    figures: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return figures


def read(table: str, refine: str) -> None:
    import cdfd

    began, processor = time.perf_counter(), time.process_time()
    reader = cdfd.changes(table, 2, refine=refine, key="id")  # type: ignore[arg-type]
    rows = sum(batch.num_rows for batch in reader)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"seconds": seconds, "processor": processor, "rows": rows, "memory": peak}))


def update(folder: Path, rows: int) -> None:
    """A table of `rows` rows in ten files, and an update of one row in a hundred that rewrites them all."""
    begin(folder)
    count, chance = rows // FILES, np.random.default_rng(1)
    old = [
        added(folder, f"a{number}", part(number * count, count, chance), number * count, 1) for number in range(FILES)
    ]
    commit(folder, 1, [{"add": add} for add in old])
    new = []
    for number, add in enumerate(old):
        table = pq.read_table(folder / add["path"])
        changed = chance.random(count) < 0.01
        amounts = np.where(changed, -1.0, table["amount"].to_numpy())
        table = table.set_column(2, "amount", pa.array(amounts))
        table = table.append_column(ROW_ID, pa.array(np.arange(number * count, (number + 1) * count)))
        table = table.append_column(ROW_VERSION, pa.array(np.ones(count, np.int64), mask=changed))
        new.append(added(folder, f"b{number}", table, rows + number * count, 2))
    removed = [{name: value for name, value in add.items() if name != "modificationTime"} for add in old]
    commit(folder, 2, [{"remove": each | {"deletionTimestamp": 1}} for each in removed] + [{"add": add} for add in new])


def appends(folder: Path, versions: int) -> None:
    begin(folder)
    for version in range(1, versions + 1):
        rows = part(version * 100, 100, np.random.default_rng(version))
        commit(folder, version, [{"add": added(folder, f"a{version}", rows, version * 100, version)}])


def begin(folder: Path) -> None:
    (folder / "_delta_log").mkdir(parents=True)
    features = ["rowTracking", "domainMetadata"]
    configuration = {
        "delta.enableRowTracking": "true",
        "delta.rowTracking.materializedRowIdColumnName": ROW_ID,
        "delta.rowTracking.materializedRowCommitVersionColumnName": ROW_VERSION,
    }
    metadata = {
        "id": folder.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": orjson.dumps({"type": "struct", "fields": FIELDS}).decode(),
        "partitionColumns": [],
        "configuration": configuration,
    }
    commit(
        folder,
        0,
        [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}},
            {"metaData": metadata},
        ],
    )


def part(first: int, count: int, chance: np.random.Generator) -> pa.Table:
    statuses = pa.DictionaryArray.from_arrays(
        pa.array(chance.integers(0, 3, count, np.int32)), ["new", "paid", "shipped"]
    )
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "account": chance.integers(0, 1_000_000, count),
            "amount": chance.random(count),
            "status": statuses.cast(pa.string()),
            "at": pa.array(chance.integers(0, 2**50, count)).cast(pa.timestamp("us", "UTC")),
        }
    )


def added(folder: Path, name: str, rows: pa.Table, base: int, version: int) -> dict[str, Any]:
    path = f"{name}.parquet"
    pq.write_table(rows, folder / path, row_group_size=1 << 20)
    size = (folder / path).stat().st_size
    ids = {"baseRowId": base, "defaultRowCommitVersion": version}
    return {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True} | ids


def commit(folder: Path, version: int, actions: list[dict[str, Any]]) -> None:
    (folder / "_delta_log" / f"{version:020}.json").write_bytes(b"\n".join(map(orjson.dumps, actions)))


if __name__ == "__main__":
    main()
