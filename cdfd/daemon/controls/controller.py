"""Takes requests from all channels, hands them to the loops of their tables, and tells everyone about the answers."""

import asyncio
import json
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdfd.deliver.mailbox import Mailbox
from cdfd.deliver.requests import Notification, Refused, Request, answer, refusal
from cdfd.errors import CdfdError
from cdfd.log.watch import Backoff
from cdfd.runtime import logs
from cdfd.runtime.clock import Clock
from cdfd.sinks.own_topics import Announce

logger = logging.getLogger("cdfd.controls")

KEPT = 50
"""Notifications that `/status` shows."""
_MOST_IDS = 1000
_NO_TABLE_SHOWN = 20

MOST_WAITING = 1000
"""Notifications that wait for the topic. Further ones replace the oldest."""
_AT_ONCE = 100
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 60.0


class Controller:
    """The controls of a daemon.

    Args:
        engine: the kind of engine. The queries of Spark have their positions, and take no requests.

    Attributes:
        recent: the newest notifications, the oldest first, as JSON values.
        listeners: called with the document of every notification. They must not block or raise.
    """

    def __init__(self, pipeline: str, clock: Clock, engine: str = "embedded") -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._engine = engine
        self.tables: dict[str, Mailbox] = {}
        self._ids: OrderedDict[tuple[str, str | None], None] = OrderedDict()
        self.recent: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.listeners: list[Callable[[dict[str, Any]], None]] = []

    def add(self, name: str) -> Mailbox:
        """Take requests for a table; its mailbox. Those that wait for an earlier loop of it wait for the next one."""
        mailbox = self.tables.setdefault(name, Mailbox(self.notify))
        mailbox.open()
        return mailbox

    def remove(self, name: str) -> None:
        """Take no more requests for a table. Those that wait are refused, and can be sent again with their ids."""
        mailbox = self.tables.pop(name, None)
        error = Refused("unknown", "this process no longer delivers the table")
        while mailbox is not None and (request := mailbox.first) is not None:
            self._ids.pop((request.id, request.table), None)
            mailbox.settle(refusal(error, request.id, request.action, request.table))

    async def submit(self, request: Request, timeout: float | None = None) -> Notification:
        """Carry out a request; the answer. It is also logged and sent to all listeners.

        Args:
            timeout: seconds to wait. If the table has not carried out the request by then, the answer is `ACCEPTED`, and another
                notification follows.
        """
        try:
            if (request.id, request.table) in self._ids:
                raise Refused("duplicate", f"a request with the id {request.id} was already received")
            if request.action == "log-level":
                logs.set_level(request.level)
                done: asyncio.Future[Notification] = asyncio.get_running_loop().create_future()
                done.set_result(answer(request, "CHANGED", f"the log level is {request.level}", level=request.level))
            else:
                if self._engine == "spark":
                    raise Refused("unsupported", "tables take no requests with `engine.kind: spark`")
                mailbox = self.tables.get(request.table or "")
                if mailbox is None:
                    names = sorted(self.tables)
                    if not names:
                        raise Refused(
                            "unknown", "this process delivers no table: with standby, ask the process that leads"
                        )
                    listed = ", ".join(names[:_NO_TABLE_SHOWN]) + (", ..." if len(names) > _NO_TABLE_SHOWN else "")
                    raise Refused("unknown", f"there is no table {request.table!r:.100}; the tables are {listed}")
                done = mailbox.put(request)
            self._ids[request.id, request.table] = None
            if len(self._ids) > _MOST_IDS:
                self._ids.popitem(last=False)
        except Refused as error:
            return self.refuse(error, request.id, request.action, request.table)
        done.add_done_callback(self._note_answer)
        await asyncio.wait((done,), timeout=timeout)
        if done.done():
            return done.result()
        message = "the table has not carried out the request yet; another notification follows"
        return answer(request, "ACCEPTED", message)

    def refuse(self, error: Refused, id: str = "", action: str = "", table: str | None = None) -> Notification:
        """Tell everyone that a request is refused; the notification."""
        notification = refusal(error, id, action, table)
        self.notify(notification)
        return notification

    def document(self, notification: Notification) -> dict[str, Any]:
        """A notification of this moment as JSON values."""
        return notification.document(self._pipeline, self._clock.now_ms())

    def notify(self, notification: Notification) -> None:
        """Log a notification, keep it for `/status`, and send it to all listeners."""
        document = self.document(notification)
        self.recent.append(document)
        level = logging.WARNING if notification.type in ("REFUSED", "ABORTED") else logging.INFO
        extra: dict[str, Any] = {"request": notification.id, "type": notification.type}
        if notification.table is not None:
            extra["table"] = notification.table
        logger.log(level, "%s", notification.message, extra=extra | dict(notification.details or {}))
        for listener in self.listeners:
            listener(document)

    def _note_answer(self, done: asyncio.Future[Notification]) -> None:
        if not done.cancelled():
            self.notify(done.result())


@dataclass(eq=False)
class Publisher:
    """Writes notifications to a topic, at least once each while the process runs. Failures are logged, and never affect deliveries."""

    announce: Announce
    clock: Clock
    _waiting: deque[tuple[bytes, bytes]] = field(default_factory=lambda: deque(maxlen=MOST_WAITING), init=False)
    _more: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def add(self, document: Mapping[str, Any]) -> None:
        """Write a notification soon."""
        self._waiting.append((str(document["id"]).encode(), json.dumps(document, separators=(",", ":")).encode()))
        self._more.set()

    async def run(self) -> None:
        """Write notifications forever."""
        backoff = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                try:
                    records = [self._waiting[number] for number in range(min(_AT_ONCE, len(self._waiting)))]
                    await self.announce(records)
                except CdfdError as error:
                    logger.warning("cannot write notifications: %s; retrying in %g s", error, backoff.delay)
                    await self.clock.sleep(backoff.delay)
                    backoff = backoff.longer()
                else:
                    backoff = backoff.reset()
                    for record in records:
                        if self._waiting and self._waiting[0] is record:
                            self._waiting.popleft()
