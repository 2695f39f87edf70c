"""Progress of long work: a line that updates on a terminal, and periodic log lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

from cdfd.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LOG_SECONDS = 10.0
"""Time between two log lines."""
SHOW_AFTER_SECONDS = 1.0
"""Work that takes longer than this gets a progress bar."""
IDLE_SECONDS = 2.0
"""After this time without rows, the next rows count as new work."""


class ProgressLine:
    """Counts rows and shows their number. Not thread-safe.

    Args:
        logger: receives log lines, if there is no terminal.
        verb: verb is being done, for people: `written`, `delivered`.
        table: the table of the rows.
        terminal: whether standard error is a terminal that receives no rows.
        clock: the source of time.
    """

    def __init__(
        self, logger: logging.Logger, verb: str, table: str, *, terminal: bool = False, clock: Clock | None = None
    ) -> None:
        self._logger = logger
        self._verb = verb
        self._table = table
        self._terminal = terminal
        self._clock = clock or SystemClock()
        self._rows = 0
        self._began = self._last = self._logged = self._clock.monotonic()
        self._bar: tuple[Progress, TaskID] | None = None

    def count(self, version: int | None, rows: int) -> None:
        """Count rows of a version; None where there are no versions."""
        now = self._clock.monotonic()
        if now - self._last > IDLE_SECONDS:
            self.close()
            self._began = self._logged = now
            self._rows = 0
        self._last = now
        self._rows += rows
        if self._terminal:
            if now - self._began >= SHOW_AFTER_SECONDS:
                try:
                    if self._bar is None:
                        # Imported late, because the import takes longer than most commands.
                        from rich.console import Console
                        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

                        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
                        bar = Progress(*columns, console=Console(stderr=True), transient=True)
                        bar.start()
                        self._bar = bar, bar.add_task("")
                    bar, task = self._bar
                    speed = self._rows / max(self._clock.monotonic() - self._began, 0.001)
                    where = "" if version is None else f"version {version}: "
                    bar.update(task, description=f"{where}{self._rows:,} rows {self._verb}, {speed:,.0f} a second")
                except OSError:
                    self._terminal = False  # the terminal is gone, but the work continues
        elif now - self._logged >= LOG_SECONDS:
            self._logged = now
            extra = {"table": self._table, "version": version, "rows": self._rows}
            if version is None:
                self._logger.info("%d rows %s", self._rows, self._verb, extra=extra)
            else:
                self._logger.info("at version %d, %d rows %s", version, self._rows, self._verb, extra=extra)

    def close(self) -> None:
        """Remove the bar, if there is one."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None


def has_terminal() -> bool:
    """Whether standard error is a terminal."""
    with contextlib.suppress(AttributeError, ValueError):  # closed, or not there
        return sys.stderr.isatty()
    return False


def is_watched() -> bool:
    """Whether standard error is a terminal and standard output is not."""
    with contextlib.suppress(AttributeError, ValueError):  # closed, or not there
        return has_terminal() and not sys.stdout.isatty()
    return False
