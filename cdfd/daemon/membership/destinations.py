"""The sinks of a running daemon. Each has its tables, searches, heartbeats and requests, and shares no state with the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from cdfd.config.discovery import Discovery
from cdfd.config.settings import Settings
from cdfd.daemon.http.status import Status
from cdfd.daemon.membership.discovery import Folders
from cdfd.daemon.membership.searching import Searching
from cdfd.errors import CdfdError
from cdfd.runtime.tasks import first_done


@dataclass(eq=False)
class Destinations:
    """Keeps the sinks of the configuration open.

    Attributes:
        open_sink: opens one of the sinks with all of its tables, and closes it at the end of the block. Yields its searches for tables.
    """

    config: Settings
    status: Status
    open_sink: Callable[[Settings, Status], AbstractAsyncContextManager[Searching]]
    _open: dict[str, Searching] = field(default_factory=dict, init=False)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _configuring: bool = field(default=False, init=False)

    def awaits_tables(self) -> bool:
        """Whether tables may come: a search finds them, or those that a new configuration changed have not come back yet."""
        return self._configuring or bool(self.status.config.discoveries)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open all sinks, and close them at the end of the block.

        Raises:
            CdfdError: one of them cannot be opened.
        """
        try:
            for name, config in self.config.by_sink.items():
                await self._join(name, config)
            yield
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def run(self) -> None:
        """Search for tables until cancelled. Raises only what is a bug."""
        while True:
            self._changed.clear()
            async with first_done(self._changed.wait(), *map(asyncio.shield, self._tasks.values())):
                for task in self._tasks.values():
                    if task.done():
                        task.result()

    async def configure(self, config: Settings) -> tuple[Mapping[str, str], CdfdError | None]:
        """Apply the tables and the sinks of a new configuration. A sink whose settings changed is closed, and opened again.

        Old sinks are closed before new ones are opened, because two of them may write to the same place.

        Returns:
            The change of each sink in words, by its name, and the error of the first new sink that cannot be opened. Everything else is
            applied nevertheless.

        Raises:
            CdfdError: a folder cannot be listed, and nothing changed.
        """
        old, new = self.config, config.by_sink
        stay = {
            name: self._open[name]
            for name in new
            if name in self._open and (not name or old.sinks[name] == config.sinks[name])
        }
        folders = {name: await each.search(new[name].discoveries) for name, each in stay.items()}
        self._configuring = True
        try:
            return await self._apply(config, stay, folders)
        finally:
            self._configuring = False

    async def _apply(
        self, config: Settings, stay: Mapping[str, Searching], folders: Mapping[str, Mapping[Discovery, Folders]]
    ) -> tuple[Mapping[str, str], CdfdError | None]:
        old, new = self.config, config.by_sink
        changes = {}
        for name in [name for name in self._open if name not in stay]:
            changes[name] = "removed"
            await self._open[name].members.close()
            task = self._tasks.pop(name)
            self._changed.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.status.remove_sink(name)
        # The next file is compared with these settings, and not with those that the sinks would have after a restart.
        staying = {name: each.members.config for name, each in stay.items() if name}
        self.config = old.with_tables_of(config, staying)
        self.status.config = self.config
        for name, each in stay.items():
            changes[name] = str(await each.members.configure(new[name], folders[name]))
            each.refresh()
        failure: CdfdError | None = None
        for name in new:
            if name not in stay:
                try:
                    await self._join(name, new[name])
                except CdfdError as error:
                    error.what = f"sink {name} cannot be opened: {error.what}"
                    failure = failure or error
                else:
                    changes[name] = "opened again" if name in changes else "added"
        return changes, failure

    async def _join(self, name: str, config: Settings) -> None:
        opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._tasks[name] = asyncio.create_task(self._keep_open(name, config, opening))
        await asyncio.wait((opening, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            del self._tasks[name]
            if name:
                self.status.remove_sink(name)
            task.result()
        self._changed.set()

    async def _keep_open(self, name: str, config: Settings, opening: asyncio.Future[None]) -> None:
        async with self.open_sink(config, self.status.of_sink(config)) as searching:
            self._open[name] = searching
            opening.set_result(None)
            try:
                await searching.run()
            finally:
                del self._open[name]
