"""When to poll a log again: after a file-system event where events are available, else after the poll interval.

A watch only makes a reader poll earlier. The reader polls after every `wait`, whatever the reason it returned. So a lost event (a full
kernel queue, a network mount) costs one poll interval and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from cdfd.runtime.clock import Clock
from cdfd.runtime.file_events import FileEvents, Subscription

logger = logging.getLogger("cdfd.tail")


class Watch(ABC):
    """Waits for changes in one place. For one waiter. A watch with nothing to learn or to stop leaves out the other methods."""

    @abstractmethod
    async def wait(self, timeout: float) -> None:
        """Return when something may have changed since the last `wait`, or after `timeout` seconds."""

    def arrived(self) -> None:  # noqa: B027 # nothing to learn
        """The change that the last `wait` was for has come."""

    def close(self) -> None:  # noqa: B027 # nothing to stop
        """Stop watching."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait between polls: `interval` seconds after an entry came, then twice as long each time, up to `max_interval`."""

    interval: float
    max_interval: float
    idle: int = 0

    @property
    def delay(self) -> float:
        """Seconds to wait now."""
        # 63 doublings exceed any maximum. Many more would overflow a float.
        return min(self.max_interval, self.interval * 2.0 ** min(self.idle, 63))

    def longer(self) -> Self:
        """After a poll without an entry: the next delay is twice as long."""
        return type(self)(self.interval, self.max_interval, self.idle + 1)

    def reset(self) -> Self:
        """After a poll with an entry: back to `interval`."""
        return type(self)(self.interval, self.max_interval)


@dataclass(eq=False)
class PollWatch(Watch):
    """Without events: every wait lasts its timeout. For object stores."""

    clock: Clock

    async def wait(self, timeout: float) -> None:
        """Sleep."""
        await self.clock.sleep(timeout)


LONGEST_POLL = 1.0
"""Seconds in which a reader that polls comes back to wait. After that, it has failed, or has found what it delivers now."""


@dataclass(eq=False)
class SharedTip:
    """The newest entry of a log that several readers wait for: one of them polls, and wakes the others when it has come.

    Attributes:
        clock: measures timeouts.
    """

    clock: Clock
    leader: SharedWatch | None = field(default=None, init=False)
    polls_since: float | None = field(default=None, init=False)
    watches: set[SharedWatch] = field(default_factory=set, init=False)
    newest: int = field(default=-1, init=False)

    @property
    def is_led(self) -> bool:
        """Whether a reader waits, or can be expected to wait again at once."""
        return self.leader is not None and (
            self.polls_since is None or self.clock.monotonic() - self.polls_since < LONGEST_POLL
        )


class SharedWatch(Watch):
    """The watch of one reader of a `SharedTip`. While another one waits for events and polls, this one only waits for its news.

    A reader that fails, or that delivers for long, does not wait. So another one that misses its news for a poll interval takes its place.

    Args:
        tip: of the log.
        watch: wakes the reader while it polls itself.
    """

    def __init__(self, tip: SharedTip, watch: Watch) -> None:
        self._tip = tip
        self._watch = watch
        self.news = asyncio.Event()
        """Set when another reader has read a new entry."""
        self._followed = False
        tip.newest = -1  # the log may have been replaced
        tip.watches.add(self)

    def follows(self) -> bool:
        """Whether another reader polls, so that a wait of this one takes no request."""
        return self._tip.is_led and self._tip.leader is not self

    async def wait(self, timeout: float) -> None:
        """Return when something may have changed, or after `timeout` seconds, unless another reader polls."""
        if self.news.is_set():
            self.news.clear()  # it came since the last poll
            return
        tip = self._tip
        self._followed = self.follows()
        if not self._followed:
            tip.leader, tip.polls_since = self, None
            try:
                await self._watch.wait(timeout)
            finally:
                if tip.leader is self:
                    tip.polls_since = tip.clock.monotonic()
        while self._followed and not self.news.is_set():
            await tip.clock.wait(self.news, timeout)
            if not tip.is_led:
                break
        self.news.clear()

    def arrived(self) -> None:
        """The change has come: tell the other readers."""
        if not self._followed:
            self._watch.arrived()
            if self._tip.leader is self:
                self._tip.leader = None
            self._tell_others()

    def read(self, version: int) -> None:
        """This reader has read a version. Another one may have asked for it too early, and have no answer yet."""
        if version > self._tip.newest:
            self._tip.newest = version
            self._tell_others()

    def _tell_others(self) -> None:
        for other in self._tip.watches:
            if other is not self:
                other.news.set()

    def close(self) -> None:
        """Stop watching."""
        self._tip.watches.discard(self)
        if self._tip.leader is self:
            self._tip.leader = None
        self._watch.close()
        self._tell_others()  # one of them polls from now on


