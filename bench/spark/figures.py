"""What is measured on Spark: our source and sink against delta-spark's, in one session, in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median

from bench import tables
from bench.delivery import topics
from bench.delivery.figures import cluster
from bench.delivery.spark import PRODUCER
from bench.figure import Figure
from bench.processes import alternating, probe
from bench.spark.session import Session, session
from tests.spark.installation import missing

CORES = 2
OURS, THEIRS = "cdfd", "delta"


def available() -> bool:
    if (reason := missing()) is not None:
        print(f"Spark is left out: {reason}", file=sys.stderr, flush=True)
    return reason is None


def taken(running: Session, uri: str, readers: Sequence[str], runs: int) -> dict[str, float]:
    """Median seconds of reads into nowhere, in turn; the first round warms up and does not count."""
    seconds: dict[str, list[float]] = {reader: [] for reader in readers}
    for round_ in range(runs + 1):
        for reader in readers:
            found = running.ask(do="read", reader=reader, table=uri)["seconds"]
            if round_:
                seconds[reader].append(found)
    return {reader: median(found) for reader, found in seconds.items()}


def read(runs: int) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    readers = (OURS, "cdfd-same-columns", THEIRS)
    with session(CORES) as running:
        counts = {running.ask(do="count", reader=reader, table=uri)["count"] for reader in (OURS, THEIRS)}
        if len(counts) != 1:
            raise SystemExit(f"not the same rows: {counts}")
        number = counts.pop()
        found = taken(running, uri, readers, runs)
    theirs = f"{number / found[THEIRS] / 1e6:.2f} M/s (`readChangeFeed`)"
    name = f"batch read of the change table into `noop`, warm, local[{CORES}] ({number / 1e6:.2f} M rows)"
    for reader, what in ((OURS, ""), ("cdfd-same-columns", ", without `_change_ordinal`")):
        ours = f"{number / found[reader] / 1e6:.2f} M/s"
        yield Figure(name + what, ours, theirs, found[THEIRS] / found[reader], "×", 1.0, 1.5, more=True)


def scaling(runs: int) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    found = {}
    for cores in (1, 2):
        with session(cores) as running:
            found[cores] = taken(running, uri, (OURS,), runs)[OURS]
    ours = f"{found[2]:.2f} s on two, {found[1]:.2f} s on one"
    yield Figure(
        "executors' cores, two against one: batch read", ours, "", found[1] / found[2], "×", 1.7, 1.9, more=True
    )


def stream(runs: int) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    number = int(probe("changes_streamed", uri)["count"])
    seconds: dict[str, list[float]] = {OURS: [], THEIRS: []}
    with cluster() as servers, session(CORES) as running:
        for round_ in range(min(runs, 3) + 1):
            for reader, taken_ in seconds.items():
                with topics.topic(servers) as topic:
                    found = running.ask(
                        do="stream",
                        reader=reader,
                        table=uri,
                        topic=topic,
                        producer=PRODUCER | {"bootstrap.servers": servers},
                        sink=_sink(servers, topic, uri, f"bench{round_}"),
                    )["seconds"]
                    arrived = topics.count(servers, topic, number)
                    if arrived != number:
                        raise SystemExit(f"{reader}: {arrived} of {number} rows arrived")
                if round_:
                    taken_.append(found)
    ours, theirs = (number / median(seconds[who]) / 1e6 for who in (OURS, THEIRS))
    name = f"stream to Kafka, availableNow, warm, local[{CORES}]: exactly once against at least once"
    yield Figure(name, f"{ours:.2f} M/s", f"{theirs:.2f} M/s", ours / theirs, "×", 1.0, 1.5, more=True)


def _sink(servers: str, topic: str, uri: str, pipeline: str) -> dict[str, str]:
    where = {"bootstrap_servers": servers, "topic": topic}
    return where | {"pipeline": pipeline, "uri": uri, "table": "orders", "key": "id", "topics.schemas": "false"}


def planning(runs: int) -> Iterator[Figure]:
    uri = tables.many_files(tables.MILLIONS_OF_FILES)
    found = alternating(min(runs, 3), ours=lambda: probe("spark_plan", uri))["ours"]
    ours = f"{found['peak_mb']:.0f} MB, {found['seconds']:.1f} s, {found['count']:,.0f} partitions"
    yield Figure("planning a first snapshot of 1 M files: the driver's Python", ours, "", found["peak_mb"], " MB", 1000)


SPARK: Mapping[str, Callable[[int], Iterable[Figure]]] = {
    "spark-read": read,
    "spark-scaling": scaling,
    "spark-stream": stream,
    "spark-plan": planning,
}
