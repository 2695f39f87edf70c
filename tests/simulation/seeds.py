"""Many seeds, on several cores."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.run import simulate

CHUNK = 25
Bad = tuple[int, list[str]]
"""A seed, and what it violated."""


def _run(seeds: Sequence[int]) -> tuple[list[Bad], Counter[str]]:
    logging.disable(logging.CRITICAL)
    bad, counts = [], Counter[str]()
    for seed in seeds:
        outcome = simulate(seed)
        counts += outcome.counts
        if outcome.violations:
            bad.append((seed, outcome.violations))
    return bad, counts


def results(seeds: range, jobs: int) -> Iterator[tuple[list[Bad], Counter[str]]]:
    """What came of the seeds, chunk by chunk."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(_run, chunks)


def many(seeds: range, jobs: int) -> int:
    """Run them, print what they violated and what there was; the exit code."""
    began, failed, counts = time.perf_counter(), 0, Counter[str]()
    for bad, some in results(seeds, jobs):
        counts += some
        failed += len(bad)
        for seed, violations in bad:
            print(f"seed {seed}: {violations[0]}", flush=True)
    seconds = time.perf_counter() - began
    for name, count in sorted(counts.items()):
        print(f"  {name:<40} {count:>9,}")
    print(f"{len(seeds):,} seeds in {seconds:.1f} s, {len(seeds) / seconds:.0f} a second; {failed} with violations")
    return 1 if failed else 0