def is_log_entry(name: str) -> bool:
    """Whether a file of that name may be a log entry: `*.json`, and not hidden."""
    return name.endswith(".json") and not name.startswith(".")


class DirectoryWatch(Watch):
    """Wakes when a file of interest appears in a local folder.

    The folder need not exist. Until it does, the nearest existing folder above it is watched. A folder that is removed, moved or replaced is
    found again. If the system refuses a watch (inotify limits), this class polls, logs that once, and retries at every wait.

    Args:
        path: the folder.
        file_events: shared by all watches of a process.
        clock: measures timeouts.
        accepts: whether a file name is of interest.
    """

    def __init__(
        self, path: str, file_events: FileEvents, clock: Clock, *, accepts: Callable[[str], bool] = is_log_entry
    ) -> None:
        self._path = os.path.abspath(path)
        self._arrivals = file_events
        self._clock = clock
        self._accepts = accepts
        self._changed = asyncio.Event()
        self._subscription: Subscription | None = None
        self.watched: _Identity | None = None
        """The folder that is watched now: the requested one or one above it. None before the first wait."""
        self.refusal: str | None = None
        """Why the system refuses to watch, where it does. This watch polls then."""

    async def wait(self, timeout: float) -> None:
        """Return when a file of interest may have appeared, or after `timeout` seconds."""
        if not self._changed.is_set():
            # In a thread, because a hanging mount must not block the event loop that other tables share.
            self._watch(*await asyncio.to_thread(_nearest, self._path))
        await self._clock.wait(self._changed, timeout)
        # The caller polls after this line, so it sees every change whose event came before it.
        self._changed.clear()

    def close(self) -> None:
        """Stop watching."""
        if self._subscription is not None:
            self._subscription.close()
        self._subscription = None
        self.watched = None

    def _watch(self, folder: str, identity: _Identity | None, missing: str | None) -> None:
        """Watch the folder, or the nearest one above it, unless it is watched already."""
        if identity == self.watched and self._subscription is not None and self._subscription.alive:
            return
        self.close()
        accepts = self._accepts if missing is None else missing.__eq__
        try:
            self._subscription = self._arrivals.subscribe(folder, accepts, self._changed)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self.refusal:
                advice = _ADVICE.get(error.errno or 0, "New commits are found after the poll interval")
                logger.warning("no file-system events for %s, polling instead: %s. %s", self._path, reason, advice)
            self.refusal = reason
            return
        self.watched = identity
        self.refusal = None
        # A file may have appeared between the reader's last poll and now.
        self._changed.set()


_ADVICE = {
    errno.ENOSPC: "Raise fs.inotify.max_user_watches (sysctl)",
    errno.EMFILE: "Raise fs.inotify.max_user_instances (sysctl) or the limit of open files (ulimit -n)",
    errno.EACCES: "Check that the user cdfd runs as may list the folder",
}

_Identity = tuple[str, int, int]


def _nearest(folder: str) -> tuple[str, _Identity | None, str | None]:
    """The real path and the identity of a folder, or of the nearest existing one above it, and then the next name on the way. Blocks."""
    missing = None
    while (identity := _identify(folder)) is None and folder != os.path.dirname(folder):
        folder, missing = os.path.split(folder)
    return os.path.realpath(folder), identity, missing


def _identify(folder: str) -> _Identity | None:
    try:
        stat = os.stat(folder)
    except OSError:
        return None  # missing or not accessible: the folder above it is watched instead
    return folder, stat.st_dev, stat.st_ino
