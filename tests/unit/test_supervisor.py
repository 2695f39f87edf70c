"""The supervisor: who is started anew, when, and what ends all."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from cdfd.daemon.monitor import Silence
from cdfd.daemon.supervisor import LASTING_SECONDS, MAX_RETRY_SECONDS, Supervisor
from cdfd.errors import CdfdError, ConfigError, DataError, FencedError, SinkError
from cdfd.tail.clock import ManualClock


def passing() -> CdfdError:
    return SinkError("no broker", retriable=True)


def lasting() -> CdfdError:
    return DataError("a file is gone")


WITHIN = 20


class Told(Silence):
    def __init__(self) -> None:
        self.failures: list[tuple[CdfdError, float | None]] = []
        self.has_stopped = False

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        self.failures.append((error, retry_in))

    def stopped(self) -> None:
        self.has_stopped = True


class Daemon:
    """Loops whose runs are given, one after the other; the last one is repeated."""

    def __init__(self, **runs: list[Callable[[], Awaitable[None]]]) -> None:
        self.clock = ManualClock()
        self.stop = asyncio.Event()
        self.runs = runs
        self.begun = dict.fromkeys(runs, 0)
        self.open = 0
        self.told = {name: Told() for name in runs}
        self.supervisor = Supervisor({name: self.opener(name) for name in runs}, self.told, self.stop, self.clock)

    def opener(self, name: str) -> Callable[[], object]:
        @asynccontextmanager
        async def opened() -> AsyncIterator["Loop"]:
            self.open += 1
            number = min(self.begun[name], len(self.runs[name]) - 1)
            self.begun[name] += 1
            try:
                yield Loop(self.runs[name][number])
            finally:
                self.open -= 1

        return opened

    async def until_stopped(self) -> None:
        await self.stop.wait()


class Loop:
    def __init__(self, what: Callable[[], Awaitable[None]]) -> None:
        self.run = what


def failing(error: Callable[[], CdfdError]) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error()

    return fail


async def forever() -> None:
    await asyncio.Event().wait()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WITHIN):
            await scenario()

    asyncio.run(bounded())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_passes_is_tried_again_ever_later_while_others_go_on() -> None:
    async def scenario() -> None:
        daemon = Daemon(good=[forever], bad=[failing(passing)])
        task = asyncio.create_task(daemon.supervisor.run())
        delays = []
        for attempt in range(1, 12):
            await daemon.clock.asleep()
            assert daemon.begun == {"good": 1, "bad": attempt}
            delays.append(daemon.told["bad"].failures[-1][1])
            daemon.clock.advance(delays[-1])
            await settle()
        assert delays == sorted(delays, key=lambda delay: min(delay, MAX_RETRY_SECONDS * 0.7))
        assert max(delays) <= 1.25 * MAX_RETRY_SECONDS
        assert daemon.told["good"].failures == []
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert daemon.open == 0

    run(scenario)


def test_what_was_mended_runs_again_and_begins_its_pauses_anew() -> None:
    async def scenario() -> None:
        daemon = Daemon(table=[failing(passing)] * 6 + [forever])

        async def runs_long() -> None:
            await daemon.clock.sleep(MAX_RETRY_SECONDS + 1)
            raise passing()

        daemon.runs["table"][6:] = [runs_long, forever]
        task = asyncio.create_task(daemon.supervisor.run())
        for _ in range(7):
            await daemon.clock.asleep()
            daemon.clock.advance(LASTING_SECONDS)
            await settle()
        await daemon.clock.asleep()
        assert daemon.told["table"].failures[-1][1] < 1 < daemon.told["table"].failures[-2][1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario)


@pytest.mark.parametrize("error", [FencedError("another one"), ConfigError("no such column")])
def test_what_is_wrong_with_the_process_ends_it(error: CdfdError) -> None:
    async def scenario() -> None:
        daemon = Daemon(good=[forever], waiting=[failing(passing)], bad=[failing(lambda: error)])
        with pytest.raises(type(error)) as raised:
            await daemon.supervisor.run()
        assert raised.value is error
        assert daemon.open == 0

    run(scenario)


def test_one_table_that_needs_mending_does_not_end_the_others_and_is_looked_at_again() -> None:
    async def scenario() -> None:
        daemon = Daemon(good=[forever], bad=[failing(lasting), failing(lasting), forever])
        task = asyncio.create_task(daemon.supervisor.run())
        for attempt in (1, 2):
            await daemon.clock.asleep()
            assert daemon.begun["bad"] == attempt
            assert daemon.told["bad"].failures[-1][1] >= LASTING_SECONDS * 0.75
            daemon.clock.advance(2 * LASTING_SECONDS)
            await settle()
        assert daemon.begun["bad"] == 3
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(scenario)


def test_nothing_is_left_to_do_when_all_need_mending() -> None:
    async def scenario() -> None:
        daemon = Daemon(one=[failing(lasting)], other=[failing(lasting)])
        with pytest.raises(DataError):
            await daemon.supervisor.run()
        assert daemon.open == 0

    run(scenario)


def test_a_stop_ends_loops_and_pauses() -> None:
    async def scenario() -> None:
        daemon = Daemon(good=[forever], pausing=[failing(passing)])
        daemon.runs["good"] = [daemon.until_stopped]
        task = asyncio.create_task(daemon.supervisor.run())
        await daemon.clock.asleep()
        daemon.stop.set()
        await task
        assert daemon.told["good"].has_stopped
        assert daemon.open == 0

    run(scenario)
