"""The same on a standalone cluster: a master and two workers of one core each, processes of this machine.

The machine has the cores that the executors have, and the driver shares them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyspark

from bench import tables
from bench.figure import Figure
from bench.spark import figures
from bench.spark.figures import OURS, THEIRS, UNIX_SOCKETS, Place, available
from bench.spark.session import ROOT, Session, session
from tests.support.cluster.standalone import Standalone

HOME = Path(pyspark.__file__).parent
"""Of Spark, as its users have it."""
ROUNDS = 2
"""Sessions of each number of executors."""
WARM_UPS = 1
"""Reads of a session before those that count."""


@contextmanager
def on_cluster(cluster: Standalone, executors: int = 2) -> Iterator[Session]:
    """A session of so many executors of one core."""
    own = {
        "spark.master": cluster.url,
        "spark.cores.max": str(executors),
        "spark.executor.cores": "1",
        "spark.executor.memory": "2g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    } | UNIX_SOCKETS
    with session(executors, own, [worker.session for worker in cluster.workers]) as running:
        yield running


@contextmanager
def two_workers() -> Iterator[Session]:
    """A session on a cluster of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder,
        Standalone(Path(folder), home=HOME) as cluster,
        on_cluster(cluster) as running,
    ):
        yield running


CLUSTER = Place("two workers", two_workers)


def scaling(runs: int) -> Iterator[Figure]:
    """One executor against two, each with its JVM and its Python on a core of its own. Sessions of both, in turn."""
    if not available():
        return
    uri = tables.changes_table()
    figures: dict[int, dict[str, list[dict[str, Any]]]] = {1: {OURS: [], THEIRS: []}, 2: {OURS: [], THEIRS: []}}
    with (
        tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder,
        Standalone(Path(folder), pinned=True, home=HOME) as cluster,
    ):
        for _ in range(ROUNDS):
            for executors, taken in figures.items():
                with on_cluster(cluster, executors) as running:
                    for round_ in range(WARM_UPS + runs):
                        for reader, of in taken.items():
                            one = running.ask(do="read", reader=reader, table=uri)
                            if round_ >= WARM_UPS:
                                of.append(one)
    for reader in (OURS, THEIRS):
        yield from _scaled(reader, figures[1][reader], figures[2][reader])


def _scaled(reader: str, one: list[dict[str, Any]], two: list[dict[str, Any]]) -> Iterator[Figure]:
    name = f"two pinned executors against one, batch read by {reader}"
    for what, seconds in (("", _clock), (", processor time of the busier executor", _busier)):
        ones, twos = sorted(map(seconds, one)), sorted(map(seconds, two))
        worst = ones[0] / twos[-1]
        ours = f"{median(twos):.2f} s on two, {median(ones):.2f} s on one; worst against best {worst:.2f}×"
        target, moonshot = (1.7, 1.9) if reader == OURS else (None, None)
        yield Figure(name + what, ours, "", median(ones) / median(twos), "×", target, moonshot, more=True)
    shared = median(each["processor"] - sum(each["workers"]) for each in two)
    yield Figure(f"{name}: processor time of the driver, which shares the cores", f"{shared:.2f} s", "", None, "")


def _clock(taken: dict[str, Any]) -> float:
    seconds: float = taken["seconds"]
    return seconds


def _busier(taken: dict[str, Any]) -> float:
    seconds: float = max(taken["workers"])
    return seconds


SPARK_CLUSTER: Mapping[str, Callable[[int], Iterable[Figure]]] = {
    "cluster-read": partial(figures.read, place=CLUSTER),
    "cluster-snapshot": partial(figures.snapshot, place=CLUSTER),
    "cluster-stream": partial(figures.stream, place=CLUSTER),
    "cluster-tip": partial(figures.tip, place=CLUSTER),
    "cluster-apply": partial(figures.apply, place=CLUSTER),
    "cluster-scaling": scaling,
}
