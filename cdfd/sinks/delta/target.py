"""The target of a changelog: a Delta table, its schema, and the commits that append to it."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from cdfd.changes.columns import CHANGE_COLUMNS
from cdfd.changes.position import Position
from cdfd.delta import last_checkpoint, paths
from cdfd.delta.arrow_types import from_arrow
from cdfd.delta.checkpoint_writing import can_checkpoint, checkpoint
from cdfd.delta.datatypes import StructType
from cdfd.delta.schema_merge import nullable
from cdfd.delta.writing import PLAIN, metadata_fields, protocol_fields, with_features
from cdfd.errors import (
    CdfdError,
    FencedError,
    LogError,
    SinkError,
    StorageError,
    UnsupportedError,
)
from cdfd.progress.txn_log import TxnLog
from cdfd.progress.txn_state import Action, TxnState
from cdfd.sinks.delta.columns import (
    NO_COLUMNS,
    Columns,
    columns_of,
    created,
    extended,
    replaced,
    unmapped,
)
from cdfd.sinks.delta.data_files import NewFile
from cdfd.sinks.delta.log_actions import evolution, new_metadata, protocol_features
from cdfd.sinks.delta.positions import Stored, owner_action, position_actions, properties, stored
from cdfd.storage.base import Storage
from cdfd.tail.clock import Clock
from cdfd.tail.log import NotATableError, log_path

logger = logging.getLogger("cdfd.sink")

_THIS_PROCESS = random.randrange(1, 1 << 63)


OnMissingColumn = Literal["keep", "follow", "stop"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a target is created, and how its schema may change.

    Attributes:
        partition_by: columns of a new target.
        on_missing_column: what happens to a column that the source drops or renames: `keep`, `follow` or `stop`.
        checkpoint_interval: versions between two checkpoints; 0: none is written.
    """

    partition_by: tuple[str, ...] = ()
    on_missing_column: OnMissingColumn = "keep"
    checkpoint_interval: int = 100


Changes = Callable[[TxnState, Columns, int], Sequence[Action]]
"""The actions for files: from the state before the version, the columns after it, and the time in ms. Each attempt calls it again."""


