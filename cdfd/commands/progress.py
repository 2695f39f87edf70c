"""`cdfd progress`: what sink, ledger and table know of each other, and putting it right by hand."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdfd.changes.position import Position
from cdfd.commands.check import aligned
from cdfd.commands.dry_run import Outlook, outlook, reach
from cdfd.config import load, settings
from cdfd.config.settings import Settings
from cdfd.console.escaping import as_json as json_of
from cdfd.daemon import assembly
from cdfd.daemon.ledgers import ledgers
from cdfd.errors import ConfigError
from cdfd.progress.ledger import LedgerEntry, app_id
from cdfd.progress.recovery import delivered
from cdfd.sinks.base import Connector, connector

COLUMNS = ("table", "sink", "ledger", "newest", "lag", "next")


def show(path: Path, *, as_json: bool = False) -> tuple[str, int]:
    """Positions as a table or as JSON, and the exit code: 0 where every table could go on, else 1.

    Versions are the last ones delivered whole.

    Raises:
        ConfigError: the file is wrong.
    """
    config = load(path)
    found = asyncio.run(_show(config, connector(config)))
    code = 0 if all(each.error is None for each in found.values()) else 1
    if as_json:
        return json_of({"tables": [_document(name, each) for name, each in found.items()]}, indent=2) + "\n", code
    return aligned([COLUMNS, *(_row(name, each) for name, each in found.items())]), code


def set_position(path: Path, table: str, version: int) -> str:
    """Make sink and ledger say that `version` and all before it are delivered; what they say now.

    Raises:
        ConfigError: the file is wrong, no such table, or it has no such version.
        SinkError, FencedError: the sink cannot go there, or a daemon is at work.
    """
    config = load(path)
    return asyncio.run(_set(config, named(config, table), version, connector(config)))


def reset(path: Path, table: str) -> str:
    """Make sink and ledger know nothing of a table, so that it begins as the configuration says; what they say now.

    Raises:
        ConfigError: the file is wrong, or no such table.
        SinkError, FencedError: the sink cannot forget, or a daemon is at work.
    """
    config = load(path)
    return asyncio.run(_reset(config, named(config, table), connector(config)))


async def _show(config: Settings, sink: Connector) -> dict[str, Outlook]:
    async with ledgers(config) as ledger_of:
        return {table.name: await outlook(config, table, sink, ledger_of(table)) for table in config.tables}


def _row(name: str, found: Outlook) -> tuple[str, ...]:
    """Cells, see `COLUMNS`. What cannot be found out is left empty, and the first reason is given at the end of the row."""
    note = found.reason if found.error is None else str(found.error)
    newest = found.newest
    return name, _told(found.position), _version(found.entry), _number(newest), _number(_lag(found)), note


def _document(name: str, found: Outlook) -> dict[str, Any]:
    return {
        "table": name,
        "usable": found.error is None,
        "delivered_version": None if found.position is None else delivered(found.position),
        "position": None if found.position is None else asdict(found.position),
        "ledger_version": None if found.entry is None else found.entry.version,
        "table_version": found.newest,
        "lag_versions": _lag(found),
        "next": found.reason or None,
        "error": None if found.error is None else str(found.error),
        "warnings": found.warnings,
    }


async def _set(config: Settings, table: settings.Table, version: int, sink: Connector) -> str:
    opened = assembly.open_table(config, table)
    header = await opened.log.header()
    if not 0 <= version <= header.version:
        raise ConfigError(
            f"version {version} cannot have been delivered: the newest is {header.version}",
            table=table.uri,
            hint="Give the last version that counts as delivered; `cdfd progress reset` where none does",
        )
    table_id = header.metadata.id
    following = Position(table_id, version + 1, digest=await opened.log.digest(version))
    # What a daemon could not go on from is not made durable.
    with assembly.add_reset_hint(sink):
        await reach(opened, following)
    async with ledgers(config) as ledger_of:
        # The sink first: it is what counts, and a ledger that lags behind it is rolled forward at the next start.
        await sink.move(table, following)
        name = app_id(config.pipeline, table.name)
        await ledger_of(table).record(name, version, table_id, following.digest)
    return f"{table.name}: delivered up to version {version}, resuming at version {version + 1}\n"


async def _reset(config: Settings, table: settings.Table, sink: Connector) -> str:
    async with ledgers(config) as ledger_of:
        await sink.move(table, None)
        await ledger_of(table).forget(app_id(config.pipeline, table.name))
    return f"{table.name}: nothing is delivered, beginning at {table.start}\n"


def named(config: Settings, name: str) -> settings.Table:
    """The table of that name. `ConfigError` where there is none."""
    table = config.table(name)
    if table is None:
        known = ", ".join(table.name for table in config.tables)
        raise ConfigError(f"there is no table {name!r} in the configuration", hint=f"There are: {known}")
    return table


def _told(position: Position | None) -> str:
    if position is None:
        return "-"
    if position.phase == "snapshot":
        return f"snapshot of {position.version}, {position.part} files"
    whole = _number(delivered(position))
    return whole if not position.part else f"{whole}, {position.part} files of {position.version}"


def _version(entry: LedgerEntry | None) -> str:
    return "-" if entry is None else str(entry.version)


def _number(version: int | None) -> str:
    return "-" if version is None else str(version)


def _lag(found: Outlook) -> int | None:
    """Versions that are in the table and not delivered; None where that is not known, or the position is not of this table."""
    if found.newest is None or (found.position is None and found.entry is None):
        return None
    following = found.position.version if found.position is not None else found.entry.version + 1 if found.entry else 0
    lag = found.newest + 1 - following
    return lag if lag >= 0 else None
