"""Runs the loops of a daemon's tables. A loop that fails restarts after a backoff, while the other loops continue."""

import asyncio
import logging
import math
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from cdfd.daemon.supervision.signals import STOP_SECONDS
from cdfd.deliver.monitor import Monitor
from cdfd.errors import CdfdError, ConfigError, FencedError, InternalError, TableConfigError
from cdfd.escaping import shorten
from cdfd.log.watch import Backoff
from cdfd.runtime.clock import Clock
from cdfd.runtime.tasks import first_done
from cdfd.sinks.base import ReopenSinkError

logger = logging.getLogger("cdfd.daemon")

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.5, 30.0
"""Backoff after a transient error: initial and maximum."""
PERMANENT_RETRY_SECONDS = 60.0
"""Time to the next attempt after an error that needs an operator, while other tables continue."""
FENCED_RETRY_SECONDS = 300.0
"""Time to the next attempt after another process took a table over, where processes share the tables. A roll-out of all processes fits
into it: a process that still has the old number of shards would otherwise take the table back.
"""
ABORT_SECONDS = 5.0
"""How long the aborted delivery of a table that leaves may take to end, before the other tables go on without it."""
_LONGEST_TEXT = 1000


class Loop(Protocol):
    """A table's loop: a `Feed`."""

    async def run(self) -> None:
        """Deliver until stopped."""


Open = Callable[[asyncio.Event], AbstractAsyncContextManager[Loop]]
"""Opens the loop of a table, which ends where the event is set."""

_Site = tuple[type[BaseException], str, int]
_MOST_TRACEBACKS = 100
"""Most tracebacks to log for one table."""


