"""Keeps the loops of a daemon's tables running: one that fails is started anew after a while, and the others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from cdfd.daemon.monitor import Monitor
from cdfd.errors import CdfdError, ConfigError, FencedError
from cdfd.tail.clock import Clock
from cdfd.tail.watch import Backoff

logger = logging.getLogger("cdfd.daemon")

FATAL = (ConfigError, FencedError)
"""What is wrong with the whole process: its configuration, or that there is another one like it."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.5, 30.0
"""From a failure that may pass to the next attempt: at first, and at most."""
LASTING_SECONDS = 60.0
"""From a failure that somebody has to mend to the next attempt, while other tables go on."""


class Loop(Protocol):
    """A table's loop: a `Feed`."""

    async def run(self) -> None:
        """Deliver until told to stop."""


Open = Callable[[], AbstractAsyncContextManager[Loop]]


@dataclass(slots=True)
class Supervisor:
    """Runs loops until told to stop, or until there is nothing left to do.

    Attributes:
        tables: what opens each table's loop, by name.
        monitors: who is told of each.
        stop: set it to end all loops.
        clock: time.
    """

    tables: Mapping[str, Open]
    monitors: Mapping[str, Monitor]
    stop: asyncio.Event
    clock: Clock
    _random: Random = field(default_factory=Random)
    _failed: dict[str, CdfdError] = field(default_factory=dict)

    async def run(self) -> None:
        """Run all loops. Returns once they have stopped, because they were told to.

        Raises:
            ConfigError, FencedError: one of them met what is wrong with the process; the others are ended.
            CdfdError: each of them failed of what does not pass by itself; the last one to do so.
        """
        loops = [asyncio.create_task(self._keep_running(name), name=name) for name in self.tables]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        for loop in loops:
            if not loop.cancelled():
                loop.result()

    async def _keep_running(self, name: str) -> None:
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        while not self.stop.is_set():
            began = self.clock.monotonic()
            try:
                async with self.tables[name]() as feed:
                    self._failed.pop(name, None)
                    await feed.run()
                    self.monitors[name].stopped()
            except FencedError as error:
                raise error.within(table=name) from None
            except FATAL:
                raise
            except CdfdError as error:
                error.within(table=name)
                # One that ran for long began anew: what it failed of has nothing to do with the failures before.
                if self.clock.monotonic() - began > MAX_RETRY_SECONDS:
                    backoff = backoff.reset()
                await self._pause(name, error, backoff.delay)
                backoff = backoff.longer()

    async def _pause(self, name: str, error: CdfdError, delay: float) -> None:
        """Wait until a table that failed is to be tried again. Raises where none of the others is left either."""
        if not error.retriable:
            self._failed[name] = error
            if len(self._failed) == len(self.tables):
                self.monitors[name].failed(error, None)
                raise error
            delay = LASTING_SECONDS
        # Tables that failed of one thing do not all come back at the same moment.
        delay *= self._random.uniform(0.75, 1.25)
        self.monitors[name].failed(error, delay)
        extra = {"table": name, "family": error.family, "retry_in": round(delay, 1)}
        logger.error("%s; trying again in %.1f s", error, delay, extra=extra)
        await self.clock.wait(self.stop, delay)
