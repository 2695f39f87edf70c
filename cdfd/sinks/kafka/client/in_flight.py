"""Records in flight: their size, and the first error."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition

from cdfd.errors import SinkError


@dataclass(eq=False)
class InFlight:
    """Counts parts of a transaction between `send` and the broker's response. Any thread may call `settle`.

    Attributes:
        limit: most bytes in flight.
        timeout: longest wait in seconds.
    """

    limit: int
    timeout: float
    _changed: Condition = field(default_factory=Condition, init=False)
    _bytes: int = field(default=0, init=False)
    _parts: int = field(default=0, init=False)
    _failure: SinkError | None = field(default=None, init=False)
    _then: Callable[[], None] | None = field(default=None, init=False)

    def has_room(self, size: int) -> bool:
        """Whether a part can be sent without waiting. A part larger than the limit is sent alone."""
        return not self._parts or self._bytes + size <= self.limit

    def add(self, size: int) -> None:
        """Wait until the limit allows a part, and count it."""
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
            self._run_once_settled()
            self._changed.notify_all()

    def wait_for_all(self, then: Callable[[], None] | None = None) -> None:
        """Wait until every part is acknowledged. Raises the error of the first part that failed.

        Args:
            then: called at that moment, unless a part failed or the wait has timed out: by the thread of `settle`, which need not wait for
                this one to wake up. It must not raise.
        """
        with self._changed:
            self._then = then
            try:
                self._run_once_settled()
                self._wait(lambda: not self._parts)
            finally:
                self._then = None

    def _run_once_settled(self) -> None:
        if self._then is not None and not self._parts and self._failure is None:
            then, self._then = self._then, None
            then()

    def settled(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until every part is acknowledged or failed; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._parts, timeout)

    def raise_failure(self) -> None:
        """Raise the error of the first part that failed, if one has."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def forget_failures(self) -> None:
        """Forget the error, after the transaction was aborted."""
        with self._changed:
            self._failure = None

    def _wait(self, ready: Callable[[], bool]) -> None:
        done = self._changed.wait_for(lambda: self._failure is not None or ready(), self.timeout)
        self.raise_failure()
        if not done:
            raise SinkError(
                f"{self._parts} batches of {self._bytes} bytes were not acknowledged within {self.timeout:g} seconds",
                hint="Check that all brokers run, that all partitions have a leader, and that the topic still exists",
                retriable=True,
            )
