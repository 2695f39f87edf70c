"""How commands reach a configuration's sink without being a daemon: where it stands for a table, and making it stand elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cdfd.changes.position import Position
from cdfd.config import settings
from cdfd.config.settings import FilesSink as FilesSettings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.daemon import assembly, kafka
from cdfd.errors import SinkError
from cdfd.sinks.cursor import order
from cdfd.sinks.files.folder import peek
from cdfd.storage.durable import explain


@dataclass(frozen=True, slots=True)
class SinkAccess:
    """Two calls that need no feed.

    Attributes:
        name: what the sink is called in messages.
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
    sink, name = config.sink, assembly.sink_name(config)
    match sink:
        case FilesSettings():
            return SinkAccess(name, _files_position, _move_files)
        case KafkaSettings():
            if sink.delivery == "at_least_once":
                return SinkAccess("the sink", _no_position, _no_move, keeps=False)
            return SinkAccess(
                name,
                lambda config, table: kafka.position(config, sink, table),
                lambda config, table, to: kafka.move(config, sink, table, to),
            )
    raise assembly.no_such_sink(config)


async def _no_position(config: Settings, table: settings.Table) -> Position | None:
    return None


async def _no_move(config: Settings, table: settings.Table, position: Position | None) -> None:
    """The ledger has the position that counts."""


async def _files_position(config: Settings, table: settings.Table) -> Position | None:
    folder = assembly.folder_of(config, table)
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
                path=assembly.folder_of(config, table),
                hint="Move all of its files away, and do this again",
            )
        delivery = await sink.begin(stands or position)
        await delivery.commit(position)
