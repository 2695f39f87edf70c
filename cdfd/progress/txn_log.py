"""Appending to a log that others append to and clean up: one version at a time, by put-if-absent.

That alone is not enough. A writer that slept while others wrote on and cleaned up finds the name of its next version free again, and one
whose table was deleted finds every name free. So before it writes, the entry that it builds on must be there as it was; and what it wrote
counts only if no checkpoint is newer. For clean-up removes entries only once a newer checkpoint is named by `_last_checkpoint`:

    known 5; others write 6 to 25, checkpoint 10 and 20, remove 0 to 9
    entry 5 is gone     -> load anew, write 26
    it slept after it had looked, and wrote 6: checkpoint 20 is newer than 6     -> 6 counts for nothing; load anew, write 26
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdfd.delta import commit as commits
from cdfd.delta import paths
from cdfd.delta.protocol import check_readable, check_writable
from cdfd.errors import ExistsError, LogError, NotFoundError, StorageError, Within
from cdfd.progress import txn_state
from cdfd.progress.txn_state import OPERATION, Action, TxnState
from cdfd.storage.base import Storage
from cdfd.tail import checkpoint_files
from cdfd.tail.clock import Clock
from cdfd.tail.log import DeltaLog, LogEntry, NotATableError, log_path

ATTEMPTS = 24
"""Versions that may be taken by others before an append gives up."""
FIRST_DELAY, MAX_DELAY = 0.005, 1.0
"""Seconds to wait at most before the second attempt, and before any."""
LOADS = 3
"""How often a log that is cleaned up while it is read is read anew."""


@dataclass(frozen=True, slots=True)
class _Tip:
    """The newest version known: its state, and size and modification time of its log entry, where that is there."""

    state: TxnState
    stamp: tuple[int, int] | None


class TxnLog:
    """Reads the transaction identifiers of a log and appends to it. One call at a time; the caller sees to that.

    Args:
        storage: the table's root.
        clock: time.
        jitter: a number from 0 to 1 by which a delay is multiplied, so that writers do not stay in step.
    """

    def __init__(self, storage: Storage, clock: Clock, *, jitter: Callable[[], float] = random.random) -> None:
        self.log = DeltaLog(storage)
        self.checkpoint = -1
        """Version of the newest checkpoint, as far as the last append saw one."""
        self._storage = storage
        self._clock = clock
        self._jitter = jitter
        self._tip: _Tip | None = None

    async def state(self) -> TxnState | None:
        """The newest state; None where there is no table.

        Raises:
            LogError: the log is damaged.
            UnsupportedError: the table asks its readers for what cdfd does not implement.
        """
        with named(self._storage.uri):
            tip = self._tip
            if tip is None or tip.stamp is None or await self._stamp(tip.state.version) != tip.stamp:
                tip = await self._load()
            if tip is None:
                return None
            while (entry := await self._entry(tip.state.version + 1)) is not None:
                tip = _Tip(tip.state.apply(entry.commit), (entry.commit.size, entry.modified_ms))
            check_readable(tip.state.protocol)
            self._tip = tip
            return tip.state

    async def create(self, actions: Sequence[Action]) -> None:
        """Version 0; nothing where another writer was first."""
        entry = commits.serialize([txn_state.commit_info("CREATE TABLE", self._clock.now_ms()), *actions])
        try:
            await self._storage.put_if_absent(log_path(paths.commit_name(0)), entry)
        except ExistsError:
            return

    async def append(self, propose: Callable[[TxnState], Sequence[Action]]) -> int | None:
        """Commit what `propose` makes of the newest state; it is asked again at every attempt.

        Returns:
            The version that was written; None where there was nothing to write.

        Raises:
            NotATableError: there is no table.
            UnsupportedError: the table asks its writers for what cdfd does not implement.
            StorageError: retriable, where others were first all the time.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._clock.sleep(self._jitter() * min(FIRST_DELAY * 2 ** (attempt - 1), MAX_DELAY))
            state = await self.state()
            if state is None:
                raise NotATableError("there is no table any more", table=self._storage.uri)
            with named(self._storage.uri):
                actions = propose(state)
                if not actions:
                    return None
                check_writable(state.protocol)
                if await self._put(state, actions):
                    return state.version + 1
        raise StorageError(
            f"progress could not be recorded: in {ATTEMPTS} attempts other writers were first every time",
            table=self._storage.uri,
            hint="Give pipelines ledgers of their own",
            retriable=True,
        )

    async def _put(self, state: TxnState, actions: Sequence[Action]) -> bool:
        """Write the next version, with these actions in it. False where that does not count."""
        version = state.version + 1
        info = txn_state.commit_info(OPERATION, self._clock.now_ms(), state)
        entry = commits.serialize([info, *actions])
        try:
            await self._storage.put_if_absent(log_path(paths.commit_name(version)), entry)
        except ExistsError:
            return False
        self.checkpoint = await self.log.newest_checkpoint(version)
        stamp = await self._stamp(version)
        if stamp is None or self.checkpoint > version:
            self._tip = None
            return False
        self._tip = _Tip(state.apply(commits.parse(version, entry)), stamp)
        return True

    async def _load(self) -> _Tip | None:
        for _ in range(LOADS):
            try:
                return await self._read()
            except NotATableError:
                return None
            except NotFoundError as error:
                missing = error
        raise LogError(
            "the log changes faster than it can be read: an entry that was listed is gone",
            table=self._storage.uri,
            path=missing.path,
            retriable=True,
        )

    async def _read(self) -> _Tip:
        segment = await self.log.segment(state_only=True)
        state: TxnState | None = None
        if segment.checkpoint is not None:
            held = await checkpoint_files.read_state(self._storage, segment.checkpoint)
            state = txn_state.from_checkpoint(segment.checkpoint.version, held)
        entry: LogEntry | None = None
        for version in range(segment.first_version, segment.version + 1):
            entry = await self.log.entry(version)
            state = txn_state.first(entry.commit) if state is None else state.apply(entry.commit)
        assert state is not None
        if entry is None:
            # The checkpoint is the newest version; its own log entry says the rest, where it is still there.
            entry = await self._entry(state.version)
            if entry is None:
                return _Tip(state, None)
            state = state.apply(entry.commit)
        return _Tip(state, (entry.commit.size, entry.modified_ms))

    async def _entry(self, version: int) -> LogEntry | None:
        """The entry; None where it is not there, or is empty and the newest: its writer may have only just created the file."""
        try:
            entry = await self.log.entry(version)
            if entry.commit.size:
                return entry
            return await self.log.entry(version) if await self.log.has_successor(version) else None
        except NotFoundError:
            return None

    async def _stamp(self, version: int) -> tuple[int, int] | None:
        try:
            stat = await self.log.stat(version)
        except NotFoundError:
            return None
        return stat.size, stat.modified_ms


def named(table: str) -> Within:
    """Errors from within name the table."""
    return Within(table)
