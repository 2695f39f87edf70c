"""The default ledger: a separate Delta table, which any number of daemons can share.

The table has reader version 1, writer version 2 and no rows, so every Delta reader can open it. Positions are its transaction identifiers
(`txn_positions`). Which table a position is of stands beside them in the table's properties, because a `txn` has no place for it and only
`txn` and `metaData` survive in checkpoints:

    txn       {"appId": "cdfd/shop/orders", "version": 12, "lastUpdated": ...}, and two for the hash of the entry of version 12
    metaData  {"configuration": {"cdfd.ledger": "1", "cdfd.table.shop/orders": "<metaData.id of orders>"}, ...}
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa

from cdfd.delta import paths
from cdfd.delta.actions import Metadata
from cdfd.delta.types import schema as schemas
from cdfd.delta.write.checkpoint_writing import checkpoint
from cdfd.delta.write.writing import PLAIN, metadata_fields, protocol_fields
from cdfd.errors import ConfigError, LogError, NotATableError, StorageError, UnsupportedError
from cdfd.log.log import DeltaLog
from cdfd.runtime.clock import Clock
from cdfd.sinks.ledger.ledger import PREFIX
from cdfd.sinks.ledger.txn_ledger import TxnLedger
from cdfd.sinks.ledger.txn_log import publish
from cdfd.sinks.ledger.txn_positions import FORGOTTEN, position_actions, renewal, stored_position
from cdfd.sinks.ledger.txn_state import Action, TxnState
from cdfd.storage.base import Storage

logger = logging.getLogger("cdfd.progress")

EVERY = 10
"""Versions between two checkpoints."""

_FORMAT = "1"
_MARK = "cdfd.ledger"
_TABLE = "cdfd.table."
_COLUMN = pa.schema([("unused", pa.string())])


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A record of one appId. Equal records are distinct objects.

    Attributes:
        version: the last delivered version; `FORGOTTEN`: none.
        table_id: id of the table.
        digest: hash of that version's log entry; None where it is not known.
        renews: whether the recorded position stays, with the present time. The other fields then mean nothing.
    """

    app_id: str
    version: int
    table_id: str | None
    digest: str | None = None
    renews: bool = False


def creation(table_id: str, now_ms: int) -> list[Action]:
    """The actions of version 0, except for `commitInfo`."""
    metadata = Metadata(
        id=table_id,
        schema_string=schemas.serialize(schemas.from_arrow(_COLUMN)),
        partition_columns=(),
        configuration={_MARK: _FORMAT},
        name="cdfd ledger",
        description="How far cdfd has delivered: the transaction identifiers of this table. It has no rows.",
        created_time=now_ms,
    )
    return [("protocol", protocol_fields(PLAIN)), ("metaData", metadata_fields(metadata))]


def check_ledger(metadata: Metadata) -> None:
    """Refuse a table that is not a ledger, because a ledger's log is cleaned up.

    Raises:
        ConfigError: the table is not a ledger.
        UnsupportedError: a newer version of cdfd wrote the ledger.
    """
    form = metadata.configuration.get(_MARK)
    if form is None:
        raise ConfigError(
            "the Delta table at the ledger's location is not a ledger",
            hint="Set `progress.ledger` to a separate location, or to `source` to store progress in each table",
        )
    if form != _FORMAT:
        raise UnsupportedError(f"the ledger has format {form!r}, not {_FORMAT!r}", hint="A newer cdfd may read it")


def _proposal(state: TxnState, changes: Iterable[Change], now_ms: int) -> list[Action]:
    """The actions that record `changes`. Of several changes of one appId the last one counts. Empty if all are recorded."""
    configuration = dict(state.metadata.configuration)
    renewals = {change.app_id: renewal(state, change.app_id, now_ms) for change in changes if change.renews}
    actions: list[Action] = []
    for change in {change.app_id: change for change in changes if not change.renews}.values():
        key, stored, digest = _key_of(change.app_id), stored_position(state, change.app_id), change.digest
        if digest is None and (stored.version, configuration.get(key)) == (change.version, change.table_id):
            digest = stored.digest
        renewed = renewals.pop(change.app_id, [])
        # Readers refuse an entry with two `txn` of one appId. A new record has the present time, too.
        actions += position_actions(state, change.app_id, change.version, digest, now_ms) or renewed
        if change.table_id is None:
            configuration.pop(key, None)
        else:
            configuration[key] = change.table_id
    actions += [action for renewed in renewals.values() for action in renewed]
    if configuration != state.metadata.configuration:
        actions.append(("metaData", metadata_fields(state.metadata) | {"configuration": configuration}))
    return actions


