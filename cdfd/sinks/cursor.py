"""The position of a sink, and the deliveries that may begin and commit there. Pure."""

from dataclasses import replace
from typing import Literal

from cdfd.errors import SinkError
from cdfd.model.position import Position


def order(position: Position) -> tuple[int, bool, int]:
    """A key that sorts positions of one table in the order of delivery: a version's snapshot before its changes."""
    return position.version, position.phase == "stream", position.part


def check_move(place: str, at: Position, to: Position, hint: str | None) -> None:
    """`SinkError` if a place whose rows stay, and that is at a position, cannot move: it would go back, or take rows of another table."""
    stands = f"{place} is at version {at.version} of table {at.table_id}"
    if to.table_id != at.table_id:
        raise SinkError(f"{stands} and cannot take rows of table {to.table_id}", hint=hint)
    if order(to) < order(at):
        raise SinkError(f"{stands} and cannot go back", hint=hint)


DeliveryState = Literal["open", "failed", "ended"]
"""Of a delivery. One that failed, or whose batch is not complete, can only be aborted."""


def require_open(state: DeliveryState, position: Position) -> None:
    """`SinkError` if a delivery that began at a position takes no more."""
    if state != "open":
        hint = "Abort it, then begin a new delivery at last_position" if state == "failed" else None
        raise SinkError(f"the delivery has {state}", version=position.version, hint=hint)


class Cursor:
    """The position of a sink, and the delivery in progress.

    A sink calls `begin`, then `check`, `mark_uncertain` and `advance`, or `abandon`. While the outcome of a commit is uncertain, the cursor
    refuses everything, because only a newly opened sink can read the position.
    """

    def __init__(self, position: Position | None) -> None:
        self._position = position
        self._begun: Position | None = None
        self._refusal: str | None = None

    @property
    def position(self) -> Position | None:
        """The next position to deliver; None if nothing was ever delivered."""
        self._require_usable()
        return self._position

    def move(self, position: Position) -> None:
        """Set the position. `SinkError` during a delivery."""
        self._require_ended(position)
        self._position = position

    def begin(self, position: Position) -> None:
        """Begin a delivery. `SinkError` if `position` is not the sink's position, or during another delivery."""
        self._require_ended(position)
        if self._position is not None and self._position != position:
            hint = "Begin at last_position, or give the table its own sink"
            if position.table_id != self._position.table_id:
                hint = "The table was deleted and created again, or is another one: give it its own sink"
            raise SinkError(
                f"a delivery cannot begin at {position}: the sink's position is {self._position}",
                version=position.version,
                hint=hint,
            )
        self._begun = position

    def check(self, following: Position, *, rows: bool) -> None:
        """`SinkError` if the delivery in progress cannot lead to `following`.

        A delivery without rows may keep its position, to store the first position. It may also lead from an undelivered version to that
        version's snapshot, which replaces changes that cannot be read, or to the snapshot of the version before, which replaces all rows.
        """
        self._require_usable()
        begun = self._begun
        if begun is None:
            raise SinkError("there is no delivery to commit", version=following.version)
        snapshots = (
            replace(begun, phase="snapshot", version=version) for version in (begun.version, begun.version - 1)
        )
        stays = not rows and (following == begun or (not begun.part and following in snapshots))
        if following.table_id != begun.table_id or (order(following) <= order(begun) and not stays):
            raise SinkError(f"a delivery from {begun} cannot lead to {following}", version=following.version)

    def check_chunk(self) -> None:
        """`SinkError` if there is no delivery whose rows leave the position where it is."""
        self._require_usable()
        if self._begun is None:
            raise SinkError("there is no delivery to commit")

    def mark_uncertain(self) -> None:
        """The outcome of the commit is uncertain, until `advance`."""
        self._refusal = "the outcome of the last commit is unknown"

    def advance(self, following: Position) -> None:
        """The delivery in progress and its position are durable."""
        self._refusal = None
        self._begun = None
        self._position = following

    def abandon(self) -> None:
        """The delivery in progress, if any, is aborted."""
        self._begun = None

    def close(self) -> None:
        """Refuse further deliveries."""
        self._refusal = "the sink is closed"

    def _require_ended(self, position: Position) -> None:
        self._require_usable()
        if self._begun is not None:
            raise SinkError(
                f"a delivery that began at {self._begun} has not ended",
                version=position.version,
                hint="Commit it or abort it first",
            )

    def _require_usable(self) -> None:
        if self._refusal is not None:
            raise SinkError(self._refusal, hint="Open a new sink")
