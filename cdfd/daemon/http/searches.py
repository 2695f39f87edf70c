"""The status of searches for tables and of the configuration file, for `/status`, `/readyz` and metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cdfd.config.sinks import sink_address
from cdfd.escaping import shorten


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
