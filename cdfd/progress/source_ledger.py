"""The ledger in the source table itself: each position a version of the table that changes nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from cdfd.delta import commit as commits
from cdfd.delta import paths
from cdfd.delta.protocol import check_writable
from cdfd.errors import NotFoundError, StorageError, TableChangedError
from cdfd.progress.ledger import LedgerEntry
from cdfd.progress.txn_log import TxnLog, named
from cdfd.progress.txn_positions import FORGOTTEN, held, recording
from cdfd.progress.txn_state import Action, TxnState, is_ours
from cdfd.storage.base import Storage
from cdfd.tail.clock import Clock
from cdfd.tail.log import log_path

_OURS_BYTES = 64 << 10
"""No version of ours is as large; what is larger need not be parsed."""


class SourceLedger:
    """The `Ledger` port over the table whose progress it is; nothing else is written into it.

    A version of the table that is itself nothing but progress is never answered, or two versions would answer each other forever.

    Args:
        storage: the table's root.
        clock: time.
        jitter: see `TxnLog`.
    """

    def __init__(self, storage: Storage, clock: Clock, *, jitter: Callable[[], float] = random.random) -> None:
        self._storage = storage
        self._clock = clock
        self._log = TxnLog(storage, clock, jitter=jitter)
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._storage.uri

    async def position(self, app_id: str) -> LedgerEntry | None:
        """See the port.

        Raises:
            UnsupportedError: the table asks its writers for what cdfd does not implement, so that nothing could be recorded.
        """
        async with self._turn:
            state = await self._log.state()
            if state is None:
                return None
            with named(self.uri):
                check_writable(state.protocol)
            found = held(state, app_id)
            if found.version < 0:
                return None
            return LedgerEntry(app_id, found.version, state.metadata.id, found.last_updated, found.digest)

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        """See the port.

        Raises:
            TableChangedError: the table is not `table_id` any more.
            UnsupportedError: as `position`.
        """
        self._require_open()
        async with self._turn:
            state = await self._log.state()
            if state is None or not await self._is_answer(state, app_id, version):
                await self._log.append(self._proposal(app_id, version, table_id, digest))

    async def forget(self, app_id: str) -> None:
        """See the port."""
        self._require_open()
        async with self._turn:
            state = await self._log.state()
            if state is not None and app_id in state.txns:
                await self._log.append(self._proposal(app_id, FORGOTTEN, state.metadata.id, None))

    async def close(self) -> None:
        """See the port."""
        self._closed = True
        async with self._turn:
            return

    def _proposal(
        self, app_id: str, version: int, table_id: str, digest: str | None
    ) -> Callable[[TxnState], list[Action]]:
        def propose(state: TxnState) -> list[Action]:
            if state.metadata.id != table_id:
                raise TableChangedError(
                    f"the table was deleted and created again: its id was {table_id} and is {state.metadata.id} now",
                    version=state.version,
                    hint="Positions of the old table mean nothing in the new one; reset the progress to start over",
                )
            known = held(state, app_id)
            if digest is None and known.version == version:
                return []
            return recording(state, app_id, version, digest, self._clock.now_ms())

        return propose

    async def _is_answer(self, state: TxnState, app_id: str, version: int) -> bool:
        """Whether all that was delivered since the last record is progress, of this pipeline or another."""
        known = state.txns.get(app_id)
        if known is None or not 0 <= known.version < version <= state.version:
            return False
        # From the newest: the first version of somebody else ends it, most often at once.
        for each in range(version, known.version, -1):
            if not await self._is_ours(each):
                return False
        return True

    async def _is_ours(self, version: int) -> bool:
        try:
            data = await self._storage.read(log_path(paths.commit_name(version)), 0, _OURS_BYTES + 1)
        except NotFoundError:
            return False
        with named(self.uri):
            return len(data) <= _OURS_BYTES and is_ours(commits.parse(version, data).only_txns)

    def _require_open(self) -> None:
        if self._closed:
            raise StorageError("the ledger is closed", table=self.uri)
