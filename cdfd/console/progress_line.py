"""How far long work has come: a line that changes on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

from cdfd.tail.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LOG_SECONDS = 10.0
"""How often to log."""
PATIENCE_SECONDS = 1.0
"""How long work takes before it is worth a progress bar."""
IDLE_SECONDS = 2.0
"""After so long without rows the work before was another one."""


class ProgressLine:
    """Counts rows and tells about them. Not for several threads at once.

    Args:
        logger: where lines go that are not for a terminal.
        what: what is being done, for people: `written`, `delivered`.
        table: whose rows they are.
        terminal: whether a person watches standard error and nothing else is written to that terminal.
        clock: time.
    """

    def __init__(
        self, logger: logging.Logger, what: str, table: str, *, terminal: bool = False, clock: Clock | None = None
    ) -> None:
        self._logger = logger
        self._what = what
        self._table = table
        self._terminal = terminal
        self._clock = clock or SystemClock()
        self._rows = 0
        self._began = self._last = self._told = self._clock.monotonic()
        self._bar: tuple[Progress, TaskID] | None = None

    def count(self, version: int, rows: int) -> None:
        """Note rows of a version."""
        now = self._clock.monotonic()
        if now - self._last > IDLE_SECONDS:
            self.close()
            self._began = self._told = now
            self._rows = 0
        self._last = now
        self._rows += rows
        if self._terminal:
            if now - self._began >= PATIENCE_SECONDS:
                try:
                    self._show(version)
                except OSError:
                    self._terminal = False  # it is gone: rows do not depend on who watches
        elif now - self._told >= LOG_SECONDS:
            self._told = now
            extra = {"table": self._table, "version": version, "rows": self._rows}
            self._logger.info("at version %d, %d rows %s", version, self._rows, self._what, extra=extra)

    def close(self) -> None:
        """Take the bar away, if there is one."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def _show(self, version: int) -> None:
        if self._bar is None:
            # Only here: it takes longer to import than most commands take.
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.start()
            self._bar = bar, bar.add_task("")
        bar, task = self._bar
        speed = self._rows / max(self._clock.monotonic() - self._began, 0.001)
        bar.update(task, description=f"version {version}: {self._rows:,} rows {self._what}, {speed:,.0f} a second")


def watched() -> bool:
    """Whether a person watches standard error on a terminal that rows do not go to."""
    with contextlib.suppress(AttributeError, ValueError):  # closed, or not there
        return sys.stderr.isatty() and not sys.stdout.isatty()
    return False
