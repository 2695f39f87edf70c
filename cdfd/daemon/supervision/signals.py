"""Graceful shutdown: after a signal, a delivery may finish within a limited time."""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from threading import Timer
from typing import Any

logger = logging.getLogger("cdfd.daemon")

STOP_SECONDS = 4.0
"""How long the current delivery may take to finish after a signal, before it is aborted."""
EXIT_SECONDS = 9.0
"""How long after a signal the process exits, even if a call hangs. That is safe: a kill at any time loses no rows."""
INTERRUPTED = 130


class Stopping:
    """Handles SIGTERM and SIGINT.

    Args:
        terminated: the exit code after SIGTERM.

    Attributes:
        event: set by a signal.
        exit_code: the exit code for the signal; 0 before one.
    """

    def __init__(self, terminated: int = 0) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0
        self._exit_timer: Timer | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, terminated)
        loop.add_signal_handler(signal.SIGINT, self._stop, INTERRUPTED)

    def _stop(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.event.set()
        if self._exit_timer is None:
            # Never cancelled: at exit Python waits for its threads, and one of them may hang in a store.
            self._exit_timer = Timer(EXIT_SECONDS, self._exit)
            self._exit_timer.daemon = True
            self._exit_timer.start()

    def _exit(self) -> None:
        logger.warning("a call did not return within %g s after the signal; exiting without it", EXIT_SECONDS)
        os._exit(self.exit_code)


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, which ends once `stop` is set. If it does not end in time, cancel it.

    Raises:
        CdfdError: as `work` does.
    """
    running = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((running,), timeout=STOP_SECONDS)
        if not running.done():
            logger.info("a delivery did not finish within %g s; aborting it", STOP_SECONDS)
    finally:
        running.cancel()
        stopped.cancel()
        await asyncio.wait((running, stopped))
    if not running.cancelled():
        running.result()
