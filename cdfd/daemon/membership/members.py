"""The tables of a running daemon: adds and removes loops as the configuration and the patterns of folders have it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from cdfd.config.discovery import Discovery, TableEntry
from cdfd.config.settings import Settings
from cdfd.config.sinks import claims
from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.engines import OpenLoop
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.daemon.membership.discovery import CONFLICT_HINT, Folders, Tables, merge_tables, with_key
from cdfd.daemon.membership.shard import Shard
from cdfd.daemon.supervision.supervisor import Loop, Supervisor
from cdfd.deliver.admission import Admission
from cdfd.deliver.monitor import Monitor
from cdfd.errors import CdfdError, ConfigError
from cdfd.runtime import logs

logger = logging.getLogger("cdfd.daemon")

_MOST_NAMES = 20
_ONE_IN = 10
"""Tables that have left are collected once they are one in so many. That looks at all objects of the process: 1.6 ms for each table."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The tables that a new state added, removed and changed, by name, sorted. A changed table was removed and added again."""

    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    changed: Sequence[str] = ()

    def __str__(self) -> str:
        parts = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        return "; ".join(f"{what}: {_show(names)}" for what, names in parts if names) or "no table changes"


AT_A_TIME = 16
"""Tables that are opened at once. Opening a table takes threads and connections that it does not keep."""
LONGEST_TURN = 10.0
"""Seconds after which the next table is opened, too: tables whose store hangs must not keep the others waiting."""


