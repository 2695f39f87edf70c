"""Where a table goes on, and whether the configuration fits it there: the steps before the first delivery.

`Feed` takes them to deliver, `outlook` to tell what would be delivered. None of them writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from cdfd.changes.position import Position
from cdfd.delta.datatypes import by_name
from cdfd.delta.header import Header
from cdfd.delta.protocol import cdf_enabled
from cdfd.errors import CdfdError, GapError, LogError, MissingColumnError, StorageError, UnsupportedError
from cdfd.progress.ledger import LedgerEntry
from cdfd.progress.recovery import Places, Start, decide

NO_CHANGE_DATA = (
    "`key` does not pair updates: the table has no change data feed, so an update arrives as a delete and an insert, "
    "and rows that a writer rewrites unchanged come again as both. Set delta.enableChangeDataFeed to true on the table"
)
IGNORED_CHANGE_DATA = (
    "`key` does not pair updates with `changes: files`: an update arrives as a delete and an insert, "
    "and rows that a writer rewrites unchanged come again as both"
)
NO_FEED = "Set delta.enableChangeDataFeed=true on it, or use `changes: auto` to derive changes from its files"


async def recorded(
    read: Callable[[], Awaitable[LedgerEntry | None]], ledger: str, *, needed: bool
) -> tuple[LedgerEntry | None, CdfdError | None]:
    """What the ledger knows, and what is wrong with it where the sink knows better: no row waits for a ledger then.

    Args:
        read: asks the ledger.
        ledger: its name, for errors.
        needed: whether the ledger's position is the only one.

    Raises:
        CdfdError: the ledger cannot be read, and is needed; or it is none.
    """
    try:
        return await read(), None
    except (StorageError, LogError) as error:
        error.within(table=ledger)
        if needed:
            raise
        return None, error


def resumed(
    known: Position | None, entry: LedgerEntry | None, table_id: str, *, recover: bool, sink: str, ledger: str | None
) -> Start:
    """Where a table goes on of which the sink, or the ledger, has a position.

    Args:
        known: the sink's position.
        entry: the ledger's.
        table_id: of the table that is there.
        recover: whether the ledger's position will do.
        sink: what the sink is called in messages.
        ledger: what the ledger is called; None where there is none.

    Raises:
        TableChangedError, SinkError: as `decide` says.
    """
    start = decide(known, entry, table_id, recover, Places(sink, f"the ledger {ledger}"))
    if ledger is not None or start.position is None:
        return start
    return Start(start.position, None, f"resuming at version {start.position.version}, where {sink} stands")


@contextmanager
def from_position() -> Iterator[None]:
    """A gap in the log where a position leads to says how to leave that position: `start` does not count beside one."""
    try:
        yield
    except GapError as error:
        if "`cdfd progress reset`" not in (error.hint or ""):
            error.hint = (
                "Log clean-up removed it, or entries were lost: restore them, or `cdfd progress reset` to start over"
            )
        raise


def fit(columns: Sequence[str] | None, key: Sequence[str], changes: str, header: Header) -> list[str]:
    """What to warn of where a configuration meets a table as of one version.

    Args:
        columns: those to publish; all of them where None.
        key: what identifies a row.
        changes: where change rows may come from.
        header: of the table at that version.

    Raises:
        MissingColumnError: the table has none of `columns`, or lacks one of `key`.
        UnsupportedError: it has no change data feed, and `changes: cdf` wants one.
    """
    feed = cdf_enabled(header.metadata)
    if changes == "cdf" and not feed:
        raise UnsupportedError("the table does not record a change data feed", version=header.version, hint=NO_FEED)
    known = {name: name for name in header.schema.names}
    missing = [name for name in columns or () if not by_name(known, name)]
    if columns is not None and len(missing) == len(columns):
        raise _missing(missing, "columns", header)
    absent = [name for name in key if not by_name(known, name)]
    if absent:
        raise _missing(absent, "key", header)
    warnings = [f"there is no column {name!r:.200}, which `columns` names" for name in missing]
    if key and changes == "files":
        warnings.append(IGNORED_CHANGE_DATA)
    elif key and not feed:
        warnings.append(NO_CHANGE_DATA)
    return warnings


def _missing(names: Sequence[str], setting: str, header: Header) -> MissingColumnError:
    told = ", ".join(map(repr, names))
    return MissingColumnError(
        f"there is no column {told:.500}, which `{setting}` names",
        version=header.version,
        hint=f"The columns are: {', '.join(header.schema.names[:50])}. Change `{setting}`, if no writer brings the column back",
    )
