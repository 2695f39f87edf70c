"""Runs the loops of a daemon's tables. A loop that fails restarts after a backoff, while the other loops continue."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from cdfd.console.escaping import shortened
from cdfd.daemon.loop.monitor import Monitor
from cdfd.errors import CdfdError, ConfigError, FencedError, InternalError, TableConfigError
from cdfd.tail.clock import Clock
from cdfd.tail.watch import Backoff

logger = logging.getLogger("cdfd.daemon")

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.5, 30.0
"""Backoff after a transient error: initial and maximum."""
PERMANENT_RETRY_SECONDS = 60.0
"""Time to the next attempt after an error that needs an operator, while other tables continue."""
_LONGEST_TEXT = 1000


class Loop(Protocol):
    """A table's loop: a `Feed`."""

    async def run(self) -> None:
        """Deliver until stopped."""


Open = Callable[[], AbstractAsyncContextManager[Loop]]

_Site = tuple[type[BaseException], str, int]
_MOST_TRACEBACKS = 100
"""Most tracebacks to log for one table."""


@dataclass(slots=True)
class Supervisor:
    """Runs loops until `stop` is set, or until no loop can continue.

    Attributes:
        tables: functions that open each table's loop, by name.
        monitors: the monitor of each table, by name.
        stop: set it to stop all loops.
        clock: the source of time.
    """

    tables: Mapping[str, Open]
    monitors: Mapping[str, Monitor]
    stop: asyncio.Event
    clock: Clock
    _random: Random = field(default_factory=Random)
    _failed: dict[str, CdfdError] = field(default_factory=dict)
    _logged: dict[str, set[_Site]] = field(default_factory=dict)

    async def run(self) -> None:
        """Run all loops. Returns once `stop` is set and all loops have stopped.

        Raises:
            FencedError: another process delivers one of the tables; the other loops are cancelled.
            CdfdError: the error of the last loop, once every loop has failed with an error that needs an operator. Its exit code is 1.
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
            error = await self._run_once(name)
            if error is not None:
                # Earlier failures do not count after a long run.
                if self.clock.monotonic() - began > MAX_RETRY_SECONDS:
                    backoff = backoff.reset()
                await self._pause(name, error, backoff.delay)
                backoff = backoff.longer()

    async def _run_once(self, name: str) -> CdfdError | None:
        """Run a table's loop to its end; its error, or None if it was stopped.

        This is the boundary between tables. An error in one table, even a bug or a lack of memory, must not stop the others. So this is
        the only place that catches every exception.

        Raises:
            FencedError: another process delivers this table.
        """
        try:
            async with self.tables[name]() as feed:
                self._failed.pop(name, None)
                await feed.run()
                self.monitors[name].stopped()
        except FencedError as error:
            raise error.within(table=name) from None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failure(name, error)  # something inside the loop was cancelled, not the loop itself
        except Exception as error:  # noqa: BLE001 - the boundary between tables: it is logged, counted and retried
            return self._failure(name, error)
        return None

    def _failure(self, name: str, error: BaseException) -> CdfdError:
        """The loop's error as a `CdfdError` about its table. Logs the traceback of the first error from each site."""
        # The error lives until the table runs again. Its frames may hold much memory, so they are cleared first.
        chain = list(_chain(error))
        site = _site(error)
        for each in chain:
            traceback.clear_frames(each.__traceback__)
        found = _translated(error).within(table=name)
        known = self._logged.setdefault(name, set())
        if site not in known and len(known) < _MOST_TRACEBACKS:
            known.add(site)
            level = logging.ERROR if isinstance(found, InternalError) else logging.DEBUG
            logger.log(level, "%s", found, exc_info=error, extra={"table": name, "family": found.family})
        for each in chain:
            each.__traceback__ = each.__cause__ = each.__context__ = None
        return found

    async def _pause(self, name: str, error: CdfdError, delay: float) -> None:
        """Wait before the next attempt of a table that failed. Raises if every other table has failed too."""
        if not error.retriable:
            self._failed[name] = error
            if len(self._failed) == len(self.tables):
                self.monitors[name].failed(error, None)
                raise error
            delay = PERMANENT_RETRY_SECONDS
        # Jitter: tables that failed for the same reason should not all retry at the same moment.
        delay *= self._random.uniform(0.75, 1.25)
        self.monitors[name].failed(error, delay)
        extra = {"table": name, "family": error.family, "retry_in": round(delay, 1)}
        logger.error("%s; retrying in %.1f s", error, delay, extra=extra)
        await self.clock.wait(self.stop, delay)


def _translated(error: BaseException) -> CdfdError:
    if isinstance(error, ConfigError):
        # The configuration was valid before the loops started. With exit code 2, a supervisor would not restart the process.
        found: CdfdError = TableConfigError(error.what, hint=error.hint, retriable=error.retriable)
        return found.within(table=error.table, version=error.version, path=error.path)
    if isinstance(error, CdfdError):
        return error
    text = "".join(traceback.format_exception_only(error)).strip()
    return InternalError(
        f"an unexpected error: {shortened(text, _LONGEST_TEXT)}",
        hint="Other tables continue. The log has the traceback of the first occurrence: please report it",
        retriable=True,
    )


def _site(error: BaseException) -> _Site:
    """The identity of an error: its type, and the place that raised it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = ("", 0) if last is None else (last.tb_frame.f_code.co_filename, last.tb_lineno)
    return type(error), *place


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all of its causes and contexts."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    yield from found.values()
