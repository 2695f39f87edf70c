"""The default ledger: a Delta table of its own, which any number of daemons share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from uuid import uuid4

from cdfd.errors import StorageError
from cdfd.progress import cleanup as upkeep
from cdfd.progress import ledger_table
from cdfd.progress.ledger import LedgerEntry
from cdfd.progress.ledger_table import Change
from cdfd.progress.txn_log import TxnLog, named
from cdfd.progress.txn_positions import FORGOTTEN
from cdfd.progress.txn_state import Action, TxnState
from cdfd.storage.base import Storage
from cdfd.tail.clock import Clock
from cdfd.tail.log import NotATableError


class TableLedger:
    """The `Ledger` port over a Delta table that is created when something is first recorded.

    What is recorded while a commit is under way goes into the next one together.

    Args:
        storage: the table's root, which nothing else may be in.
        clock: time.
        jitter: see `TxnLog`.
    """

    def __init__(self, storage: Storage, clock: Clock, *, jitter: Callable[[], float] = random.random) -> None:
        self._storage = storage
        self._clock = clock
        self._log = TxnLog(storage, clock, jitter=jitter)
        self._turn = asyncio.Lock()
        self._waiting: list[Change] = []
        self._closed = False

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._storage.uri

    async def position(self, app_id: str) -> LedgerEntry | None:
        """See the port.

        Raises:
            ConfigError: there is a table of another kind.
        """
        async with self._turn:
            state = await self._log.state()
            if state is None:
                return None
            with named(self.uri):
                ledger_table.check(state.metadata)
            return ledger_table.entry_of(state, app_id)

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        """See the port.

        Raises:
            ConfigError: there is a table of another kind.
        """
        await self._change(Change(app_id, version, table_id, digest))

    async def forget(self, app_id: str) -> None:
        """See the port."""
        await self._change(Change(app_id, FORGOTTEN, None))

    async def close(self) -> None:
        """See the port."""
        self._closed = True
        async with self._turn:
            return

    async def _change(self, change: Change) -> None:
        if self._closed:
            raise StorageError("the ledger is closed", table=self.uri)
        self._waiting.append(change)
        try:
            async with self._turn:
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
            if all(change.version == FORGOTTEN for change in changes):
                return
            await self._log.create(ledger_table.creation(str(uuid4()), self._clock.now_ms()))
            version = await self._log.append(propose)
        if version is not None and upkeep.is_due(version, self._log.checkpoint):
            await upkeep.maintain(self._log.log, version)
