"""Notifications as records of a topic."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdfd.errors import CdfdError
from cdfd.log.watch import Backoff
from cdfd.runtime.clock import Clock
from cdfd.sinks.own_topics import Announce

logger = logging.getLogger("cdfd.controls")

MOST_WAITING = 1000
"""Notifications that wait for the topic. Further ones replace the oldest."""
_AT_ONCE = 100
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 60.0


@dataclass(eq=False)
class Publisher:
    """Writes notifications, at least once each while the process runs. Failures are logged, and never affect deliveries.

    Attributes:
        announce: writes records.
        clock: the source of time.
    """

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
                    await self.write()
                except CdfdError as error:
                    logger.warning("cannot write notifications: %s; retrying in %g s", error, backoff.delay)
                    await self.clock.sleep(backoff.delay)
                    backoff = backoff.longer()
                else:
                    backoff = backoff.reset()

    async def write(self) -> None:
        """Write those that wait. Raises the errors of `Announce`."""
        records = [self._waiting[number] for number in range(min(_AT_ONCE, len(self._waiting)))]
        if records:
            await self.announce(records)
            for record in records:
                if self._waiting and self._waiting[0] is record:
                    self._waiting.popleft()
