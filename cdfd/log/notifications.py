"""Notifications of stores: a store announces new objects in a queue, and one task reads it for all tables of a process.

Like every watch, notifications only make a reader poll earlier. While notifications of a table come, it is polled every `max_interval`. When
they do not come, it is polled as without notifications: the queue cannot be read, or a commit was found without a notification.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

from cdfd.errors import StorageError
from cdfd.log.watch import Backoff, Watch, is_log_entry
from cdfd.runtime.clock import Clock
from cdfd.storage.queues.base import Message, ObjectCreated, Queue

logger = logging.getLogger("cdfd.tail")

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
"""Delay from a failure of the queue to the next attempt: the first one, and the maximum."""
MAX_DELAY_SECONDS = 60.0
"""Delay of a notification after which it counts as lost. Stores say "typically seconds"."""


@dataclass(eq=False)
class Notifications:
    """Dispatches the messages of a queue to the watches of the tables.

    Attributes:
        open: opens the queue.
        clock: time.
    """

    open: Callable[[], AbstractAsyncContextManager[Queue]]
    clock: Clock
    _watches: dict[ObjectCreated, list[NotifiedWatch]] = field(default_factory=dict, init=False)
    _foreign_reported: bool = field(default=False, init=False)
    receiving: bool = field(default=False, init=False)

    def watch(self, uri: str, max_interval: float) -> NotifiedWatch:
        """A watch for the table at `scheme://bucket/prefix`. While notifications come, it waits up to `max_interval` seconds."""
        bucket, _, prefix = uri.partition("://")[2].partition("/")
        # abfss://container@account.dfs.core.windows.net/prefix
        log = ObjectCreated(bucket.partition("@")[0], f"{prefix}/_delta_log".lstrip("/"))
        watches = self._watches.setdefault(log, [])

        def leave() -> None:
            watches.remove(watch)
            if not watches and self._watches.get(log) is watches:
                del self._watches[log]

        watch = NotifiedWatch(self, uri, max_interval, self.clock, leave)
        watches.append(watch)
        return watch

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Notifications]:
        """Read the queue while the context is open."""
        task = asyncio.create_task(self._run(), name="notifications")
        task.add_done_callback(self._note_end)
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        failing = False
        while True:
            try:
                async with self.open() as queue:
                    while True:
                        asked = self.clock.monotonic()
                        messages = await queue.receive()
                        if failing:
                            logger.info("notifications of new commits can be received again")
                        self.receiving, failing, backoff = True, False, backoff.reset()
                        await queue.delete(self._dispatch(messages))
                        if not messages and self.clock.monotonic() - asked < RETRY_SECONDS:
                            # A service waits for messages. A proxy in its place may not.
                            await self.clock.sleep(RETRY_SECONDS)
            except StorageError as error:
                if not failing:
                    logger.warning("no notifications of new commits, polling instead: %s", error)
                self.receiving, failing = False, True
            await self.clock.sleep(backoff.delay)
            backoff = backoff.longer()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """The task ended. Tables are polled from now on."""
        self.receiving = False
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("notifications ended unexpectedly, polling instead: %s", error, exc_info=error)

    def _dispatch(self, messages: Sequence[Message]) -> list[str]:
        """Wake the watches concerned. Returns the receipts of the messages that are events of the store."""
        events = [message for message in messages if message.created is not None]
        for message in events:
            for bucket, key in message.created or ():
                folder, _, name = key.rpartition("/")
                if is_log_entry(name):
                    for watch in self._watches.get(ObjectCreated(bucket, folder), ()):
                        watch.wake()
        if len(events) < len(messages) and not self._foreign_reported:
            self._foreign_reported = True
            logger.warning("the queue has messages that are not events of the store; cdfd leaves them in the queue")
        return [message.receipt for message in events]


@dataclass(eq=False)
class NotifiedWatch(Watch):
    """Wakes when a notification announces a new entry of a table's log. Created by `Notifications.watch`."""

    source: Notifications
    uri: str
    max_interval: float
    clock: Clock
    leave: Callable[[], None]
    _wakeup: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _trusted: bool = field(default=False, init=False)
    _reported: bool = field(default=False, init=False)
    _woken: bool = field(default=True, init=False)
    _unannounced_since: float | None = field(default=None, init=False)

    @property
    def trusted(self) -> bool:
        """Whether notifications of this table come."""
        return self._trusted and self.source.receiving

    def wake(self) -> None:
        """A notification announced a new entry."""
        self._unannounced_since = None
        if self._reported:
            logger.info("notifications of new commits have resumed", extra={"table": self.uri})
        self._trusted, self._reported = True, False
        self._wakeup.set()

    async def wait(self, timeout: float) -> None:
        """Return when there may be a new entry; after `timeout`, or `max_interval` while notifications come."""
        if (
            self._trusted
            and self._unannounced_since is not None
            and self.clock.monotonic() - self._unannounced_since > MAX_DELAY_SECONDS
        ):
            self._trusted, self._reported, self._unannounced_since = False, True, None
            logger.warning("a commit came without a notification, polling instead", extra={"table": self.uri})
        self._woken = await self.clock.wait(self._wakeup, self.max_interval if self.trusted else timeout)
        self._wakeup.clear()

    def arrived(self) -> None:
        """An entry came. Its notification may not have come yet."""
        if not self._woken and self._unannounced_since is None:
            self._unannounced_since = self.clock.monotonic()

    def close(self) -> None:
        """Stop watching."""
        with suppress(ValueError):
            self.leave()
