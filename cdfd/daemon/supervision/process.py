"""The daemon's process: the loops of all tables and an HTTP server, until a signal or a fatal error."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cdfd import __version__
from cdfd.config.parser import load
from cdfd.config.settings import Settings
from cdfd.daemon import assembly
from cdfd.daemon.controls.controller import Controller, Publisher
from cdfd.daemon.controls.signals import read_signals
from cdfd.daemon.election.candidate import Candidate
from cdfd.daemon.election.election import Election
from cdfd.daemon.election.warm_tables import WarmTables
from cdfd.daemon.engines import OpenLoop, engine_of
from cdfd.daemon.heartbeats import Heartbeats
from cdfd.daemon.http.history import History
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.summary import Summary
from cdfd.daemon.membership.destinations import Destinations
from cdfd.daemon.membership.discovery import SharedSearches
from cdfd.daemon.membership.members import Members
from cdfd.daemon.membership.reloading import Reloading, file_content, load_changes
from cdfd.daemon.membership.searching import Searching
from cdfd.daemon.membership.shard import Shard
from cdfd.daemon.sources import Sources
from cdfd.daemon.supervision.preflight import preflight
from cdfd.daemon.supervision.signals import Stopping, run_until
from cdfd.daemon.supervision.supervisor import Supervisor
from cdfd.daemon.telemetry.monitors import telemetry_monitors
from cdfd.errors import CdfdError, FencedError
from cdfd.log.notifications import Notifications
from cdfd.runtime import allocator, native
from cdfd.runtime.clock import Clock, SystemClock
from cdfd.runtime.file_events import FileEvents
from cdfd.runtime.tasks import background, beside
from cdfd.runtime.threads import Threads
from cdfd.sinks.base import Connector, connector

logger = logging.getLogger("cdfd.daemon")


async def run(
    path: Path, *, recover_from_ledger: bool = False, shard: Shard | None = None, standby: bool = False
) -> int:
    """Run the loops of all tables until a signal: 0 after SIGTERM, 130 after SIGINT.

    Args:
        path: the configuration file, which is read again after a change.
        recover_from_ledger: see `Policies`.
        shard: deliver the tables of this shard only; None: all.
        standby: run the loops only while this process leads; see `Election`.

    Raises:
        ConfigError: the configuration is invalid; see `preflight`.
        CdfdError: all loops have failed; see `Supervisor`.
    """
    hangup = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    loaded = file_content(path)  # before it is parsed, so that a change in between is found later
    config = load(path)
    allocator.settle()
    preflight(config, shard, standby=standby)
    stopping = Stopping()
    loop.set_default_executor(Threads())
    clock = SystemClock()
    status = Status(config, clock, shard, standby=standby)
    async with AsyncExitStack() as stack:
        history = History(status)
        await stack.enter_async_context(background("history", history.run(clock)))
        controller = Controller(config.pipeline, clock, config.engine.kind)
        status.notifications = controller.recent
        if config.http.listen is not None or config.controls.socket is not None:
            from cdfd.daemon.http import server  # imports aiohttp, which takes a tenth of the start

            await stack.enter_async_context(server.serve_all(config, status, history, controller, clock))
        await stack.enter_async_context(background("summary", Summary(status).run(clock)))
        process = _Process(
            config, path, loaded, clock, status, controller, hangup, stopping, shard, recover_from_ledger
        )
        try:
            if standby:
                sink = connector(next(iter(config.by_sink.values())))
                lease = await stack.enter_async_context(sink.lease(config.standby.takeover_after))
                # A name for this process, which no other process ever has.
                name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
                candidate = Candidate(name, config.standby.takeover_after)
                status.election = Election(lease, clock, config.standby.poll, candidate)
                await process.stand_by(status.election)
            else:
                await process.deliver(stopping.event)
        except CdfdError as error:
            stopping.limit_end(error)
            raise
    logger.info("stopped")
    return stopping.exit_code


@dataclass(frozen=True, slots=True)
class _Process:
    """A process of a pipeline, and what its deliveries need: the settings of its start, and the content that their file had.

    SIGHUP sets `hangup`; `stopping` handles the other signals. For `shard` and `recover_from_ledger` see `run`.
    """

    config: Settings
    path: Path
    loaded: bytes | None
    clock: Clock
    status: Status
    controller: Controller
    hangup: asyncio.Event
    stopping: Stopping
    shard: Shard | None
    recover_from_ledger: bool

    async def stand_by(self, election: Election) -> None:
        """Take part in an election until a signal. While this process leads, it delivers the tables that the file has then.

        Raises what `deliver` does.
        """
        while not self.stopping.event.is_set():
            warm = WarmTables(self.config, self.clock, election.expected)
            async with warm.followed():
                await election.run(partial(self._lead, warm), self.stopping.event)

    async def _lead(self, warm: WarmTables, over: asyncio.Event) -> None:
        warm.stop()
        try:
            async with background("end of leadership", self._limit_end(over)):
                await self.deliver(over, warm)
        finally:
            self.stopping.go_on()
            self.status.stand_by()
            for name in tuple(self.controller.tables):
                self.controller.remove(name)
            # The objects of the delivery are garbage now, and the collector has left cycles of them alone.
            gc.unfreeze()

    async def _limit_end(self, over: asyncio.Event) -> None:
        await over.wait()
        self.stopping.limit_end(FencedError("another process leads, and the deliveries of this one do not end"))

    async def deliver(self, stop: asyncio.Event, warm: WarmTables | None = None) -> None:
        """Run the loops of all tables until `stop` is set. All sinks are closed then.

        Args:
            stop: set it to stop.
            warm: what this process has prepared before it was elected. If it is fenced, all of its loops end. None: without an election.

        Raises:
            FencedError: another process delivers.
            CdfdError: all loops have failed; see `Supervisor`.
        """
        clock, status = self.clock, self.status
        status.config = config = self.config if warm is None else await self._elected_with(warm)
        async with AsyncExitStack() as stack:

            def shares_tables() -> bool:
                # Without one of its sinks, a process delivers to the others. The file may have changed since the start.
                return self.shard is not None or (len(status.config.sinks) > 1 and warm is None)

            supervisor = Supervisor(
                stop,
                clock,
                awaits_tables=lambda: destinations.awaits_tables(),
                shares_tables=shares_tables,
                failing=self.stopping.limit_end,
            )
            notifications = await stack.enter_async_context(assembly.receive_notifications(config, clock))
            file_events = stack.enter_context(closing(FileEvents()))
            sources, connectors = (Sources(clock), {}) if warm is None else (warm.sources, warm.connectors)
            open_loop = partial(
                self._open_destination,
                supervisor,
                notifications,
                file_events,
                sources,
                SharedSearches(clock),
                connectors,
            )
            destinations = Destinations(config, status, open_loop)
            await stack.enter_async_context(destinations.running())
            status.has_begun = True
            count = len({each.table.name for each in status.tables()})
            of_shard = "" if self.shard is None else f", shard {self.shard}"
            tables = f"{count} table{'' if count == 1 else 's'}"
            if config.sinks:
                tables += f" into {len(config.sinks)} sinks"
            patterns = len(config.discoveries)
            searched = "" if not patterns else f" and those of {patterns} pattern{'' if patterns == 1 else 's'}"
            logger.info("cdfd %s: pipeline %s%s, %s%s", __version__, config.pipeline, of_shard, tables, searched)
            if not native.built:
                logger.warning("cdfd-native is not used: %s. The daemon delivers the same, more slowly", native.missing)
            reloading = Reloading(
                self.path, self.loaded, destinations, status.searches, clock, file_events, self.hangup
            )
            await run_until(stop, beside(supervisor.run(), destinations.run(), reloading.run()))

    async def _elected_with(self, warm: WarmTables) -> Settings:
        """The settings with the tables and sinks that the file has now: the leader before may have applied them.

        Those of the start could deliver to another topic, or without a mask. If the file is invalid, they count, and `Reloading` reports it.
        """
        config = self.config
        if self.loaded is not None and await asyncio.to_thread(file_content, self.path) != self.loaded:
            with suppress(CdfdError):
                config = config.with_tables_of((await load_changes(self.path, config))[0])
        for name in [name for name in warm.connectors if config.sinks.get(name) != self.config.sinks.get(name)]:
            await warm.connectors.pop(name).retain(())
        return config

    @asynccontextmanager
    async def _open_destination(
        self,
        supervisor: Supervisor,
        notifications: Notifications | None,
        file_events: FileEvents,
        sources: Sources,
        searches: SharedSearches,
        connectors: dict[str, Connector],
        config: Settings,
        status: Status,
    ) -> AsyncIterator[Searching]:
        clock, controller, shard = self.clock, self.controller, self.shard
        async with AsyncExitStack() as stack:
            if config.controls.notifications:
                announcing = connector(config).announcing(config.own_topics.notifications, compacted=False)
                publisher = Publisher(await stack.enter_async_context(announcing), clock)
                await stack.enter_async_context(background("notifications", publisher.run()))
                controller.listeners.append(publisher.add)
                stack.callback(controller.listeners.remove, publisher.add)
            if config.heartbeat.interval is not None:
                announcing = connector(config).announcing(config.own_topics.heartbeats)
                heartbeats = Heartbeats(status, await stack.enter_async_context(announcing), clock)
                await stack.enter_async_context(background("heartbeats", heartbeats.run(config.heartbeat.interval)))
            open_loop: OpenLoop
            if (of_engine := engine_of(config).loops(self.path, clock)) is not None:
                open_loop = await stack.enter_async_context(of_engine)
            else:
                shared = await stack.enter_async_context(
                    assembly.shared(
                        config,
                        clock,
                        self.recover_from_ledger,
                        controller.tables,
                        notifications,
                        self.status.poll_budget,
                        sources,
                        connectors.pop(config.sink_name, None),
                    )
                )
                open_loop = partial(assembly.feed, shared)
            monitor_of = await stack.enter_async_context(telemetry_monitors(config, clock))
            # Tables of queries take no requests: queries have no such state.
            mailboxes = None if config.engine.kind == "spark" else controller
            members = Members(config, supervisor, status, open_loop, mailboxes, shard, monitor_of)
            await members.start()
            searching = Searching(members, status.searches, clock, file_events, searches)
            if config.controls.signals:
                signals = read_signals(config, controller, clock, shard, searching.started)
                await stack.enter_async_context(background("signals", signals))
            yield searching
