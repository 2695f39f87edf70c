"""The ledger in the source table itself: each record is a version of the table that changes no data."""

from collections.abc import Callable

from cdfd.delta import commit as commits
from cdfd.delta import paths
from cdfd.delta.protocol import check_writable
from cdfd.errors import NotFoundError, TableChangedError, Within
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import log_path
from cdfd.sinks.ledger.txn_ledger import TxnLedger
from cdfd.sinks.ledger.txn_positions import FORGOTTEN, position_actions, stored_position
from cdfd.sinks.ledger.txn_state import Action, TxnState, is_ours

_MOST_BYTES = 64 << 10
"""A version with only progress is smaller than this. A larger entry is not parsed."""


class SourceLedger(TxnLedger):
    """The `Ledger` port over the source table, to which only progress is written.

    It never records a version that contains only progress. Otherwise each record would create the next one, forever.
    """

    def _table_id(self, state: TxnState, app_id: str) -> str | None:
        # A table that cdfd cannot write could not record the next position.
        check_writable(state.protocol)
        # The ledger is in the table's own log, so it is of that table, also after entries that changed the id.
        return None

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        """See the port.

        Raises:
            TableChangedError: the table no longer has the id `table_id`, or an earlier entry with that digest.
            UnsupportedError: as `position`.
        """
        self._require_open()
        async with self._lock:
            state = await self._log.state()
            if state is None or not await self._is_only_progress(state, app_id, version):
                if state is not None and state.metadata.id != table_id and await self._has_entry(version, digest):
                    table_id = state.metadata.id
                await self._log.append(self._proposal(app_id, version, table_id, digest))

    async def renew(self, app_id: str) -> None:
        """Does nothing: each renewal would be a version of the user's table."""

    async def forget(self, app_id: str) -> None:
        """See the port."""
        self._require_open()
        async with self._lock:
            state = await self._log.state()
            if state is not None and app_id in state.txns:
                await self._log.append(self._proposal(app_id, FORGOTTEN, state.metadata.id, None))

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
            stored = stored_position(state, app_id)
            if digest is None and stored.version == version:
                return []
            return position_actions(state, app_id, version, digest, self._clock.now_ms())

        return propose

    async def _is_only_progress(self, state: TxnState, app_id: str, version: int) -> bool:
        """Whether all versions since the last record contain only progress, of this or another pipeline."""
        txn = state.txns.get(app_id)
        if txn is None or not 0 <= txn.version < version <= state.version:
            return False
        # Newest first: the first version with other content ends the loop, usually at once.
        for each in range(version, txn.version, -1):
            try:
                data = await self._storage.read(log_path(paths.commit_name(each)), 0, _MOST_BYTES + 1)
            except NotFoundError:
                return False
            with Within(self.uri):
                if len(data) > _MOST_BYTES or not is_ours(commits.parse(each, data).only_txns):
                    return False
        return True

    async def _has_entry(self, version: int, digest: str | None) -> bool:
        """Whether the log has the entry with that digest: then it is the same log, although another entry changed the table's id."""
        if digest is None:
            return False
        try:
            entry = await DeltaLog(self._storage).fingerprint(version)
        except NotFoundError:
            return False
        return entry.digest == digest