class Target:
    """A Delta table that one process appends to. It is created with the first delivery.

    Args:
        storage: the table's root.
        app_id: of the changelog.
        layout: of the table.
        clock: the source of time.
        owner: the number of the process. Targets of one process share it, so that opening one again writes nothing.
    """

    def __init__(
        self, storage: Storage, app_id: str, layout: Layout, clock: Clock, *, owner: int | None = None
    ) -> None:
        self._storage = storage
        self._app_id = app_id
        self._layout = layout
        self._clock = clock
        self._owner = _THIS_PROCESS if owner is None else owner
        self._log = TxnLog(storage, clock, operation="WRITE", check=_check)
        self._exists = False
        self._protocol = PLAIN
        self._columns = NO_COLUMNS

    async def exists(self) -> bool:
        """Whether there is a table, to which this changelog can be appended. Changes nothing."""
        with translated("open the target", self.uri):
            state = await self._log.state()
            if state is not None:
                _check(state)
                stored(state, self._app_id)
            return state is not None

    async def position(self) -> Position | None:
        """The stored position. Changes nothing."""
        with translated("read the target", self.uri):
            state = await self._log.state()
            return None if state is None else stored(state, self._app_id).position

    @property
    def uri(self) -> str:
        """The location, for messages."""
        return self._storage.uri

    async def take_over(self) -> tuple[Position | None, Columns]:
        """Become the owner. The position, and the columns of the table; none if there is no table."""
        with translated("open the target", self.uri):
            state = await self._log.state()
            if state is None:
                return None, NO_COLUMNS
            self._exists = True
            self._columns = columns_of(state)
            if stored(state, self._app_id).owner != self._owner:
                now = self._clock.now_ms()
                await self._log.append(lambda _: [owner_action(self._app_id, self._owner, now)])
                # Another process may have delivered before this version.
                state = await self._log.state() or state
            self._columns = columns_of(state)
            return stored(state, self._app_id).position, self._columns

    def merged(self, table: Columns, rows: StructType) -> Columns:
        """The columns of the table with those of the rows.

        Raises:
            SchemaChangedError: the table cannot take the rows.
            SinkError: the rows have no column for `partition_by`.
        """
        try:
            if not table.struct.fields:
                follow = self._layout.on_missing_column == "follow"
                return created(rows, self._layout.partition_by, follow=follow)
            if _is_new(table):
                return replaced(table, rows, self._layout.partition_by)
            return extended(table, rows, self._layout.on_missing_column)
        except CdfdError as error:
            raise error.within(table=self.uri) from None

    async def put(self, file: NewFile, data: pa.Buffer) -> None:
        """Write a data file. Until a commit names it, it is not a part of the table."""
        with translated("write a data file", self.uri):
            await self._storage.put(file.path, data.to_pybytes())

    async def commit(self, begun: Position, following: Position, rows: Columns | None, changes: Changes) -> Columns:
        """Change the files of the table, and store the position after that, in one version.

        Args:
            begun: the position at which the delivery began.
            following: the position after it.
            rows: the columns of the table with those of the rows; None without rows.
            changes: gives the actions for files.

        Returns:
            The columns of the table.
        """
        with translated("commit", self.uri):
            base = self._columns
            if not self._exists:
                await self._create(begun, rows)
            try:
                version = await self._log.append(
                    lambda state: self._proposal(state, begun, following, base, rows, changes)
                )
            except NotATableError as error:
                raise SinkError(
                    "the target was deleted",
                    table=self.uri,
                    hint="Restore it, or run `cdfd progress reset` to start over",
                ) from error
            if version is not None and self._is_due(version):
                await self._write_checkpoint(version)
            return self._columns

    def _is_due(self, version: int) -> bool:
        every = self._layout.checkpoint_interval
        return every > 0 and version - max(self._log.checkpoint, 0) >= every and can_checkpoint(self._protocol)

    async def _write_checkpoint(self, version: int) -> None:
        """Write the checkpoint of a version. An error is only logged: the version is committed, and a later one tries again."""
        log, extra = self._log.log, {"table": self.uri, "version": version}
        try:
            state = await log.snapshot(version, with_stats=True, with_tombstones=True)
            data, hint = await asyncio.to_thread(checkpoint, state, self._clock.now_ms())
            await self._storage.put(log_path(paths.checkpoint_name(version)), data)
            if await log.newest_checkpoint(version) <= version:
                await self._storage.put(log_path(paths.LAST_CHECKPOINT), last_checkpoint.serialize(hint))
        except (StorageError, LogError, UnsupportedError) as error:
            logger.warning("cannot write a checkpoint of the target: %s", error, extra=extra)

    async def _create(self, begun: Position, rows: Columns | None) -> None:
        # The start is stored before the first row: the columns of the source follow with its rows.
        follow = self._layout.on_missing_column == "follow"
        columns = created(_CHANGES, (), follow=follow) if rows is None else rows
        now = self._clock.now_ms()
        metadata = new_metadata(str(uuid.uuid4()), columns, properties(self._app_id, begun.table_id), now)
        protocol = with_features(PLAIN, protocol_features(columns))
        owner = owner_action(self._app_id, self._owner, now)
        actions = [("protocol", protocol_fields(protocol)), ("metaData", metadata_fields(metadata)), owner]
        await self._log.create(actions)
        self._exists = True

    def _proposal(
        self,
        state: TxnState,
        begun: Position,
        following: Position,
        base: Columns,
        rows: Columns | None,
        changes: Changes,
    ) -> list[Action]:
        found = stored(state, self._app_id)
        if found.owner != self._owner:
            raise FencedError(
                "another process has taken the target over",
                table=self.uri,
                version=state.version,
                hint="Run one daemon for each pipeline",
            )
        table = self._columns = columns_of(state)
        self._protocol = state.protocol
        if self._is_delivered(found, begun, following):
            return []
        columns = table if rows is None else self._agreed(table, base, rows)
        self._columns = columns
        now = self._clock.now_ms()
        actions = [] if columns == table else evolution(state, columns)
        actions += changes(state, columns, now)
        return actions + position_actions(state, self._app_id, following, now)

    def _agreed(self, table: Columns, base: Columns, rows: Columns) -> Columns:
        """The columns after this commit, if the files were written by the rules that the table has now.

        Args:
            table: the columns of the table now.
            base: the columns when the files were begun.
            rows: the columns of the files, and others of `base`.
        """
        if table in (base, rows):
            return rows
        if unmapped(table, rows):
            return self.merged(table, rows.struct)
        raise SinkError(
            "another writer changed the columns or the rules of the target while rows were written",
            table=self.uri,
            hint="The daemon writes them again",
            retriable=True,
        )

    def _is_delivered(self, found: Stored, begun: Position, following: Position) -> bool:
        """Whether this delivery is committed already, by an attempt whose outcome was unclear."""
        if found.position == following and begun != following:
            return True
        if found.position not in (None, begun):
            raise SinkError(
                f"the target is at {found.position}, and not at {begun}",
                table=self.uri,
                hint="Open a new sink",
            )
        return False


_CHANGES = nullable(from_arrow(pa.schema(CHANGE_COLUMNS)))


def _is_new(table: Columns) -> bool:
    """Whether a table has no rows, because it has no columns of a source yet."""
    return {child.name for child in table.struct} <= {child.name for child in _CHANGES}


def _check(state: TxnState) -> None:
    columns_of(state)


@contextmanager
def translated(doing: str, place: str) -> Iterator[None]:
    """Turn errors of store and log into errors of the sink, which names the target."""
    try:
        yield
    except (SinkError, asyncio.CancelledError):
        raise
    except CdfdError as error:
        raise SinkError(
            f"cannot {doing}: {error.what}",
            table=error.table or place,
            version=error.version,
            path=error.path,
            hint=error.hint,
            retriable=error.retriable,
        ) from error