@dataclass(slots=True, eq=False)
class _Supervised:
    """A table and its loop.

    Attributes:
        stop: set to stop this loop alone.
        task: keeps the loop running; None before the supervisor runs.
        failed: the error of a loop that waits for an operator; None for a loop that runs, or that a retry may help.
        was_open: whether the last attempt opened the loop.
        logged: places in the code whose tracebacks are logged.
        wake: set by requests, which end the wait for a retry.
    """

    open: Open
    monitor: Monitor
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    failed: CdfdError | None = None
    was_open: bool = False
    logged: set[_Site] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Supervisor:
    """Runs the loops of tables until `stop` is set, or until no loop can continue. Tables can be added and removed while it runs.

    Attributes:
        stop: set it to stop all loops.
        random: of the jitter of retries.
        awaits_tables: whether more tables may be found later; asked whenever every table needs an operator. If not, that ends the process.
        shares_tables: whether other processes may take tables over, as shards do; asked whenever one does. If not, that ends the process.
        failing: receives the error that ends all loops, before they have ended.
    """

    stop: asyncio.Event
    clock: Clock
    random: Random = field(default_factory=Random)
    awaits_tables: Callable[[], bool] = field(default=lambda: False, kw_only=True)
    shares_tables: Callable[[], bool] = field(default=lambda: False, kw_only=True)
    failing: Callable[[CdfdError], object] = field(default=lambda _: None, kw_only=True)
    _tables: dict[str, _Supervised] = field(default_factory=dict, init=False)
    _leaving: dict[asyncio.Task[None], str] = field(default_factory=dict, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _running: bool = field(default=False, init=False)

    def add(self, name: str, open: Open, monitor: Monitor, wake: asyncio.Event | None = None) -> None:
        """Add a table. Its loop starts at once, or with `run`.

        Args:
            name: of the table; not yet in use.
            open: opens its loop; called again after every error.
            wake: if it is set during the wait for a retry, the retry comes at once.
        """
        assert name not in self._tables, name
        self._tables[name] = _Supervised(open, monitor, wake=wake or asyncio.Event())
        if self._running:
            self._start(name)

    async def remove(self, name: str) -> None:
        """Stop a table's loop and forget the table; the others continue. Returns once the loop has ended and its sink is closed.

        A delivery gets `STOP_SECONDS` to finish, and is aborted after that. One that then hangs in a call of a store or a sink is left alone.
        The caller may add a table of that name again: its loop starts once the old one has ended.

        Raises:
            KeyError: there is no such table.
        """
        table = self._tables.pop(name)
        table.stop.set()
        if table.task is None:
            return
        self._leaving[table.task] = name
        table.task.add_done_callback(self._forget)
        try:
            await asyncio.wait((table.task,), timeout=STOP_SECONDS)
        finally:
            table.task.cancel()
            await asyncio.wait((table.task,), timeout=ABORT_SECONDS)
        if not table.task.done():
            logger.warning(
                "a call of the delivery of a table that leaves does not return; the others go on", extra={"table": name}
            )
        table.monitor.stopped()  # a loop that was aborted has not reported it

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._leaving[task]
        self._changed.set()

    async def run(self) -> None:
        """Run all loops. Returns once `stop` is set and all loops have stopped.

        Raises:
            FencedError: another process delivers one of the tables, and that ends the process; the other loops are cancelled.
            CdfdError: the error of the last loop, once every loop has failed with an error that needs an operator. Its exit code is 1.
        """
        self._running = True
        for name in self._tables:
            self._start(name)
        stopped = asyncio.create_task(self.stop.wait())
        try:
            while True:
                if self.stop.is_set():
                    for table in self._tables.values():
                        table.stop.set()
                ours = [table.task for table in self._tables.values() if table.task is not None]
                _raise_error(ours)
                loops = {loop for loop in (*ours, *self._leaving) if not loop.done()}
                if not loops and self.stop.is_set():
                    return
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                others = {changed} if stopped.done() else {changed, stopped}
                try:
                    await asyncio.wait({*loops, *others}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                    await asyncio.gather(changed, return_exceptions=True)
        except CdfdError as error:
            self.failing(error)
            raise
        finally:
            self._running = False
            # Also those that have ended: several loops may be fenced at once, and only one of their errors is raised.
            ending = {
                stopped,
                *self._leaving,
                *(table.task for table in self._tables.values() if table.task is not None),
            }
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    def _start(self, name: str) -> None:
        table = self._tables[name]
        table.task = asyncio.create_task(self._keep_running(name, table), name=name)
        self._changed.set()

    async def _keep_running(self, name: str, table: _Supervised) -> None:
        # An earlier loop of this name may hang, and may still write.
        if earlier := [task for task, left in self._leaving.items() if left == name]:
            async with first_done(table.stop.wait(), asyncio.wait(earlier)):
                pass
        backoff, reopened = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS), -math.inf
        while not table.stop.is_set():
            began = self.clock.monotonic()
            error = await self._run_once(name, table)
            now = self.clock.monotonic()
            if isinstance(error, ReopenSinkError) and now - reopened > MAX_RETRY_SECONDS:
                reopened = now
                logger.info("%s; opening the sink again", error, extra={"table": name})
            elif error is not None:
                # Earlier failures do not count after a long run.
                if now - began > MAX_RETRY_SECONDS:
                    backoff = backoff.reset()
                await self._pause(name, table, error, backoff.delay)
                backoff = backoff.longer()
            else:
                await asyncio.sleep(0)  # a loop that ends at once must not keep the others from running

    async def _run_once(self, name: str, table: _Supervised) -> CdfdError | None:
        """Run a table's loop to its end; its error, or None if it was stopped.

        This is the boundary between tables. An error in one table, even a bug or a lack of memory, must not stop the others. So this is
        the only place that catches every exception.

        Raises:
            FencedError: another process delivers this table, and that ends the process.
        """
        table.was_open = False
        try:
            async with table.open(table.stop) as feed:
                table.failed, table.was_open = None, True
                await feed.run()
                table.monitor.stopped()
        except FencedError as error:
            failure = error.within(table=name)
            if not self.shares_tables():
                raise failure from None
            return failure
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failure(name, table, error)  # something inside the loop was cancelled, not the loop itself
        except Exception as error:  # noqa: BLE001 - the boundary between tables: it is logged, counted and retried
            return self._failure(name, table, error)
        return None

    def _failure(self, name: str, table: _Supervised, error: BaseException) -> CdfdError:
        """The loop's error as a `CdfdError` about its table. Logs the traceback of the first error from each site."""
        # The error lives until the table runs again. Its frames may hold much memory, so they are cleared first.
        chain: dict[int, BaseException] = {}
        waiting: list[BaseException | None] = [error]
        while waiting:
            each = waiting.pop()
            if each is not None and id(each) not in chain:
                chain[id(each)] = each
                waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
        # The identity of an error: its type, and the place that raised it.
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        place = ("", 0) if last is None else (last.tb_frame.f_code.co_filename, last.tb_lineno)
        site = type(error), *place
        for cause in chain.values():
            traceback.clear_frames(cause.__traceback__)
        failure = _translate(error).within(table=name)
        if site not in table.logged and len(table.logged) < _MOST_TRACEBACKS:
            table.logged.add(site)
            level = logging.ERROR if isinstance(failure, InternalError) else logging.DEBUG
            logger.log(level, "%s", failure, exc_info=error, extra={"table": name, "family": failure.family})
        for cause in chain.values():
            cause.__traceback__ = cause.__cause__ = cause.__context__ = None
        return failure

    async def _pause(self, name: str, table: _Supervised, error: CdfdError, delay: float) -> None:
        """Wait before the next attempt of a table that failed. Raises if every other table has failed too."""
        if isinstance(error, FencedError):
            # A sink that cannot be opened yet is the other process's: that one is about to stop, or two of them start at once.
            delay = FENCED_RETRY_SECONDS if table.was_open else delay
        elif not error.retriable:
            table.failed = error
            if all(each.failed is not None for each in self._tables.values()) and not self.awaits_tables():
                table.monitor.failed(error, None)
                raise error
            delay = PERMANENT_RETRY_SECONDS
        # Jitter: tables that failed for the same reason should not all retry at the same moment.
        delay *= self.random.uniform(0.75, 1.25)
        table.monitor.failed(error, delay)
        extra = {"table": name, "family": error.family, "retry_in": round(delay, 1)}
        level = logging.WARNING if table.monitor.tolerates() else logging.ERROR
        logger.log(level, "%s; retrying in %.1f s", error, delay, extra=extra)
        # A request wakes the loop. One that waits already has not helped, and does not end the wait.
        others = () if table.wake.is_set() else (table.wake.wait(),)
        async with first_done(self.clock.wait(table.stop, delay), *others):
            pass


def _raise_error(loops: list[asyncio.Task[None]]) -> None:
    """Raise the error of a loop that ended with one. A function of its own, so that `run` does not keep the last loop, and its rows."""
    for loop in loops:
        if loop.done() and not loop.cancelled():
            loop.result()


def _translate(error: BaseException) -> CdfdError:
    if isinstance(error, ConfigError):
        # The configuration was valid before the loops started. With exit code 2, a supervisor would not restart the process.
        translated: CdfdError = TableConfigError(error.what, hint=error.hint, retriable=error.retriable)
        return translated.within(table=error.table, version=error.version, path=error.path)
    if isinstance(error, CdfdError):
        return error
    text = "".join(traceback.format_exception_only(error)).strip()
    return InternalError(
        f"an unexpected error: {shorten(text, _LONGEST_TEXT)}",
        hint="Other tables continue. The log has the traceback of the first occurrence: please report it",
        retriable=True,
    )
