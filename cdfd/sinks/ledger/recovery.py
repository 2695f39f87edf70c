"""Where a table resumes after a restart, from the positions in the sink and in the ledger. Pure.

The sink's position was written with the rows, so it is authoritative. The ledger lags behind it and is updated. If the ledger is ahead, the
sink has lost its newest records, and they are delivered again. If only the ledger has a position (a new cluster, a deleted topic), the table
stops with an error: only you can know whether consumers still have the lost rows.
"""

from dataclasses import dataclass

from cdfd.errors import SinkError, TableChangedError
from cdfd.model.position import Position
from cdfd.sinks.ledger.ledger import LedgerEntry


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a table.

    Attributes:
        position: the next position to deliver; None if there is no position, and the table starts as configured.
        record: the version to record in the ledger; None if the ledger is up to date.
        reason: for the log.
        warning: whether to log the reason as a warning.
    """

    position: Position | None
    record: int | None
    reason: str
    warning: bool = False


def decide(
    sink: Position | None,
    entry: LedgerEntry | None,
    table_id: str,
    recover: bool,
    sink_name: str = "the sink",
    ledger_name: str | None = "the ledger",
) -> Start:
    """Decide where a table resumes.

    Args:
        sink: the sink's position; None if there is none.
        entry: the ledger's entry; None if there is none.
        table_id: `metaData.id` of the current table. If a position has a digest, the log entry decides instead: see `Tailer.resume`.
        recover: whether to resume at the ledger's position if the sink has none: with `--recover-from-ledger`, and always for sinks without
            positions.
        sink_name, ledger_name: in messages; there is no ledger if it has no name.

    Raises:
        TableChangedError: the ledger's position is authoritative, has no digest, and is of another table.
        SinkError: only the ledger has a position, and `recover` is not set.
    """
    if sink is not None:
        whole = delivered_version(sink)
        resuming = f"resuming at version {sink.version}, the position in {sink_name}"
        if whole is None or ledger_name is None:
            return Start(sink, None, resuming)
        if entry is None:
            return Start(sink, whole, f"{resuming}; {ledger_name} has nothing yet")
        if entry.table_id not in (None, sink.table_id):
            return Start(sink, whole, f"{resuming}; {ledger_name} is of another table, {entry.table_id}", warning=True)
        if entry.version < whole:
            return Start(sink, whole, f"{resuming}; {ledger_name} lags at version {entry.version}")
        if entry.version > whole:
            reason = (
                f"{resuming}, although {ledger_name} says that version {entry.version} was delivered: "
                "the sink has lost its newest records, or was reset"
            )
            return Start(sink, whole, reason, warning=True)
        same = entry.table_id == sink.table_id and digest_of(sink, whole) in (None, entry.digest)
        return Start(sink, None if same else whole, resuming)
    if entry is None:
        return Start(None, None, f"neither {sink_name} nor {ledger_name} has a position")
    if entry.digest is None and entry.table_id not in (None, table_id):
        raise TableChangedError(
            "the table was deleted and created again, or replaced: "
            f"{ledger_name} has a position of {entry.table_id}, and the table is {table_id}",
            hint="Positions of the old table mean nothing in the new one; `cdfd progress reset` to start over",
        )
    if not recover:
        raise SinkError(
            f"{sink_name} has no position, but {ledger_name} says that version {entry.version} was delivered",
            version=entry.version,
            hint=f"If the sink is new or was emptied, start once with --recover-from-ledger to resume at version {entry.version + 1}, "
            "or run `cdfd progress reset` to start over",
        )
    position = Position(entry.table_id or table_id, entry.version + 1, digest=entry.digest)
    return Start(position, None, f"resuming at version {position.version}, the position in {ledger_name}")


def delivered_version(position: Position) -> int | None:
    """The last delivered version, if `position` is the next one to deliver; None if there is none.

    There is none during a snapshot: no version before it was delivered, and its own version is incomplete.
    """
    return position.version - 1 if position.phase == "stream" and position.version > 0 else None


def digest_of(position: Position, version: int) -> str | None:
    """The hash of the log entry of `version`, if `position` has it."""
    return position.digest if position.basis == version else None
