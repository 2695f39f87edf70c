"""Metrics for Prometheus: what is counted as it happens, and what is read off each table when somebody asks.

A registry of our own, labels only from the configuration and from words of ours: what tables and brokers say cannot make new series.
Every metric is explained in `docs/metrics.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from cdfd.errors import CdfdError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

State = Literal["starting", "snapshot", "catching_up", "at_tip", "backing_off", "failed", "stopped"]
STATES: tuple[State, ...] = get_args(State)
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")
STAGES = ("read", "encode", "send", "commit")
OTHER = "other"
"""What a label says that has none of its words: there are always only so many series."""

# fmt: off
DELIVERY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
STAGE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0)
# fmt: on


@dataclass(frozen=True, slots=True)
class Reading:
    """Where a table stands at one moment. None is what is not known, and is left out of the metrics.

    Attributes:
        table: its name in the configuration.
        state: what its loop does.
        paused: whether nothing is delivered because of an error.
        delivered_version: everything up to this version is delivered, or was before the start.
        table_version: the newest version that was seen.
        ledger_version: the version that the ledger knows as delivered.
        lag_versions: versions that are seen but not delivered.
        lag_seconds: age of the oldest commit that is not delivered, 0 where there is none.
        delivered_at: when rows or versions were delivered last, in seconds since the Unix epoch.
    """

    table: str
    state: State
    paused: bool
    delivered_version: int | None
    table_version: int | None
    ledger_version: int | None
    lag_versions: int | None
    lag_seconds: float | None
    delivered_at: float | None


class TableMetrics:
    """Counters and histograms of one table. May be used from any thread; one of them costs a microsecond or two."""

    def __init__(self, families: _Families, table: str) -> None:
        self._table = table
        self._families = families
        # Made at once, at 0: a counter that appears with its first error has no increase for Prometheus to see.
        self._rows = {kind: families.rows.labels(table, kind) for kind in CHANGE_TYPES}
        self._errors = {family: families.errors.labels(table, family) for family in _error_families()}
        self._stages = {stage: families.stages.labels(table, stage) for stage in STAGES}
        self._commits = families.commits.labels(table)
        self._bytes_read = families.bytes_read.labels(table)
        self._delivery = families.delivery.labels(table)
        self._committed = families.transactions.labels(table, "committed")
        self._aborted = families.transactions.labels(table, "aborted")

    def stage(self, name: str, seconds: float) -> None:
        """One delivery's, or one batch's, time in a stage."""
        stage = self._stages.get(name) or self._families.stages.labels(self._table, OTHER)
        stage.observe(seconds)

    def committed(self, rows: Mapping[str, int], commits: int, bytes_read: int) -> None:
        """A transaction: rows by change type, versions that are whole with it, bytes of files that were read for it."""
        self._committed.inc()
        for kind, count in rows.items():
            (self._rows.get(kind) or self._families.rows.labels(self._table, OTHER)).inc(count)
        self._commits.inc(commits)
        self._bytes_read.inc(bytes_read)

    def delivered_after(self, seconds: float) -> None:
        """A version's time from its commit to its delivery."""
        self._delivery.observe(seconds)

    def aborted(self) -> None:
        """A transaction was dropped."""
        self._aborted.inc()

    def error(self, error: CdfdError) -> None:
        """Something went wrong."""
        (self._errors.get(error.family) or self._families.errors.labels(self._table, OTHER)).inc()


class Metrics:
    """All metrics of a daemon.

    Args:
        version: of cdfd.
    """

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        self._families = _Families(self._registry)
        build = Gauge("cdfd_build_info", "Always 1; the version is in the label.", ["version"], registry=self._registry)
        build.labels(version).set(1)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def table(self, name: str) -> TableMetrics:
        """The counters of one table. Once for each table of the configuration."""
        return TableMetrics(self._families, name)

    def render(self, readings: Sequence[Reading], *, up: bool) -> bytes:
        """Everything in Prometheus' text format, `CONTENT_TYPE`. From any thread; close to a millisecond for each table.

        Args:
            readings: where every table stands now.
            up: whether all loops live.
        """
        return generate_latest(_Scrape(self._registry, readings, up))


class _Families:
    """The metrics that are counted, of all tables."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(name, help_text, ("table", *labels), registry=registry)

        def histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, help_text, ("table", *labels), registry=registry, buckets=buckets)

        self.rows = counter("cdfd_rows", "Change rows delivered, those of snapshots as inserts.", "change_type")
        self.commits = counter("cdfd_commits", "Versions of the table delivered whole.")
        self.bytes_read = counter("cdfd_bytes_read", "Bytes of the files that were read for what is delivered.")
        self.errors = counter("cdfd_errors", "Errors, whether or not the loop went on after them.", "family")
        self.transactions = counter("cdfd_transactions", "Deliveries that were committed or aborted.", "result")
        self.delivery = histogram(
            "cdfd_commit_to_delivery_seconds",
            "From a version's commit timestamp to its delivery, catching up included, snapshots and versions without rows not.",
            DELIVERY_SECONDS,
        )
        self.stages = histogram("cdfd_stage_seconds", "Time that stages of deliveries took.", STAGE_SECONDS, "stage")


class _Scrape(Collector):
    """All metrics at one moment: what was counted, and what is read off the tables.

    The `_created` series of the library, which nobody asked for and which make three of two, are left out.
    """

    def __init__(self, counted: CollectorRegistry, readings: Sequence[Reading], up: bool) -> None:
        self._counted = counted
        self._readings = readings
        self._up = up

    def collect(self) -> Iterator[Metric]:
        for family in self._counted.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        yield GaugeMetricFamily("cdfd_up", "1 while all loops live, 0 once one has ended unexpectedly.", value=self._up)
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=("table",))
            for reading in self._readings:
                found = value(reading)
                if found is not None:
                    gauge.add_metric((reading.table,), found)
            yield gauge
        yield self._states()

    def _states(self) -> Metric:
        states = GaugeMetricFamily(
            "cdfd_table_state", "1 for the state that the table is in.", labels=("table", "state")
        )
        for reading in self._readings:
            for state in STATES:
                states.add_metric((reading.table, state), float(reading.state == state))
        return states


_GAUGES: tuple[tuple[str, str, Callable[[Reading], float | None]], ...] = (
    ("cdfd_delivered_version", "Everything up to this version is delivered.", attrgetter("delivered_version")),
    ("cdfd_table_version", "The newest version that was seen.", attrgetter("table_version")),
    ("cdfd_ledger_version", "The version that the ledger knows as delivered.", attrgetter("ledger_version")),
    ("cdfd_lag_versions", "Versions that were seen and are not delivered.", attrgetter("lag_versions")),
    ("cdfd_lag_seconds", "Age of the oldest commit that is not delivered, 0 at the tip.", attrgetter("lag_seconds")),
    ("cdfd_last_delivery_timestamp_seconds", "When something was delivered last.", attrgetter("delivered_at")),
    ("cdfd_paused", "1 from an error that ended the loop until it delivers or is at the tip.", attrgetter("paused")),
)


def _error_families() -> list[str]:
    def families(kind: type[CdfdError]) -> Iterator[str]:
        yield kind.family
        for narrower in kind.__subclasses__():
            yield from families(narrower)

    return sorted(set(families(CdfdError)))
