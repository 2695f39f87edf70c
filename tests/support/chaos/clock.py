"""`cdfd` under another clock: `python -m tests.support.chaos.clock OFFSET_FILE SPEED ... -m cdfd ARGUMENTS`.

OFFSET_FILE holds milliseconds that the wall clock is off by. It is read again whenever the time is asked for, so that a test can let the
clock jump. SPEED is how many seconds of the daemon's clock pass in a second: its polls, back-offs and intervals come as much sooner. The
clients of Kafka and the kernel keep the real time, and so does the wall clock but for its offset: a broker compares it with its own.
"""

import asyncio
import sys
import time
from pathlib import Path

from cdfd.runtime.clock import SystemClock


def install(offset: Path, speed: float) -> None:
    """Put another clock in the place of the system's."""
    real, monotonic, wait = time.time_ns, time.monotonic, SystemClock.wait
    began = monotonic()

    def time_ns() -> int:
        off = int(offset.read_text() or 0) if offset.exists() else 0
        return real() + off * 1_000_000

    async def sleep(self: SystemClock, seconds: float) -> None:
        await asyncio.sleep(seconds / speed)

    async def waited(self: SystemClock, event: asyncio.Event, timeout: float) -> bool:
        return await wait(self, event, timeout / speed)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
    SystemClock.monotonic = lambda self: began + (monotonic() - began) * speed
    SystemClock.sleep = sleep
    SystemClock.wait = waited


if __name__ == "__main__":
    install(Path(sys.argv[1]), float(sys.argv[2]))
    sys.argv = ["cdfd", *sys.argv[sys.argv.index("cdfd") + 1 :]]
    from cdfd.cli import main

    main()
