"""Measurements of deliveries to Kafka: the daemon against delta-spark and against Kafka's own producer, with one broker."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

from bench import tables
from bench.delivery import perf_test, topics, transactions
from bench.delivery.daemon import Daemon, Source, daemon
from bench.delivery.spark import PeerError, spark
from bench.figure import Figure
from bench.latency import one_commit_ms
from bench.processes import bare_mb, probe
from tests.support.kafka.broker import Broker
from tests.support.kafka.installation import missing

ROUNDS = 3
COMMITS, WARM_UP = 300, 500
"""A broker that has just been started compiles its code during some hundred commits."""
SPARK_COMMITS, SPARK_WARM_UP = 30, 50
IDLE_TABLES = 20
IDLE_SECONDS = 45
SETTLE_SECONDS = 5
NO_PEER = "(no Spark here)"


@contextmanager
def cluster() -> Iterator[str]:
    """The servers of a broker that is made for more than seconds; what is deleted does not stay."""
    with Broker(jvm=(), properties={"log.segment.delete.delay.ms": "1000"}) as broker:
        yield broker.bootstrap_servers


LATENCY = {"p50": (12, 8), "p99": (30, 20)}
SOONER = {"p50": (20, 40)}
"""Targets and moonshots, ms and times."""


def available() -> bool:
    if (reason := missing()) is not None:
        print(f"Kafka is left out: {reason}", file=sys.stderr, flush=True)
    return reason is None


def rows(runs: int) -> Iterator[Figure]:
    if not available():
        return
    uri = tables.changes_table()
    number = int(probe("changes_streamed", uri)["count"])
    lines = perf_test.payloads(uri)
    size = lines.stat().st_size / perf_test.LINES
    ours: list[Rates] = []
    peers: list[tuple[Rates, Rates]] = []
    tool: list[tuple[float, float]] = []
    with cluster() as servers:
        for _ in range(1 + min(runs, ROUNDS)):  # the first warms up the broker and the page cache
            ours.append(_deliver(servers, uri, number)[0])
            with topics.topic(servers) as letters, topics.topic(servers) as json:
                tool.append(
                    (
                        perf_test.rows_per_second(servers, letters, number, round(size)),
                        perf_test.rows_per_second(servers, json, number, lines),
                    )
                )
            if len(peers) == len(ours) - 1:
                with without_spark():
                    peers.append(_spark_delivers(servers, uri, number))
    data = f"{number / 1e6:.2f} M rows of {size:.0f} bytes"
    yield from _rows_figures(
        data, ours[1:], peers[1:], (median(one for one, _ in tool[1:]), median(other for _, other in tool[1:]))
    )


class Rates:
    """Rows a second, in millions, from the start of the process or query, and from the first row in the topic.

    `cpu` is the daemon's processor time since the first row, in seconds: the difference of the samples (time, seconds) that are nearest.
    `whole_cpu` is that since the start of its process.
    """

    def __init__(
        self, rows: int, started: float, arrival: topics.Arrival, samples: Sequence[tuple[float, float]] = ()
    ) -> None:
        self.whole = rows / (arrival.last - started) / 1e6
        self.flowing = rows / (arrival.last - arrival.first) / 1e6
        first, last = (
            min(samples, key=lambda sample: abs(sample[0] - moment), default=(0.0, 0.0))[1]
            for moment in (arrival.first, arrival.last)
        )
        self.cpu, self.whole_cpu = last - first, last


def _rows_figures(
    data: str, ours: list[Rates], peers: list[tuple[Rates, Rates]], tools: tuple[float, float]
) -> Iterator[Figure]:
    whole, flowing = median(rates.whole for rates in ours), median(rates.flowing for rates in ours)
    spark_whole = spark_query = spark_flowing = None
    if peers:
        spark_whole = median(cold.whole for cold, _ in peers)
        spark_query = median(warm.whole for _, warm in peers)
        spark_flowing = median(warm.flowing for _, warm in peers)
    yield Figure(
        f"table to committed in Kafka, exactly once, from the start of the process ({data})",
        f"{whole:.3f} M/s",
        NO_PEER if spark_whole is None else f"{spark_whole:.3f} M/s (delta-spark, at least once)",
        _ratio(whole, spark_whole),
        "×",
        more=True,
    )
    yield Figure(
        "the same without start-up: from the first row in the topic; Spark's second query of a session",
        f"{flowing:.3f} M/s",
        NO_PEER
        if spark_flowing is None
        else f"{spark_flowing:.3f} M/s (delta-spark; {spark_query:.3f} from the query's start)",
        _ratio(flowing, spark_flowing),
        "×",
        2.5,
        4.0,
        more=True,
    )
    for what, rate, target, moonshot in (
        ("random letters, its own records of that size", tools[0], 1.5, 2.5),
        ("the same JSON lines", tools[1], 1.2, 2.0),
    ):
        yield Figure(
            f"the same against rows that are ready to be sent, no keys, no transactions: {what}",
            f"{flowing:.3f} M/s",
            f"{rate / 1e6:.3f} M/s (`kafka-producer-perf-test`)",
            1e6 * flowing / rate,
            "×",
            target,
            moonshot,
            more=True,
        )


def _ratio(ours: float, peer: float | None) -> float | None:
    return None if peer is None else ours / peer


def _deliver(servers: str, uri: str, number: int) -> tuple[Rates, float]:
    """A table's changes from a new pipeline's start, and the daemon's peak memory in MB."""
    with topics.topic(servers) as topic:
        with daemon(servers, [Source(uri, topic)]) as running:
            samples = list[tuple[float, float]]()

            def check() -> None:
                running.check()
                samples.append((time.monotonic(), running.cpu_seconds()))

            arrival = topics.arrival(servers, topic, number, check)
            peak = running.peak_mb()
        if (count := topics.count(servers, topic, number)) != number:
            raise SystemExit(f"{count} rows of {uri} in Kafka, {number} expected")
    return Rates(number, running.started, arrival, samples), peak


