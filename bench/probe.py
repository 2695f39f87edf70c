"""One measurement in a process of its own: `python -m bench.probe NAME ARGUMENTS`, one JSON object on standard output.

Each probe decides which modules it imports before the clock starts. `memory_mb` is the high-water mark of resident
memory above its value at that moment.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median

Measured = dict[str, float]


def high_water_mb() -> float:
    """Of this process since its start. Not `ru_maxrss`, which on Linux remembers the process that forked."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmHWM in /proc/self/status: the benchmarks need Linux")


def bytes_read() -> int:
    """Bytes that this process has requested from the system, cached or not."""
    return int(Path("/proc/self/io").read_text().split()[1])


def measure(work: Callable[[], int]) -> Measured:
    before = high_water_mb()
    read = bytes_read()
    start, cpu = time.perf_counter(), time.process_time()
    count = work()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = high_water_mb()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "count": count,
        "memory_mb": peak - before,
        "peak_mb": peak,
        "read_mb": (bytes_read() - read) / 2**20,
    }


def changes_cdfd(uri: str) -> Measured:
    import cdfd

    read = cdfd.changes
    return measure(lambda: len(read(uri, 0).read_all()))


def changes_delta_rs(uri: str) -> Measured:
    import pyarrow as pa
    from deltalake import DeltaTable

    return measure(lambda: len(pa.table(DeltaTable(uri).load_cdf(0))))


def changes_streamed(uri: str) -> Measured:
    import cdfd

    read = cdfd.changes
    return measure(lambda: sum(len(batch) for batch in read(uri, 0)))


def first_changes(uri: str, rows: str) -> Measured:
    import cdfd

    def read() -> int:
        count, batches = 0, cdfd.changes(uri, 0)
        while count < int(rows):
            count += len(next(batches))
        return count

    return measure(read)


def list_cdfd(uri: str) -> Measured:
    from bench.list_files import live_paths

    return measure(lambda: live_paths(uri))


def list_delta_rs_uris(uri: str) -> Measured:
    from deltalake import DeltaTable

    return measure(lambda: len(DeltaTable(uri).file_uris()))


def list_delta_rs_actions(uri: str) -> Measured:
    import pyarrow as pa
    from deltalake import DeltaTable

    return measure(lambda: len(pa.table(DeltaTable(uri).get_add_actions())))


def spark_plan(uri: str, how: str = "auto") -> Measured:
    """Partitions of a first snapshot, as Spark's driver has them planned by a Python process. `how`: which processes list the files."""
    from cdfd.spark.source.source import CdfdSource

    def planned() -> int:
        source = CdfdSource({"path": uri, "startingVersion": "snapshot", "snapshotPlanning": how})
        return len(source.reader(source.schema()).partitions())

    return measure(planned)


def resume(uri: str, version: str) -> Measured:
    """From a position to its first batch: the version adds one small file."""
    import cdfd

    import_module("pyarrow.compute")  # for the checkpoint: imports do not count

    follow = cdfd.follow

    async def first_batch() -> int:
        async for batch in follow(uri, int(version)):
            return len(batch)
        return 0

    return measure(lambda: asyncio.run(first_batch()))


def apply(few: str, many: str) -> Measured:
    """Applying a commit of one file to two tables in turn; the medians of two hundred that follow each other.

    In one process, because one may take half as long again as the next one, whatever the table.
    """
    from bench.tables import adds
    from cdfd.delta import commit as commits
    from cdfd.log.table import Table

    snapshots = {who: asyncio.run(Table.open(uri).log.snapshot()) for who, uri in (("few", few), ("many", many))}
    seconds: dict[str, list[float]] = {who: [] for who in snapshots}
    for add in adds(2_000_000, 200):
        for who, snapshot in snapshots.items():
            commit = commits.parse(snapshot.version + 1, json.dumps({"add": add}).encode())
            start = time.perf_counter()
            snapshots[who] = snapshot.apply(commit)
            seconds[who].append(time.perf_counter() - start)
    return {who: median(taken) for who, taken in seconds.items()}


PROBES: dict[str, Callable[..., Measured]] = {
    probe.__name__: probe
    for probe in (
        changes_cdfd,
        changes_delta_rs,
        changes_streamed,
        first_changes,
        list_cdfd,
        list_delta_rs_uris,
        list_delta_rs_actions,
        spark_plan,
        resume,
        apply,
    )
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](*sys.argv[2:])))