@dataclass(eq=False)
class Members:
    """The tables that this process delivers.

    A table is the same as long as its settings are. If they change, its loop ends and a new one continues at its position. Other tables
    notice nothing.

    Attributes:
        status: has a monitor for each table.
        controller: has a mailbox for each table; None: tables take no requests.
        shard: of this process; None: it delivers all tables.
        monitor_of: completes the monitor of a table with those of telemetry; None: it is complete.
    """

    config: Settings
    supervisor: Supervisor
    status: Status
    open_loop: OpenLoop
    controller: Controller | None = None
    shard: Shard | None = None
    monitor_of: Callable[[TableMonitor], Monitor] | None = None
    _folders: dict[Discovery, Folders] = field(default_factory=dict, init=False)
    _running: dict[str, TableEntry] = field(default_factory=dict, init=False)
    _unopened: set[str] = field(default_factory=set, init=False)
    _left: int = field(default=0, init=False)
    _reported: frozenset[str] = field(default_factory=frozenset, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _openings: Admission = field(default_factory=lambda: Admission(AT_A_TIME, LONGEST_TURN), init=False)

    async def start(self) -> Changes:
        """Add the tables that the configuration lists."""
        async with self._lock:
            return await self._apply()

    async def note_folders(self, folders: Mapping[Discovery, Folders]) -> Changes:
        """Add the tables that searches found, and remove those that have vanished. Patterns of an old configuration count for nothing."""
        async with self._lock:
            self._folders |= {entry: tables for entry, tables in folders.items() if entry in self.config.discoveries}
            changes = await self._apply()
        if changes != Changes():
            logger.info("tables of %s: %s", ", ".join(entry.discover for entry in folders), changes)
        return changes

    async def configure(self, config: Settings, folders: Mapping[Discovery, Folders]) -> Changes:
        """Apply the tables of a new configuration. Its other settings stay as they are.

        Args:
            config: the new settings.
            folders: the tables of patterns that are new. Without them, tables that an old pattern has too would be removed for a while.
        """
        async with self._lock:
            self.config = self.config.with_tables_of(config)
            kept = {entry: tables for entry, tables in self._folders.items() if entry in config.discoveries}
            self._folders = kept | dict(folders)
            self.status.config = self.config
            return await self._apply()

    async def close(self) -> None:
        """End all loops, because the daemon does not deliver to this sink any more. A search that ends later adds no tables."""
        async with self._lock:
            self.config = self.config.with_tables(())
            await self._apply()

    async def _apply(self) -> Changes:
        searched = [(discovery, self._folders.get(discovery, Folders())) for discovery in self.config.discoveries]
        running = {entry.table.uri for entry in self._running.values()}
        tables = await asyncio.to_thread(merge_tables, self.config, searched, running)
        wanted = tables.of_shard(self.shard).entries
        leaving = [name for name, entry in self._running.items() if wanted.get(name) != entry]
        joining = [name for name in wanted if self._running.get(name) != wanted[name]]
        await asyncio.gather(*map(self._leave, leaving))
        # Nothing is awaited from here on: another sink could take the same topic meanwhile.
        taken = self._claimed_elsewhere([wanted[name] for name in joining])
        joining = [name for name in joining if name not in taken]
        self._report([*tables.refused, *taken.values()], tables)
        if self.controller is not None:
            for name in {*leaving} - {*joining}:
                self.controller.remove(self.config.address(name))
        self._unopened.update(joining)
        at_work = not self.status.not_ready()  # once, because it asks all tables
        for name in joining:
            entry = wanted[name]
            self._running[name] = entry
            added = self.status.add(entry.table, starts_at_work=at_work)
            monitor = added if self.monitor_of is None else self.monitor_of(added)
            address = self.config.address(name)
            wake = None if self.controller is None else self.controller.add(address).interrupt
            self.supervisor.add(address, partial(self._open, entry, monitor), monitor, wake)
        return Changes(
            tuple(sorted({*joining} - {*leaving})),
            tuple(sorted({*leaving} - {*joining})),
            tuple(sorted({*joining} & {*leaving})),
        )

    def _claimed_elsewhere(self, joining: Sequence[TableEntry]) -> Mapping[str, CdfdError]:
        """The tables that a search found and whose topic or place another sink has, and the error of each."""
        listed = {table.name for table in self.config.listed}
        tables = [entry.table for entry in joining if entry.table.name not in listed]
        elsewhere = self.status.claims_elsewhere() if tables else {}
        return {
            table.name: ConfigError(f"{what} is also one of sinks.{sink}", table=table.uri, hint=CONFLICT_HINT)
            for table in tables
            for claim, what in claims(self.config, table).items()
            if (sink := elsewhere.get(claim)) is not None
        }

    def _report(self, refusals: Sequence[CdfdError], tables: Tables) -> None:
        """Report what is not delivered. Each line is logged once, for as long as it lasts."""
        refused, unread = list(map(str, refusals)), list(map(str, tables.unread))
        same = [f"{link} is the table {uri}, and is delivered as that" for link, uri in tables.duplicates.items()]
        for level, lines in ((logging.ERROR, refused), (logging.WARNING, unread), (logging.INFO, same)):
            for line in lines:
                if line not in self._reported:
                    logger.log(level, "%s", line)
        self._reported = frozenset((*refused, *unread, *same))
        self.status.searches.refused = (*refused, *unread)

    async def _leave(self, name: str) -> None:
        del self._running[name]
        self._unopened.discard(name)
        self._left += 1
        await self.supervisor.remove(self.config.address(name))
        self.status.remove(name)

    @asynccontextmanager
    async def _open(self, entry: TableEntry, monitor: Monitor, stop: asyncio.Event) -> AsyncIterator[Loop]:
        logs.SINK.set(self.config.sink_name)
        # The key is read here, behind the boundary of the supervisor: a table that cannot be read is that table's error.
        async with AsyncExitStack() as stack:
            async with self._openings.admit(sys.maxsize):  # small deliveries take no slot, and each opening does
                try:
                    table = await with_key(self.config, entry)
                    loop = await stack.enter_async_context(self.open_loop(table, stop, monitor))
                finally:
                    # A new table is open, or cannot be opened. With the last one, the process has nearly all that it will have.
                    if entry.table.name in self._unopened:
                        self._unopened.remove(entry.table.name)
                        if not self._unopened:
                            # The garbage collector leaves alone all objects that there are now: those of 500 tables take it 0.8 s, in which
                            # nothing else runs. Cycles of tables that have left are collected first, if they are many.
                            if self._left * _ONE_IN >= len(self._running):
                                gc.unfreeze()
                                self._left = 0
                            gc.collect()
                            gc.freeze()
            yield loop


def _show(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
