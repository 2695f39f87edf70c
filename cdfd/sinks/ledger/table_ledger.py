"""The default ledger: a separate Delta table, which any number of daemons can share."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import uuid4

from cdfd.delta import paths
from cdfd.delta.write.checkpoint_writing import checkpoint
from cdfd.delta.write.writing import PLAIN
from cdfd.errors import LogError, NotATableError, StorageError
from cdfd.log.log import DeltaLog
from cdfd.runtime.clock import Clock
from cdfd.sinks.ledger import ledger_table
from cdfd.sinks.ledger.ledger_table import Change
from cdfd.sinks.ledger.txn_ledger import TxnLedger
from cdfd.sinks.ledger.txn_log import publish
from cdfd.sinks.ledger.txn_positions import FORGOTTEN
from cdfd.sinks.ledger.txn_state import Action, TxnState
from cdfd.storage.base import Storage

logger = logging.getLogger("cdfd.progress")

EVERY = 10
"""Versions between two checkpoints."""


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
        ledger_table.check(state.metadata)
        return state.metadata.configuration.get(ledger_table.key_of(app_id))

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
            ledger_table.check(state.metadata)
            return ledger_table.proposal(state, changes, self._clock.now_ms())

        try:
            return await self._log.append(propose)
        except NotATableError:
            if all(change.version == FORGOTTEN for change in changes):  # also those that renew
                return None
            await self._log.create(ledger_table.creation(str(uuid4()), self._clock.now_ms()))
            return await self._log.append(propose)
