"""The tables that several sinks of a daemon read: one store and one set of files for all, and rows that are decoded once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.deliver.configured import open_table
from cdfd.errors import CdfdError
from cdfd.log.entry import KeptState
from cdfd.log.log import DeltaLog
from cdfd.log.table import Table
from cdfd.log.watch import SharedTip
from cdfd.runtime.clock import Clock
from cdfd.runtime.shared_results import Reader, SharedResults
from cdfd.scan.joined import Scanned
from cdfd.scan.table_files import SharedFiles

_OF_SINKS = {"name", "topic", "headers", "limits", "start"}
"""Settings of a table that do not change what is read."""


@dataclass(slots=True)
class Accesses:
    """Numbers the settings by which stores are opened. Sinks have different ones once a reload has opened some of them."""

    _numbered: list[tuple[object, object]] = field(default_factory=list, init=False)

    def number(self, config: Settings) -> int:
        """The number of the settings; equal ones have the same."""
        # Not a hash: these settings have mappings.
        access = config.storage, config.catalogs
        if access not in self._numbered:
            self._numbered.append(access)
        return self._numbered.index(access)


@dataclass(slots=True)
class _Opened:
    """A table that is open, and how many sinks read it."""

    files: SharedFiles
    tip: SharedTip
    kept: deque[KeptState]
    users: int = 0


@dataclass(slots=True)
class Sources:
    """The tables of all sinks of a daemon.

    Attributes:
        results: rows that wait for other sinks.
    """

    clock: Clock

    results: SharedResults[Scanned] = field(default_factory=lambda: SharedResults(lambda scanned: scanned.rows.nbytes))
    _open: dict[str, _Opened] = field(default_factory=dict)
    _prepared: dict[str, Table] = field(default_factory=dict)
    _accesses: Accesses = field(default_factory=Accesses)

    def is_remote(self, config: Settings, table: settings.Table) -> bool:
        """Whether a table that is prepared is in a store of objects, where requests cost money."""
        prepared = self._prepared.get(self._key(config, table))
        return prepared is not None and prepared.log.storage.remote

    async def prepare(self, config: Settings, table: settings.Table, most_bytes: int) -> None:
        """Open a table that this process may deliver later, and keep its newest state; see `DeltaLog.keep`. Call it again to follow it.

        Raises:
            CdfdError: the table cannot be read.
        """
        key = self._key(config, table)
        prepared = self._prepared.setdefault(key, self._prepared.get(key) or open_table(config, table))
        try:
            await prepared.log.keep(most_bytes)
        except CdfdError:
            self._prepared.pop(key, None)  # it may be another table now; another sink may have forgotten it first
            raise

    def retain(self, tables: Iterable[tuple[Settings, settings.Table]]) -> None:
        """Forget the other tables that are prepared and not open."""
        keys = {self._key(config, table) for config, table in tables}
        self._prepared = {key: prepared for key, prepared in self._prepared.items() if key in keys}

    def _open_table(self, config: Settings, table: settings.Table) -> Table:
        # A function of its own: `table` runs as long as its sink, and would hold the log of a standby until then.
        prepared = self._prepared.pop(self._key(config, table), None)
        if prepared is None:
            return open_table(config, table)
        # A new log, because the newest entry that this one has read is later than the position.
        log = DeltaLog(prepared.log.storage, table.max_log_line, prepared.log.kept)
        return Table(log, prepared.files)

    @contextmanager
    def table(
        self, config: Settings, table: settings.Table
    ) -> Iterator[tuple[Table, Reader[Scanned] | None, SharedTip | None]]:
        """A table for one sink, and the sink's share in what is decoded and in the polls of the log; None if the pipeline has only this sink.

        Each sink has a log of its own, because it verifies the history of what it read itself.

        Raises:
            ConfigError, UnsupportedError: see `open_table`.
        """
        if not config.sink_name:
            yield self._open_table(config, table), None, None
            return
        key = self._key(config, table)
        shared = self._open.get(key)
        if shared is None:
            source = self._open_table(config, table)
            shared = self._open[key] = _Opened(SharedFiles.of(source.files), SharedTip(self.clock), source.log.kept)
        shared.users += 1
        try:
            with self.results.reader(key) as reader:
                log = DeltaLog(shared.files.storage, table.max_log_line, shared.kept)
                yield Table(log, shared.files), reader, shared.tip
        finally:
            shared.users -= 1
            if not shared.users:
                del self._open[key]

    def _key(self, config: Settings, table: settings.Table) -> str:
        # Users who can create folders where tables are searched for are not trusted: see `Table.found_below`.
        return f"{self._accesses.number(config)} {table.found_below} {table.model_dump_json(exclude=_OF_SINKS)}"
