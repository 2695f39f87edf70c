"""Rows a second of the JSON encoder: one core, then two threads.

python bench/json_rows.py [ROWS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa

from cdfd.encode.debezium import DebeziumEncoder
from cdfd.encode.json import LineEncoder
from cdfd.encode.records import Origin

ROUNDS = 9


def orders(rows: int, *, nulls: bool = False, prices: bool = True) -> pa.RecordBatch:
    """Eight columns of a table and the four of its changes."""
    random = np.random.default_rng(7)
    mask = random.random(rows) < 0.1 if nulls else None
    amounts = random.integers(1, 10**7, rows)
    kinds = random.integers(0, 4, rows).astype(np.int8)
    names = pa.array(["insert", "update_preimage", "update_postimage", "delete"])
    times = 1_767_225_600_000_000 + random.integers(0, 30 * 86_400 * 10**6, rows)
    cents = pa.array([Decimal(int(amount)).scaleb(-2) for amount in amounts], pa.decimal128(12, 2), mask=mask)
    columns = {
        "order_id": pa.array(random.integers(0, 10**9, rows)),
        "customer_id": pa.array(random.integers(0, 10**7, rows), mask=mask),
        "weight": pa.array(amounts / 100 if prices else random.random(rows), mask=mask),
        "city": pa.array([f"city {n % 997}" for n in amounts], mask=mask),
        "comment": pa.array([f"a comment of some length, {n}" for n in amounts], mask=mask),
        "ordered_at": pa.array(times, pa.timestamp("us", "UTC"), mask=mask),
        "amount": cents,
        "quantity": pa.array(random.integers(1, 100, rows).astype(np.int32), mask=mask),
        "_change_type": pa.DictionaryArray.from_arrays(pa.array(kinds), names),
        "_commit_version": pa.array(np.full(rows, 4711)),
        "_commit_timestamp": pa.array(np.full(rows, 1_767_225_600_123), pa.timestamp("ms", "UTC")),
        "_change_ordinal": pa.array(np.arange(rows)),
    }
    return pa.record_batch(columns)


def best(work: Callable[[], object], rows: int) -> float:
    """Rows per second in the best of a few rounds."""
    shortest = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        shortest = min(shortest, time.perf_counter() - start)
    return rows / shortest


def threaded(work: Callable[[], object], rows: int, threads: int = 2, repeats: int = 4) -> float:
    """Rows per second of threads that do the same work on their own."""
    with ThreadPoolExecutor(threads) as pool:
        return best(lambda: list(pool.map(lambda _: work(), range(threads * repeats))), rows * threads * repeats)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 65_536
    batches = {
        "prices, no nulls": orders(rows),
        "prices, 10 % nulls": orders(rows, nulls=True),
        "doubles of 17 digits": orders(rows, prices=False),
    }
    print(f"{'batch of ' + str(rows) + ' rows':32}{'1 thread':>14}{'2 threads':>14}   rows/s")
    for name, batch in batches.items():
        encoder = LineEncoder()
        report(f"{name} ({len(encoder(batch)) // rows} bytes)", partial(encoder, batch), rows)
    batch = batches["prices, no nulls"]
    report("debezium", lambda: DebeziumEncoder(Origin("shop", "orders", "", "orders")).lines(batch), rows)


def report(name: str, work: Callable[[], object], rows: int) -> None:
    print(f"{name:32}{best(work, rows):14,.0f}{threaded(work, rows):14,.0f}")


if __name__ == "__main__":
    main()
