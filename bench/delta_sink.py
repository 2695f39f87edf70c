"""Change rows to a Delta table: the sink, and delta-rs writing the same batches with the same compression.

python -m bench.delta_sink [--rows 2000000] [--runs 5]
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from deltalake import WriterProperties, write_deltalake

from cdfd.model.columns import VersionColumns, constant_type
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.storage.local import LocalStorage

BATCH = 65_536
FILE_BYTES = 64 << 20


def batches(rows: int) -> list[pa.RecordBatch]:
    """Orders: two numbers, a price, a time and two strings, one of which repeats."""
    random = np.random.default_rng(5)
    words = [f"comment {number} of a customer" for number in random.integers(0, 10**6, 5000)]
    batches = []
    version = VersionColumns(7, 1_767_225_600_000)
    for first in range(0, rows, BATCH):
        count = min(BATCH, rows - first)
        columns = {
            "order_id": pa.array(np.arange(first, first + count)),
            "customer": pa.array(random.integers(0, 10**6, count)),
            "amount": pa.array(random.random(count)),
            "at": pa.array(np.arange(first, first + count) * 1_000_003, pa.timestamp("us", "UTC")),
            "city": pa.array([f"city{number}" for number in random.integers(0, 500, count)]),
            "comment": pa.array([words[number] for number in random.integers(0, len(words), count)]),
            "_change_type": constant_type("insert", count),
        }
        batches.append(version.complete(pa.record_batch(columns), first))
    return batches


def ours(folder: Path, rows: Sequence[pa.RecordBatch]) -> None:
    """One delivery of all rows."""

    async def deliver() -> None:
        target = Target(LocalStorage(folder), "cdfd/bench/orders", Layout(), SystemClock())
        sink = await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=FILE_BYTES))
        delivery = await sink.begin(Position("T", 0))
        for batch in rows:
            await delivery.write(batch)
        await delivery.commit(Position("T", 1))

    asyncio.run(deliver())


def delta_rs(folder: Path, rows: Sequence[pa.RecordBatch]) -> None:
    """One append of all rows."""
    reader = pa.RecordBatchReader.from_batches(rows[0].schema, rows)
    properties = WriterProperties(compression="SNAPPY")
    write_deltalake(folder, reader, mode="append", writer_properties=properties, target_file_size=FILE_BYTES)


def cost_of(
    write: Callable[[Path, Sequence[pa.RecordBatch]], None], rows: Sequence[pa.RecordBatch]
) -> tuple[float, float]:
    """Wall and processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        wall, processor = time.perf_counter(), time.process_time()
        write(Path(folder) / "t", rows)
        cost = time.perf_counter() - wall, time.process_time() - processor
        shutil.rmtree(folder, ignore_errors=True)
    return cost


def main() -> None:
    """Print rows a second, and the ratios of each pair of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    rows = batches(options.rows)
    pairs = [(cost_of(ours, rows), cost_of(delta_rs, rows)) for _ in range(options.runs)]
    for name, number in (("sink", 0), ("delta-rs", 1)):
        wall, processor = median(pair[number][0] for pair in pairs), median(pair[number][1] for pair in pairs)
        print(f"{name:10} {options.rows / wall:12,.0f} rows/s {options.rows / processor:12,.0f} rows per CPU second")
    for what, place in (("wall", 0), ("CPU", 1)):
        ratios = sorted(other[place] / own[place] for own, other in pairs)
        print(f"ratio, {what}: median {median(ratios):.2f}, worst {ratios[0]:.2f}")


if __name__ == "__main__":
    main()
