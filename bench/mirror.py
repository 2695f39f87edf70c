"""A mirror in a Delta table: updates of 1 % of the keys a commit, against `merge` of delta-rs; memory; and the time to a readable version.

python -m bench.mirror [--rows 20000000] [--commits 3]     the sink and delta-rs in turn, from the same first load
python -m bench.mirror --memory 50000000                   the index of so many keys, and updates: peak memory of the process
python -m bench.mirror --latency 100                       from a commit in the source to one in the target, through a daemon's loop
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from cdfd.demo.writer import TableWriter
from cdfd.model.columns import VersionColumns, constant_type
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.log_actions import mirror_mode
from cdfd.sinks.delta.mirror.sink import MirrorSink
from cdfd.sinks.delta.mirror.state import MirrorOptions
from cdfd.sinks.delta.target import Layout, Target
from cdfd.storage.local import LocalStorage

BATCH = 65_536
FILE_BYTES = 64 << 20
Numbers = npt.NDArray[np.int64]


def rows(ids: Numbers, amount: int) -> pa.RecordBatch:
    """Rows with these keys. `amount` tells updates apart."""
    return pa.record_batch(
        {
            "order_id": pa.array(ids),
            "customer": pa.array(ids * 7919 % 1_000_003),
            "amount": pa.array(np.full(len(ids), amount)),
            "at": pa.array(ids * 1_000_003, pa.timestamp("us", "UTC")),
            "city": pa.array(np.char.add("city", (ids % 500).astype(str))),
        }
    )


def loaded(count: int) -> Iterator[pa.RecordBatch]:
    """The rows of the first load."""
    for first in range(0, count, BATCH):
        yield rows(np.arange(first, min(count, first + BATCH)), 0)


def changes(version: int, kind: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Change rows."""
    return VersionColumns(version, 1_767_225_600_000).complete(
        batch.append_column("_change_type", constant_type(kind, batch.num_rows)), 0
    )


async def open_mirror(folder: Path, spill: str | None = None) -> MirrorSink:
    """The sink, as the daemon opens it."""
    target = Target(
        LocalStorage(folder), "cdfd/bench/orders", Layout(mode=mirror_mode(change_feed=False)), SystemClock()
    )
    files = partial(DataFiles, compression="snappy", file_bytes=FILE_BYTES)
    return await MirrorSink.open(target, files, MirrorOptions(("order_id",), False, SpillSpace(spill)))


async def load(sink: MirrorSink, count: int) -> None:
    """Deliver the first load as a snapshot."""
    delivery = await sink.begin(Position("T", 0, phase="snapshot"))
    for batch in loaded(count):
        await delivery.write(changes(0, "insert", batch))
    await delivery.commit(Position("T", 1))


async def update(sink: MirrorSink, version: int, ids: Numbers) -> None:
    """Deliver a version that updates these keys."""
    delivery = await sink.begin(Position("T", version))
    for first in range(0, len(ids), BATCH):
        batch = ids[first : first + BATCH]
        await delivery.write(changes(version, "update_preimage", rows(batch, version - 1)))
        await delivery.write(changes(version, "update_postimage", rows(batch, version)))
    await delivery.commit(Position("T", version + 1))


def merge(folder: Path, version: int, ids: Numbers) -> None:
    """The same by delta-rs."""
    merger = DeltaTable(folder).merge(
        rows(ids, version), "target.order_id = source.order_id", source_alias="source", target_alias="target"
    )
    merger.when_matched_update_all().execute()


def cost_since(began: tuple[float, float]) -> tuple[float, float]:
    """Wall and processor seconds since then."""
    return time.perf_counter() - began[0], time.process_time() - began[1]


def begun() -> tuple[float, float]:
    """Now."""
    return time.perf_counter(), time.process_time()


