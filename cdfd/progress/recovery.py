"""Where a table goes on after a restart, from what the sink and the ledger know of it. Pure.

The sink's record was written with the rows, so it wins. The ledger was written after it, so it lags, and is rolled forward; where it is
ahead, the sink has lost its newest records, and delivers them again. A sink that knows nothing although the ledger does (a new cluster, a
lost topic) stops the table: only the user can know whether those who read the topic still have what is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdfd.changes.position import Position
from cdfd.errors import SinkError, TableChangedError
from cdfd.progress.ledger import LedgerEntry

FLAG = "--recover-from-ledger"


@dataclass(frozen=True, slots=True)
class Places:
    """What the two that know positions are called in messages."""

    sink: str = "the sink"
    ledger: str = "the ledger"


@dataclass(frozen=True, slots=True)
class Start:
    """Where to go on.

    Attributes:
        position: what to deliver next; None where nothing is known and the table begins as the configuration says.
        record: the version that the ledger is to be told, None where it need not be.
        reason: for the log.
        warning: whether the reason is one to warn of.
    """

    position: Position | None
    record: int | None
    reason: str
    warning: bool = False


def decide(
    sink: Position | None, entry: LedgerEntry | None, table_id: str, recover: bool, places: Places | None = None
) -> Start:
    """Where a table goes on.

    Args:
        sink: the position that the sink knows, None where it knows none.
        entry: what the ledger knows.
        table_id: `metaData.id` of the table that is there now.
        recover: whether to go on where the ledger says if the sink knows nothing: `--recover-from-ledger`, and always for sinks that
            keep no position of their own.
        places: their names.

    Raises:
        TableChangedError: what counts is a position of another table than the one that is there.
        SinkError: the sink knows nothing, the ledger does, and `recover` is not set.
    """
    places = places or Places()
    if sink is not None:
        _check_table(sink.table_id, table_id, places.sink)
        return _from_sink(sink, entry, places)
    if entry is None:
        return Start(None, None, f"neither {places.sink} nor {places.ledger} has a position")
    if entry.table_id is not None:
        _check_table(entry.table_id, table_id, places.ledger)
    if not recover:
        raise SinkError(
            f"{places.sink} has no position, but {places.ledger} says that version {entry.version} was delivered",
            version=entry.version,
            hint=f"If the sink is a new or an emptied one, start once with {FLAG} to go on at version {entry.version + 1}, "
            "or `cdfd progress reset` to begin anew",
        )
    position = Position(table_id, entry.version + 1, digest=entry.digest)
    return Start(position, None, f"resuming at version {position.version}, where {places.ledger} ends")


def delivered(position: Position) -> int | None:
    """The last version that is delivered whole where `position` is next; None where none is.

    While a snapshot is under way that is none: of the versions before it nothing was delivered, of its own not all.
    """
    return position.version - 1 if position.phase == "stream" and position.version > 0 else None


def digest_of(position: Position, version: int) -> str | None:
    """The hash of the log entry of `version` where `position` has it."""
    return position.digest if position.basis == version else None


def _from_sink(sink: Position, entry: LedgerEntry | None, places: Places) -> Start:
    whole = delivered(sink)
    going_on = f"resuming at version {sink.version}, where {places.sink} stands"
    if whole is None:
        return Start(sink, None, going_on)
    if entry is None:
        return Start(sink, whole, f"{going_on}; {places.ledger} has nothing yet")
    if entry.table_id not in (None, sink.table_id):
        return Start(sink, whole, f"{going_on}; {places.ledger} is of another table, {entry.table_id}", warning=True)
    if entry.version < whole:
        return Start(sink, whole, f"{going_on}; {places.ledger} lags at version {entry.version}")
    if entry.version > whole:
        reason = (
            f"{going_on}, although {places.ledger} says that version {entry.version} was delivered: "
            "the sink has lost what came last, or was set back"
        )
        return Start(sink, whole, reason, warning=True)
    same = entry.table_id == sink.table_id and digest_of(sink, whole) in (None, entry.digest)
    return Start(sink, None if same else whole, going_on)


def _check_table(known: str, found: str, place: str) -> None:
    if known != found:
        raise TableChangedError(
            f"the table was deleted and created again, or replaced: {place} has a position of {known}, and the table is {found}",
            hint="Positions of the old table mean nothing in the new one; `cdfd progress reset` to start over",
        )
