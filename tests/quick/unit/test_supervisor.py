"""The supervisor: which loops are started again, when, and what ends all."""

import asyncio
import io
import json
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pyarrow as pa
import pytest

from cdfd.daemon.http.status import Status
from cdfd.daemon.supervision import supervisor
from cdfd.daemon.supervision.supervisor import (
    FENCED_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    PERMANENT_RETRY_SECONDS,
    Open,
    Supervisor,
)
from cdfd.deliver.monitor import Monitor
from cdfd.errors import CdfdError, ConfigError, DataError, FencedError, InternalError, SinkError
from cdfd.runtime.logs import JsonFormatter, TextFormatter
from cdfd.sinks.base import ReopenSinkError
from tests.support.manual_time import ManualClock
from tests.support.statuses import configuration, table_monitor


def passing() -> CdfdError:
    return SinkError("no broker", retriable=True)


def lasting() -> CdfdError:
    return DataError("a file is gone")


WITHIN = 20


class Told(Monitor):
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
        self.stops: dict[str, asyncio.Event] = {}
        self.told = {name: Told() for name in runs}
        self.supervisor = Supervisor(self.stop, self.clock)
        for name in runs:
            self.supervisor.add(name, self.opener(name), self.told[name])

    def opener(self, name: str) -> Open:
        @asynccontextmanager
        async def open_loop(stop: asyncio.Event) -> AsyncIterator["Loop"]:
            self.open += 1
            self.stops[name] = stop
            number = min(self.begun[name], len(self.runs[name]) - 1)
            self.begun[name] += 1
            try:
                yield Loop(self.runs[name][number])
            finally:
                self.open -= 1

        return open_loop

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


async def test_what_passes_is_tried_again_ever_later_while_others_go_on() -> None:
    daemon = Daemon(good=[forever], bad=[failing(passing)])
    task = asyncio.create_task(daemon.supervisor.run())
    delays = []
    for attempt in range(1, 12):
        await daemon.clock.wait_for_sleepers()
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


async def test_what_was_mended_runs_again_and_begins_its_pauses_anew() -> None:
    daemon = Daemon(table=[failing(passing)] * 6 + [forever])

    async def runs_long() -> None:
        await daemon.clock.sleep(MAX_RETRY_SECONDS + 1)
        raise passing()

    daemon.runs["table"][6:] = [runs_long, forever]
    task = asyncio.create_task(daemon.supervisor.run())
    for _ in range(7):
        await daemon.clock.wait_for_sleepers()
        daemon.clock.advance(PERMANENT_RETRY_SECONDS)
        await settle()
    await daemon.clock.wait_for_sleepers()
    assert daemon.told["table"].failures[-1][1] < 1 < daemon.told["table"].failures[-2][1]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_another_daemon_ends_it() -> None:
    error = FencedError("another one")
    daemon = Daemon(good=[forever], waiting=[failing(passing)], bad=[failing(lambda: error)])
    with pytest.raises(FencedError) as raised:
        await daemon.supervisor.run()
    assert raised.value is error
    assert daemon.open == 0


async def test_the_error_that_ends_all_is_known_while_another_loop_still_ends() -> None:
    daemon, ended, errors = Daemon(), asyncio.Event(), list[CdfdError]()
    daemon.supervisor = Supervisor(daemon.stop, daemon.clock, failing=errors.append)

    async def end_slowly() -> None:
        try:
            await forever()
        finally:
            await ended.wait()

    for name, what in {"slow": end_slowly, "fenced": failing(lambda: FencedError("another daemon"))}.items():
        daemon.runs[name], daemon.begun[name] = [what], 0
        daemon.supervisor.add(name, daemon.opener(name), Told())
    task = asyncio.create_task(daemon.supervisor.run())
    await until(lambda: errors != [])
    await settle()
    assert not task.done()
    ended.set()
    with pytest.raises(FencedError) as raised:
        await task
    assert errors == [raised.value]


async def test_a_configuration_that_does_not_fit_a_table_is_that_tables_error() -> None:
    misfit = failing(lambda: ConfigError("no such column", hint="there is another", path="0.json"))
    daemon = Daemon(good=[forever], bad=[misfit])
    task = asyncio.create_task(daemon.supervisor.run())
    await daemon.clock.wait_for_sleepers()
    error, retry_in = daemon.told["bad"].failures[-1]
    assert (error.what, error.hint, error.path, error.table) == (
        "no such column",
        "there is another",
        "0.json",
        "bad",
    )
    assert retry_in is not None
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    # Alone it ends the process, and with a code that lets it be restarted: a writer may bring the column back.
    with pytest.raises(CdfdError, match="no such column") as raised:
        await Daemon(bad=[misfit]).supervisor.run()
    assert raised.value.exit_code == 1


