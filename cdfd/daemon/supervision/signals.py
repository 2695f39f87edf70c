"""Graceful shutdown: after a signal, a delivery may finish within a limited time. The end of the process is limited, too."""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from threading import Timer
from typing import Any

from cdfd.errors import CdfdError
from cdfd.runtime import logs
from cdfd.runtime.tasks import first_done

logger = logging.getLogger("cdfd.daemon")

STOP_SECONDS = 4.0
"""How long the current delivery may take to finish after a signal, before it is aborted."""
EXIT_SECONDS = 9.0
"""How long after a signal, or a fatal error, the process exits, even if a call hangs. That is safe: a kill at any time loses no rows."""
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

    def limit_end(self, error: CdfdError | None = None) -> None:
        """Exit in `EXIT_SECONDS`, even if a call hangs: the deliveries end, after a signal or with this error."""
        if self._exit_timer is None:
            # Not cancelled when they have ended: at exit Python waits for its threads, and one of them may hang in a store.
            self._exit_timer = Timer(EXIT_SECONDS, self._exit, (error,))
            self._exit_timer.daemon = True
            self._exit_timer.start()

    def go_on(self) -> None:
        """The deliveries have ended, and the process may begin others, unless there was a signal."""
        if self._exit_timer is not None and not self.event.is_set():
            self._exit_timer.cancel()
            self._exit_timer = None

    def _stop(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.event.set()
        self.limit_end()

    def _exit(self, error: CdfdError | None) -> None:
        if error is not None:
            logs.fatal(error, with_traceback=False)
        logger.warning("a call did not return within %g s; exiting without it", EXIT_SECONDS)
        os._exit(self.exit_code if error is None else error.exit_code)


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, which ends once `stop` is set. If it does not end in time, cancel it.

    Raises:
        CdfdError: as `work` does.
    """
    running = asyncio.create_task(work)
    try:
        async with first_done(stop.wait(), asyncio.shield(running)):
            pass
        await asyncio.wait((running,), timeout=STOP_SECONDS)
        if not running.done():
            logger.info("a delivery did not finish within %g s; aborting it", STOP_SECONDS)
    finally:
        running.cancel()
        await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
