"""Measurements on Spark: cdfd by the way that it recommends for each job, and the peer, in one session, in turn."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from bench import tables
from bench.delivery import topics
from bench.delivery.figures import cluster
from bench.delivery.spark import PRODUCER
from bench.figure import Figure
from bench.processes import alternating, probe
from bench.spark import sources
from bench.spark.session import Session, session
from tests.support.spark.installation import missing

CORES = 2
WARM_UPS = 2
"""Rounds before those that count: the JVM compiles what it runs often."""
UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
"""As the documentation of Spark says: the JVM and Python exchange batches through sockets of the file system."""

Goals = tuple[float, float]
"""A target and a moonshot."""
Taken = Mapping[str, list[dict[str, Any]]]
"""For each way, the costs of its rounds."""


def spark(names: Sequence[str], runs: int) -> Iterator[Figure]:
    """The figures of these names, in one session."""
    if not available():
        return
    with session(CORES, UNIX_SOCKETS) as running:
        for name in names:
            yield from SPARK[name](running, runs)


def available() -> bool:
    if (reason := missing()) is not None:
        print(f"Spark is left out: {reason}", file=sys.stderr, flush=True)
    return reason is None


def rounds(running: Session, ways: Sequence[str], runs: int, warm_ups: int = WARM_UPS, **asked: Any) -> Taken:
    """Rounds of the same by each of the ways, in turn."""
    taken: Taken = {way: [] for way in ways}
    for round_ in range(warm_ups + runs):
        for way, of_way in taken.items():
            one = running.ask(way=way, **asked)
            if round_ >= warm_ups:
                of_way.append(one)
    return taken


def compare(what: str, taken: Taken, ours: str, theirs: str, peer: str, goals: Goals) -> Figure:
    """How many times as fast ours is: by the clock, with the worst round, and by processor time."""
    seconds, processor = (
        {way: median(one[of] for one in taken[way]) for way in taken} for of in ("seconds", "processor")
    )
    worst, worst_processor = (
        min(peer[of] / own[of] for own, peer in zip(taken[ours], taken[theirs], strict=True))
        for of in ("seconds", "processor")
    )
    of_processor = f"{processor[theirs] / processor[ours]:.2f}× of CPU, worst {worst_processor:.2f}×"
    return Figure(
        what,
        f"{seconds[ours]:.2f} s, {processor[ours]:.2f} s of CPU",
        f"{seconds[theirs]:.2f} s, {processor[theirs]:.2f} s ({peer}); worst round {worst:.2f}×; {of_processor}",
        seconds[theirs] / seconds[ours],
        "×",
        *goals,
        more=True,
    )


@dataclass(frozen=True, slots=True)
class Read:
    """A query of a table, by two ways.

    Attributes:
        what: names it.
        table: its path. Writes it if it is missing.
        ours, theirs: the ways.
        peer: what the other way is.
        goals: of the ratio.
        query: of the rows; see `job.QUERIES`.
    """

    what: str
    table: Callable[[], str]
    ours: str
    theirs: str
    peer: str
    goals: Goals
    query: str = "all"


def reads(*queries: Read) -> Callable[[Session, int], Iterator[Figure]]:
    """Figures of queries."""
    return partial(_reads, queries)


def _reads(queries: Sequence[Read], running: Session, runs: int) -> Iterator[Figure]:
    for each in queries:
        table = each.table()
        counts = {way: running.ask(do="count", way=way, table=table)["count"] for way in (each.ours, each.theirs)}
        if len({*counts.values()}) != 1:
            raise SystemExit(f"{each.what}: not the same rows: {counts}")
        taken = rounds(running, (each.ours, each.theirs), runs, do="read", table=table, query=each.query)
        what = f"{each.what} ({rows_of(counts[each.ours])})"
        yield compare(what, taken, each.ours, each.theirs, each.peer, each.goals)


def rows_of(number: int) -> str:
    return f"{number / 1e6:.2f} M rows" if number >= 1e6 else f"{number:,} rows"


def stream(running: Session, runs: int) -> Iterator[Figure]:
    uri = tables.changes_table()
    number = int(probe("changes_streamed", uri)["count"])
    taken: Taken = {"packed": [], "feed": []}
    with cluster() as servers:
        for round_ in range(1 + runs):
            for way, of_way in taken.items():
                with topics.topic(servers) as topic:
                    one = running.ask(
                        do="stream",
                        way=way,
                        table=uri,
                        topic=topic,
                        producer=PRODUCER | {"bootstrap.servers": servers},
                        sink=_sink(servers, topic, uri, f"{way}{round_}"),
                    )
                    arrived = topics.count(servers, topic, number)
                    if arrived != number:
                        raise SystemExit(f"{way}: {arrived} of {number} rows arrived")
                if round_:
                    of_way.append(one)
    what = f"stream to Kafka, exactly once against at least once ({rows_of(number)})"
    yield compare(what, taken, "packed", "feed", "delta-spark and Spark's sink", (1.5, 2.0))


def _sink(servers: str, topic: str, uri: str, pipeline: str) -> dict[str, str]:
    where = {"bootstrap_servers": servers, "topic": topic}
    return where | {"pipeline": pipeline, "uri": uri, "table": "orders", "key": "id", "topics.schemas": "false"}


def apply(running: Session, runs: int) -> Iterator[Figure]:
    batches, peers = sources.batches(), {"exact merge": "as exact as `Upsert`", "merge": "without positions"}
    taken: Taken = {way: [] for way in ("upsert", *peers)}
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder:
        # The first batch has the rows of the copy.
        for number in range(1 + WARM_UPS + runs):
            for way, of_way in taken.items():
                one = running.ask(do="apply", way=way, folder=folder, batch=f"{batches}/{number}.parquet")
                if number > WARM_UPS:
                    of_way.append(one)
        differing = running.ask(do="wrong", folder=folder)
    if differing["wrong"]["exact merge"]:
        raise SystemExit(f"not the same copies: {differing}")
    what = f"`Upsert` against a written MERGE: 200,000 keys, repeats and late changes ({rows_of(differing['count'])})"
    for way, about in peers.items():
        wrong = differing["wrong"][way]
        peer = f"{about}; {wrong:,} rows differ" if wrong else about
        yield compare(f"{what}, {about}", taken, "upsert", way, peer, (1.1, 1.5))


def tip(running: Session, runs: int) -> Iterator[Figure]:
    taken = rounds(running, ("cdfd", "feed"), min(runs, 3), do="tip")
    for what, of in (("whole", "whole"), ("before its rows are read", "before")):
        ours, theirs = ([median(one[of]) for one in taken[way]] for way in ("cdfd", "feed"))
        processor = median(one["processor"] for one in taken["feed"]) / median(
            one["processor"] for one in taken["cdfd"]
        )
        worst = min(peer / own for own, peer in zip(ours, theirs, strict=True))
        name = f"micro-batch at the tip of a table, p50, {what}"
        peer = f"{median(theirs):.0f} ms (`readChangeFeed`); worst round {worst:.2f}×; {processor:.2f}× of CPU"
        yield Figure(name, f"{median(ours):.0f} ms", peer, median(theirs) / median(ours), "×", 1.2, 2.0, more=True)


def planning(_: Session, runs: int) -> Iterator[Figure]:
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


FEED, FORMAT, BOTH = "`readChangeFeed`", '`format("cdfd")`', "two snapshots and EXCEPT ALL"

SPARK: Mapping[str, Callable[[Session, int], Iterator[Figure]]] = {
    "spark-read": reads(
        Read("batch read of changes, few large files", tables.changes_table, "changes", "feed", FEED, (1.7, 2.5))
    ),
    "spark-versions": reads(
        Read("the same, 300 versions of small files", sources.SMALL_VERSIONS.path, "changes", "feed", FEED, (2.0, 4.0))
    ),
    "spark-queries": reads(
        *(
            Read(f"{what}, few large files", tables.changes_table, "changes", "feed", FEED, (0.8, 1.0), query)
            for query, what in (
                ("column", "`select` of one column"),
                ("key", "filter on a key"),
                ("types", "count by change type"),
            )
        )
    ),
    "spark-no-feed": reads(
        Read(
            'a table without a feed, against `format("cdfd")`',
            sources.NO_FEED.path,
            "changes",
            "format",
            FORMAT,
            (2.0, 3.0),
        )
    ),
    "spark-snapshot": reads(
        Read("snapshot, few large files", tables.changes_table, "snapshot", "delta", "delta-spark", (1.1, 1.5))
    ),
    "spark-stream": stream,
    "spark-apply": apply,
    "spark-tip": tip,
    "spark-derived": reads(
        *(
            Read(
                f"derived changes of a table without a feed, {what}",
                sources.TRACKED.path,
                way,
                "except all",
                BOTH,
                (5.0, 20.0),
            )
            for way, what in (("row ids", "by row ids"), ("key", "by key"))
        )
    ),
    "spark-plan": planning,
}