def _key_of(app_id: str) -> str:
    """The property of the ledger with the id of an appId's table."""
    return _TABLE + app_id.removeprefix(PREFIX)


def is_cleanup_due(version: int, checkpoint: int) -> bool:
    """Whether the writer of `version` should write its checkpoint. `checkpoint` is the newest checkpoint's version; -1: none.

    That is so for every tenth version, and for any version if the last checkpoint is too old.
    """
    since = version - max(checkpoint, 0)
    return since > 0 and (version % EVERY == 0 or since >= 2 * EVERY)


async def clean_up(log: DeltaLog, version: int) -> None:
    """Write the checkpoint of `version` and remove older log entries.

    An error is only logged: the progress is recorded, and a later version retries.
    """
    try:
        state = await log.snapshot(version, with_tombstones=True)
        # A checkpoint would not be complete.
        if state.live() or state.tombstones() or state.protocol != PLAIN or state.domains:
            logger.warning(
                "the ledger has files, domains or table features of another writer: its log is not cleaned up",
                extra={"table": log.storage.uri, "version": version},
            )
            return
        data, hint = await asyncio.to_thread(checkpoint, state)
        # Otherwise the writer of the newer checkpoint cleans up.
        if not await publish(log, paths.checkpoint_name(version), data, hint):
            return
        # Entries before the newest checkpoint that is at least `EVERY` versions old go, so that readers of an older one can finish. In
        # ascending order, so that the log stays contiguous if this is interrupted.
        names = [(name, stat) async for name, stat in log.list_names()]
        kept = max((n.version for n, _ in names if n.kind == "checkpoint" and n.version <= version - EVERY), default=0)
        for name, stat in names:
            if 0 <= name.version < kept:
                await log.storage.delete(stat.path)
    except (StorageError, LogError) as error:
        with suppress(StorageError):
            if await log.newest_checkpoint(version) > version:
                return  # another writer has written a newer checkpoint and cleaned up at the same time
        logger.warning(
            "cannot clean up the ledger's log: %s", error, extra={"table": log.storage.uri, "version": version}
        )


class TableLedger(TxnLedger):
    """The `Ledger` port over a Delta table, which the first record creates.

    Records during a commit are combined into the next commit. They do not wait for the clean-up of the ledger's log.

    Args:
        storage: the table's root, for this table only.
        clock: the source of time.
        jitter: see `TxnLog`.
    """

    def __init__(self, storage: Storage, clock: Clock, *, jitter: Callable[[], float] = random.random) -> None:
        super().__init__(storage, clock, jitter=jitter)
        self._waiting: list[Change] = []
        self._cleaning = False

    def _table_id(self, state: TxnState, app_id: str) -> str | None:
        check_ledger(state.metadata)
        return state.metadata.configuration.get(_key_of(app_id))

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        """See the port.

        Raises:
            ConfigError: the location has another table.
        """
        await self._change(Change(app_id, version, table_id, digest))

    async def renew(self, app_id: str) -> None:
        """See the port."""
        await self._change(Change(app_id, FORGOTTEN, None, renews=True))

    async def forget(self, app_id: str) -> None:
        """See the port."""
        await self._change(Change(app_id, FORGOTTEN, None))

    async def _change(self, change: Change) -> None:
        self._require_open()
        self._waiting.append(change)
        version: int | None = None
        try:
            async with self._lock:
                if change in self._waiting:
                    batch = tuple(self._waiting)
                    version = await self._commit(batch)
                    self._waiting = [other for other in self._waiting if other not in batch]
        finally:
            if change in self._waiting:
                self._waiting.remove(change)
        if version is not None and not self._cleaning and is_cleanup_due(version, self._log.checkpoint):
            self._cleaning = True
            try:
                await clean_up(DeltaLog(self._storage), version)
            finally:
                self._cleaning = False

    async def _commit(self, changes: Sequence[Change]) -> int | None:
        """The version of the commit; None if the ledger has these changes already."""

        def propose(state: TxnState) -> list[Action]:
            check_ledger(state.metadata)
            return _proposal(state, changes, self._clock.now_ms())

        try:
            return await self._log.append(propose)
        except NotATableError:
            if all(change.version == FORGOTTEN for change in changes):  # also those that renew
                return None
            await self._log.create(creation(str(uuid4()), self._clock.now_ms()))
            return await self._log.append(propose)
