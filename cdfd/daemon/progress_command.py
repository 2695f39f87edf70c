"""`cdfd progress`: what sink, ledger and table know of each other, and putting it right by hand.

A sink is given as `SinkAccess`: two calls that need no feed. Where nothing else is said, it is chosen by the configuration.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cdfd.changes.position import Position
from cdfd.config import load, settings
from cdfd.config.settings import FilesSink as FilesSettings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.daemon import assembly, kafka
from cdfd.daemon.checking import aligned
from cdfd.daemon.ledgers import ledgers
from cdfd.errors import CdfdError, ConfigError, SinkError
from cdfd.progress.ledger import Ledger, LedgerEntry, app_id
from cdfd.progress.recovery import Places, decide, delivered
from cdfd.sinks.cursor import order
from cdfd.sinks.delivery_folder import peek
from cdfd.sinks.kafka.topics import PROGRESS_PREFIX
from cdfd.storage.durable import explain

COLUMNS = ("table", "sink", "ledger", "newest", "lag", "next")


@dataclass(frozen=True, slots=True)
class SinkAccess:
    """How `progress` reaches a sink.

    Attributes:
        name: what it is called in messages.
        position: what it stands at for a table; changes nothing, and works while a daemon delivers.
        move: makes it stand elsewhere, at None as if nothing had ever been delivered; refuses while a daemon delivers.
        keeps: whether it keeps positions; where not, the ledger's is the one that counts.
    """

    name: str
    position: Callable[[Settings, settings.Table], Awaitable[Position | None]]
    move: Callable[[Settings, settings.Table, Position | None], Awaitable[None]]
    keeps: bool = True


Choose = Callable[[Settings], SinkAccess]


def choose(config: Settings) -> SinkAccess:
    """The access to a configuration's sink.

    Raises:
        UnsupportedError: a kind that this version does not have.
    """
    sink = config.sink
    match sink:
        case FilesSettings():
            return SinkAccess("the folder", _files_position, _move_files)
        case KafkaSettings():
            if sink.delivery == "at_least_once":
                return SinkAccess("the sink", _no_position, _no_move, keeps=False)
            return SinkAccess(
                f"the topic {PROGRESS_PREFIX}{config.pipeline}",
                lambda config, table: kafka.position(config, sink, table),
                lambda config, table, to: kafka.move(config, sink, table, to),
            )
    raise assembly.no_such_sink(config)


def show(path: Path, choose: Choose = choose) -> tuple[str, int]:
    """A table of positions, and the exit code: 0 where every table could go on, else 1. Versions are the last ones delivered whole.

    Raises:
        ConfigError: the file is wrong.
    """
    config = load(path)
    rows = asyncio.run(_show(config, choose(config)))
    return aligned([COLUMNS, *(row for row, _ in rows)]), 0 if all(usable for _, usable in rows) else 1


def set_position(path: Path, table: str, version: int, choose: Choose = choose) -> str:
    """Make sink and ledger say that `version` and all before it are delivered; what they say now.

    Raises:
        ConfigError: the file is wrong, no such table, or it has no such version.
        SinkError, FencedError: the sink cannot go there, or a daemon is at work.
    """
    config = load(path)
    return asyncio.run(_set(config, named(config, table), version, choose(config)))


def reset(path: Path, table: str, choose: Choose = choose) -> str:
    """Make sink and ledger know nothing of a table, so that it begins as the configuration says; what they say now.

    Raises:
        ConfigError: the file is wrong, or no such table.
        SinkError, FencedError: the sink cannot forget, or a daemon is at work.
    """
    config = load(path)
    return asyncio.run(_reset(config, named(config, table), choose(config)))


async def _show(config: Settings, sink: SinkAccess) -> list[tuple[tuple[str, ...], bool]]:
    async with ledgers(config) as ledger_of:
        return [await _show_table(config, table, sink, ledger_of(table)) for table in config.tables]


async def _show_table(
    config: Settings, table: settings.Table, sink: SinkAccess, ledger: Ledger
) -> tuple[tuple[str, ...], bool]:
    """One row. What cannot be found out is left empty, and the first reason is given at the end of the row."""
    position: Position | None = None
    entry: LedgerEntry | None = None
    newest: int | None = None
    usable = True
    try:
        position = await sink.position(config, table)
        entry = await ledger.position(app_id(config.pipeline, table.name))
        header = await assembly.open_table(config, table).log.header()
        newest = header.version
        start = decide(position, entry, header.metadata.id, not sink.keeps, _places(sink, ledger))
        note = f"begins at {table.start}" if start.position is None else start.reason
    except CdfdError as error:
        note, usable = str(error), False
    return (table.name, _told(position), _version(entry), _number(newest), _lag(position, entry, newest), note), usable


async def _set(config: Settings, table: settings.Table, version: int, sink: SinkAccess) -> str:
    header = await assembly.open_table(config, table).log.header()
    if not 0 <= version <= header.version:
        raise ConfigError(
            f"version {version} cannot have been delivered: the newest is {header.version}",
            table=table.uri,
            hint="Give the last version that counts as delivered; `cdfd progress reset` where none does",
        )
    table_id = header.metadata.id
    async with ledgers(config) as ledger_of:
        # The sink first: it is what counts, and a ledger that lags behind it is rolled forward at the next start.
        await sink.move(config, table, Position(table_id, version + 1))
        await ledger_of(table).record(app_id(config.pipeline, table.name), version, table_id)
    return f"{table.name}: delivered up to version {version}, resuming at version {version + 1}\n"


async def _reset(config: Settings, table: settings.Table, sink: SinkAccess) -> str:
    async with ledgers(config) as ledger_of:
        await sink.move(config, table, None)
        await ledger_of(table).forget(app_id(config.pipeline, table.name))
    return f"{table.name}: nothing is delivered, beginning at {table.start}\n"


def named(config: Settings, name: str) -> settings.Table:
    """The table of that name. `ConfigError` where there is none."""
    table = config.table(name)
    if table is None:
        known = ", ".join(table.name for table in config.tables)
        raise ConfigError(f"there is no table {name!r} in the configuration", hint=f"There are: {known}")
    return table


def _places(sink: SinkAccess, ledger: Ledger) -> Places:
    return Places(sink.name, f"the ledger {ledger.uri}")


async def _no_position(config: Settings, table: settings.Table) -> Position | None:
    return None


async def _no_move(config: Settings, table: settings.Table, position: Position | None) -> None:
    """The ledger has the position that counts."""


# --- the files sink -----------------------------------------------------------------------------------------------


async def _files_position(config: Settings, table: settings.Table) -> Position | None:
    folder = _folder(config, table)
    try:
        return await asyncio.to_thread(peek, folder)
    except OSError as error:
        told = explain(error)
        raise SinkError(f"cannot read the folder: {told.reason}", path=folder, hint=told.hint) from error


async def _move_files(config: Settings, table: settings.Table, position: Position | None) -> None:
    if position is None and await _files_position(config, table) is None:
        return
    async with assembly.open_sink(config, table) as sink:
        stands = await sink.last_position()
        if position is None or (
            stands is not None and (stands.table_id != position.table_id or order(position) < order(stands))
        ):
            raise SinkError(
                "what is in a folder cannot be taken back"
                if position is None
                else f"a folder at {stands} cannot go back",
                path=_folder(config, table),
                hint="Move all of its files away, and do this again",
            )
        delivery = await sink.begin(stands or position)
        await delivery.commit(position)


def _folder(config: Settings, table: settings.Table) -> str:
    assert isinstance(config.sink, FilesSettings)
    return os.path.join(config.sink.path, table.topic)


# --- for people ---------------------------------------------------------------------------------------------------


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


def _lag(position: Position | None, entry: LedgerEntry | None, newest: int | None) -> str:
    """Versions that are in the table and not delivered."""
    if newest is None or (position is None and entry is None):
        return "-"
    if position is None:
        assert entry is not None
        return str(newest - entry.version)
    return str(newest + 1 - position.version)