def _spark_delivers(servers: str, uri: str, number: int) -> tuple[Rates, Rates]:
    """A session's first query, from the start of the process, and its second."""
    with spark(uri, servers, follow=False) as session:
        rates = list[Rates]()
        for _ in range(2):
            with topics.topic(servers) as topic:
                began = session.begin(topic)
                arrival = topics.arrival(servers, topic, number, session.check)
                session.hear("ended")
                rates.append(Rates(number, began if rates else session.started, arrival))
    return rates[0], rates[1]


@contextmanager
def without_spark() -> Iterator[None]:
    """Goes on where there is none, and says so."""
    try:
        yield
    except PeerError as error:
        print(f"delta-spark is left out: {error}", file=sys.stderr, flush=True)


def latency(_: int) -> Iterator[Figure]:
    if not available():
        return
    theirs: list[float] | None = None
    with cluster() as servers:
        ours = _daemon_latencies(servers)
        bare = _percentiles(_bare_latencies(servers))
        with without_spark():
            theirs = _spark_latencies(servers)
    peer_points = None if theirs is None else _percentiles(theirs)
    name = f"commit's appearance to its committed row at a reader ({COMMITS} commits of one row; {SPARK_COMMITS} of Spark's)"
    for index, (point, value) in enumerate(_percentiles(ours).items()):
        peer = None if peer_points is None else peer_points[point]
        said = NO_PEER if peer is None else f"{peer:.0f} ms (delta-spark)"
        what = f"{name}: {point}" if index == 0 else f"the same: {point}"
        alone = f"{bare[point]:.1f} ms (a bare transaction of the same client)"
        yield Figure(what, f"{value:.1f} ms", alone, value, " ms", *LATENCY.get(point, ()))
        if peer is not None:
            ratio = "the same against delta-spark's stream"
            target, moonshot = SOONER.get(point, (None, None))
            ours_text, name = f"{value:.1f} ms", f"{ratio}: {point}"
            yield Figure(name, ours_text, said, peer / value, "× less", target, moonshot, more=True)


def _percentiles(taken: list[float]) -> dict[str, float]:
    points = quantiles(taken, n=100, method="inclusive")
    return {f"p{point}": points[point - 1] for point in (50, 90, 99)}


def _daemon_latencies(servers: str) -> list[float]:
    with (
        new_table("daemon") as path,
        topics.topic(servers) as topic,
        topics.stamps(servers, topic) as arrivals,
        daemon(servers, [Source(str(path), topic)]),
    ):
        taken = [one_commit_ms(path, version, arrivals) for version in range(1, 1 + WARM_UP + COMMITS)]
    return taken[WARM_UP:]


