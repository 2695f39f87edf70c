"""Recent events of one table, for the page: its last errors, its slowest delivery, and the stage that takes the time."""

from collections import deque
from dataclasses import dataclass, field

from cdfd.errors import CdfdError

MOST_ERRORS = 5
"""Different errors that are kept for a table. Each has three texts of at most 2,000 characters."""


@dataclass(slots=True)
class SeenError:
    """An error, and how often it came in a row.

    Attributes:
        at_ms: time of its last occurrence, in ms since the Unix epoch.
        retry_at: time of the restart after it, by the monotonic clock; None if the loop continues, or does not restart.
        count: occurrences in a row.
    """

    error: CdfdError
    at_ms: int
    retry_at: float | None = None
    count: int = 1


@dataclass(slots=True)
class Activity:
    """Recent events of one table.

    Attributes:
        files: files to read for the oldest pending version; None if unknown.
        waiting: whether a large delivery waits for a slot.
        errors: the last different errors, oldest first.
    """

    files: int | None = None
    waiting: bool = False
    errors: deque[SeenError] = field(default_factory=lambda: deque(maxlen=MOST_ERRORS))
    _slowest: float | None = None
    _stages: dict[str, float] = field(default_factory=dict)

    def error(self, error: CdfdError, at_ms: int, retry_at: float | None = None) -> None:
        """An error. One that repeats, as retries do, is counted."""
        last = self.errors[-1] if self.errors else None
        if last is not None and (last.error.what, last.error.version) == (error.what, error.version):
            last.error, last.at_ms, last.retry_at, last.count = error, at_ms, retry_at, last.count + 1
        else:
            self.errors.append(SeenError(error, at_ms, retry_at))

    def delivered_after(self, seconds: float) -> None:
        """The time from a version's commit to its delivery."""
        self._slowest = max(seconds, self._slowest or 0.0)

    def stage(self, name: str, seconds: float) -> None:
        """Duration of a stage. Called from any thread: an addition may be lost, which hardly changes the largest sum."""
        self._stages[name] = self._stages.get(name, 0.0) + seconds

    def take_slowest(self) -> float | None:
        """The longest time from a commit to its delivery since the last call, in seconds. Older times of stages count less from now on."""
        slowest, self._slowest = self._slowest, None
        for name in tuple(self._stages):
            self._stages[name] /= 2
        return slowest

    def busiest(self) -> str | None:
        """The stage that took most of the time recently; None if none took any."""
        return max(self._stages, key=self._stages.__getitem__, default=None)
