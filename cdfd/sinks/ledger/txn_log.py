"""Appends versions to a log that other writers append to and clean up, by put-if-absent.

Put-if-absent alone is not sufficient. If a writer pauses while others append and clean up, the name of its next version is free again. If
the table was deleted, every name is free. So before a write, the last known entry must still exist unchanged. After a write, the version is
valid only if no checkpoint is newer, because clean-up removes entries only after a newer checkpoint is in `_last_checkpoint`:

    last known version 5; others write 6 to 25 and checkpoints 10 and 20, and remove 0 to 9
    entry 5 is missing                                                     -> reload, write 26
    a pause after that check, then write 6: checkpoint 20 is newer than 6  -> 6 is invalid; reload, write 26
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cdfd.delta import commit as commits
from cdfd.delta import last_checkpoint, paths
from cdfd.delta.last_checkpoint import LastCheckpoint
from cdfd.delta.protocol import check_readable, check_writable
from cdfd.errors import ExistsError, LogError, NotATableError, NotFoundError, StorageError, Within
from cdfd.log import checkpoint_files
from cdfd.log.entry import LogEntry
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import log_path
from cdfd.log.segment import Segment
from cdfd.runtime.clock import Clock
from cdfd.sinks.ledger import txn_state
from cdfd.sinks.ledger.txn_state import NO_TAGS, OPERATION, Action, TxnState
from cdfd.storage.base import Storage

ATTEMPTS = 24
"""Attempts of an append. Each one fails if another writer takes the version first."""
FIRST_DELAY, MAX_DELAY = 0.005, 1.0
"""Longest wait in seconds before the second attempt, and before any attempt."""
MANY_ACTIONS = 1000
"""Actions of a commit beyond which a thread prepares it: it takes a tenth of a second, and others wait for the event loop."""
LOADS = 3
"""Attempts to load a log that is cleaned up at the same time."""


@dataclass(frozen=True, slots=True)
class _Tip:
    """The newest known version: its state, and size and modification time of its log entry, if that exists."""

    state: TxnState
    stamp: tuple[int, int] | None


async def publish(log: DeltaLog, name: str, data: bytes, hint: LastCheckpoint) -> bool:
    """Write a checkpoint, and `_last_checkpoint` unless there is a newer one, so that it never stays behind those of other writers.

    Args:
        log: of the table.
        name: of the checkpoint's file in the log.
        data: its content.
        hint: that names it.

    Returns:
        Whether it is the newest. Then the log may be cleaned up.

    Raises:
        StorageError: the files cannot be written.
    """
    storage, place = log.storage, log_path(paths.LAST_CHECKPOINT)
    await storage.put(log_path(name), data)
    if await log.newest_checkpoint(hint.version) > hint.version:
        return False
    await storage.put(place, last_checkpoint.serialize(hint))
    newest = await log.listed_checkpoint(hint.version)
    if newest <= hint.version:
        return True
    if await log.hint() != newest:
        # The other writer's is replaced. Without one, readers list the log, and the next writer writes a checkpoint.
        await storage.delete(place)
    return False


class TxnLog:
    """Reads the transaction identifiers of a log, and appends to it. The caller must make one call at a time.

    Args:
        storage: the table's root.
        clock: the source of time.
        jitter: a random factor from 0 to 1 for delays, so that writers do not retry in lockstep.
        operation: the name of the commits' operation.
        blind: whether commits only append, and depend on no row of the table.
        tags: of the commits, for readers of `commitInfo`.
        check: raises `UnsupportedError` if this process may not commit to a table in a state.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        *,
        jitter: Callable[[], float] = random.random,
        operation: str = OPERATION,
        check: Callable[[TxnState], None] = lambda state: check_writable(state.protocol),
        blind: bool = True,
        tags: Mapping[str, str] = NO_TAGS,
    ) -> None:
        self.log = DeltaLog(storage)
        self.checkpoint = -1
        """Version of the newest checkpoint at the last append; -1: none."""
        self._storage = storage
        self._clock = clock
        self._jitter = jitter
        self._operation = operation
        self._check = check
        self._blind = blind
        self._tags = tags
        self._tip: _Tip | None = None

    async def state(self) -> TxnState | None:
        """The newest state; None if there is no table.

        Raises:
            LogError: the log is damaged.
            UnsupportedError: cdfd does not support a reader feature of the table.
        """
        with Within(self._storage.uri):
            tip = self._tip
            if tip is None or tip.stamp is None or await self._stamp(tip.state.version) != tip.stamp:
                tip = await self._load()
            if tip is None:
                return None
            while (entry := await self._entry(tip.state.version + 1)) is not None:
                tip = _Tip(tip.state.apply(entry.commit), (entry.commit.size, entry.stat.modified_ms))
            check_readable(tip.state.protocol)
            self._tip = tip
            return tip.state

    async def create(self, actions: Sequence[Action]) -> None:
        """Write version 0. Does nothing if it exists.

        Raises:
            LogError: the actions contradict each other. Nothing is written.
        """
        entry = commits.serialize([txn_state.commit_info("CREATE TABLE", self._clock.now_ms()), *actions])
        txn_state.first(commits.parse(0, entry))
        with suppress(ExistsError):
            await self._storage.put_if_absent(log_path(paths.commit_name(0)), entry)

    async def append(self, propose: Callable[[TxnState], Sequence[Action]]) -> int | None:
        """Commit the actions that `propose` returns for the newest state. Each attempt calls it again.

        Returns:
            The new version; None if there were no actions.

        Raises:
            NotATableError: there is no table.
            UnsupportedError: cdfd does not support a writer feature of the table.
            StorageError: other writers were first at every attempt (retriable).
            LogError: the actions contradict each other, or the log is damaged. Nothing is written.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._clock.sleep(self._jitter() * min(FIRST_DELAY * 2 ** (attempt - 1), MAX_DELAY))
            state = await self.state()
            if state is None:
                raise NotATableError("the table no longer exists", table=self._storage.uri)
            with Within(self._storage.uri):
                actions = propose(state)
                if not actions:
                    return None
                self._check(state)
                if await self._put(state, actions):
                    return state.version + 1
        raise StorageError(
            f"cannot commit: other writers were first in all of {ATTEMPTS} attempts",
            table=self._storage.uri,
            hint="Give each pipeline its own ledger, and each table its own target",
            retriable=True,
        )

    async def _put(self, state: TxnState, actions: Sequence[Action]) -> bool:
        """Write the next version with these actions; whether it is valid."""
        version = state.version + 1
        info = txn_state.commit_info(self._operation, self._clock.now_ms(), state, blind=self._blind, tags=self._tags)

        def following() -> tuple[bytes, TxnState]:
            entry = commits.serialize([info, *actions])
            # Before it is written: an entry that readers refuse would be the last one of the table.
            return entry, state.apply(commits.parse(version, entry))

        entry, after = await asyncio.to_thread(following) if len(actions) > MANY_ACTIONS else following()
        try:
            await self._storage.put_if_absent(log_path(paths.commit_name(version)), entry)
        except ExistsError:
            return False
        self.checkpoint = await self.log.newest_checkpoint(version)
        stamp = await self._stamp(version)
        if stamp is None or self.checkpoint > version:
            self._tip = None
            return False
        self._tip = _Tip(after, stamp)
        return True

    async def _load(self) -> _Tip | None:
        for _ in range(LOADS):
            try:
                return await self.log.read_segment(None, self._read_segment)
            except NotATableError:
                return None
            except NotFoundError as error:
                missing = error
        raise LogError(
            "the log changes faster than it can be read: a listed entry is missing",
            table=self._storage.uri,
            path=missing.path,
            retriable=True,
        )

    async def _read_segment(self, segment: Segment) -> _Tip:
        state: TxnState | None = None
        if segment.checkpoint is not None:
            checkpoint = await asyncio.to_thread(checkpoint_files.read_state, self._storage, segment.checkpoint)
            state = txn_state.from_checkpoint(segment.checkpoint.version, checkpoint)
        entry: LogEntry | None = None
        for version in range(segment.first_version, segment.version + 1):
            entry = await self.log.entry(version)
            state = txn_state.first(entry.commit) if state is None else state.apply(entry.commit)
        assert state is not None
        if entry is None:
            # The checkpoint is the newest version. Its log entry, if it still exists, has the in-commit timestamp.
            entry = await self._entry(state.version)
            if entry is None:
                return _Tip(state, None)
            state = state.apply(entry.commit)
        return _Tip(state, (entry.commit.size, entry.stat.modified_ms))

    async def _entry(self, version: int) -> LogEntry | None:
        """The entry; None if it is missing, or if it is empty and the newest, because its writer may have just created the file."""
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
