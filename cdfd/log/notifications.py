"""S3 event notifications: S3 announces new objects in a queue, and one task reads it for all tables of a process.

Like every watch, notifications only make a reader poll earlier. While notifications of a table come, it is polled every `max_interval`. When
they do not come, it is polled as without notifications: the queue cannot be read, or a commit was found without a notification.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote_plus

import orjson

from cdfd.errors import StorageError
from cdfd.log.watch import Backoff, is_log_entry
from cdfd.runtime.clock import Clock

logger = logging.getLogger("cdfd.tail")

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
"""Delay from a failure of the queue to the next attempt: the first one, and the maximum."""
MAX_DELAY_SECONDS = 60.0
"""Delay of a notification after which it counts as lost. S3 says "typically seconds"."""


class Received(Protocol):
    """A message of the queue."""

    @property
    def body(self) -> str:
        """Its text."""

    @property
    def receipt(self) -> str:
        """Handle to delete it with."""


class Messages(Protocol):
    """An open queue. Both methods raise `StorageError`."""

    async def receive(self) -> Sequence[Received]:
        """The next messages; waits for them."""

    async def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages of one response."""


Open = Callable[[], AbstractAsyncContextManager[Messages]]


class Notifications:
    """Dispatches the messages of a queue to the watches of the tables.

    Args:
        open: opens the queue.
        clock: time.
    """

    def __init__(self, open: Open, clock: Clock) -> None:
        self._open = open
        self._clock = clock
        self._watches: dict[Created, list[NotifiedWatch]] = {}
        self._foreign_reported = False
        self.receiving = False
        """Whether the queue can be read."""

    def watch(self, uri: str, max_interval: float) -> NotifiedWatch:
        """A watch for the table at `s3://bucket/prefix`. While notifications come, it waits up to `max_interval` seconds."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        log = Created(bucket, f"{prefix}/_delta_log".lstrip("/"))
        watch = NotifiedWatch(self, uri, max_interval, self._clock, lambda: self._watches[log].remove(watch))
        self._watches.setdefault(log, []).append(watch)
        return watch

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Notifications]:
        """Read the queue while the context is open."""
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
                        await queue.delete(self._dispatch(messages))
            except StorageError as error:
                if not failing:
                    logger.warning("no notifications of new commits, polling instead: %s", error)
                self.receiving, failing = False, True
            await self._clock.sleep(backoff.delay)
            backoff = backoff.longer()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The task ended. Tables are polled from now on."""
        self.receiving = False
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("notifications ended unexpectedly, polling instead: %s", error, exc_info=error)

    def _dispatch(self, messages: Sequence[Received]) -> list[str]:
        """Wake the watches concerned. Returns the receipts of the messages that are S3 events."""
        used = []
        for message in messages:
            objects = parse_event(message.body)
            if objects is not None:
                used.append(message.receipt)
                for bucket, key in objects:
                    folder, _, name = key.rpartition("/")
                    if is_log_entry(name):
                        for watch in self._watches.get(Created(bucket, folder), ()):
                            watch.wake()
            elif not self._foreign_reported:
                self._foreign_reported = True
                logger.warning("the queue has messages that are not S3 events; cdfd leaves them in the queue")
        return used


class NotifiedWatch:
    """Wakes when a notification announces a new entry of a table's log. Created by `Notifications.watch`."""

    def __init__(
        self, source: Notifications, uri: str, max_interval: float, clock: Clock, leave: Callable[[], None]
    ) -> None:
        self._source = source
        self._uri = uri
        self._max_interval = max_interval
        self._clock = clock
        self._leave = leave
        self._wakeup = asyncio.Event()
        self._trusted = False
        self._reported = False
        self._last_timeout = 0.0
        self._woken = True
        self._unannounced_since: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether notifications of this table come."""
        return self._trusted and self._source.receiving

    def wake(self) -> None:
        """A notification announced a new entry."""
        self._unannounced_since = None
        if self._reported:
            logger.info("notifications of new commits have resumed", extra={"table": self._uri})
        self._trusted, self._reported = True, False
        self._wakeup.set()

    async def wait(self, timeout: float) -> None:
        """Return when there may be a new entry; after `timeout`, or `max_interval` while notifications come."""
        if not self._woken and timeout < self._last_timeout and self._unannounced_since is None:
            # The timeout grows until an entry comes. It became shorter, so an entry came, and its notification has not come yet.
            self._unannounced_since = self._clock.monotonic()
        if (
            self._trusted
            and self._unannounced_since is not None
            and self._clock.monotonic() - self._unannounced_since > MAX_DELAY_SECONDS
        ):
            self._trusted, self._reported, self._unannounced_since = False, True, None
            logger.warning("a commit came without a notification, polling instead", extra={"table": self._uri})
        self._last_timeout = timeout
        self._woken = await self._clock.wait(self._wakeup, self._max_interval if self.trusted else timeout)
        self._wakeup.clear()

    def close(self) -> None:
        """Stop watching."""
        with suppress(ValueError):
            self._leave()


_WRAPS = 2
"""Envelopes around an event, at most: that of SNS, and a custom one."""


class Created(NamedTuple):
    """An object that was written."""

    bucket: str
    key: str


def parse_event(body: str) -> list[Created] | None:
    """The objects that a message announces as created; None for a message that is not an S3 event.

    Events of other kinds (a deletion, the test event of a new configuration) announce none.
    """
    for _ in range(_WRAPS + 1):
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(document, dict):
            return None
        if document.get("source") == "aws.s3":
            return list(_from_event_bridge(document))
        if document.get("Event") == "s3:TestEvent":
            return []
        if isinstance(document.get("Records"), list):
            records = document["Records"]
            created = []
            for record in records:
                if not isinstance(record, dict) or record.get("eventSource") not in ("aws:s3", "minio:s3"):
                    return None
                if str(record.get("eventName")).removeprefix("s3:").startswith("ObjectCreated:"):
                    bucket, key = _names(record.get("s3"))
                    # Keys in these events are URL-encoded, with + for a space.
                    created.append(Created(bucket, unquote_plus(key)))
            return created
        wrapped = document.get("Message")
        if not isinstance(wrapped, str):
            return None
        body = wrapped
    return None


def _from_event_bridge(event: dict[str, Any]) -> Iterator[Created]:
    if event.get("detail-type") == "Object Created":
        yield Created(*_names(event.get("detail")))


def _names(place: Any) -> tuple[str, str]:
    """Bucket and key; empty if they are missing."""
    fields = place if isinstance(place, dict) else {}
    bucket, object_ = fields.get("bucket"), fields.get("object")
    return _text(bucket, "name"), _text(object_, "key")


def _text(place: Any, name: str) -> str:
    value = place.get(name) if isinstance(place, dict) else None
    return value if isinstance(value, str) else ""
