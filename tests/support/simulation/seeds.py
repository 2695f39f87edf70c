"""Many seeds, on all cores: the same lines in the same order, whatever the number of processes."""

import logging
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import connection, get_context, parent_process

from tests.support.simulation.run import Outcome, simulate

CHUNK = 25
"""Seeds that a process runs at a time."""
DIED, INTERRUPTED = 2, 130
"""Exit codes."""
Run = Callable[[int], Outcome]
Results = tuple[list[tuple[int, str]], Counter[str]]
"""Seeds and the first thing that each of them violated; and what there was in all of them."""


def many(seeds: range, processes: int, run: Run = simulate) -> int:
    """Run them, print what they violated and what there was.

    Returns:
        The exit code: 1 where something was violated, `DIED` or `INTERRUPTED` where not all were run.
    """
    began, done, failed, counts, code = time.perf_counter(), 0, 0, Counter[str](), 0
    try:
        for violated, some in results(seeds, processes, run):
            done = min(done + CHUNK, len(seeds))
            counts += some
            failed += len(violated)
            for seed, what in violated:
                print(f"seed {seed}: {what}", flush=True)
    except BrokenProcessPool:
        print(f"a process died; seeds from {seeds[done]} on have no result", file=sys.stderr)
        code = DIED
    except KeyboardInterrupt:
        print(f"interrupted; seeds from {seeds[done]} on have no result", file=sys.stderr)
        code = INTERRUPTED
    for name, count in sorted(counts.items()):
        print(f"  {name:<40} {count:>9,}")
    print(f"{done:,} seeds, {failed} with violations")
    seconds, cpu = time.perf_counter() - began, _cpu_seconds()
    print(f"{seconds:.1f} s with {processes} processes, {cpu:.1f} s of CPU time, {done / seconds:.0f} seeds a second")
    return code or min(failed, 1)


def results(seeds: range, processes: int, run: Run = simulate) -> Iterator[Results]:
    """The results of the seeds, chunk by chunk, in order.

    Raises:
        BrokenProcessPool: a process died.
    """
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if processes == 1:
        yield from map(partial(_run, run), chunks)
        return
    # Not forked: a process has what it imports, and nothing of this one's.
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin) as pool:
        try:
            yield from pool.map(partial(_run, run), chunks)
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In each process: Ctrl-C is for the one that began them all; when that one is gone, so are they."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _run(run: Run, seeds: Sequence[int]) -> Results:
    violated, counts = [], Counter[str]()
    for seed in seeds:
        try:
            outcome = run(seed)
        except Exception as error:
            error.add_note(f"in seed {seed}")
            raise
        counts += outcome.counts
        if outcome.violations:
            violated.append((seed, outcome.violations[0]))
    return violated, counts


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
