"""The status of searches for tables and of the configuration file, for `/status`, `/readyz` and metrics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from cdfd.config.sinks import sink_address
from cdfd.escaping import shorten
from cdfd.runtime.times import iso


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

    def note_tables(self, now_ms: int, tables: int) -> None:
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

    def not_ready(self, sink: str) -> Iterator[tuple[str, str]]:
        """The patterns that have not been searched yet, and why."""
        for pattern, search in self.by_pattern.items():
            if search.searched_ms is None:
                why = "no search for tables is complete yet" if search.error is None else shorten(search.error)
                yield sink_address(pattern, sink), why

    def reload_document(self) -> dict[str, Any]:
        """The part of `/status` about the configuration file, as JSON values."""
        return {
            "reload": {
                "last": None if self.reloaded_ms is None else iso(self.reloaded_ms),
                "error": None if self.reload_error is None else shorten(self.reload_error),
                "needs_restart": list(self.unapplied),
            },
        }

    def reload_family(self) -> Metric:
        """The metric about the configuration file at this moment."""
        return GaugeMetricFamily(
            "cdfd_config_last_reload_successful",
            "1 if the daemon uses the tables of the newest configuration file.",
            value=float(self.reload_error is None),
        )


def documents_of(by_sink: Mapping[str, Searches]) -> dict[str, Any]:
    """The part of `/status` about searches, as JSON values. The name of a sink is empty if there is only one."""
    return {
        "discoveries": {
            sink_address(pattern, sink): {
                "tables": search.tables,
                "vanished": sorted(search.vanished),
                "last_search": None if search.searched_ms is None else iso(search.searched_ms),
                "error": None if search.error is None else shorten(search.error),
            }
            for sink, searches in by_sink.items()
            for pattern, search in searches.by_pattern.items()
        },
        "refused_tables": [shorten(error) for searches in by_sink.values() for error in searches.refused],
    }


def families_of(by_sink: Mapping[str, Searches]) -> Iterator[Metric]:
    """The metrics of searches at this moment, with the label `sink` if there are several."""
    of_sink = () if "" in by_sink else ("sink",)
    labels = ("discover", *of_sink)
    tables = GaugeMetricFamily("cdfd_discovery_tables", "Tables that the last search found.", labels=labels)
    vanished = GaugeMetricFamily(
        "cdfd_discovery_vanished_tables", "Tables that have vanished since the start.", labels=labels
    )
    searched = GaugeMetricFamily(
        "cdfd_discovery_last_search_timestamp_seconds", "Unix time of the last complete search.", labels=labels
    )
    errors = CounterMetricFamily("cdfd_discovery_errors", "Failed searches for tables.", labels=labels)
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
            if search.searched_ms is not None:
                searched.add_metric((pattern, *here), search.searched_ms / 1000)
    yield from (tables, vanished, searched, errors, refused)
