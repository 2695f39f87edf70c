"""When to look at a log again: a hint from the file system where there is one, the clock otherwise.

A watch only makes a reader look earlier. Whoever waits on one looks again after every `wait`, for whatever reason it
returned, so that a hint that is lost (a full kernel queue, a network mount) costs a poll interval and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from cdfd.tail.clock import Clock
from cdfd.tail.file_events import Arrivals, Subscription

logger = logging.getLogger("cdfd.tail")


class Watch(Protocol):
    """Waits for something to happen in one place. For one waiter."""

    async def wait(self, timeout: float) -> None:
        """Return when something may have happened since the last `wait`, or after `timeout` seconds."""

    def close(self) -> None:
        """Stop watching."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait: `interval` seconds after something came, then ever longer, up to `max_interval`."""

    interval: float
    max_interval: float
    idle: int = 0

    @property
    def delay(self) -> float:
        """Seconds to wait now."""
        # Past 63 doublings the power would overflow a float long before anybody cares for the product.
        return min(self.max_interval, self.interval * 2.0 ** min(self.idle, 63))

    def longer(self) -> Self:
        """After nothing came: the next delay is twice as long."""
        return type(self)(self.interval, self.max_interval, self.idle + 1)

    def reset(self) -> Self:
        """After something came: back to `interval` at once."""
        return type(self)(self.interval, self.max_interval)


class PollWatch:
    """No hints: every wait lasts its timeout. For object stores."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def wait(self, timeout: float) -> None:
        """Sleep."""
        await self._clock.sleep(timeout)

    def close(self) -> None:
        """Nothing to stop."""


def is_log_entry(name: str) -> bool:
    """Whether a file of that name may be a log entry: `*.json`, and not hidden."""
    return name.endswith(".json") and not name.startswith(".")


class DirectoryWatch:
    """Wakes when a file of interest appears in a folder of this machine.

    The folder need not exist: until it does, the nearest folder above it is watched for the next one on the way. One
    that is removed, moved or replaced is found again. Where the system refuses (inotify limits), it polls, says so
    once, and tries again at every wait.

    Args:
        path: the folder.
        arrivals: who watches; shared by all watches of a process.
        clock: measures timeouts.
        concerns: which file names are of interest.
    """

    def __init__(
        self, path: str, arrivals: Arrivals, clock: Clock, *, concerns: Callable[[str], bool] = is_log_entry
    ) -> None:
        self._path = os.path.abspath(path)
        self._arrivals = arrivals
        self._clock = clock
        self._concerns = concerns
        self._happened = asyncio.Event()
        self._subscription: Subscription | None = None
        self._watched: _Identity | None = None
        self._refusal: str | None = None

    @property
    def refusal(self) -> str | None:
        """Why the system gives no hints, where it does not; this watch polls then."""
        return self._refusal

    @property
    def watching(self) -> str | None:
        """The folder that is watched now: the one asked for or one above it; None before the first wait."""
        return self._watched[0] if self._watched is not None else None

    async def wait(self, timeout: float) -> None:
        """Return when a file of interest may have appeared, or after `timeout` seconds."""
        if not self._happened.is_set():
            # In a thread: a mount that hangs must not stop the event loop, where other tables are.
            self._watch(await asyncio.to_thread(_nearest, self._path))
        await self._clock.wait(self._happened, timeout)
        # Whoever waits looks after this line, and so sees what an event before it told of.
        self._happened.clear()

    def close(self) -> None:
        """Stop watching."""
        self._unsubscribe()

    def _watch(self, found: _Nearest) -> None:
        """Watch the folder, or what exists of the way to it, unless that is what is being watched."""
        if found.identity == self._watched and self._subscription is not None and self._subscription.alive:
            return
        self._unsubscribe()
        concerns = self._concerns if found.missing is None else found.missing.__eq__
        try:
            self._subscription = self._arrivals.subscribe(found.folder, concerns, self._happened)
        except OSError as error:
            self._refuse(error)
            return
        self._watched = found.identity
        self._refusal = None
        # Something may have come between the reader's last look and now.
        self._happened.set()

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        self._subscription = None
        self._watched = None

    def _refuse(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason != self._refusal:
            advice = _ADVICE.get(error.errno or 0, "The poll interval is the latency now")
            logger.warning("no wake-ups for %s, polling instead: %s. %s", self._path, reason, advice)
        self._refusal = reason


_ADVICE = {
    errno.ENOSPC: "Raise fs.inotify.max_user_watches (sysctl)",
    errno.EMFILE: "Raise fs.inotify.max_user_instances (sysctl) or the limit of open files (ulimit -n)",
    errno.EACCES: "Check that the user cdfd runs as may list the folder",
}

_Identity = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Nearest:
    """A folder without symbolic links on the way, what tells it from another one, and the name that is missing in it, if one is."""

    folder: str
    identity: _Identity | None
    missing: str | None


def _nearest(folder: str) -> _Nearest:
    """A folder, or the nearest one above it that is there. Blocks."""
    missing = None
    while (identity := _identify(folder)) is None and folder != os.path.dirname(folder):
        folder, missing = os.path.split(folder)
    return _Nearest(os.path.realpath(folder), identity, missing)


def _identify(folder: str) -> _Identity | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None  # not there, or not to be seen: the folder above it is watched instead
    return folder, found.st_dev, found.st_ino
