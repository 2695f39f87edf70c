"""From a commit's appearance to its row on the standard output of `cdfd tail`."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO

import pyarrow as pa

from bench.tables import DATA, SEED, add_file, create, orders, write_commit

COMMITS = 150
WARM_UP = 20


def commit_to_row_ms(command: list[str], commits: int = COMMITS) -> list[float]:
    """Milliseconds from `link()` of each log entry to the moment its row has been read from the pipe."""
    path = DATA / f"latency-{os.getpid()}"
    shutil.rmtree(path, ignore_errors=True)
    create(path)
    try:
        with following([*command, "tail", str(path), "--from", "0"]) as rows:
            return [one_commit_ms(path, version, rows) for version in range(1, WARM_UP + commits + 1)][WARM_UP:]
    finally:
        shutil.rmtree(path)


def one_commit_ms(path: Path, version: int, rows: Queue[float]) -> float:
    """Commits one row; milliseconds until it is stamped, by `time.monotonic`."""
    pause(version)
    action = add_file(path, one_row(version))
    start = time.monotonic()
    write_commit(path, version, [action])
    try:
        return (rows.get(timeout=30) - start) * 1000
    except Empty:
        raise RuntimeError(f"no row of version {version} after 30 s") from None


def pause(number: int) -> None:
    """Wait as long as a writer does before its commit of that number: 5 to 50 ms, so that its reader is asleep."""
    time.sleep(random.Random(SEED + number).uniform(0.005, 0.05))


def one_row(version: int) -> pa.Table:
    return orders(version, 1)


@contextmanager
def following(command: list[str]) -> Iterator[Queue[float]]:
    """A process whose lines are stamped as they arrive."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        arrivals: Queue[float] = Queue()
        reader = Thread(target=_stamp, args=(process.stdout, arrivals), daemon=True)
        reader.start()
        try:
            yield arrivals
        finally:
            process.terminate()
            process.wait()
            reader.join()


def _stamp(pipe: IO[bytes], arrivals: Queue[float]) -> None:
    while data := pipe.read(65536):
        now = time.monotonic()
        for _ in range(data.count(b"\n")):
            arrivals.put(now)
