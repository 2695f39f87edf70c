"""An event loop with time of its own: it never waits. Where nothing is ready, its time is that of the next timer.

Everything runs in one thread, in an order that the seed chooses: what is ready at the same moment is shuffled, and what would run in a
thread runs here, a moment later. Two runs of one seed are the same run.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from cdfd.runtime.clock import SystemClock

BEGINNING_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MOST_TURNS = 100_000
"""Turns of the loop in one run, at most: far more than any run that ends."""
SAME_MOMENT_SECONDS = 1e-6
THREAD_SECONDS = (0.0, 0.0, 0.001, 0.03)
"""Possible times of a thread for its work."""


class Stuck(Exception):
    """Nothing is ready and nothing ever will be, or something is ready for ever without time passing."""


class _Call(list[Any]):
    """A scheduled callback, its arguments and its context: the part of `asyncio.Handle` that the loop needs. Lists are fastest to create."""

    __slots__ = ()

    def cancel(self) -> None:
        self[:] = None, (), None

    def cancelled(self) -> bool:
        return self[0] is None


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in a shuffled order, and jumps in time.

    Args:
        random: chooses the order.

    Attributes:
        unclosed: names of asynchronous generators that were left to the garbage collector.
        errors: that no code handled.
    """

    get_debug = staticmethod(bool)  # False; it is asked for with each future

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.unclosed: list[str] = []
        self.errors: list[str] = []
        self._random = random
        self._now = 0.0
        self._ready: list[_Call] = []
        self._scheduled: list[tuple[float, int, _Call]] = []
        self._numbers = count()
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> _Call:
        call = _Call((callback, args, copy_context() if context is None else context))
        self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> _Call:
        call = _Call((callback, args, copy_context() if context is None else context))
        heappush(self._scheduled, (when, next(self._numbers), call))
        return call

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> _Call:
        call = _Call((callback, args, copy_context() if context is None else context))
        heappush(self._scheduled, (self._now + delay, next(self._numbers), call))
        return call

    def _run_once(self) -> None:
        """All turns. In each, what is ready or due runs, and what that makes ready waits for the next."""
        for _ in range(MOST_TURNS):
            for callback, args, context in self._turn():
                if callback is not None:
                    try:
                        context.run(callback, *args)
                    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as any loop: it is noted
                        self._note(self, {"message": "in a callback", "exception": error})
            if self._stopping:  # type: ignore[attr-defined]
                return
        raise Stuck(f"no end after {MOST_TURNS} turns")

    def _turn(self) -> list[_Call]:
        """The callbacks that run next. If none is ready, time jumps to the next timer."""
        scheduled, ready = self._scheduled, self._ready
        self._ready = []
        while scheduled and scheduled[0][2][0] is None:
            heappop(scheduled)
        if len(ready) > 2:
            self._random.shuffle(ready)
        elif len(ready) == 2 and self._random.random() < 0.5:
            ready.reverse()
        elif not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise Stuck("nothing will ever happen")
            self._now = max(self._now, scheduled[0][0])
        due = self._now + SAME_MOMENT_SECONDS
        while scheduled and scheduled[0][0] < due:
            ready.append(heappop(scheduled)[2])
        return ready

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        self.call_later(self._random.choice(THREAD_SECONDS), self._execute, future, func, args)
        return future

    def _execute(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled() and self._random.random() < 0.5:
            return  # no thread had begun it; otherwise it runs to its end, and its result is lost
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

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Those that run are not listed: all are closed by those who use them."""

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self.unclosed.append(agen.__qualname__)  # type: ignore[attr-defined]
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