def _bare_latencies(servers: str) -> list[float]:
    with (
        topics.topic(servers) as topic,
        topics.topic(servers) as positions,
        topics.stamps(servers, topic) as arrivals,
    ):
        return transactions.latencies(servers, topic, positions, WARM_UP + COMMITS, arrivals)[WARM_UP:]


def _spark_latencies(servers: str) -> list[float]:
    with (
        new_table("spark") as path,
        topics.topic(servers) as topic,
        topics.stamps(servers, topic) as arrivals,
        spark(str(path), servers, follow=True) as session,
    ):
        session.begin(topic)
        versions = range(1, 1 + SPARK_WARM_UP + SPARK_COMMITS)
        taken = [one_commit_ms(path, version, arrivals) for version in versions]
        session.say("")
        session.hear("ended")
    return taken[SPARK_WARM_UP:]


@contextmanager
def new_table(name: str) -> Iterator[Path]:
    """A table without rows, change data feed on, for as long as it is measured."""
    path = tables.DATA / f"delivery-{name}-{os.getpid()}"
    shutil.rmtree(path, ignore_errors=True)
    tables.create(path, tables.CHANGE_DATA_FEED)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def catch_up(runs: int) -> Iterator[Figure]:
    if not available():
        return
    commits = tables.SMALL_COMMITS
    uri = tables.small_commits(commits)
    with cluster() as servers:
        deliveries = [_deliver(servers, uri, commits)[0] for _ in range(1 + min(runs, ROUNDS))][1:]
    whole, flowing = (1e6 * median(rates) for rates in ([r.whole for r in deliveries], [r.flowing for r in deliveries]))
    name = f"catch-up over {commits} commits of one row each, from the first row in the topic"
    spent = median(1e6 * rates.cpu / commits for rates in deliveries)
    said = f"{flowing:,.0f} commits/s ({whole:,.0f} with the start), {spent:.0f} µs of processor time each"
    yield Figure(name, said, "", flowing, " /s", 4000, 8000, more=True)


def memory(runs: int) -> Iterator[Figure]:
    if not available():
        return
    bare = bare_mb()
    with cluster() as servers:
        for files in (20, 1):
            uri = tables.big_commit(files)
            deliveries = [_deliver(servers, uri, tables.BIG_COMMIT_ROWS) for _ in range(min(runs, ROUNDS))]
            peak = median(peak for _, peak in deliveries) - bare
            rate = median(rates.whole for rates, _ in deliveries)
            commit = f"one commit of 5 M rows in {files} file{'s' * (files > 1)}"
            name = f"peak memory of `cdfd run` above a bare interpreter's, {commit}"
            yield Figure(
                name, f"{peak:.0f} MB at {rate:.3f} M/s", f"{bare:.0f} MB (Python alone)", peak, " MB", 240, 180
            )
            cpu = sorted(rates.whole_cpu * 1e6 / tables.BIG_COMMIT_ROWS for rates, _ in deliveries)
            name = f"processor time of `cdfd run` for a million rows, with its start, {commit}"
            yield Figure(name, f"{median(cpu):.2f} s, at worst {cpu[-1]:.2f} s", "", median(cpu), " s", 1.0, 0.7)


def idle(_: int) -> Iterator[Figure]:
    if not available():
        return
    with cluster() as servers, ExitStack() as stack:
        sources = []
        for number in range(IDLE_TABLES):
            path = stack.enter_context(new_table(f"idle-{number}"))
            tables.write_commit(path, 1, [tables.add_file(path, tables.orders(number, 1))])
            sources.append(Source(str(path), stack.enter_context(topics.topic(servers)), f"table-{number}"))
        with daemon(servers, sources) as running:
            for source in sources:
                topics.arrival(servers, source.topic, 1, running.check, quiet=0)
            time.sleep(SETTLE_SECONDS)
            share = _cpu_share(running)
    name = f"CPU of `cdfd run` with {IDLE_TABLES} tables without commits, over {IDLE_SECONDS} s"
    yield Figure(name, f"{share:.2f} % of a core", "", share, " %", 2, 0.5)


def _cpu_share(running: Daemon) -> float:
    before = running.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    return (running.cpu_seconds() - before) / IDLE_SECONDS * 100


DELIVERY: dict[str, Callable[[int], Iterator[Figure]]] = {
    "kafka-rows": rows,
    "kafka-latency": latency,
    "kafka-catch-up": catch_up,
    "kafka-memory": memory,
    "kafka-idle": idle,
}
