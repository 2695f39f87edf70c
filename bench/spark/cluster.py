"""Two executors against one, on standalone clusters: a master and workers of one core each, processes of this machine.

The machine has the cores that two executors have. The driver shares the cores of its executors, whether they are two or one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pyspark

from bench.figure import Figure
from bench.spark import sources
from bench.spark.figures import FEED, UNIX_SOCKETS, Taken, available, compare, rounds
from bench.spark.session import ROOT, Session, session
from tests.support.cluster.standalone import Standalone

HOME = Path(pyspark.__file__).parent
"""Of Spark, as its users have it."""
ROUNDS = 2
"""Sessions of each number of executors."""
WARM_UPS = 6
"""Rounds before those that count: each of three JVMs compiles what it runs often, on cores that they share."""


@contextmanager
def on_cluster(executors: int) -> Iterator[Session]:
    """A session of so many executors, each with a core of the machine, which the driver shares."""
    own = {
        "spark.executor.cores": "1",
        "spark.executor.memory": "2g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    } | UNIX_SOCKETS
    with (
        tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder,
        Standalone(Path(folder), executors, pinned=True, home=HOME) as cluster,
    ):
        own["spark.master"] = cluster.url
        with session(executors, own, [worker.session for worker in cluster.workers], pinned=True) as running:
            yield running


def scaling(runs: int) -> Iterator[Figure]:
    """One executor against two, each with its JVM on a core of its own. Sessions of both, in turn."""
    if not available():
        return
    table = sources.EVEN_FILES.path()
    taken: dict[int, Taken] = {executors: {"changes": [], "feed": []} for executors in (1, 2)}
    for _ in range(ROUNDS):
        for executors in taken:
            with on_cluster(executors) as running:
                asked = {"do": "read", "table": table, "query": "all"}
                session = rounds(running, ("changes", "feed"), runs, WARM_UPS, **asked)
            for way, of_session in session.items():
                taken[executors][way] += of_session
    what = "two executors' cores against one, pinned (16.0 M rows)"
    yield scaled(what, taken[1]["changes"], taken[2]["changes"], 1.8, 1.95)
    yield scaled(f"{what}, delta-spark alone", taken[1]["feed"], taken[2]["feed"])
    what = "batch read of changes, few large files, on these two executors (16.0 M rows)"
    yield compare(what, taken[2], "changes", "feed", FEED, (1.7, 2.5))


def scaled(what: str, one: list[dict[str, Any]], two: list[dict[str, Any]], *goals: float) -> Figure:
    """By the clock, and by the processor time of the busier executor."""
    ones, twos = ([each["seconds"] for each in taken] for taken in (one, two))
    busier = [median(max(each["workers"]) for each in taken) for taken in (one, two)]
    driver = median(each["processor"] - sum(each["workers"]) for each in two)
    of_busier = f"of the busier executor's CPU {busier[0] / busier[1]:.2f}×; driver {driver:.2f} s of CPU"
    details = f"worst against best {min(ones) / max(twos):.2f}×; {of_busier}"
    ours = f"{median(twos):.2f} s on two, {median(ones):.2f} s on one"
    return Figure(what, ours, details, median(ones) / median(twos), "×", *goals, more=True)


SPARK_CLUSTER: Mapping[str, Callable[[int], Iterable[Figure]]] = {"cluster-scaling": scaling}
