"""One measurement in a process of its own: prints seconds and processor seconds, the least of three times, and peak memory beyond imports."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import pyarrow.parquet as pq

import cdfd.trevni as trevni
import cdfd.trevni.files.reading
import cdfd.trevni.files.writing  # noqa: F401 - what is imported late is not measured

TIMES = 3


def batches(path: str) -> None:
    with trevni.TrevniFile(path) as file:
        for _ in file.iter_batches():
            pass


def peak_mb() -> float:
    """Peak of resident memory. Unlike `ru_maxrss`, it does not begin with that of the parent."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def main() -> None:
    name, path, *arguments = sys.argv[1:]
    table = trevni.read_table(path) if name == "write" else None
    before = peak_mb()
    works: dict[str, Callable[[], object]] = {
        "scan": lambda: trevni.read_table(path, columns=arguments or None),
        "parquet": lambda: pq.read_table(path),
        "batches": lambda: batches(path),
        "write": lambda: trevni.write_table(table, arguments[0]),
    }
    best, cpu, work = float("inf"), float("inf"), works[name]
    for _ in range(1 if name == "batches" else TIMES):
        start, used = time.perf_counter(), time.process_time()
        work()
        best, cpu = min(best, time.perf_counter() - start), min(cpu, time.process_time() - used)
    print(json.dumps({"seconds": best, "cpu": cpu, "memory_mb": peak_mb() - before}))


if __name__ == "__main__":
    main()