class Bug(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


def recurse() -> None:
    recurse()


def cancel() -> None:
    raise asyncio.CancelledError


def unexpected(what: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise what

    return fail


UNEXPECTED = {
    "memory": unexpected(MemoryError()),
    "a large allocation": lambda: bytearray(1 << 62),
    "recursion": recurse,
    "a number of 5000 digits": lambda: int("9" * 5000),
    "overflow": lambda: (1 << 70).to_bytes(8),
    "arrow": lambda: pa.array([1], pa.int8()).cast(pa.date32()),
    "a bug": lambda: {}["version"],
    "no text": unexpected(Bug()),
    "hostile text": unexpected(ValueError("\x1b[2J\n" * 100_000)),
    "a group": unexpected(ExceptionGroup("several", [ValueError("one"), Bug()])),
    "the operating system": unexpected(OSError(5, "Input/output error")),
    "a cancelled helper": cancel,
}


@pytest.mark.parametrize("what", UNEXPECTED)
@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_whatever_one_table_raises_the_others_go_on(what: str, formatter: logging.Formatter) -> None:
    async def scenario() -> None:
        daemon = Daemon(good=[forever])
        status = Status(configuration(), daemon.clock)
        daemon.runs["bad"], daemon.begun["bad"] = [failing(lambda: UNEXPECTED[what]())], 0
        daemon.supervisor.add("bad", daemon.opener("bad"), table_monitor(status, "orders"))
        task = asyncio.create_task(daemon.supervisor.run())
        for attempt in (1, 2, 3):
            await daemon.clock.wait_for_sleepers()
            assert daemon.begun == {"good": 1, "bad": attempt}
            assert "retry in" in status.not_ready()["orders"]
            daemon.clock.advance(MAX_RETRY_SECONDS * 1.25)
            await settle()
        assert not task.done()
        error = status.document()["tables"]["orders"]["last_error"]
        assert error["family"] == "internal"
        assert "unexpected error" in error["what"]
        counted = 'cdfd_errors_total{family="internal",table="orders"} '
        assert any(
            line.startswith(counted) and float(line.split()[1]) >= 3 for line in status.metrics()().decode().split("\n")
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger("cdfd.daemon")
    logger.addHandler(handler)
    try:
        run(scenario)
    finally:
        logger.removeHandler(handler)
    lines = stream.getvalue()
    assert lines.count("Traceback (most recent call last)") >= 1
    assert lines.count("the log has the traceback".capitalize()) >= 3
    assert len(lines) < 60_000
    assert "\x1b" not in lines
    if isinstance(formatter, JsonFormatter):
        assert [("traceback" in json.loads(line)) for line in lines.splitlines()].count(True) == 1
    else:
        assert [line for line in lines.splitlines() if not line.startswith(("20", "    "))] == []


class Buffer:
    """Something large."""


@pytest.mark.parametrize("kind", [InternalError, DataError])
async def test_what_a_loop_held_is_let_go_before_the_next_attempt(kind: type[CdfdError]) -> None:
    held: list[weakref.ref[Buffer]] = []

    async def fails() -> None:
        buffer = Buffer()
        held.append(weakref.ref(buffer))
        try:
            bytearray(1 << 62)
        except MemoryError as error:
            if kind is DataError:
                raise DataError("a file is too large", retriable=True) from error
            raise

    daemon = Daemon(good=[forever], bad=[fails])
    task = asyncio.create_task(daemon.supervisor.run())
    await daemon.clock.wait_for_sleepers()
    assert isinstance(daemon.told["bad"].failures[-1][0], kind)
    assert held[0]() is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_one_table_that_needs_mending_does_not_end_the_others_and_is_looked_at_again() -> None:
    daemon = Daemon(good=[forever], bad=[failing(lasting), failing(lasting), forever])
    task = asyncio.create_task(daemon.supervisor.run())
    for attempt in (1, 2):
        await daemon.clock.wait_for_sleepers()
        assert daemon.begun["bad"] == attempt
        assert daemon.told["bad"].failures[-1][1] >= PERMANENT_RETRY_SECONDS * 0.75
        daemon.clock.advance(2 * PERMANENT_RETRY_SECONDS)
        await settle()
    assert daemon.begun["bad"] == 3
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nothing_is_left_to_do_when_all_need_mending() -> None:
    daemon = Daemon(one=[failing(lasting)], other=[failing(lasting)])
    with pytest.raises(DataError):
        await daemon.supervisor.run()
    assert daemon.open == 0


async def test_a_stop_ends_loops_and_pauses() -> None:
    daemon = Daemon(good=[forever], pausing=[failing(passing)])
    daemon.runs["good"] = [daemon.until_stopped]
    task = asyncio.create_task(daemon.supervisor.run())
    await daemon.clock.wait_for_sleepers()
    daemon.stop.set()
    await task
    assert daemon.told["good"].has_stopped
    assert daemon.open == 0


async def until(met: Callable[[], bool]) -> None:
    while not met():
        await asyncio.sleep(0)


async def test_a_table_can_be_added_and_removed_while_the_others_continue() -> None:
    daemon = Daemon(stays=[forever])
    task = asyncio.create_task(daemon.supervisor.run())
    await settle()
    for name in ("leaves", "joins"):
        daemon.runs[name], daemon.begun[name], daemon.told[name] = [], 0, Told()

        async def until_its_stop(name: str = name) -> None:
            await daemon.stops[name].wait()

        daemon.runs[name].append(until_its_stop)
        daemon.supervisor.add(name, daemon.opener(name), daemon.told[name])
    await until(lambda: daemon.open == 3)
    await daemon.supervisor.remove("leaves")
    assert daemon.told["leaves"].has_stopped
    assert not daemon.stops["joins"].is_set()
    assert daemon.open == 2
    assert sorted(daemon.supervisor._tables) == ["joins", "stays"]
    daemon.supervisor.add("leaves", daemon.opener("leaves"), daemon.told["leaves"])
    await until(lambda: daemon.begun["leaves"] == 2)
    assert daemon.begun["stays"] == daemon.begun["joins"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert daemon.open == 0


async def test_a_table_whose_delivery_does_not_end_is_reported_as_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.01)
    daemon = Daemon(stays=[forever], leaves=[forever])
    task = asyncio.create_task(daemon.supervisor.run())
    await until(lambda: daemon.open == 2)
    await daemon.supervisor.remove("leaves")
    assert [told.has_stopped for told in daemon.told.values()] == [False, True]
    assert daemon.open == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_table_that_hangs_when_it_leaves_delays_no_other_and_only_its_own_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "ABORT_SECONDS", 0.01)
    released = asyncio.Event()

    async def hang() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):  # as a call in a thread, whose end is awaited
                await released.wait()

    daemon = Daemon(stays=[forever], hangs=[hang, forever])
    task = asyncio.create_task(daemon.supervisor.run())
    try:
        async with asyncio.timeout(WITHIN):
            await until(lambda: daemon.open == 2)
            await daemon.supervisor.remove("hangs")
            assert daemon.told["hangs"].has_stopped
            for _ in range(2):  # each leaves again before it has started
                daemon.supervisor.add("hangs", daemon.opener("hangs"), daemon.told["hangs"])
                await settle()
                await daemon.supervisor.remove("hangs")
            daemon.supervisor.add("hangs", daemon.opener("hangs"), daemon.told["hangs"])
            await settle()
            assert daemon.begun["hangs"] == 1
            released.set()
            await until(lambda: daemon.begun["hangs"] == 2)
            assert (daemon.open, daemon.begun["stays"]) == (2, 1)
    finally:
        released.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert daemon.open == 0


async def test_a_removed_table_is_forgotten_with_its_pause_and_its_error() -> None:
    daemon = Daemon(good=[forever], pausing=[failing(passing)], bad=[failing(lasting)])
    task = asyncio.create_task(daemon.supervisor.run())
    await until(lambda: len(daemon.told["bad"].failures) + len(daemon.told["pausing"].failures) == 2)
    await daemon.supervisor.remove("pausing")
    await daemon.supervisor.remove("bad")
    daemon.clock.advance(10 * PERMANENT_RETRY_SECONDS)
    await settle()
    assert (daemon.begun["pausing"], daemon.begun["bad"]) == (1, 1)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_without_tables_it_waits_for_the_stop() -> None:
    daemon = Daemon()
    task = asyncio.create_task(daemon.supervisor.run())
    await settle()
    assert not task.done()
    daemon.stop.set()
    await task


async def test_where_more_tables_may_come_the_failure_of_all_does_not_end_it() -> None:
    daemon = Daemon()
    daemon.supervisor = Supervisor(daemon.stop, daemon.clock, awaits_tables=lambda: True)
    daemon.runs["bad"], daemon.begun["bad"], daemon.told["bad"] = [failing(lasting)], 0, Told()
    daemon.supervisor.add("bad", daemon.opener("bad"), daemon.told["bad"])
    task = asyncio.create_task(daemon.supervisor.run())
    await daemon.clock.wait_for_sleepers()
    assert daemon.told["bad"].failures[-1][1] is not None
    assert not task.done()
    daemon.stop.set()
    await task


async def test_where_processes_share_tables_one_that_is_taken_over_is_let_go_for_a_while() -> None:
    daemon = Daemon()
    daemon.supervisor = Supervisor(daemon.stop, daemon.clock, shares_tables=lambda: True)
    fenced = failing(lambda: FencedError("another one"))
    for name, runs in {"good": [forever], "moved": [fenced, forever]}.items():
        daemon.runs[name], daemon.begun[name], daemon.told[name] = runs, 0, Told()
        daemon.supervisor.add(name, daemon.opener(name), daemon.told[name])
    task = asyncio.create_task(daemon.supervisor.run())
    await daemon.clock.wait_for_sleepers()
    [(error, retry_in)] = daemon.told["moved"].failures
    assert isinstance(error, FencedError)
    assert retry_in is not None
    assert retry_in >= 0.75 * FENCED_RETRY_SECONDS
    daemon.clock.advance(retry_in)
    await until(lambda: daemon.begun["moved"] == 2)
    assert daemon.begun["good"] == 1
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_whether_processes_share_tables_is_asked_when_one_is_taken_over() -> None:
    """A new configuration may have another number of sinks."""
    daemon, shares = Daemon(), [True, False]
    daemon.supervisor = Supervisor(daemon.stop, daemon.clock, shares_tables=lambda: shares.pop(0))
    fenced = failing(lambda: FencedError("another one"))
    daemon.runs["moved"], daemon.begun["moved"], daemon.told["moved"] = [fenced, fenced], 0, Told()
    daemon.supervisor.add("moved", daemon.opener("moved"), daemon.told["moved"])
    task = asyncio.create_task(daemon.supervisor.run())
    await daemon.clock.wait_for_sleepers()
    daemon.clock.advance(2 * FENCED_RETRY_SECONDS)
    with pytest.raises(FencedError):
        await task


async def test_a_sink_that_another_process_still_has_is_tried_again_soon() -> None:
    daemon = Daemon()
    daemon.supervisor = Supervisor(daemon.stop, daemon.clock, shares_tables=lambda: True)

    @asynccontextmanager
    async def locked(_: asyncio.Event) -> AsyncIterator[Loop]:
        raise FencedError("the folder is locked")
        yield

    told = Told()
    daemon.supervisor.add("moved", locked, told)
    task = asyncio.create_task(daemon.supervisor.run())
    await daemon.clock.wait_for_sleepers()
    assert told.failures[-1][1] is not None
    assert told.failures[-1][1] < 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_request_ends_the_wait_for_a_retry_once() -> None:
    """A table that fails can be paused at once. A request that waits already does not make it fail all the time."""
    daemon = Daemon(other=[forever])
    daemon.runs["other"] = [daemon.until_stopped]
    wake = asyncio.Event()
    daemon.runs["failing"], daemon.begun["failing"], daemon.told["failing"] = [failing(passing)], 0, Told()
    daemon.supervisor.add("failing", daemon.opener("failing"), daemon.told["failing"], wake)
    task = asyncio.create_task(daemon.supervisor.run())
    await daemon.clock.wait_for_sleepers()
    assert daemon.begun["failing"] == 1
    wake.set()
    await until(lambda: daemon.begun["failing"] == 2)
    await daemon.clock.wait_for_sleepers()
    for _ in range(100):
        await asyncio.sleep(0)
    assert daemon.begun["failing"] == 2
    daemon.stop.set()
    await task


def test_a_sink_is_opened_again_without_an_error_but_not_again_and_again() -> None:
    daemon = Daemon(orders=[failing(lambda: ReopenSinkError("forgotten", retriable=True))] * 2 + [forever])

    async def scenario() -> None:
        running = asyncio.create_task(daemon.supervisor.run())
        await settle()
        assert daemon.begun["orders"] == 2  # at once
        [(error, delay)] = daemon.told["orders"].failures
        assert isinstance(error, ReopenSinkError)
        assert delay is not None
        await daemon.clock.wait_for_sleepers()
        daemon.clock.advance(1)
        await settle()
        assert daemon.begun["orders"] == 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(scenario)
