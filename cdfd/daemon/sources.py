"""The tables that several sinks of a daemon read: one store and one set of files for all, and rows that are decoded once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.deliver.configured import open_table
from cdfd.log.log import DeltaLog
from cdfd.log.table import Table
from cdfd.runtime.shared_results import Reader, SharedResults
from cdfd.scan.joined import Scanned
from cdfd.scan.table_files import SharedFiles

_OF_SINKS = {"name", "topic", "headers", "limits", "start"}
"""Settings of a table that do not change what is read."""


@dataclass(slots=True)
class _Source:
    """A table that is open.

    Attributes:
        table: as it was opened.
        users: how many sinks read it.
    """

    table: Table
    users: int = 0


@dataclass(slots=True)
class Sources:
    """The tables of all sinks of a daemon.

    Attributes:
        results: rows that wait for other sinks.
    """

    results: SharedResults[Scanned] = field(default_factory=lambda: SharedResults(lambda found: found.rows.nbytes))
    _open: dict[str, _Source] = field(default_factory=dict)

    @contextmanager
    def table(self, config: Settings, table: settings.Table) -> Iterator[tuple[Table, Reader[Scanned] | None]]:
        """A table for one sink, and its share in what is decoded; None if the pipeline has only this sink.

        Each sink has a log of its own, because it verifies the history of what it read itself.

        Raises:
            ConfigError, UnsupportedError: see `open_table`.
        """
        if not config.sink_name:
            yield open_table(config, table), None
            return
        # Users who can create folders where tables are searched for are not trusted: see `Table.found_below`.
        key = f"{table.found_below} {table.model_dump_json(exclude=_OF_SINKS)}"
        source = self._open.get(key)
        if source is None:
            opened = open_table(config, table)
            source = self._open[key] = _Source(Table(opened.log, SharedFiles.of(opened.files)))
        source.users += 1
        try:
            files = source.table.files
            with self.results.reader(key) as reader:
                yield Table(DeltaLog(files.storage, table.max_log_line), files), reader
        finally:
            source.users -= 1
            if not source.users:
                del self._open[key]
