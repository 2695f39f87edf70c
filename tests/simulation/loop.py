"""An event loop with time of its own: it never waits. Where nothing is ready, its time is that of the next timer.

Everything runs in one thread, in an order that the seed chooses: what is ready at the same moment is shuffled, and what would run in a
thread runs here, a moment later. Two runs of one seed are the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from random import Random
from typing import Any

from cdfd.tail.clock import SystemClock

BEGINNING_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MOST_TURNS = 100_000
"""Turns of the loop in one run, at most: far more than any run takes that comes to an end."""
THREAD_SECONDS = (0.0, 0.0, 0.001, 0.03)
"""What it may take until a thread has done its work."""


class Stuck(Exception):
    """Nothing is ready and nothing ever will be, or something is ready for ever without time passing."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in a shuffled order, and jumps in time.

    Args:
        random: chooses the order.

    Attributes:
        unclosed: names of asynchronous generators that were left to the garbage collector.
        errors: what nobody handled.
    """

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.unclosed: list[str] = []
        self.errors: list[str] = []
        self._random = random
        self._now = 0.0
        self._turns = 0
        self._selector = self
        self._clock_resolution = 1e-6
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """In the place of a selector's: time passes, and nothing comes from outside."""
        self._turns += 1
        if timeout is None or self._turns > MOST_TURNS:
            raise Stuck("nothing will ever happen" if timeout is None else f"no end after {MOST_TURNS} turns")
        self._now += max(timeout, 0.0)
        return []

    def _process_events(self, events: list[Any]) -> None:
        ready = self._ready
        if len(ready) > 1:
            some = list(ready)
            self._random.shuffle(some)
            ready.clear()
            ready.extend(some)

    def _write_to_self(self) -> None:
        """There is no other thread to be woken by."""

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        self.call_later(self._random.choice(THREAD_SECONDS), self._execute, future, func, args)
        return future

    def _execute(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled() and self._random.random() < 0.5:
            return  # no thread had begun with it; else it runs to its end, and nobody hears of it
        try:
            result = func(*args)
        except asyncio.CancelledError:
            future.cancel()  # the process is gone
        except BaseException as error:  # noqa: BLE001 - handed on, as from a thread
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self.unclosed.append(agen.__qualname__)
        super()._asyncgen_finalizer_hook(agen)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


class VirtualClock(SystemClock):
    """The loop's time. Its wall clock may be wrong, and jump.

    Attributes:
        skew_ms: how wrong it is.
    """

    def __init__(self) -> None:
        self.skew_ms = 0
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        return BEGINNING_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()
