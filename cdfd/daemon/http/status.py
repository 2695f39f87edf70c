"""The status of a daemon, for metrics, `/status` and `/readyz`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cdfd import __version__
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.daemon.http.metrics import Metrics
from cdfd.daemon.http.searches import Searches
from cdfd.daemon.http.table_status import TableMonitor, iso
from cdfd.daemon.membership.shard import Shard
from cdfd.runtime import native
from cdfd.runtime.clock import Clock, SystemClock


class Status:
    """The status of a daemon: its metrics, its readiness and its `/status` document.

    Args:
        config: of the daemon. No document contains its secrets.
        clock: the source of time.
        shard: of this process; None: it delivers all tables.

    Attributes:
        notifications: returns the newest notifications.
        searches: the searches for tables, and the configuration file.
        exemplars: whether the metrics may have exemplars.
    """

    def __init__(self, config: Settings, clock: Clock | None = None, shard: Shard | None = None) -> None:
        self._config = config
        self._shard = shard
        self._clock = clock or SystemClock()
        self._started_ms, self._started = self._clock.now_ms(), self._clock.monotonic()

        self.exemplars = False
        self.notifications: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        self._metrics = metrics = Metrics(__version__, native=native.built)
        self._tables = {
            table.name: TableMonitor(table, metrics.table(table.name), self._clock)
            for table in config.listed
            if shard is None or shard.owns(table.name)
        }
        self.searches = Searches()

    def table(self, name: str) -> TableMonitor:
        """The monitor of a table of the configuration, by its name."""
        return self._tables[name]

    def add(self, table: settings.Table) -> TableMonitor:
        """The monitor of a table that the daemon starts to deliver."""
        known = self._tables.get(table.name)
        if known is not None and known.table == table:
            return known
        starts_at_work = not self.not_ready()
        monitor = TableMonitor(table, self._metrics.table(table.name), self._clock, starts_at_work=starts_at_work)
        self._tables[table.name] = monitor
        return monitor

    def remove(self, name: str) -> None:
        """Forget a table that the daemon does not deliver any more, with its metrics."""
        del self._tables[name]
        self._metrics.remove(name)

    def configure(self, config: Settings) -> None:
        """The daemon has other settings now."""
        self._config = config

    def tables(self) -> Sequence[TableMonitor]:
        """The monitors of all tables."""
        return tuple(self._tables.values())

    def metrics(self, *, openmetrics: bool = False) -> Callable[[], bytes]:
        """A function that renders `/metrics` of this moment, in any thread. `openmetrics`: see `Metrics.render`."""
        readings, families = [table.reading() for table in self._tables.values()], tuple(self.searches.families())
        return partial(self._metrics.render, readings, families, openmetrics=openmetrics)

    def health(self) -> Mapping[str, Any]:
        """`/healthz`, as JSON values. A daemon that answers is healthy: it ends as soon as a loop ends unexpectedly."""
        return {"healthy": True, "ended": {}}

    def not_ready(self) -> Mapping[str, str]:
        """The tables that are not ready, and the patterns without a search, and why."""
        tables = {name: why for name, table in self._tables.items() if (why := table.not_ready()) is not None}
        return tables | dict(self.searches.not_ready())

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self._config.pipeline

    def uptime(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._started

    def document(self) -> dict[str, Any]:
        """`/status`, as JSON values."""
        return {
            "cdfd": __version__,
            "pipeline": self._config.pipeline,
            "started": iso(self._started_ms),
            "uptime_seconds": round(self.uptime(), 3),
            "healthy": True,
            "ready": not self.not_ready(),
            "notifications": list(self.notifications()),
            "shard": None if self._shard is None else str(self._shard),
            "tables": {name: table.document() for name, table in self._tables.items()},
            **self.searches.document(),
            "configuration": self._config.public(),
        }
