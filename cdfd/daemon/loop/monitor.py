"""What a table's loop tells of itself while it runs, for metrics, `/status` and `/readyz`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cdfd.changes.position import Position
from cdfd.changes.stream import Version
from cdfd.errors import CdfdError


class Monitor(Protocol):
    """Listens to one table's loop. Called in the loop's thread but for `stage`; nothing here may block or raise."""

    def started(self, position: Position) -> None:
        """The loop delivers from here on; again after every failure."""

    def saw(self, newest: int) -> None:
        """The table has this version. It may have newer ones."""

    def waiting(self) -> None:
        """All versions that are known are delivered: the loop is at the tip and waits for the next one."""

    def behind(self, version: Version) -> None:
        """This is the oldest version that is not delivered."""

    def stage(self, name: str, seconds: float) -> None:
        """Time that a stage of a delivery took: `read`, `encode`, `send`, `commit`. From any thread."""

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        """A delivery counts now.

        Args:
            following: the position after it.
            versions: those that are delivered whole with it, in order.
            rows: of it, by change type.
            bytes_read: sizes of the files that were read for it.
        """

    def aborted(self) -> None:
        """A delivery was dropped."""

    def recorded(self, version: int) -> None:
        """The ledger knows that this version is delivered."""

    def error(self, error: CdfdError) -> None:
        """Something went wrong that the loop goes on after, such as a ledger that could not be written."""

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        """The loop ended. It is started anew after so many seconds; None: not at all."""

    def stopped(self) -> None:
        """The loop has ended because it was told to."""


class Silence:
    """The `Monitor` port for those whom nobody asks."""

    def started(self, position: Position) -> None:
        """Nothing."""

    def saw(self, newest: int) -> None:
        """Nothing."""

    def waiting(self) -> None:
        """Nothing."""

    def behind(self, version: Version) -> None:
        """Nothing."""

    def stage(self, name: str, seconds: float) -> None:
        """Nothing."""

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        """Nothing."""

    def aborted(self) -> None:
        """Nothing."""

    def recorded(self, version: int) -> None:
        """Nothing."""

    def error(self, error: CdfdError) -> None:
        """Nothing."""

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        """Nothing."""

    def stopped(self) -> None:
        """Nothing."""
