"""The common part of both ledgers: transaction identifiers in a Delta log."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable

from cdfd.errors import StorageError, Within
from cdfd.runtime.clock import Clock
from cdfd.sinks.ledger.ledger import LedgerEntry
from cdfd.sinks.ledger.txn_log import TxnLog
from cdfd.sinks.ledger.txn_positions import FORGOTTEN, stored_position
from cdfd.sinks.ledger.txn_state import TxnState
from cdfd.storage.base import Storage


class TxnLedger(ABC):
    """The `Ledger` port over a Delta log, except for writes.

    Args:
        storage: the table's root.
        clock: the source of time.
        jitter: see `TxnLog`.
    """

    def __init__(self, storage: Storage, clock: Clock, *, jitter: Callable[[], float] = random.random) -> None:
        self._storage = storage
        self.uri = storage.uri
        self._clock = clock
        self._log = TxnLog(storage, clock, jitter=jitter)
        self._lock = asyncio.Lock()
        self._closed = False

    async def position(self, app_id: str) -> LedgerEntry | None:
        """See the port.

        Raises:
            CdfdError: the table cannot be used as a ledger.
        """
        async with self._lock:
            state = await self._log.state()
            if state is None:
                return None
            with Within(self.uri):
                table_id = self._table_id(state, app_id)
                stored = stored_position(state, app_id)
                if stored.version == FORGOTTEN:
                    return None
                return LedgerEntry(app_id, stored.version, table_id, stored.last_updated, stored.digest)

    async def close(self) -> None:
        """See the port."""
        self._closed = True
        async with self._lock:
            return

    @abstractmethod
    def _table_id(self, state: TxnState, app_id: str) -> str | None:
        """The id of an appId's table; None if the ledger does not have it. Raises a `CdfdError` if the table cannot be used as a ledger."""

    def _require_open(self) -> None:
        if self._closed:
            raise StorageError("the ledger is closed", table=self.uri)
