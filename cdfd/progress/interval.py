"""When to tell the ledger: at most once in a while, and at a clean stop. Pure; the caller has the clock."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """What the ledger does not know yet, and when it may be told.

    The first version is due at once, then one every `seconds`: always the newest, so that nothing queues up. Versions that hold nothing but
    progress (`txn_state.is_ours`) are never due for their own sake, not even at a stop, or recording them in the table would make the next.

        pace = pace.delivered(7)
        version = pace.due(now)              # at a stop: pace.pending
        if version is not None:
            pace = pace.tried(now)           # before, so that a ledger that fails is not asked all the time
            await ledger.record(...)
            pace = pace.recorded(version)

    Attributes:
        seconds: from one attempt to the next, at least.
        pending: the newest delivered version that is to be recorded, None where the ledger knows all.
    """

    seconds: float
    pending: int | None = None
    _not_before: float | None = None

    def delivered(self, version: int, *, ours: bool = False) -> Pace:
        """A version was delivered whole. `ours`: it holds nothing but progress."""
        if ours and self.pending is None:
            return self
        return replace(self, pending=version)

    def due(self, now: float) -> int | None:
        """The version to record now, where there is one. `now` is in seconds, monotonic."""
        return self.pending if self._not_before is None or now >= self._not_before else None

    def wait(self, now: float) -> float | None:
        """Seconds until something is due, 0 where something is; None where nothing will be without another version."""
        if self.pending is None:
            return None
        return 0.0 if self._not_before is None else max(0.0, self._not_before - now)

    def tried(self, now: float) -> Pace:
        """Recording is attempted now."""
        return replace(self, _not_before=now + self.seconds)

    def recorded(self, version: int) -> Pace:
        """`version` is in the ledger; later ones that were delivered meanwhile still are to be."""
        return replace(self, pending=None) if self.pending == version else self
