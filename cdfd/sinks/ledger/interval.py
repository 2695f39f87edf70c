"""When to record progress in the ledger: at most once per interval, and at a clean stop. Pure; the caller has the clock."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RecordInterval:
    """The version to record in the ledger, and the time of the next record.

    The first version is due at once, then the newest one every `seconds`, so that versions do not queue up. Versions that contain only
    progress (`txn_state.is_ours`) never become due: recording one in the source table would create the next one.

        interval = interval.delivered(7)
        if interval.wait(now) == 0:              # at a stop: interval.pending is not None
            version = interval.pending
            interval = interval.tried(now)           # before the record, so that a failing ledger is not retried at once
            await ledger.record(...)
            interval = interval.recorded(version)

    Attributes:
        seconds: minimum time between two attempts.
        pending: the newest delivered version to record; None if the ledger is up to date.
    """

    seconds: float
    pending: int | None = None
    _not_before: float | None = None

    def delivered(self, version: int, *, ours: bool = False) -> RecordInterval:
        """A version is delivered. `ours`: it contains only progress."""
        if ours and self.pending is None:
            return self
        return replace(self, pending=version)

    def wait(self, now: float) -> float | None:
        """Seconds until a version is due, 0 if one is due; None if there is no pending version. `now` is in seconds, monotonic."""
        if self.pending is None:
            return None
        return 0.0 if self._not_before is None else max(0.0, self._not_before - now)

    def tried(self, now: float) -> RecordInterval:
        """An attempt to record starts now."""
        return replace(self, _not_before=now + self.seconds)

    def recorded(self, version: int) -> RecordInterval:
        """`version` is in the ledger. Versions delivered since then stay pending."""
        return replace(self, pending=None) if self.pending == version else self
