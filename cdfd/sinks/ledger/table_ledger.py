"""The default ledger: a separate Delta table, which any number of daemons can share."""

import random
from collections.abc import Callable, Sequence
from uuid import uuid4

from cdfd.errors import NotATableError
from cdfd.runtime.clock import Clock
from cdfd.sinks.ledger import cleanup, ledger_table
from cdfd.sinks.ledger.ledger import LedgerEntry
from cdfd.sinks.ledger.ledger_table import Change
from cdfd.sinks.ledger.txn_ledger import TxnLedger
from cdfd.sinks.ledger.txn_positions import FORGOTTEN
from cdfd.sinks.ledger.txn_state import Action, TxnState
from cdfd.storage.base import Storage


class TableLedger(TxnLedger):
    """The `Ledger` port over a Delta table, which the first record creates.

    Records during a commit are combined into the next commit.

    Args:
        storage: the table's root, for this table only.
        clock: the source of time.
        jitter: see `TxnLog`.
    """

    def __init__(self, storage: Storage, clock: Clock, *, jitter: Callable[[], float] = random.random) -> None:
        super().__init__(storage, clock, jitter=jitter)
        self._waiting: list[Change] = []

    def _entry(self, state: TxnState, app_id: str) -> LedgerEntry | None:
        ledger_table.check(state.metadata)
        return ledger_table.entry_of(state, app_id)

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
        try:
            async with self._lock:
                if change in self._waiting:
                    batch = tuple(self._waiting)
                    await self._commit(batch)
                    self._waiting = [other for other in self._waiting if other not in batch]
        finally:
            if change in self._waiting:
                self._waiting.remove(change)

    async def _commit(self, changes: Sequence[Change]) -> None:
        def propose(state: TxnState) -> list[Action]:
            ledger_table.check(state.metadata)
            return ledger_table.proposal(state, changes, self._clock.now_ms())

        try:
            version = await self._log.append(propose)
        except NotATableError:
            if all(change.version == FORGOTTEN for change in changes):  # also those that renew
                return
            await self._log.create(ledger_table.creation(str(uuid4()), self._clock.now_ms()))
            version = await self._log.append(propose)
        if version is not None and cleanup.is_due(version, self._log.checkpoint):
            await cleanup.maintain(self._log.log, version)
