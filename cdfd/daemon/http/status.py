"""The status of a daemon, for metrics, `/status` and `/readyz`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from cdfd import __version__
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.config.sinks import Claim, claims, sink_address
from cdfd.daemon.election.election import Election
from cdfd.daemon.http.metrics import Metrics
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.daemon.membership.shard import Shard
from cdfd.escaping import shorten
from cdfd.log.pace import PollBudget
from cdfd.runtime import native
from cdfd.runtime.clock import Clock, SystemClock
from cdfd.runtime.times import iso


@dataclass(slots=True)
class Search:
    """The searches for the tables of one pattern.

    Attributes:
        interval: seconds from one search to the next.
        began_ms: when the daemon began to search for it, in milliseconds since the Unix epoch.
        tables: number of tables that the last search found.
        vanished: the tables that have vanished since the start, by location; one that came back is not among them.
        searched_ms: time of the last complete search, in milliseconds since the Unix epoch; None: none yet.
        errors: number of failed searches in outages that count; see `cdfd.deliver.grace`.
        error: the error of the last search; None: it was complete.
    """

    interval: float
    began_ms: int
    tables: int = 0
    vanished: frozenset[str] = frozenset()
    searched_ms: int | None = None
    errors: int = 0
    error: str | None = None


@dataclass(slots=True)
class Searches:
    """All patterns of a daemon, and its configuration file.

    Attributes:
        by_pattern: the searches of each entry, by its pattern as it is in the file; a further entry of a pattern has its number after it.
        refused: errors of tables that were found and are not delivered.
        reload_error: why the newest configuration file is not used; None: it is.
        reloaded_ms: time of the last file that was used, after the start; None: none.
        unapplied: settings of the newest file that need a restart.
    """

    by_pattern: dict[str, Search] = field(default_factory=dict)
    refused: Sequence[str] = ()
    reload_error: str | None = None
    reloaded_ms: int | None = None
    unapplied: Sequence[str] = ()


class Status:
    """The status of a daemon: its metrics, its readiness and its `/status` document.

    Args:
        config: of the daemon. No document contains its secrets.
        shard: of this process; None: it delivers all tables.
        whole: the status of the daemon, for that of one of its sinks.
        standby: whether it takes part in an election. Then it has no tables before it leads.

    Attributes:
        config: the current settings.
        election: of the pipeline; None if this process delivers without one.
        notifications: the newest ones, which the controller adds to.
        searches: the searches for tables, and the configuration file.
        has_begun: whether this process has the tables that it starts with; always true without an election. Before, a leader is not ready.
        poll_budget: of tables in stores without events.
    """

    def __init__(
        self,
        config: Settings,
        clock: Clock | None = None,
        shard: Shard | None = None,
        *,
        whole: Status | None = None,
        standby: bool = False,
    ) -> None:
        self.config = config
        self._sinks: dict[str, Status] = {}
        self._whole = whole
        self._shard = shard
        self._clock = clock or SystemClock()
        self._started_ms, self._started = self._clock.now_ms(), self._clock.monotonic()

        self.poll_budget = PollBudget(config.poll.max_requests_per_hour, config.poll.max_interval)
        self.notifications: Collection[Mapping[str, Any]] = ()
        several, at_work = bool(config.sinks), whole is not None and bool(whole.tables()) and not whole.not_ready()
        own = Metrics(__version__, native=native.built, sinks=several) if whole is None else whole._metrics
        self._metrics: Metrics = own
        self._sink_label = (config.sink_name,) if config.sink_name else ()
        self._tables: dict[str, TableMonitor] = {}
        for table in () if several or standby else config.listed:
            if shard is None or shard.owns(table.name):
                self.add(table, starts_at_work=at_work)
        self.searches = Searches()
        self.election: Election | None = None
        self._standby = standby
        self.has_begun = not standby

    def of_sink(self, config: Settings) -> Status:
        """The status of one sink, which is a part of this one. With `sink`, it is this one.

        Args:
            config: the settings of the sink; see `Settings.by_sink`.
        """
        if not config.sink_name:
            return self
        status = self._sinks[config.sink_name] = Status(config, self._clock, self._shard, whole=self)
        return status

    def remove_sink(self, name: str) -> None:
        """Forget a sink that the daemon does not deliver to any more, with its metrics."""
        status = self._sinks.pop(name)
        for table in tuple(status._tables):
            status.remove(table)

    def add(self, table: settings.Table, *, starts_at_work: bool) -> TableMonitor:
        """The monitor of a table that the daemon starts to deliver.

        Args:
            starts_at_work: whether the daemon was ready before it started to deliver this table and others.
        """
        earlier = self._tables.get(table.name)
        if earlier is not None and earlier.table == table:
            return earlier
        metrics = self._metrics.table(table.name, *self._sink_label)
        monitor = TableMonitor(table, metrics, self._clock, self.config.sink_name, starts_at_work=starts_at_work)
        self._tables[table.name] = monitor
        return monitor

    def remove(self, name: str) -> None:
        """Forget a table that the daemon does not deliver any more, with its metrics."""
        del self._tables[name]
        self._metrics.remove(name, *self._sink_label)

    def tables(self) -> Sequence[TableMonitor]:
        """The monitors of all tables."""
        return (*self._tables.values(), *(table for sink in self._sinks.values() for table in sink.tables()))

    @property
    def _searches(self) -> Mapping[str, Searches]:
        """The searches of each sink."""
        return {name: sink.searches for name, sink in self._sinks.items()} or {"": self.searches}

    def claims_elsewhere(self) -> Mapping[Claim, str]:
        """The topics and places of the tables that the daemon delivers to its other sinks, and the sink of each."""
        others = (
            {} if self._whole is None else {name: each for name, each in self._whole._sinks.items() if each is not self}
        )
        return {
            claim: name
            for name, other in others.items()
            for each in other._tables.values()
            for claim in claims(other.config, each.table)
        }

    def metrics(self, *, openmetrics: bool = False) -> Callable[[], bytes]:
        """A function that renders `/metrics` of this moment, in any thread. `openmetrics`: see `Metrics.render`."""
        readings = [table.reading() for table in self.tables()]
        leads, reloaded = self.role != "standby", self.searches.reload_error is None
        # Now, because the searches belong to the loop's thread.
        families = list(
            daemon_families(self.config.pipeline, self._searches, self.poll_budget, leads=leads, reloaded=reloaded)
        )
        return partial(self._metrics.render, readings, families, openmetrics=openmetrics)

    def not_ready(self) -> Mapping[str, str]:
        """The tables that are not ready, and the patterns without a search, and why. A standby is ready if it would take over."""
        if self.role == "standby":
            # It watches the lease from its first reading on, and not after one that failed.
            ready = self.election is not None and self.election.candidate.since is not None
            return {} if ready else {"standby": "the lease has not been read yet, or cannot be read"}
        if not self.has_begun:
            return {"leader": "it was elected a moment ago, and opens its tables"}
        reasons = {table.name: why for table in self.tables() if (why := table.not_ready()) is not None}
        for sink, searches in self._searches.items():
            for pattern, search in searches.by_pattern.items():
                if search.searched_ms is None:
                    why = "no search for tables is complete yet" if search.error is None else shorten(search.error)
                    reasons[sink_address(pattern, sink)] = why
        return reasons

    @property
    def role(self) -> Literal["alone", "leader", "standby"]:
        """`alone`: this process delivers without an election."""
        if not self._standby:
            return "alone"
        return "leader" if self.election is not None and self.election.candidate.leads else "standby"

    @property
    def leader(self) -> str | None:
        """The process that leads, by its name in claims; None without an election, and if there is none."""
        candidate = None if self.election is None else self.election.candidate
        claim = None if candidate is None else candidate.claim or candidate.seen
        return None if claim is None or claim.released else claim.owner

    def stand_by(self) -> None:
        """Forget all tables: another process delivers them now."""
        for name in list(self._sinks):
            self.remove_sink(name)
        for name in list(self._tables):
            self.remove(name)
        self.searches = Searches()
        self.has_begun = not self._standby

    def uptime(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._started

    def document(self) -> dict[str, Any]:
        """`/status`, as JSON values."""
        return {
            "cdfd": __version__,
            "pipeline": self.config.pipeline,
            "started": iso(self._started_ms),
            "uptime_seconds": round(self.uptime(), 3),
            "healthy": True,
            "ready": not self.not_ready(),
            "role": self.role,
            "leader": self.leader,
            "notifications": list(self.notifications),
            "shard": None if self._shard is None else str(self._shard),
            "polling": self.poll_budget.document(self._clock.monotonic()),
            "tables": {table.name: table.document() for table in self.tables()},
            "discoveries": {
                sink_address(pattern, sink): {
                    "tables": search.tables,
                    "vanished": sorted(search.vanished),
                    "last_search": None if search.searched_ms is None else iso(search.searched_ms),
                    "error": None if search.error is None else shorten(search.error),
                }
                for sink, searches in self._searches.items()
                for pattern, search in searches.by_pattern.items()
            },
            "refused_tables": [shorten(error) for searches in self._searches.values() for error in searches.refused],
            "reload": {
                "last": None if self.searches.reloaded_ms is None else iso(self.searches.reloaded_ms),
                "error": None if self.searches.reload_error is None else shorten(self.searches.reload_error),
                "needs_restart": list(self.searches.unapplied),
            },
            "configuration": self.config.public(),
        }


def daemon_families(
    pipeline: str, by_sink: Mapping[str, Searches], budget: PollBudget, *, leads: bool = True, reloaded: bool = True
) -> Iterator[Metric]:
    """The metrics of the daemon as a whole, at this moment.

    Args:
        by_sink: the searches of each sink; the label `sink` is there if there are several, and the name is empty if there is one.
        budget: of tables in stores without events.
        leads: whether this process delivers the pipeline.
        reloaded: whether the daemon uses the tables of the newest configuration file.
    """
    leader = GaugeMetricFamily(
        "cdfd_leader", "1 if this process delivers the pipeline, 0 if it stands by.", labels=("pipeline",)
    )
    leader.add_metric((pipeline,), float(leads))
    yield leader
    of_sink = () if "" in by_sink else ("sink",)
    labels = ("discover", *of_sink)
    tables = GaugeMetricFamily("cdfd_discovery_tables", "Tables that the last search found.", labels=labels)
    vanished = GaugeMetricFamily(
        "cdfd_discovery_vanished_tables", "Tables that have vanished since the start.", labels=labels
    )
    searched = GaugeMetricFamily(
        "cdfd_discovery_last_search_timestamp_seconds",
        "Unix time of the last complete search; before the first one, when the daemon began to search.",
        labels=labels,
    )
    interval = GaugeMetricFamily(
        "cdfd_discovery_interval_seconds", "Time from one search to the next, as configured.", labels=labels
    )
    errors = CounterMetricFamily(
        "cdfd_discovery_errors",
        "Failed searches for tables; those of the first 120 s of an outage count only if no retry helps.",
        labels=labels,
    )
    refused = GaugeMetricFamily(
        "cdfd_refused_tables", "Tables that were found and cannot be delivered.", labels=of_sink
    )
    for sink, searches in by_sink.items():
        here = (sink,) if of_sink else ()
        refused.add_metric(here, len(searches.refused))
        for pattern, search in searches.by_pattern.items():
            tables.add_metric((pattern, *here), search.tables)
            vanished.add_metric((pattern, *here), len(search.vanished))
            errors.add_metric((pattern, *here), search.errors)
            searched_ms = search.began_ms if search.searched_ms is None else search.searched_ms
            searched.add_metric((pattern, *here), searched_ms / 1000)
            interval.add_metric((pattern, *here), search.interval)
    yield from (tables, vanished, searched, interval, errors, refused)
    yield GaugeMetricFamily(
        "cdfd_config_last_reload_successful",
        "1 if the daemon uses the tables of the newest configuration file.",
        value=float(reloaded),
    )
    yield CounterMetricFamily("cdfd_poll_requests", "Requests for polling tables in stores.", value=budget.requests)
    yield GaugeMetricFamily(
        "cdfd_poll_max_requests_per_hour",
        "Requests for polling tables in stores, at most in any hour.",
        value=budget.max_requests_per_hour,
    )
