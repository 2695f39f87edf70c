"""`cdfd progress`: shows the positions in sink, ledger and table, and sets them by hand."""

import asyncio
from pathlib import Path
from typing import Any

from cdfd.cli.commands.columns import align_columns
from cdfd.cli.commands.dry_run import DryRun, dry_run
from cdfd.config import settings
from cdfd.config.parser import load
from cdfd.config.settings import Settings
from cdfd.daemon import assembly
from cdfd.daemon.assembly import ledgers
from cdfd.daemon.membership.discovery import discover_tables
from cdfd.deliver.configured import open_table
from cdfd.errors import CdfdError, ConfigError
from cdfd.escaping import as_json as json_of
from cdfd.escaping import one_line
from cdfd.log.table import position_after
from cdfd.sinks.base import Connector, connector
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.recovery import delivered_version

COLUMNS = ("table", "sink", "ledger", "newest", "lag", "next")


def show(path: Path, *, as_json: bool = False, sink: str | None = None) -> tuple[str, int]:
    """Positions as a table or as JSON, and the exit code: 0 if a daemon would deliver every table, otherwise 1.

    Versions are the last completely delivered ones. Without `sink`, they are those of all sinks.

    Raises:
        ConfigError: the configuration is invalid, or has no such sink.
    """
    rows: list[tuple[Settings, str, DryRun]] = []
    problems: list[CdfdError] = []
    for of_sink in load(path).chosen(sink):
        config, errors = asyncio.run(discover_tables(of_sink))
        rows += [(config, name, each) for name, each in asyncio.run(_show(config, connector(config))).items()]
        problems += errors
    code = 0 if all(each.error is None for _, _, each in rows) and not problems else 1
    if as_json:
        documents = [
            ({"sink": config.sink_name} if config.sink_name else {}) | _document(name, each)
            for config, name, each in rows
        ]
        return json_of({"tables": documents}, indent=2) + "\n", code
    text = align_columns([COLUMNS, *(_row(config.address(name), each) for config, name, each in rows)])
    return text + "".join(f"not delivered: {one_line(str(problem))}\n" for problem in problems), code


def set_position(path: Path, table: str, version: int, sink: str | None = None) -> str:
    """Set the position in sink and ledger after `version`; the text to print.

    Raises:
        ConfigError: the configuration is invalid, or there is no such table, version or sink.
        SinkError, FencedError: the sink cannot move there, or a daemon delivers the table.
    """
    config, chosen = table_of(path, table, sink)
    return asyncio.run(_set(config, chosen, version, connector(config)))


def reset(path: Path, table: str, sink: str | None = None) -> str:
    """Delete a table's position in sink and ledger, so that delivery starts as configured; the text to print.

    Raises:
        ConfigError: the configuration is invalid, or there is no such table or sink.
        SinkError, FencedError: the sink cannot delete its position, or a daemon delivers the table.
    """
    config, chosen = table_of(path, table, sink)
    return asyncio.run(_reset(config, chosen, connector(config)))


async def _show(config: Settings, sink: Connector) -> dict[str, DryRun]:
    async with ledgers(config) as ledger_of:
        return {table.name: await dry_run(config, table, sink, ledger_of(table)) for table in config.listed}


def _row(name: str, report: DryRun) -> tuple[str, ...]:
    """Cells; see `COLUMNS`. Unknown values are `-`, and the last cell has the first error."""
    note = report.reason if report.error is None else str(report.error)
    recorded = None if report.entry is None else report.entry.version
    numbers = (_number(number) for number in (recorded, report.newest, _lag(report)))
    if report.position is None:
        position = "-"
    elif report.position.phase == "snapshot":
        position = f"snapshot of {report.position.version}, {report.position.part} files"
    else:
        whole = _number(delivered_version(report.position))
        position = (
            whole if not report.position.part else f"{whole}, {report.position.part} files of {report.position.version}"
        )
    return name, position, *numbers, note


def _document(name: str, report: DryRun) -> dict[str, Any]:
    return {
        "table": name,
        "usable": report.error is None,
        "delivered_version": None if report.position is None else delivered_version(report.position),
        "position": None if report.position is None else {"digest": None, **report.position.fields()},
        "ledger_version": None if report.entry is None else report.entry.version,
        "table_version": report.newest,
        "lag_versions": _lag(report),
        "next": report.reason or None,
        "error": None if report.error is None else str(report.error),
        "warnings": report.warnings,
    }


async def _set(config: Settings, table: settings.Table, version: int, sink: Connector) -> str:
    source = open_table(config, table)
    header = await source.log.header()
    if not 0 <= version <= header.version:
        raise ConfigError(
            f"version {version} cannot have been delivered: the newest is {header.version}",
            table=table.uri,
            hint="Give the last delivered version, or use `cdfd progress reset` if there is none",
        )
    # Never store a position from which a daemon cannot resume.
    with assembly.add_reset_hint(sink):
        following = await position_after(source, version, await sink.position(table))
    async with ledgers(config) as ledger_of:
        # The sink first, because its position is authoritative. The next start updates a ledger that lags behind.
        await sink.move(table, following)
        name = app_id(config.ledger_name, table.name)
        await ledger_of(table).record(name, version, following.table_id, following.digest)
    return f"{config.address(table.name)}: delivered up to version {version}, resuming at version {version + 1}\n"


async def _reset(config: Settings, table: settings.Table, sink: Connector) -> str:
    async with ledgers(config) as ledger_of:
        await sink.move(table, None)
        await ledger_of(table).forget(app_id(config.ledger_name, table.name))
    return f"{config.address(table.name)}: nothing is delivered, beginning at {table.start}\n"


def table_of(path: Path, name: str, sink: str | None) -> tuple[Settings, settings.Table]:
    """A table of a configuration file, and the settings of its sink, with the tables of patterns if the file does not list that name.

    Raises:
        ConfigError: the configuration is invalid, or has no such table or sink.
        CdfdError: a pattern's folder cannot be listed.
    """
    config = load(path).of_sink(sink)
    if config.table(name) is None and config.discoveries:
        config, _ = asyncio.run(discover_tables(config, only=name))
    table = config.table(name)
    if table is None:
        names = ", ".join(table.name for table in config.listed)
        raise ConfigError(f"there is no table {name!r} in the configuration", hint=f"The tables are: {names}")
    return config, table


def _number(version: int | None) -> str:
    return "-" if version is None else str(version)


def _lag(report: DryRun) -> int | None:
    """The number of undelivered versions; None if unknown, or if the position is beyond the newest version."""
    if report.newest is None or (report.position is None and report.entry is None):
        return None
    following = (
        report.position.version if report.position is not None else report.entry.version + 1 if report.entry else 0
    )
    lag = report.newest + 1 - following
    return lag if lag >= 0 else None
