"""Keeps the loops of a daemon's tables running: one that fails is started again after a while, and the others go on."""

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
"""From a failure that may pass to the next attempt: at first, and at most."""
LASTING_SECONDS = 60.0
"""From a failure that an operator has to fix to the next attempt, while other tables go on."""
_LONGEST_TEXT = 1000


class Loop(Protocol):
    """A table's loop: a `Feed`."""

    async def run(self) -> None:
        """Deliver until told to stop."""


Open = Callable[[], AbstractAsyncContextManager[Loop]]

_Kind = tuple[type[BaseException], str, int]
_KINDS = 100
"""Tracebacks that are logged for each table, at most."""


@dataclass(slots=True)
class Supervisor:
    """Runs loops until told to stop, or until there is nothing left to do.

    Attributes:
        tables: what opens each table's loop, by name.
        monitors: of each table.
        stop: set it to end all loops.
        clock: time.
    """

    tables: Mapping[str, Open]
    monitors: Mapping[str, Monitor]
    stop: asyncio.Event
    clock: Clock
    _random: Random = field(default_factory=Random)
    _failed: dict[str, CdfdError] = field(default_factory=dict)
    _logged: dict[str, set[_Kind]] = field(default_factory=dict)

    async def run(self) -> None:
        """Run all loops. Returns once they have stopped, because `stop` was set.

        Raises:
            FencedError: another process delivers one of the tables; the others are ended.
            CdfdError: each of them failed of what does not pass by itself; the last one to do so. Its exit code is 1.
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
                # After a long run the failures before it say nothing about this one.
                if self.clock.monotonic() - began > MAX_RETRY_SECONDS:
                    backoff = backoff.reset()
                await self._pause(name, error, backoff.delay)
                backoff = backoff.longer()

    async def _run_once(self, name: str) -> CdfdError | None:
        """Run a table's loop to its end; what it failed of, None where it was stopped.

        This is the boundary between tables. Whatever the content of one raises, be it a bug of ours or memory that ran out, must not
        end the others: so this is the one place that catches every exception.

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
            return self._failure(name, error)  # of something that the loop waited for
        except Exception as error:  # noqa: BLE001 - the boundary between tables: it is logged, counted and retried
            return self._failure(name, error)
        return None

    def _failure(self, name: str, error: BaseException) -> CdfdError:
        """What a loop failed of, as an error of ours about that table. The first of its kind is logged with its traceback."""
        # What the frames hold, perhaps all that the memory was needed for, is let go first: the error is kept until the table runs again.
        chain = list(_chain(error))
        kind = _kind(error)
        for each in chain:
            traceback.clear_frames(each.__traceback__)
        found = _as_ours(error).within(table=name)
        known = self._logged.setdefault(name, set())
        if kind not in known and len(known) < _KINDS:
            known.add(kind)
            level = logging.ERROR if isinstance(found, InternalError) else logging.DEBUG
            logger.log(level, "%s", found, exc_info=error, extra={"table": name, "family": found.family})
        for each in chain:
            each.__traceback__ = each.__cause__ = each.__context__ = None
        return found

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
        logger.error("%s; retrying in %.1f s", error, delay, extra=extra)
        await self.clock.wait(self.stop, delay)


def _as_ours(error: BaseException) -> CdfdError:
    if isinstance(error, ConfigError):
        # The configuration was checked before the loops began. Exit code 2 would keep the process from being restarted.
        found: CdfdError = TableConfigError(error.what, hint=error.hint, retriable=error.retriable)
        return found.within(table=error.table, version=error.version, path=error.path)
    if isinstance(error, CdfdError):
        return error
    told = "".join(traceback.format_exception_only(error)).strip()
    return InternalError(
        f"an unexpected error: {shortened(told, _LONGEST_TEXT)}",
        hint="Other tables go on. The log has the traceback where this came first: please report it",
        retriable=True,
    )


def _kind(error: BaseException) -> _Kind:
    """What tells one error from another: its type, and the place where it was raised."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = ("", 0) if last is None else (last.tb_frame.f_code.co_filename, last.tb_lineno)
    return type(error), *place


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that it came from."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    yield from found.values()
