"""The status of searches for tables and of the configuration file, for `/status`, `/readyz` and metrics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from cdfd.escaping import LONGEST_LINE, shortened


@dataclass(slots=True)
class Search:
    """The searches for the tables of one pattern.

    Attributes:
        tables: number of tables that the last search found.
        vanished: the tables that have vanished since the start, by location; one that came back is not among them.
        searched_ms: time of the last complete search, in milliseconds since the Unix epoch; None: none yet.
        errors: number of failed searches in outages that count; see `cdfd.deliver.grace`.
        error: the error of the last search; None: it was complete.
    """

    tables: int = 0
    vanished: frozenset[str] = frozenset()
    searched_ms: int | None = None
    errors: int = 0
    error: str | None = None

    def found(self, now_ms: int, tables: int) -> None:
        """A search was complete."""
        self.tables, self.searched_ms, self.error = tables, now_ms, None

    def failed(self, error: str, *, counts: bool) -> None:
        """A search failed. `counts`: whether its outage does."""
        self.errors, self.error = self.errors + counts, error


@dataclass(slots=True)
class Searches:
    """All patterns of a daemon, and its configuration file.

    Attributes:
        by_pattern: the searches of each pattern, as it is in the file.
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

    def not_ready(self) -> Mapping[str, str]:
        """The patterns that have not been searched yet, and why."""
        return {
            pattern: "no search for tables is complete yet" if search.error is None else _short(search.error)
            for pattern, search in self.by_pattern.items()
            if search.searched_ms is None
        }

    def document(self) -> dict[str, Any]:
        """Its part of `/status`, as JSON values."""
        return {
            "discoveries": {
                pattern: {
                    "tables": search.tables,
                    "vanished": sorted(search.vanished),
                    "last_search": _iso(search.searched_ms),
                    "error": None if search.error is None else _short(search.error),
                }
                for pattern, search in self.by_pattern.items()
            },
            "refused_tables": [_short(error) for error in self.refused],
            "reload": {
                "last": _iso(self.reloaded_ms),
                "error": None if self.reload_error is None else _short(self.reload_error),
                "needs_restart": list(self.unapplied),
            },
        }

    def families(self) -> Iterator[Metric]:
        """Its metrics at this moment."""
        tables = GaugeMetricFamily("cdfd_discovery_tables", "Tables that the last search found.", labels=_LABELS)
        vanished = GaugeMetricFamily(
            "cdfd_discovery_vanished_tables", "Tables that have vanished since the start.", labels=_LABELS
        )
        searched = GaugeMetricFamily(
            "cdfd_discovery_last_search_timestamp_seconds", "Unix time of the last complete search.", labels=_LABELS
        )
        errors = CounterMetricFamily("cdfd_discovery_errors", "Failed searches for tables.", labels=_LABELS)
        for pattern, search in self.by_pattern.items():
            tables.add_metric((pattern,), search.tables)
            vanished.add_metric((pattern,), len(search.vanished))
            errors.add_metric((pattern,), search.errors)
            if search.searched_ms is not None:
                searched.add_metric((pattern,), search.searched_ms / 1000)
        yield from (tables, vanished, searched, errors)
        yield GaugeMetricFamily(
            "cdfd_refused_tables", "Tables that were found and cannot be delivered.", value=len(self.refused)
        )
        yield GaugeMetricFamily(
            "cdfd_config_last_reload_successful",
            "1 if the daemon uses the tables of the newest configuration file.",
            value=float(self.reload_error is None),
        )


_LABELS = ("discover",)


def _short(text: str) -> str:
    return shortened(text, LONGEST_LINE)


def _iso(ms: int | None) -> str | None:
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
