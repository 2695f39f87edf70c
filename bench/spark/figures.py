"""Measurements on Spark: cdfd's source and sink against delta-spark's, in one session, in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import tables
from bench.delivery import topics
from bench.delivery.figures import cluster
from bench.delivery.spark import PRODUCER
from bench.figure import Figure
from bench.processes import alternating, probe
from bench.spark.session import Session, session
from tests.support.spark.installation import missing

CORES = 2
OURS, SAME_COLUMNS, SCANS, PACKED, THEIRS = "cdfd", "cdfd-same-columns", "cdfd-scans", "cdfd-packed", "delta"
APPLIED_BEFORE = 3
"""The copy has the rows of this version of the change table, before later changes are applied."""


def available() -> bool:
    if (reason := missing()) is not None:
        print(f"Spark is left out: {reason}", file=sys.stderr, flush=True)
    return reason is None


@dataclass(frozen=True, slots=True)
class Place:
    """Where Spark runs.

    Attributes:
        name: in figures.
        session: starts one there.
    """

    name: str
    session: Callable[[], AbstractContextManager[Session]]


UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
"""As the documentation of Spark says: the JVM and Python exchange batches through sockets of the file system."""

LOCAL = Place(f"local[{CORES}]", lambda: session(CORES, UNIX_SOCKETS))

Taken = dict[str, list[dict[str, Any]]]
"""For each reader, what its rounds took."""


def rounds(running: Session, readers: Sequence[str], runs: int, **asked: Any) -> Taken:
    """Rounds of both readers, in turn. The first round warms up and does not count."""
    figures: Taken = {reader: [] for reader in readers}
    for round_ in range(runs + 1):
        for reader in readers:
            one = running.ask(reader=reader, **asked)
            if round_:
                figures[reader].append(one)
    return figures


def compare(name: str, figures: Taken, target: float, moonshot: float, reader: str = OURS) -> Iterator[Figure]:
    """Figures of the clock and of processors, each with the worst round."""
    for what, of in (("", "seconds"), (", processor time", "processor")):
        ours, theirs = (median(one[of] for one in figures[who]) for who in (reader, THEIRS))
        worst = min(peer[of] / own[of] for own, peer in zip(figures[reader], figures[THEIRS], strict=True))
        peer = f"{theirs:.2f} s; worst round {worst:.2f}×"
        yield Figure(name + what, f"{ours:.2f} s", peer, theirs / ours, "×", target, moonshot, more=True)


def read(runs: int, place: Place = LOCAL) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    readers = (SCANS, OURS, SAME_COLUMNS, THEIRS)
    with place.session() as running:
        counts = {running.ask(do="count", reader=reader, table=uri)["count"] for reader in (SCANS, OURS, THEIRS)}
        if len(counts) != 1:
            raise SystemExit(f"not the same rows: {counts}")
        figures = rounds(running, readers, runs, do="read", table=uri)
    name = f"batch read of the change table into `noop`, warm, {place.name} ({counts.pop() / 1e6:.2f} M rows)"
    yield from compare(f"{name}, `cdfd.spark.changes`", figures, 1.7, 2.5, SCANS)
    for reader, what in ((OURS, ""), (SAME_COLUMNS, ", without `_change_ordinal`")):
        yield from compare(name + what, figures, 1.15, 1.5, reader)


def queries(runs: int, place: Place = LOCAL) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    named = {"column": '`select("id")`', "key": '`where("id = 5")`', "types": "a count by change type"}
    with place.session() as running:
        for query, what in named.items():
            figures = rounds(running, (SCANS, OURS, THEIRS), runs, do="read", table=uri, query=query)
            for reader, way in ((SCANS, "`cdfd.spark.changes`"), (OURS, '`format("cdfd")`')):
                yield from compare(f"{what} of the change table, warm, {place.name}, {way}", figures, 0.8, 1.0, reader)


def scaling(runs: int) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    figures = {}
    for cores in (1, 2):
        with session(cores) as running:
            taken = rounds(running, (OURS,), runs, do="read", table=uri)[OURS]
            figures[cores] = median(one["seconds"] for one in taken)
    ours = f"{figures[2]:.2f} s on two, {figures[1]:.2f} s on one"
    yield Figure(
        "executors' cores, two against one: batch read", ours, "", figures[1] / figures[2], "×", 1.7, 1.9, more=True
    )


def stream(runs: int, place: Place = LOCAL) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    number = int(probe("changes_streamed", uri)["count"])
    figures: Taken = {OURS: [], PACKED: [], THEIRS: []}
    with cluster() as servers, place.session() as running:
        for round_ in range(min(runs, 3) + 1):
            for reader, taken in figures.items():
                with topics.topic(servers) as topic:
                    one = running.ask(
                        do="stream",
                        reader=reader,
                        table=uri,
                        topic=topic,
                        producer=PRODUCER | {"bootstrap.servers": servers},
                        sink=_sink(servers, topic, uri, f"{reader}{round_}"),
                    )
                    arrived = topics.count(servers, topic, number)
                    if arrived != number:
                        raise SystemExit(f"{reader}: {arrived} of {number} rows arrived")
                if round_:
                    taken.append(one)
    name = f"stream to Kafka, availableNow, warm, {place.name}: exactly once against at least once"
    for reader, what in ((PACKED, ", `packed`"), (OURS, "")):
        yield from compare(f"{name} ({number / 1e6:.2f} M rows){what}", figures, 1.3, 2.0, reader)


def _sink(servers: str, topic: str, uri: str, pipeline: str) -> dict[str, str]:
    where = {"bootstrap_servers": servers, "topic": topic}
    return where | {"pipeline": pipeline, "uri": uri, "table": "orders", "key": "id", "topics.schemas": "false"}


def snapshot(runs: int, place: Place = LOCAL) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    with place.session() as running:
        figures = rounds(running, (SCANS, SAME_COLUMNS, OURS, THEIRS), runs, do="snapshot", table=uri)
    counts = {one["count"] for of in figures.values() for one in of}
    if len(counts) != 1:
        raise SystemExit(f"not the same rows: {counts}")
    name = f"snapshot of the change table into `noop`, warm, {place.name} ({counts.pop() / 1e6:.2f} M rows)"
    yield from compare(f"{name}, the table's columns, `cdfd.spark.snapshot`", figures, 1.1, 1.5, SCANS)
    for reader, what in ((SAME_COLUMNS, ", the table's columns"), (OURS, ", with the change columns")):
        yield from compare(name + what, figures, 0.9, 1.2, reader)


def apply(runs: int, place: Place = LOCAL) -> Iterator[Figure]:
    if not available():
        return
    with place.session() as running:
        figures = rounds(running, (OURS, THEIRS), runs, do="apply", table=tables.changes_table(), before=APPLIED_BEFORE)
    wrong = {(one["wrong"], one["count"]) for of in figures.values() for one in of}
    if len(wrong) != 1 or wrong.pop()[0]:
        raise SystemExit("the copies differ")
    name = f"changes of four versions into a copy: `Upsert` against a MERGE that a user writes, warm, {place.name}"
    yield from compare(name, figures, 1.0, 1.5)


def tip(runs: int, place: Place = LOCAL) -> Iterator[Figure]:
    if not available():
        return
    with place.session() as running:
        figures = rounds(running, (OURS, THEIRS), min(runs, 3), do="tip")
    for what, of in (("before its rows are read", "before"), ("whole", "whole")):
        ours, theirs = ([median(one[of]) for one in figures[reader]] for reader in (OURS, THEIRS))
        worst = min(peer / own for own, peer in zip(ours, theirs, strict=True))
        name = f"a micro-batch at the tip of a table, p50, {what}, {place.name}"
        peer = f"{median(theirs):.0f} ms; worst round {worst:.2f}×"
        yield Figure(name, f"{median(ours):.0f} ms", peer, median(theirs) / median(ours), "×", 1.0, 2.0, more=True)


def planning(runs: int) -> Iterator[Figure]:
    uri = tables.many_files(tables.MILLIONS_OF_FILES)
    both = alternating(
        min(runs, 3),
        driver=lambda: probe("spark_plan", uri, "driver"),
        executors=lambda: probe("spark_plan", uri, "executors"),
    )
    for how, listed, most in (("driver", "the driver lists", 1000), ("executors", "executors list", 500)):
        figures = both[how]
        ours = f"{figures['peak_mb']:.0f} MB, {figures['seconds']:.1f} s, {figures['count']:,.0f} partitions"
        name = f"planning a first snapshot of 1 M files that {listed}: the driver's Python"
        yield Figure(name, ours, "", figures["peak_mb"], " MB", most)


SPARK: Mapping[str, Callable[[int], Iterable[Figure]]] = {
    "spark-read": read,
    "spark-queries": queries,
    "spark-scaling": scaling,
    "spark-stream": stream,
    "spark-snapshot": snapshot,
    "spark-apply": apply,
    "spark-tip": tip,
    "spark-plan": planning,
}
