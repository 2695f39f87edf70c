"""Metrics for Prometheus: counters that events increase, and gauges that are computed at each scrape.

Labels come only from the configuration and from fixed lists, so that tables and brokers cannot create new series. `docs/metrics.md`
explains every metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, Summary, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from cdfd.deliver.headroom import Headroom
from cdfd.deliver.states import STATES, State
from cdfd.errors import CdfdError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")
STAGES = ("limit", "read", "encode", "send", "commit")
OTHER = "other"
"""The label value for anything outside its fixed list, which bounds the number of series."""

# fmt: off
DELIVERY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
# fmt: on


@dataclass(frozen=True, slots=True)
class Reading:
    """The status of a table at one moment. Values that are None are unknown, and omitted from the metrics.

    Attributes:
        table: its name in the configuration.
        state: the state of its loop.
        paused: whether an error stops delivery.
        delivered_version: every version up to this one is delivered, or precedes the start.
        table_version: the newest version that the daemon has seen.
        ledger_version: the delivered version in the ledger.
        lag_versions: versions that the daemon has seen and not delivered.
        lag_seconds: age of the oldest undelivered commit; 0 at the tip.
        delivered_at: time of the last delivery, in seconds since the Unix epoch.
        headrooms: retention headroom against each kind of clean-up; empty if unknown.
        sink: the name of the sink in `sinks`; empty with `sink`.
        lost_position: whether the table has begun again, although the sink seems to have had a position.
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
    headrooms: tuple[Headroom, ...] = ()
    sink: str = ""
    lost_position: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The values of the labels that tell tables apart."""
        return (self.table, self.sink) if self.sink else (self.table,)


class TableMetrics:
    """Counters and histograms of one table. Safe in any thread; an update takes one or two microseconds.

    Attributes:
        aborted: counts aborted transactions.
    """

    def __init__(self, metrics: Metrics, table: tuple[str, ...]) -> None:
        self._table = table
        self._metrics = metrics
        # Created at 0: Prometheus would see no increase in a counter that first appears at 1.
        self._rows = {kind: metrics.rows.labels(*table, kind) for kind in CHANGE_TYPES}
        self._errors = {family: metrics.errors.labels(*table, family) for family in metrics.error_families}
        self._transient = metrics.transient.labels(*table)
        self._stages = {stage: metrics.stages.labels(*table, stage) for stage in STAGES}
        self._commits = metrics.commits.labels(*table)
        self._bytes_read = metrics.bytes_read.labels(*table)
        self._delivery = metrics.delivery.labels(*table)
        self._committed = metrics.transactions.labels(*table, "committed")
        self.aborted = metrics.transactions.labels(*table, "aborted")

    def stage(self, name: str, seconds: float) -> None:
        """The duration of a stage for one delivery or one batch."""
        stage = self._stages.get(name) or self._metrics.stages.labels(*self._table, OTHER)
        stage.observe(seconds)

    def committed(self, rows: Mapping[str, int], commits: int, bytes_read: int) -> None:
        """A committed transaction: its rows by change type, the versions it completes, and the bytes of files read for it."""
        self._committed.inc()
        for kind, count in rows.items():
            (self._rows.get(kind) or self._metrics.rows.labels(*self._table, OTHER)).inc(count)
        self._commits.inc(commits)
        self._bytes_read.inc(bytes_read)

    def delivered_after(self, seconds: float, exemplar: Mapping[str, str] | None = None) -> None:
        """The time from a version's commit to its delivery. `exemplar`: labels of its trace."""
        self._delivery.observe(seconds, None if exemplar is None else dict(exemplar))

    def error(self, error: CdfdError, *, counts: bool = True) -> None:
        """An error. `counts`: whether its outage does; see `cdfd.deliver.grace`."""
        if not counts:
            self._transient.inc()
            return
        (self._errors.get(error.family) or self._metrics.errors.labels(*self._table, OTHER)).inc()


