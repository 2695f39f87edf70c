"""What a signal does to a command that delivers: it may finish what is under way, for a while."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from threading import Timer
from typing import Any

logger = logging.getLogger("cdfd.daemon")

STOP_SECONDS = 4.0
"""How long a delivery under way may take to finish after a signal, before it is aborted."""
LEAVE_SECONDS = 9.0
"""How long after a signal the process ends, whatever does not answer. Nothing is lost: it could be killed at any time."""
INTERRUPTED = 130
HANGUP = "SIGHUP does not reload the configuration, and is ignored: restart the daemon to apply changes"


class Stopping:
    """Listens for SIGTERM and SIGINT from here on.

    Args:
        terminated: the exit code after SIGTERM.

    Attributes:
        event: set by a signal.
        exit_code: that it asks for; 0 before.
    """

    def __init__(self, terminated: int = 0) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0
        self._leave: Timer | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, terminated)
        loop.add_signal_handler(signal.SIGINT, self._stop, INTERRUPTED)

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what ends by itself once `event` is set; where it does not in time, it is cancelled.

        Raises:
            CdfdError: as `work` does.
        """
        running = asyncio.create_task(work)
        stopped = asyncio.create_task(self.event.wait())
        try:
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((running,), timeout=STOP_SECONDS)
            if not running.done():
                logger.info("a delivery did not finish within %g s; it is aborted", STOP_SECONDS)
        finally:
            running.cancel()
            stopped.cancel()
            await asyncio.wait((running, stopped))
        if not running.cancelled():
            running.result()

    def ignore_hangup(self) -> None:
        """Log SIGHUP from here on, and go on. Nothing is read again while the daemon runs."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, logger.warning, HANGUP)

    def _stop(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.event.set()
        if self._leave is None:
            # Never cancelled: after the event loop, Python waits for its threads, one of which may be in a store that hangs.
            self._leave = Timer(LEAVE_SECONDS, self._give_up)
            self._leave.daemon = True
            self._leave.start()

    def _give_up(self) -> None:
        logger.warning("something does not answer %g s after the signal; leaving it behind", LEAVE_SECONDS)
        os._exit(self.exit_code)
