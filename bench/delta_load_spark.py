"""A first load into Delta tables by Spark's executors, and by the daemon alone, in turn.

    python -m bench.delta_load_spark [--rows 5000000] [--runs 3]

A changelog and a mirror, from the snapshot of a table of eight columns until the target has its rows. Spark has two cores, and its session is
warm after the first pair, which is left out. A ratio is the daemon's seconds by the executors': more is better for the executors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, cast

from deltalake import DeltaTable, write_deltalake

from bench import tables
from bench.refine_spark import JAVA
from cdfd.config.settings import Settings
from cdfd.spark.engine.engine import SparkEngine
from cdfd.spark.engine.sessions import Sessions
from tests.support.kafka.delivering import run_loop
from tests.support.spark.session import Borrowed, session

if TYPE_CHECKING:
    from cdfd.deliver.assignment import Engine

FILES = 10
PART_BYTES = 16 << 20


def main() -> None:
    """Print the rows a second of each pair of loads, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    conf = {"spark.driver.extraJavaOptions": JAVA, "spark.driver.memory": "4g"}
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder, session(2, conf) as spark:
        source, each = Path(folder) / "rows", options.rows // FILES
        for number in range(FILES):
            write_deltalake(source, tables.orders(number * each, each), mode="append")
        engine = SparkEngine(cast(Sessions, Borrowed(spark)))
        for mode in ("changelog", "mirror"):
            load = partial(load_rows, source, Path(folder), mode, each * FILES)
            pairs = [(load(None), load(engine)) for _ in range(options.runs + 1)][1:]
            for daemon, executors in pairs:
                print(f"{mode}: daemon {daemon:,.0f} rows/s, executors {executors:,.0f} rows/s")
            ratios = sorted(executors / daemon for daemon, executors in pairs)
            print(
                f"{mode}: median {median(ratios):.2f}, worst {ratios[0]:.2f}, load of the machine {os.getloadavg()[0]:.0f}",
                flush=True,
            )


def load_rows(source: Path, folder: Path, mode: str, rows: int, engine: Engine | None) -> float:
    """Load a new target; rows a second.

    Raises:
        SystemExit: it has other rows.
    """
    targets = folder / "targets"
    config = {
        "pipeline": "bench",
        "tables": [{"uri": str(source), "name": "rows", "start": "snapshot", "key": ["id"]}],
        "sink": {"kind": "delta", "path": str(targets), "mode": mode},
        "progress": {"ledger": "none"},
        "engine": {
            "kind": "embedded" if engine is None else "auto",
            "spark": {"threshold": 1, "part_size": PART_BYTES},
        },
        "http": {"listen": None},
    }
    began = time.perf_counter()
    asyncio.run(run_loop(Settings.model_validate(config), FILES - 1, engine))
    seconds = time.perf_counter() - began
    count = sum(DeltaTable(targets / "rows").get_add_actions(flatten=True)["num_records"].to_pylist())
    if count != rows:
        raise SystemExit(f"the target has {count} rows, not {rows}")
    shutil.rmtree(targets)
    return rows / seconds


if __name__ == "__main__":
    main()
