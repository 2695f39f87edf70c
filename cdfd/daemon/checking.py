"""`cdfd check`: what a configuration says, what is there, and whether they fit. Writes nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from cdfd.config import load, settings
from cdfd.config.settings import Settings
from cdfd.daemon import assembly
from cdfd.daemon.ledgers import ledgers
from cdfd.delta.protocol import cdf_enabled
from cdfd.errors import CdfdError, StorageError, UnsupportedError
from cdfd.plain import one_line
from cdfd.progress.ledger import Ledger, app_id

COLUMNS = ("table", "version", "files", "changes", "topic", "state")


def run(path: Path) -> tuple[str, int]:
    """A table of what was found, and the exit code: 0 where all of it is usable, else 1.

    Raises:
        ConfigError: the file is wrong.
    """
    config = load(path)
    rows, queue = asyncio.run(_check(config))
    found = aligned([COLUMNS, *(row for row, _ in rows)])
    usable = all(usable for _, usable in rows)
    if config.poll.notifications is not None:
        found += f"\nnotifications  {queue or 'ok'}\n"
    return found, 0 if usable and queue is None else 1


async def _check(config: Settings) -> tuple[list[tuple[tuple[str, ...], bool]], CdfdError | None]:
    """Of each table what was found, and whether that is usable; and why notifications are not."""
    async with ledgers(config) as ledger_of:
        rows = [await _check_table(config, table, ledger_of(table)) for table in config.tables]
    try:
        await assembly.check_notifications(config)
    except CdfdError as error:
        return rows, error
    return rows, None


async def _check_table(config: Settings, table: settings.Table, ledger: Ledger) -> tuple[tuple[str, ...], bool]:
    try:
        assembly.check_engine(config)
        opened = assembly.open_table(config, table)
        state = await opened.log.snapshot()
        for name in (table.columns or ()) + table.key:
            state.header.schema.select([name])
        feed = cdf_enabled(state.metadata)
        if table.changes == "cdf" and not feed:
            raise UnsupportedError("the table does not record a change data feed", table=table.uri)
        note = await assembly.check_sink(config, table)
        await ledger.position(app_id(config.pipeline, table.name))
        if config.progress.ledger.kind == "table":
            _check_writable(ledger.uri)
    except CdfdError as error:
        return (table.name, "", "", "", table.topic, f"{error}"), False
    changes = "files" if table.changes == "files" or not feed else "cdc files"
    return (table.name, str(state.version), f"{len(state.live()):,}", changes, table.topic, note), True


def _check_writable(ledger: str) -> None:
    """`StorageError` where a ledger on this machine cannot be written. Of other places only a write tells."""
    if "://" in ledger:
        return
    place = os.path.abspath(ledger)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(
            "the ledger cannot be written",
            path=place,
            hint="Check its owner and permissions, or set `progress.ledger` to another place, or to none",
        )


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines of columns. A cell may name what a table or a broker says: it is one line whatever it holds."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = (
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)
