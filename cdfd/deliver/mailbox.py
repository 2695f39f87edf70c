"""Requests that wait for the loop of their table, which carries them out between two deliveries."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cdfd.deliver.requests import Notification, Refused, Request

MOST_WAITING = 8
"""Requests that wait for one table. Another one is refused."""


@dataclass(slots=True)
class Mailbox:
    """The requests for one table.

    Attributes:
        news: receives a notification about an action that takes time.
        interrupt: set while requests wait, and when the loop has to stop. The loop then ends the current delivery.
        tried: id of the request that the loop began to carry out, until it is answered.
    """

    news: Callable[[Notification], None] = lambda _: None
    interrupt: asyncio.Event = field(default_factory=asyncio.Event)
    tried: str = ""
    _halted: bool = False
    _waiting: deque[tuple[Request, asyncio.Future[Notification]]] = field(default_factory=deque)

    def put(self, request: Request) -> asyncio.Future[Notification]:
        """Add a request; its answer.

        Raises:
            Refused: too many requests wait.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise Refused("busy", f"{MOST_WAITING} requests already wait for this table")
        done: asyncio.Future[Notification] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, done))
        self.interrupt.set()
        return done

    def open(self) -> None:
        """The loop begins."""
        self._halted = False
        self._lower()

    def halt(self) -> None:
        """The loop has to stop."""
        self._halted = True
        self.interrupt.set()

    @property
    def first(self) -> Request | None:
        """The oldest request that waits; None if there is none."""
        return self._waiting[0][0] if self._waiting else None

    def settle(self, notification: Notification) -> None:
        """Answer the oldest request."""
        _, done = self._waiting.popleft()
        self.tried = ""
        if not done.done():
            done.set_result(notification)
        self._lower()

    def _lower(self) -> None:
        if not self._waiting and not self._halted:
            self.interrupt.clear()
