"""What is on its way to the broker: how much, and whether any of it failed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

from cdfd.errors import SinkError


class InFlight:
    """Counts parts of a transaction between `send` and the broker's answer. Any thread may `settle`.

    Args:
        limit: bytes.
        timeout: seconds that waiting may take.
    """

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        self._changed = Condition()
        self._bytes = 0
        self._parts = 0
        self._failure: SinkError | None = None

    def has_room(self, size: int) -> bool:
        """Whether a part would not have to wait. One that is larger than the limit goes alone."""
        return not self._parts or self._bytes + size <= self._limit

    def add(self, size: int) -> None:
        """Count a part, as soon as there is room for it."""
        with self._changed:
            self._wait(lambda: self.has_room(size))
            self._bytes += size
            self._parts += 1

    def settle(self, size: int, failure: SinkError | None) -> None:
        """A part was acknowledged, or failed. The first failure is kept."""
        with self._changed:
            self._bytes -= size
            self._parts -= 1
            self._failure = self._failure or failure
            self._changed.notify_all()

    def wait_for_all(self) -> None:
        """Return when every part was acknowledged; raise when one has failed."""
        with self._changed:
            self._wait(lambda: not self._parts)

    def settled(self, timeout: float) -> bool:
        """Whether all parts are acknowledged or failed, now or within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._parts, timeout)

    def forget_failures(self) -> None:
        """Begin anew, after what failed was aborted."""
        with self._changed:
            self._failure = None

    def _wait(self, ready: Callable[[], bool]) -> None:
        done = self._changed.wait_for(lambda: self._failure is not None or ready(), self._timeout)
        if self._failure is not None:
            raise self._failure
        if not done:
            raise SinkError(
                f"{self._parts} batches of {self._bytes} bytes were not acknowledged within {self._timeout:g} seconds",
                hint="Are all brokers up, all partitions led, and is the topic still there?",
                retriable=True,
            )
