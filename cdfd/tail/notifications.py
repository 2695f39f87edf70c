"""Wake-ups for tables on S3: a queue that S3 tells of new objects, read by one task for all tables of a process.

They only make a reader look earlier, as every watch does. A table is looked at every `max_interval` while notifications of it come, and as
without them when they do not: the queue cannot be read, or a commit was found that none announced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Protocol

from cdfd.errors import StorageError
from cdfd.tail import s3_events
from cdfd.tail.clock import Clock
from cdfd.tail.s3_events import Created
from cdfd.tail.watch import Backoff, is_log_entry

logger = logging.getLogger("cdfd.tail")

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
"""From a failure of the queue to the next attempt: at first, and at most."""
LATE_SECONDS = 60.0
"""How late a notification may be before it counts as one that did not come: S3 says "typically seconds"."""


class Received(Protocol):
    """A message of the queue."""

    @property
    def body(self) -> str:
        """Its text."""

    @property
    def receipt(self) -> str:
        """What to delete it by."""


class Messages(Protocol):
    """A queue that is open. Both raise `StorageError`."""

    async def receive(self) -> Sequence[Received]:
        """Messages, waited for."""

    async def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages of one answer."""


Open = Callable[[], AbstractAsyncContextManager[Messages]]


class Notifications:
    """Hands what a queue tells to the watches of the tables.

    Args:
        open: opens the queue.
        clock: time.
    """

    def __init__(self, open: Open, clock: Clock) -> None:
        self._open = open
        self._clock = clock
        self._watches: dict[Created, list[NotifiedWatch]] = {}
        self._strange = False
        self.receiving = False
        """Whether the queue can be read."""

    def watch(self, uri: str, max_interval: float) -> NotifiedWatch:
        """What wakes a reader of the table at `s3://bucket/prefix`; it looks every `max_interval` seconds while notifications come."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        log = Created(bucket, f"{prefix}/_delta_log".lstrip("/"))
        watch = NotifiedWatch(self, uri, max_interval, self._clock, lambda: self._watches[log].remove(watch))
        self._watches.setdefault(log, []).append(watch)
        return watch

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Notifications]:
        """Read the queue meanwhile."""
        task = asyncio.create_task(self._run(), name="notifications")
        task.add_done_callback(self._ended)
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
                async with self._open() as queue:
                    while True:
                        messages = await queue.receive()
                        if failing:
                            logger.info("notifications of new commits can be received again")
                        self.receiving, failing, backoff = True, False, backoff.reset()
                        await queue.delete(self._used(messages))
            except StorageError as error:
                if not failing:
                    logger.warning("no notifications of new commits, polling instead: %s", error)
                self.receiving, failing = False, True
            await self._clock.sleep(backoff.delay)
            backoff = backoff.longer()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without notifications, whatever ended them, tables are polled."""
        self.receiving = False
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("notifications ended unexpectedly, polling instead: %s", error, exc_info=error)

    def _used(self, messages: Sequence[Received]) -> list[str]:
        """Tell the watches; the receipts of the messages that were S3's."""
        used = []
        for message in messages:
            found = s3_events.parse(message.body)
            if found is not None:
                used.append(message.receipt)
                self._tell(found)
            elif not self._strange:
                self._strange = True
                logger.warning("the queue has messages that are no events of S3; they are left in it")
        return used

    def _tell(self, created: Sequence[Created]) -> None:
        for bucket, key in created:
            folder, _, name = key.rpartition("/")
            if is_log_entry(name):
                for watch in self._watches.get(Created(bucket, folder), ()):
                    watch.happened()


class NotifiedWatch:
    """Wakes when a notification says that a table's log has a new entry. Made by `Notifications.watch`."""

    def __init__(
        self, source: Notifications, uri: str, max_interval: float, clock: Clock, leave: Callable[[], None]
    ) -> None:
        self._source = source
        self._uri = uri
        self._max_interval = max_interval
        self._clock = clock
        self._leave = leave
        self._happened = asyncio.Event()
        self._trusted = False
        self._said = False
        self._asked = 0.0
        self._woken = True
        self._late: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether notifications come for this table."""
        return self._trusted and self._source.receiving

    def happened(self) -> None:
        """There is a new entry."""
        self._late = None
        if self._said:
            logger.info("notifications of new commits come again", extra={"table": self._uri})
        self._trusted, self._said = True, False
        self._happened.set()

    async def wait(self, timeout: float) -> None:
        """Return when there may be a new entry; after `timeout`, or `max_interval` while notifications come."""
        if not self._woken and timeout < self._asked and self._late is None:
            # Waits get longer until something comes: it did, and nobody said so, yet.
            self._late = self._clock.monotonic()
        if self._trusted and self._late is not None and self._clock.monotonic() - self._late > LATE_SECONDS:
            self._distrust()
        self._asked = timeout
        self._woken = await self._clock.wait(self._happened, self._max_interval if self.trusted else timeout)
        self._happened.clear()

    def close(self) -> None:
        """Stop watching."""
        with suppress(ValueError):
            self._leave()

    def _distrust(self) -> None:
        self._trusted, self._said, self._late = False, True, None
        logger.warning("a commit came without a notification, polling instead", extra={"table": self._uri})
