"""Searches for the tables of patterns while a daemon runs: at intervals, and on local file systems when a folder appears or vanishes."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cdfd.config.discovery import Discovery
from cdfd.daemon.http.status import Search, Searches
from cdfd.daemon.membership.discovery import Folders, FolderSearch, SharedSearches, Steps
from cdfd.daemon.membership.members import Members
from cdfd.deliver.grace import Outage
from cdfd.errors import CdfdError
from cdfd.log.watch import Backoff, DirectoryWatch, PollWatch, Watch
from cdfd.runtime.clock import Clock
from cdfd.runtime.file_events import FileEvents
from cdfd.runtime.tasks import first_done
from cdfd.storage.local import LocalStorage
from cdfd.storage.location import is_local, open_storage

logger = logging.getLogger("cdfd.discovery")

FIRST_SECONDS = 1.0
"""Time to the second search after a folder appeared: its log may come a moment later."""
REST_SECONDS, REST = 0.2, 4.0
"""Least time from one search to the next: seconds, and a multiple of its duration. Files may come and go in a folder all the time."""
START_SECONDS = 5.0
"""How long the first searches of all patterns are awaited, before the tables that are known are delivered. A store may hang."""


@dataclass(eq=False)
class Searching:
    """Keeps the tables of all patterns up to date.

    Attributes:
        shared: the searches that sinks share.
        started: set once the tables of the first search of each pattern are members, even if some patterns could not be searched.
    """

    members: Members
    searches: Searches
    clock: Clock
    file_events: FileEvents
    shared: SharedSearches
    started: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _statuses: dict[Discovery, Search] = field(default_factory=dict, init=False)
    _running: dict[Discovery, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _searched: dict[Discovery, tuple[FolderSearch, frozenset[Steps]]] = field(default_factory=dict, init=False)
    _unsearched: set[Discovery] = field(default_factory=set, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Search until cancelled. Raises only what is a bug."""
        # First all patterns, and then their tables together: so the order of the file decides between two of one name.
        discoveries = self.members.config.discoveries
        self._note(discoveries)

        async def search_one(discovery: Discovery) -> dict[Discovery, Folders]:
            try:
                return await self.search((discovery,))
            except CdfdError:
                return {}  # the pattern's own searches report it

        searches = {discovery: asyncio.create_task(search_one(discovery)) for discovery in discoveries}
        try:
            if searches:
                await asyncio.wait(searches.values(), timeout=START_SECONDS)
            folders: dict[Discovery, Folders] = {}
            for discovery, task in searches.items():
                if task.done():
                    folders |= task.result()
                else:
                    self._unsearched.add(discovery)
            if folders:
                await self.members.note_folders(folders)
            for discovery in self._unsearched:
                self._searched.pop(discovery, None)  # its search has ended meanwhile, and its tables are not noted
            while True:
                self._changed.clear()
                await self._follow(self.members.config.discoveries)
                self._note_searched(self._unsearched.difference(self.members.config.discoveries))
                async with first_done(self._changed.wait(), *map(asyncio.shield, self._running.values())):
                    for running in self._running.values():
                        if running.done():
                            running.result()
        finally:
            for task in searches.values():
                task.cancel()
            await self._follow(())

    def refresh(self) -> None:
        """Follow the patterns of a new configuration."""
        self._changed.set()

    async def search(self, discoveries: Sequence[Discovery]) -> dict[Discovery, Folders]:
        """The tables of patterns that are not followed yet.

        Raises:
            CdfdError: a folder cannot be listed.
        """
        folders: dict[Discovery, Folders] = {}
        for discovery in discoveries:
            if discovery not in self._running:
                search = self.shared.of(self.members.config, discovery)
                folders[discovery] = await search.search(self.members.config, _age(discovery))
                if discovery not in self._running:
                    self._searched[discovery] = search, frozenset(folders[discovery].tables)
        return folders

    def _note_searched(self, discoveries: Collection[Discovery]) -> None:
        """The first searches of these patterns have ended, or they are not followed any more."""
        self._unsearched.difference_update(discoveries)
        if not self._unsearched:
            self.started.set()

    def _note(self, discoveries: Sequence[Discovery]) -> None:
        before, self._statuses, self.searches.by_pattern = self._statuses, {}, {}
        changed = {entry.discover: search for entry, search in before.items() if entry not in discoveries}
        for entry in dict.fromkeys(discoveries):
            search = before.get(entry) or changed.pop(entry.discover, Search(entry.interval, self.clock.now_ms()))
            search.interval = entry.interval
            self._statuses[entry] = search
            # Several entries of the file may have one pattern, such as with different keys.
            number = sum(entry.discover == each.discover for each in self._statuses)
            self.searches.by_pattern[entry.discover + (f" ({number})" if number > 1 else "")] = search

    async def _follow(self, discoveries: Sequence[Discovery]) -> None:
        gone = [task for discovery, task in self._running.items() if discovery not in discoveries]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        same = {discovery: task for discovery, task in self._running.items() if discovery in discoveries}
        self._note(discoveries)
        self._running = {
            discovery: same.get(discovery) or asyncio.create_task(self._keep(discovery)) for discovery in discoveries
        }

    async def _keep(self, discovery: Discovery) -> None:
        """Search for one pattern's tables, forever."""
        status = self._statuses[discovery]
        search, before = self._searched.pop(discovery, (self.shared.of(self.members.config, discovery), None))
        if before is not None:
            status.tables, status.searched_ms, status.error = len(before), self.clock.now_ms(), None
        root, interval = discovery.pattern.root, discovery.interval
        storage = open_storage(root, self.members.config.options(root))
        watch: Watch = PollWatch(self.clock)
        backoff = Backoff(interval, interval)
        if isinstance(storage, LocalStorage):
            watch = DirectoryWatch(storage.root, self.file_events, self.clock, accepts=lambda _: True)
            backoff = Backoff(min(FIRST_SECONDS, interval), interval)
        outage, rested = Outage(), 0.0
        try:
            while True:
                began = self.clock.monotonic()
                await watch.wait(backoff.delay if before is not None or status.error is not None else 0)
                early = self.clock.monotonic() - began < 0.9 * backoff.delay
                backoff = backoff.reset() if early else backoff.longer()
                if (pause := rested - self.clock.monotonic()) > 0:
                    await self.clock.sleep(pause)
                searched = self.clock.monotonic()
                try:
                    folders = await search.search(self.members.config, _age(discovery))
                except CdfdError as error:
                    counts = outage.fail(error, self.clock.monotonic())
                    status.errors, status.error = status.errors + counts, str(error)
                    level = logging.ERROR if counts else logging.WARNING
                    logger.log(level, "cannot search for tables in %s: %s", discovery.discover, error)
                    self._note_searched((discovery,))
                    continue
                finally:
                    ended = self.clock.monotonic()
                    rested = ended + min(interval, max(REST_SECONDS, REST * (ended - searched)))
                outage.work()
                tables = frozenset(folders.tables)
                uri = discovery.pattern.uri
                vanished = [uri(steps) for steps in sorted((before or frozenset()) - tables)]
                for gone in vanished:
                    logger.warning(
                        "the table %s has vanished; it is not delivered any more", gone, extra={"table": gone}
                    )
                status.vanished = status.vanished.union(vanished) - {uri(steps) for steps in tables}
                status.tables, status.searched_ms, status.error = len(tables), self.clock.now_ms(), None
                before = tables
                # A change that has begun is completed, also where the pattern is removed meanwhile.
                await asyncio.shield(self.members.note_folders({discovery: folders}))
                self._note_searched((discovery,))
        finally:
            watch.close()


def _age(discovery: Discovery) -> float:
    """Seconds for which a search serves other sinks. Events of a local folder announce what an older search lacks."""
    return 0.0 if is_local(discovery.pattern.root) else discovery.interval / 2