class Metrics:
    """All metrics of a daemon.

    Args:
        native: whether `cdfd-native` is used.
        sinks: whether the pipeline has several sinks. Then the metrics of tables have the label `sink`.
    """

    def __init__(self, version: str, *, native: bool, sinks: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._labels = ("table", "sink") if sinks else ("table",)

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(name, help_text, (*self._labels, *labels), registry=self._registry)

        # Once: a class of errors that comes or goes later must not leave a series behind.
        kinds = [CdfdError]
        for kind in kinds:
            kinds += kind.__subclasses__()  # the loop goes on with these
        self.error_families = sorted({kind.family for kind in kinds})
        self.rows = counter("cdfd_rows", "Delivered change rows; rows of snapshots count as inserts.", "change_type")
        self.commits = counter(
            "cdfd_commits", "Completely delivered versions, including those without rows; a snapshot is none."
        )
        self.bytes_read = counter("cdfd_bytes_read", "Bytes of the files read for delivered rows.")
        self.errors = counter(
            "cdfd_errors",
            "Errors that count, including those that did not stop the table, such as a ledger that is not writable.",
            "family",
        )
        self.transient = counter(
            "cdfd_transient_errors", "Errors within the grace of their class: most outages end by themselves."
        )
        self.transactions = counter(
            "cdfd_transactions",
            "Committed or aborted deliveries; one holds several small versions or a part of a large one.",
            "result",
        )
        self.delivery = Histogram(
            "cdfd_commit_to_delivery_seconds",
            "Time from a version's commit timestamp to its delivery, including backlog; without snapshots and versions without rows.",
            self._labels,
            registry=self._registry,
            buckets=DELIVERY_SECONDS,
        )
        # Without buckets, which would be half of all series.
        stage = (*self._labels, "stage")
        self.stages = Summary("cdfd_stage_seconds", "Time in the stages of deliveries.", stage, registry=self._registry)
        help_text = "Always 1; labels have the version, and whether cdfd-native is used: true or false."
        build = Gauge("cdfd_build_info", help_text, ["version", "native"], registry=self._registry)
        build.labels(version, str(native).lower()).set(1)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def table(self, *names: str) -> TableMetrics:
        """The counters of one table, by its name and with `sinks` that of the sink. Call it once for each loop."""
        return TableMetrics(self, names)

    def remove(self, *names: str) -> None:
        """Forget the counters of a table that this process does not deliver any more."""
        families = (
            (self.rows, CHANGE_TYPES),
            (self.errors, self.error_families),
            (self.transactions, ("committed", "aborted")),
            (self.stages, STAGES),
        )
        for family, values in families:
            for value in (*values, OTHER):
                with suppress(KeyError):  # OTHER only exists if it was needed
                    family.remove(*names, value)
        for single in (self.commits, self.bytes_read, self.transient, self.delivery):
            single.remove(*names)

    def render(
        self, readings: Sequence[Reading], further: Sequence[Metric] = (), *, openmetrics: bool = False
    ) -> bytes:
        """All metrics in Prometheus' text format, `CONTENT_TYPE`. Safe in any thread; takes about a millisecond for each table.

        Args:
            readings: the current status of every table.
            further: metrics of the daemon as a whole.
            openmetrics: in the format of OpenMetrics instead, `OPENMETRICS_TYPE`, which has exemplars.
        """
        render: Callable[[Collector], bytes] = (
            openmetrics_exposition.generate_latest if openmetrics else generate_latest
        )
        return render(_Scrape(self._registry, self._labels, readings, further))


@dataclass(eq=False)
class _Scrape(Collector):
    """All metrics at one moment: the counters, and the gauges of every table.

    The library's `_created` series are omitted: they would add one series to every two.
    """

    counted: CollectorRegistry
    labels: tuple[str, ...]
    readings: Sequence[Reading]
    further: Sequence[Metric]

    def collect(self) -> Iterator[Metric]:
        for family in self.counted.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        yield GaugeMetricFamily("cdfd_up", "Always 1: the daemon ends if a table's task ends unexpectedly.", value=1)
        for name, text, attribute in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=self.labels)
            for reading in self.readings:
                number = getattr(reading, attribute)
                if number is not None:
                    gauge.add_metric(reading.labels, number)
            yield gauge
        left = GaugeMetricFamily(
            "cdfd_retention_headroom_seconds",
            "Time until clean-up of the table may remove what is not delivered; all of the retention at the tip; negative: overdue.",
            labels=(*self.labels, "retention"),
        )
        whole = GaugeMetricFamily(
            "cdfd_retention_seconds",
            "How long the table keeps log entries, and files that a commit deleted.",
            labels=(*self.labels, "retention"),
        )
        for reading in self.readings:
            for each in reading.headrooms:
                left.add_metric((*reading.labels, each.kind), each.seconds)
                whole.add_metric((*reading.labels, each.kind), each.retention)
        yield from (left, whole)
        states = GaugeMetricFamily(
            "cdfd_table_state", "1 for the current state of the table.", labels=(*self.labels, "state")
        )
        for reading in self.readings:
            for state in STATES:
                states.add_metric((*reading.labels, state), float(reading.state == state))
        yield states
        yield from self.further


_GAUGES = (
    (
        "cdfd_lag_seconds",
        "Age of the oldest undelivered commit, by its commit timestamp; 0 at the tip.",
        "lag_seconds",
    ),
    ("cdfd_lag_versions", "Versions that the daemon has seen and not delivered.", "lag_versions"),
    (
        "cdfd_delivered_version",
        "Every version up to this one is delivered, or came before the start; -1: none yet.",
        "delivered_version",
    ),
    ("cdfd_table_version", "The newest version that the daemon has seen.", "table_version"),
    (
        "cdfd_ledger_version",
        "The delivered version in the ledger, which is updated every progress.interval; -1: none yet.",
        "ledger_version",
    ),
    ("cdfd_last_delivery_timestamp_seconds", "Unix time of the last delivery since the start.", "delivered_at"),
    (
        "cdfd_paused",
        "1 from an error that stops the table until it delivers again, is at the tip, or a request pauses it.",
        "paused",
    ),
    (
        "cdfd_position_lost",
        "1 if the table began again since the daemon's start, although its topic has records of it.",
        "lost_position",
    ),
)
