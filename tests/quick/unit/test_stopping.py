"""The effect of a signal on a process that delivers."""

import signal
import subprocess
import sys

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


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    """A read in a store that does not answer is one of the threads that Python waits for at its end."""
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(30) == 0
