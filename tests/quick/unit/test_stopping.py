"""The effect of a signal on a process that delivers, and of an error that ends its deliveries."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.http.status import Status
from cdfd.daemon.supervision.process import _Process
from cdfd.errors import CdfdError
from tests.support.manual_time import ManualClock
from tests.support.statuses import configuration

HANGING = """
import asyncio, threading
from cdfd.daemon.supervision import signals as stopping

stopping.STOP_SECONDS, stopping.EXIT_SECONDS = 0.05, 0.5


async def main():
    stop = stopping.Stopping()
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    print("ready", flush=True)
    await stopping.run_until(stop.event, stop.event.wait())
    print("stopped", flush=True)
    return stop.exit_code

raise SystemExit(asyncio.run(main()))
"""


FAILING = """
import asyncio, threading
from cdfd.daemon.supervision import signals as stopping
from cdfd.errors import FencedError

stopping.EXIT_SECONDS = 0.5


async def main():
    stop = stopping.Stopping()
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    stop.limit_end(FencedError("lost the lease"))
    stop.go_on()
    print("goes on", flush=True)
    await asyncio.sleep(1)
    error = FencedError("another daemon has taken over")
    stop.limit_end(error)
    print("fails", flush=True)
    raise error

asyncio.run(main())
"""


def test_a_thread_that_hangs_does_not_keep_a_process_that_fails() -> None:
    """Its error is reported, although the command that reports it does not get that far."""
    with subprocess.Popen(
        [sys.executable, "-c", FAILING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        output, errors = process.communicate(timeout=30)
        assert output == "goes on\nfails\n"
        assert errors.startswith("another daemon has taken over\n")
        assert process.returncode == 3


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    """A read in a store that does not answer is one of the threads that Python waits for at its end."""
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(30) == 0


class Limits:
    """Notes when the end of the process is limited."""

    def __init__(self) -> None:
        self.calls: list[int | None] = []

    def limit_end(self, error: CdfdError) -> None:
        self.calls.append(error.exit_code)

    def go_on(self) -> None:
        self.calls.append(None)


async def test_a_leader_that_has_lost_its_lease_has_a_limited_time_to_end_its_deliveries() -> None:
    limits, over, ended = Limits(), asyncio.Event(), asyncio.Event()

    class Leader(_Process):
        async def deliver(self, stop: asyncio.Event, warm: Any = None) -> None:
            await ended.wait()

    class Warm:
        def stop(self) -> None:
            pass

    config, clock = configuration(), ManualClock()
    status, controller = Status(config, clock, standby=True), Controller("shop", clock)
    process = Leader(config, Path(), None, clock, status, controller, asyncio.Event(), limits, None, False)  # type: ignore[arg-type]
    leading = asyncio.create_task(process._lead(Warm(), over))  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        await asyncio.sleep(0)
        over.set()
        while not limits.calls:
            await asyncio.sleep(0)
        assert limits.calls == [3]
        ended.set()
        await leading
    assert limits.calls == [3, None]
