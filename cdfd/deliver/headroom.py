"""Retention headroom: how long until clean-up of a table may remove what is not delivered.

Clean-up goes by time: it removes the log entry of a commit, and the files that the commit deleted, once they are older than the table's
retention. So the oldest undelivered commit decides. Every time here is a lower bound: clean-up removes nothing earlier.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from cdfd.delta.retention import Retention
from cdfd.errors import CdfdError, GapError, MissingFileError, NotATableError, TableChangedError
from cdfd.runtime.clock import Clock

Kind = Literal["log", "deleted_files"]
KINDS: tuple[Kind, ...] = get_args(Kind)
AT_RISK = 0.25
"""The share of the retention below which a table is at risk."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """The headroom of one table against one kind of clean-up.

    Attributes:
        kind: `log`: log clean-up. `deleted_files`: VACUUM.
        seconds: until it may remove something undelivered; negative if it may have done so. All of the retention at the tip.
        retention: the table's retention, in seconds.
        lost: whether something undelivered is known to be gone.
    """

    kind: Kind
    seconds: float
    retention: float
    lost: bool = False

    @property
    def at_risk(self) -> bool:
        """Whether little of the retention is left."""
        return self.lost or self.seconds < AT_RISK * self.retention


@dataclass(eq=False)
class HeadroomTracker:
    """Computes the headroom of one table from the events of its loop.

    Attributes:
        retention: of the table; None if unknown.
    """

    clock: Clock
    retention: Retention | None = field(default=None, init=False)
    _since_ms: int | None = field(default=None, init=False)
    _at_tip: bool = field(default=False, init=False)
    _lost: Kind | None = field(default=None, init=False)

    def undelivered_since(self, ms: int) -> None:
        """No undelivered commit is older than this time, in ms since the Unix epoch."""
        self._at_tip = False
        self._since_ms = ms

    def at_tip(self) -> None:
        """Everything is delivered."""
        self._at_tip, self._lost = True, None

    def nothing_undelivered(self) -> None:
        """The newest version is delivered, of a table that is paused, perhaps."""
        if not self._at_tip:
            self.undelivered_since(self.clock.now_ms())

    def left_tip(self) -> None:
        """Something may be undelivered from now on."""
        if self._at_tip:
            self.undelivered_since(self.clock.now_ms())

    def delivered(self, ms: int) -> None:
        """A commit of this time is delivered, and those after it are not older."""
        self._lost = None
        if self._since_ms is not None:
            self._since_ms = max(self._since_ms, ms)

    def failed(self, error: CdfdError) -> None:
        """An error stopped the loop."""
        self.left_tip()
        if isinstance(error, TableChangedError | NotATableError):
            self.retention = None  # of a table that is not there any more
        if isinstance(error, GapError | MissingFileError):
            self._lost = "log" if isinstance(error, GapError) else "deleted_files"

    def headrooms(self) -> tuple[Headroom, ...]:
        """The headroom at this moment against each kind of clean-up that the table has; empty if unknown."""
        since_ms = self.clock.now_ms() if self._at_tip else self._since_ms
        if self.retention is None or since_ms is None:
            return ()
        age = max(0, self.clock.now_ms() - since_ms) / 1000
        headrooms = []
        for kind, ms in zip(KINDS, (self.retention.log_ms, self.retention.files_ms), strict=True):
            if ms is not None:
                retention, lost = max(0, ms) / 1000, kind == self._lost
                seconds = retention - age
                headrooms.append(Headroom(kind, min(0.0, seconds) if lost else seconds, retention, lost))
        return tuple(headrooms)

    def urgency(self) -> float | None:
        """The least headroom in seconds of a table at risk; None for others, and where delivery comes too late."""
        return min((each.seconds for each in self.headrooms() if each.at_risk and not each.lost), default=None)
