"""How long an outage may last before it counts: most of them end by themselves, and no person is needed. Pure.

An outage that does not count yet is a warning in the log. The table stays ready, and no alert sees the error.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdfd.errors import CdfdError, FencedError, LogError, SinkError, StorageError

GRACE: tuple[tuple[type[CdfdError], float], ...] = (
    # Another process has the table: no retry here brings it back.
    (FencedError, 0.0),
    # Brokers restart, elect leaders, forget idle transactional ids; passwords and certificates are renewed.
    (SinkError, 120.0),
    # Stores throttle, fail over, and refuse credentials until the new ones are there.
    (StorageError, 120.0),
    # A writer replaces the newest entry, or lists it before it can be read.
    (LogError, 60.0),
)
"""Seconds for which an outage with a retriable error of a class does not count. The first class that fits decides; others: 0."""
START_SECONDS = 120.0
"""Time for the start of a table that joins a daemon at work. Until then, the daemon stays ready without it."""
STEADY_SECONDS = 30.0
"""Time after an error, with a success in it, after which the next error begins another outage. An activity that fails and succeeds in
turn is one outage, which counts in the end.
"""


@dataclass(slots=True)
class Outage:
    """The errors of one activity since it last worked. Times are seconds of one monotonic clock."""

    _began: float = 0.0
    _last: float = float("-inf")
    _worked: bool = True
    _grace: float = 0.0

    def fail(self, error: CdfdError, now: float) -> bool:
        """The activity failed. Returns whether the outage counts; see `counts`."""
        if self._worked and now - self._last > STEADY_SECONDS:
            self._began = now
        self._last, self._worked, self._grace = now, False, 0.0
        if error.retriable:  # others need a person
            self._grace = next((seconds for kind, seconds in GRACE if isinstance(error, kind)), 0.0)
        return self.counts(now)

    def work(self) -> None:
        """The activity succeeded."""
        self._worked = True

    def counts(self, now: float) -> bool:
        """Whether there is an outage that has lasted for longer than the grace of its last error."""
        return not self._worked and now - self._began >= self._grace
