"""The target of a changelog: a Delta table, its schema, and the commits that append to it."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from cdfd.delta.actions import Metadata
from cdfd.delta.commit import Commit
from cdfd.delta.types import column_mapping, schema_string
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import ColumnMappingMode
from cdfd.delta.write.checkpoint_writing import can_checkpoint
from cdfd.delta.write.writing import PLAIN, check_deletable, metadata_fields, protocol_fields, with_features
from cdfd.errors import CdfdError, FencedError, NotATableError, SinkError
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Position
from cdfd.runtime.clock import Clock
from cdfd.runtime.tasks import unless_set
from cdfd.sinks.delta.columns import (
    NO_COLUMNS,
    Columns,
    columns_of,
    columns_of_extended,
    columns_of_new,
    columns_of_replaced,
    with_names_of,
)
from cdfd.sinks.delta.conditions import check_conditions
from cdfd.sinks.delta.housekeeping import Upkeep, keep_house
from cdfd.sinks.delta.log_actions import CHANGELOG_MODE, Mode, evolution, protocol_features
from cdfd.sinks.delta.positions import (
    CHANGELOG,
    SHAPE,
    Stored,
    check_retention,
    control_properties,
    owner_action,
    position_actions,
    position_txn,
    properties,
    range_properties,
    stored_control,
    stored_position,
    stored_range,
)
from cdfd.sinks.ledger.txn_log import TxnLog
from cdfd.sinks.ledger.txn_state import Action, TxnState
from cdfd.storage.base import Storage

logger = logging.getLogger("cdfd.sink")

_THIS_PROCESS = random.randrange(1, 1 << 63)


@dataclass(frozen=True, slots=True)
class Layout(Upkeep):
    """How a target is created and kept, and how its schema may change.

    Attributes:
        partition_by: columns of a new target.
        on_missing_column: what happens to a column that the source drops or renames: `keep`, `follow` or `stop`.
        mode: of the table.
    """

    partition_by: tuple[str, ...] = ()
    on_missing_column: Literal["keep", "follow", "stop"] = "keep"
    mode: Mode = CHANGELOG_MODE


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
        role: of a backfill, which has a position and an owner of its own; empty: the daemon's.
    """

    def __init__(
        self, storage: Storage, app_id: str, layout: Layout, clock: Clock, *, owner: int | None = None, role: str = ""
    ) -> None:
        self.storage = storage
        self.uri = storage.uri
        self._app_id = app_id
        self._role = role
        # The beginning of the transaction identifiers.
        self._place = f"{app_id}/{role}" if role else app_id
        self._moved: Mapping[str, str | int] | None = None
        self._layout = layout
        self.on_missing_column = layout.on_missing_column
        self.follows = layout.on_missing_column == "follow"
        """Whether columns that the source drops or renames are dropped or renamed in the table."""
        self.follows_names = self.follows and not role
        """Whether names become the sources of its columns if the source switches column mapping off. Backfills go back behind that."""
        self.clock = clock
        self._owner = _THIS_PROCESS if owner is None else owner
        mode = layout.mode
        self._log = TxnLog(storage, clock, operation=mode.operation, check=self._check, blind=not mode.deletes)
        self._exists = False
        self._protocol = PLAIN
        self._columns = self._proposed = NO_COLUMNS
        self.hurried = asyncio.Event()
        """Set it to leave the housekeeping to another process."""
        self.control = EMPTY
        """The control of the changelog, as it is stored."""
        self._shape: str | None = None
        self.reshaped = False
        """Whether its rows have another shape than the next ones, so that only all rows together can be delivered."""

    async def exists(self) -> bool:
        """Whether there is a table, to which this changelog can be appended. Changes nothing."""
        with translate_errors("open the target", self.uri):
            state = await self._log.state()
            if state is not None:
                self._check(state)
                self._stored_state(state)
            return state is not None

    async def is_reshaped(self, shape: str) -> bool:
        """Whether its rows have another shape; False if that is not known. Changes nothing."""
        with translate_errors("read the target", self.uri):
            state = await self._log.state()
            return state is not None and self._is_reshaped(state, shape)

    async def position(self) -> Position | None:
        """The stored position. Changes nothing."""
        with translate_errors("read the target", self.uri):
            state = await self._log.state()
            return None if state is None else self._stored_state(state).position

    async def range(self) -> Mapping[str, str | int]:
        """The stored range of a backfill; empty if there is none. Changes nothing."""
        with translate_errors("read the target", self.uri):
            state = await self._log.state()
            return {} if state is None else stored_range(state, self._role)

    def move(self, range: Mapping[str, str | int]) -> None:
        """Let the next commit begin at any position, and store the range of a backfill. Each call is another backfill."""
        self._moved = {**range, "run": uuid.uuid4().hex}

    def is_ours(self, commit: Commit) -> bool:
        """Whether a version of the table is a delivery of this pipeline."""
        return any(each.app_id == position_txn(self._app_id, "version") for each in commit.txns)

    async def state(self) -> TxnState:
        """The newest state.

        Raises:
            SinkError: there is no table, or it is not the target.
            FencedError: another process has taken it over.
        """
        with translate_errors("read the target", self.uri):
            state = await self._log.state()
            if state is None:
                raise self._deletion_error()
            self._check(state)
            self._require_owner(state)
            return state

    async def check_owner(self) -> None:
        """Returns if no other process has taken the target over. Changes nothing.

        Raises:
            FencedError: another one has.
        """
        with translate_errors("read the target", self.uri):
            state = await self._log.state()
            if state is not None:
                self._require_owner(state)

    async def ensure(self, begun: Position, rows: Columns | None) -> None:
        """Create the table, unless it exists; see `commit`."""
        if not self._exists:
            with translate_errors("create the target", self.uri):
                # The start is stored before the first row: the columns of the source follow with its rows.
                mode = self._layout.mode
                columns = rows or columns_of_new(mode.columns, (), follow=self.follows)
                now = self.clock.now_ms()
                mapped = column_mapping.properties(columns.mapping, columns.highest_id)
                metadata = Metadata(
                    id=str(uuid.uuid4()),
                    schema_string=schema_string.serialize(columns.struct),
                    partition_columns=columns.partition_by,
                    configuration={**properties(self._app_id, begun.table_id, mode, self._shape), **mapped},
                    created_time=now,
                )
                protocol = with_features(PLAIN, protocol_features(columns) | mode.readers, mode.writers)
                owner = owner_action(self._place, self._owner, now)
                actions = [("protocol", protocol_fields(protocol)), ("metaData", metadata_fields(metadata)), owner]
                await self._log.create(actions)
                self._exists = True

    async def take_over(self, shape: str | None = None) -> tuple[Position | None, Columns]:
        """Become the owner. The position, and the columns of the table; none if there is no table.

        Args:
            shape: the digest of the shape that all rows of the table must have; None: each row may have another.
        """
        self._shape = shape
        with translate_errors("open the target", self.uri):
            state = await self._log.state()
            if state is None:
                return None, NO_COLUMNS
            self._exists = True
            self._columns = columns_of(state)
            if self._stored_state(state).owner != self._owner:
                now = self.clock.now_ms()
                await self._log.append(lambda _: [owner_action(self._place, self._owner, now)])
                # Another process may have delivered before this version.
                state = await self._log.state() or state
            self._columns, self.control = columns_of(state), stored_control(state)
            self.reshaped = shape is not None and self._is_reshaped(state, shape)
            return self._stored_state(state).position, self._columns

    def merged(self, table: Columns, rows: StructType, *, replaces: bool = False) -> Columns:
        """The columns of the table with those of the rows.

        Args:
            table: its columns.
            rows: the columns of the rows.
            replaces: whether the rows replace all others, and their columns those of the table.

        Raises:
            SchemaChangedError: the table cannot take the rows.
            SinkError: the rows have no column for `partition_by`, or for a condition of the table.
        """
        try:
            if not table.struct.fields:
                columns = columns_of_new(rows, self._layout.partition_by, follow=self.follows)
            # A table has no rows if it has no columns of a source yet.
            elif replaces or {child.name for child in table.struct} <= {child.name for child in CHANGELOG_MODE.columns}:
                columns = columns_of_replaced(table, rows, self._layout.partition_by)
            else:
                columns = columns_of_extended(table, rows, self.on_missing_column, earlier=bool(self._role))
        except CdfdError as error:
            raise error.within(table=self.uri) from None
        with translate_errors("write the rows", self.uri):
            # Without a column that one of them names, no writer could append to the table any more.
            check_conditions(columns.conditions, columns.struct)
        return columns

    async def put(self, path: str, data: pa.Buffer | bytes) -> None:
        """Write a file. Until a commit names it, it is not a part of the table."""
        with translate_errors("write a data file", self.uri):
            await self.storage.put(path, data if isinstance(data, bytes) else memoryview(data))

    async def commit(
        self,
        begun: Position,
        following: Position,
        rows: Columns | None,
        changes: Changes,
        *,
        replaces: bool = False,
        control: Control | None = None,
    ) -> Columns:
        """Change the files of the table, and store the position after that, in one version.

        Args:
            begun: the position at which the delivery began.
            following: the position after it.
            rows: the columns of the table with those of the rows; None without rows.
            changes: gives the actions for files.
            replaces: whether the rows replace all rows of the table, and their columns those of the table.
            control: to store; None: it stays. With it, the position may stay as well.

        Returns:
            The columns of the table.
        """
        with translate_errors("commit", self.uri):
            base = self._columns
            await self.ensure(begun, rows)
            try:
                version = await self._log.append(
                    lambda state: self._proposal(state, begun, following, base, rows, changes, replaces, control)
                )
            except NotATableError as error:
                raise self._deletion_error() from error
            # Not before: after an error of `changes`, the next call has files of the same columns.
            self._columns = self._proposed
            if replaces:
                self.reshaped = False
            if version is None:
                return self._columns
            every = self._layout.checkpoint_interval
            if 0 < every <= version - max(self._log.checkpoint, 0) and can_checkpoint(self._protocol):
                keeping = keep_house(self._log.log, self.clock, self._layout, self._check, version)
                await unless_set(self.hurried, keeping)
            return self._columns

    def _deletion_error(self) -> SinkError:
        hint = "Restore it, or run `cdfd progress reset` to start over"
        return SinkError("the target was deleted", table=self.uri, hint=hint)

    def _check(self, state: TxnState) -> None:
        columns_of(state)
        check_retention(state.metadata)
        if self._layout.mode.deletes:
            check_deletable(state.protocol, state.metadata)

    def _require_owner(self, state: TxnState) -> Stored:
        stored = self._stored_state(state)
        if stored.owner != self._owner:
            raise FencedError(
                "another process has taken the target over",
                table=self.uri,
                version=state.version,
                hint="Run one daemon for each pipeline",
            )
        return stored

    def _is_reshaped(self, state: TxnState, shape: str) -> bool:
        is_loaded = self._stored_state(state).position is not None
        return is_loaded and state.metadata.configuration.get(SHAPE, shape) != shape

    def _stored_state(self, state: TxnState) -> Stored:
        return stored_position(state, self._app_id, self._layout.mode.name, self._place)

    def _proposal(
        self,
        state: TxnState,
        begun: Position,
        following: Position,
        base: Columns,
        rows: Columns | None,
        changes: Changes,
        replaces: bool,
        control: Control | None,
    ) -> list[Action]:
        stored, mode = self._require_owner(state), self._layout.mode
        table = columns_of(state)
        self._protocol = state.protocol
        current = self.control = stored_control(state)
        moved = None if self._moved is None or stored_range(state, self._role) == self._moved else self._moved
        # Rows of another shape are replaced at the position where they are, too.
        reshapes = replaces and self._shape is not None and self._is_reshaped(state, self._shape)
        # An attempt whose outcome was unclear may have committed this delivery.
        delivered = moved is None and not reshapes and stored.position == following
        if moved is None and not delivered and stored.position not in (None, begun):
            raise SinkError(
                f"the target is at {stored.position}, and not at {begun}", table=self.uri, hint="Open a new sink"
            )
        if delivered if control is None else control == current and stored.position == following:
            self._proposed = table
            return []
        columns = table if rows is None else self._agree(table, base, rows, replaces)
        if self._role:
            # Rows of earlier versions come by earlier names of the columns, which the table keeps under its own.
            columns = with_names_of(table, columns)
        self._proposed = columns = replace(columns, compression=table.compression)
        stays = columns == table and mode.properties.items() <= state.metadata.configuration.items()
        added: dict[str, str] = {}
        if control is not None and control != current:
            self.control = control
            added |= control_properties(control)
        if moved is not None:
            added |= range_properties(self._role, moved)
        if self._shape not in (None, state.metadata.configuration.get(SHAPE)) and (replaces or not self.reshaped):
            added[SHAPE] = self._shape
        now = self.clock.now_ms()
        actions = [] if stays and not added else evolution(state, columns, mode, added, replaces=replaces)
        actions += changes(state, columns, now)
        return actions + position_actions(state, self._place, following, now, again=reshapes)

    def _agree(self, table: Columns, base: Columns, rows: Columns, replaces: bool) -> Columns:
        """The columns after this commit, if the files were written by the rules that the table has now.

        Args:
            table: the columns of the table now.
            base: the columns when the files were begun.
            rows: the columns of the files, and others of `base`.
            replaces: whether the rows replace all rows of the table.
        """
        if table in (base, rows):
            return rows
        # Without a mapping, files of the same rules are files of the table, whatever other columns it has.
        rules = (table.mapping, table.partition_by, table.conditions, table.materialized)
        same = rules == (ColumnMappingMode.NONE, rows.partition_by, rows.conditions, rows.materialized)
        same = same and rows.mapping is ColumnMappingMode.NONE and all(child.nullable for child in table.struct)
        if same and not replaces:
            return self.merged(table, rows.struct)
        raise SinkError(
            "another writer changed the columns or the rules of the target while rows were written",
            table=self.uri,
            hint="The daemon writes them again",
            retriable=True,
        )


async def delivered_table(storage: Storage, clock: Clock) -> str | None:
    """The appId of the changelog whose position a target has; None if it has none. Raises what `TxnLog.state` does."""
    state = await TxnLog(storage, clock).state()
    app_id = None if state is None else state.metadata.configuration.get(CHANGELOG)
    if state is None or app_id is None or state.txns.get(position_txn(app_id, "version")) is None:
        return None
    return app_id


@contextmanager
def translate_errors(doing: str, place: str) -> Iterator[None]:
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