async def speed(count: int, commits: int) -> None:
    """Print seconds of each commit, and the ratios."""
    random = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        mine, theirs = Path(folder) / "mirror", Path(folder) / "delta-rs"
        sink = await open_mirror(mine)
        now = begun()
        await load(sink, count)
        print("first load: {:.1f} s, {:.1f} s of processor".format(*cost_since(now)))
        write_deltalake(theirs, pa.RecordBatchReader.from_batches(rows(np.arange(1), 0).schema, loaded(count)))
        now = begun()
        await update(sink, 1, np.arange(1))
        print("first update, which reads the keys: {:.1f} s, {:.1f} s of processor".format(*cost_since(now)))
        pairs = []
        for version in range(2, commits + 2):
            ids = np.sort(random.choice(count, count // 100, replace=False))
            now = begun()
            await update(sink, version, ids)
            own = cost_since(now)
            now = begun()
            await asyncio.to_thread(merge, theirs, version, ids)
            pairs.append((own, cost_since(now)))
            print(
                "commit: mirror {:.2f} s ({:.2f}), delta-rs {:.2f} s ({:.2f})".format(*own, *pairs[-1][1]), flush=True
            )
        for what, place in (("wall", 0), ("CPU", 1)):
            ratios = sorted(other[place] / own[place] for own, other in pairs)
            print(f"ratio, {what}: median {median(ratios):.2f}, worst {ratios[0]:.2f}")


def peak() -> float:
    """Peak memory of the process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def memory(count: int) -> None:
    """Print the peak memory of a process that only updates; another one has written the first load."""
    random = np.random.default_rng(4)
    folder = tempfile.mkdtemp()
    try:
        subprocess.run([sys.executable, "-m", "bench.mirror", "--load", str(count), "--into", folder], check=True)
        sink = await open_mirror(Path(folder) / "mirror", folder)
        print(f"before: {peak():.0f} MB")
        now = begun()
        await update(sink, 1, np.arange(1))
        print(
            "index of {:,} keys: {:.1f} s, {:.1f} s of processor, peak {:.0f} MB".format(
                count, *cost_since(now), peak()
            )
        )
        for version in range(2, 5):
            now = begun()
            await update(sink, version, np.sort(random.choice(count, count // 100, replace=False)))
            print("1 % of the keys: {:.2f} s, {:.2f} s of processor, peak {:.0f} MB".format(*cost_since(now), peak()))
    finally:
        shutil.rmtree(folder)


async def latency(rounds: int, mode: str) -> None:
    """Print the time from a commit in the source to the entry in the target's log, with a daemon between."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = TableWriter(LocalStorage(folder / "orders"), pa.schema([("id", pa.int64()), ("v", pa.string())]))
        await writer.create()
        await writer.insert(pa.table({"id": np.arange(10_000), "v": ["a"] * 10_000}))
        tables = [{"uri": str(folder / "orders"), "key": ["id"], "start": "snapshot"}]
        sink = {"kind": "delta", "path": str(folder / "copies"), "mode": mode}
        config = {"pipeline": "bench", "tables": tables, "sink": sink, "http": {"listen": None}}
        (folder / "cdfd.yaml").write_text(json.dumps(config))
        daemon = subprocess.Popen(
            [sys.executable, "-m", "cdfd", "run", "-c", str(folder / "cdfd.yaml")], stderr=subprocess.DEVNULL
        )
        log, seconds = folder / "copies" / "orders" / "_delta_log", []
        try:
            for number in range(rounds + 3):
                while not log.exists():
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.5)
                before = len(list(log.glob("*.json")))
                await writer.update(pc.field("id") == number, {"v": pc.scalar(f"b{number}")})
                began = time.perf_counter()
                while not (log / f"{before:020}.json").exists():
                    await asyncio.sleep(0.001)
                seconds.append(time.perf_counter() - began)
        finally:
            daemon.terminate()
            daemon.wait()
        taken = sorted(seconds[3:])
        p50, p95, most = (1000 * taken[int(part * (len(taken) - 1))] for part in (0.5, 0.95, 1.0))
        print(f"{mode}: p50 {p50:.0f} ms, p95 {p95:.0f} ms, most {most:.0f} ms")


async def only_load(count: int, folder: str) -> None:
    """Write a first load."""
    await load(await open_mirror(Path(folder) / "mirror"), count)


def main() -> None:
    """Print figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--commits", type=int, default=3)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--load", type=int)
    parser.add_argument("--latency", type=int)
    parser.add_argument("--into", default=os.getcwd())
    options = parser.parse_args()
    print("load of the machine:", *os.getloadavg())
    if options.load is not None:
        asyncio.run(only_load(options.load, options.into))
    elif options.latency is not None:
        for mode in ("mirror", "changelog"):
            asyncio.run(latency(options.latency, mode))
    elif options.memory is not None:
        asyncio.run(memory(options.memory))
    else:
        asyncio.run(speed(options.rows, options.commits))


if __name__ == "__main__":
    main()
