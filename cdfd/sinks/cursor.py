"""The order that every sink keeps: where it stands, and what may be begun and committed from there. Pure."""

from __future__ import annotations

from dataclasses import replace

from cdfd.changes.position import Position
from cdfd.errors import SinkError


def order(position: Position) -> tuple[int, bool, int]:
    """A key that sorts positions of one table in the order of delivery: a version's snapshot before its changes."""
    return position.version, position.phase == "stream", position.part


class Cursor:
    """Where a sink stands, and whether a delivery is under way.

    Sinks ask it before they act, and tell it once what they did is durable: `begin`, then `check`, `doubt` and
    `advance`, or `abandon`. In doubt it refuses everything: what counts, only a newly opened sink can find out.
    """

    def __init__(self, position: Position | None) -> None:
        self._position = position
        self._begun: Position | None = None
        self._refusal: str | None = None

    @property
    def position(self) -> Position | None:
        """What is to be delivered next, None where nothing was ever delivered."""
        self._require_usable()
        return self._position

    def move(self, position: Position) -> None:
        """Stand elsewhere. `SinkError` while a delivery is under way."""
        self._require_ended(position)
        self._position = position

    def begin(self, position: Position) -> None:
        """A delivery starts. `SinkError` where `position` is not the one it stands at, or another is under way."""
        self._require_ended(position)
        if self._position is not None and self._position != position:
            hint = "Begin where last_position says, or give the table a sink of its own"
            if position.table_id != self._position.table_id:
                hint = "The table was deleted and created again, or is another one: give it a sink of its own"
            raise SinkError(
                f"a delivery cannot begin at {position}: the sink stands at {self._position}",
                version=position.version,
                hint=hint,
            )
        self._begun = position

    def check(self, following: Position, *, rows: bool) -> None:
        """`SinkError` where the delivery under way cannot lead to `following`.

        Without rows it may lead to where it began: so a position is made durable before there is anything to deliver. Or from a version of
        which nothing is delivered to its snapshot: so changes that cannot be read are given up for the rows that they led to.
        """
        self._require_usable()
        begun = self._begun
        if begun is None:
            raise SinkError("there is no delivery to commit", version=following.version)
        stays = not rows and (following == begun or (not begun.part and following == replace(begun, phase="snapshot")))
        if following.table_id != begun.table_id or (order(following) <= order(begun) and not stays):
            raise SinkError(f"a delivery from {begun} cannot lead to {following}", version=following.version)

    def doubt(self) -> None:
        """From here on nobody knows whether the delivery counts, until `advance` says that it does."""
        self._refusal = "the outcome of the last commit is unknown"

    def advance(self, following: Position) -> None:
        """The delivery under way is durable, and its position with it."""
        self._refusal = None
        self._begun = None
        self._position = following

    def abandon(self) -> None:
        """The delivery under way, if any, counts for nothing."""
        self._begun = None

    def close(self) -> None:
        """Nothing more is begun."""
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
            raise SinkError(self._refusal, hint="Open the sink anew")
