"""Prefetching of objects that will be read soon: several round trips at a time instead of one after the other.

Requests start in the order in which objects are announced, which is the order in which they are read. So few bytes are fetched at a time that
those that are needed next do not share the connection with many that are needed later.

    announced   [a: end, 0-8 MiB, 8-12 MiB] [b: end, 0-8 MiB] [c: all]
    started      ^^^^^^^^^^^^^^^^^^^^^^^^^   ^^^                         the next one starts when one is finished
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from cdfd.errors import StorageError
from cdfd.storage.s3.client import S3Client
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.native import CONNECTIONS, GetResult

MAX_OBJECTS, MAX_BYTES = 1024, 72 << 20
"""Announced objects that are not read yet, at most, and bytes that are fetched of them. Small ones are read in groups of many."""
RUNNING_BYTES = 32 << 20
"""Bytes that are being fetched at a time, at most, and one range more."""
RUNNING_REQUESTS = CONNECTIONS * 3 // 4
"""Requests that are running at a time, at most. All tables share the connections of a client, and the requests of one may hang."""


class PrefetchRange(NamedTuple):
    """A range to fetch: its start (from the end if negative), its length, and its bytes, at most."""

    start: int
    length: int | None
    weight: int


@dataclass(slots=True, eq=False)
class _Announced:
    """An object that will be read.

    Attributes:
        before: bytes of all objects that were announced before it.
        ranges: to fetch, in this order.
        started: those whose requests were started.
    """

    request: Request
    before: int
    ranges: Sequence[PrefetchRange]
    started: list[tuple[PrefetchRange, Future[GetResult]]] = field(default_factory=list)


class Prefetcher:
    """Prefetch requests by path. Thread-safe."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._lock = threading.RLock()
        self._announced: dict[_Announced, None] = {}  # in the order in which they were announced
        self._of_path: dict[str, deque[_Announced]] = {}
        self._waiting: deque[_Announced] = deque()
        self._announced_bytes = self._held = self._running = self._requests = 0
        self._starting = False

    def start(self, request: Request, ranges: Sequence[PrefetchRange], *, again: bool = False) -> None:
        """Announce an object: its ranges are fetched as soon as those before them allow it.

        If it was announced before and not taken yet: with `again` it will be read once more, without it nothing happens.
        """
        with self._lock:
            before = self._of_path.get(request.path)
            if before and not again:
                return
            announcement = _Announced(request, self._announced_bytes, ranges)
            last = before[-1] if before else None
            if last is not None and len(ranges) == 1 and last.ranges == ranges and last.started:
                self._keep(announcement, last.started[0])  # one response is enough for several readers
            else:
                self._waiting.append(announcement)
            self._announced[announcement] = None
            self._of_path.setdefault(request.path, deque()).append(announcement)
            self._announced_bytes += sum(requested.weight for requested in ranges)
            if len(self._announced) > MAX_OBJECTS:
                self._drop()
            self._start_waiting()

    def take(self, path: str) -> Sequence[tuple[PrefetchRange, Future[GetResult]]]:
        """Remove and return the requests for a path, running or finished, in the order of the ranges; empty if there are none."""
        with self._lock:
            announced = self._of_path.get(path)
            if not announced:
                return ()
            announcement = announced[0]
            self._remove(announcement)
            # Objects are read in the order in which they were announced. Those that are far behind will not be read any more.
            while self._announced and next(iter(self._announced)).before < announcement.before - MAX_BYTES:
                self._drop()
            self._start_waiting()
            return announcement.started

    def _drop(self) -> None:
        """Give up the oldest object."""
        oldest = next(iter(self._announced))
        self._remove(oldest)
        for _, future in oldest.started:
            future.cancel()

    def _remove(self, announcement: _Announced) -> None:
        """Remove the oldest object of its path. No more of its requests start."""
        del self._announced[announcement]
        path = announcement.request.path
        self._of_path[path].popleft()
        if not self._of_path[path]:
            del self._of_path[path]
        self._held -= sum(requested.weight for requested, _ in announcement.started)
        announcement.ranges = ()

    def _keep(self, announcement: _Announced, started: tuple[PrefetchRange, Future[GetResult]]) -> None:
        announcement.started.append(started)
        self._held += started[0].weight

    def _start_waiting(self) -> None:
        """Start requests in order, as many as may run."""
        if self._starting:
            return  # a request that has finished already calls this
        self._starting = True
        try:
            while self._waiting and self._running < RUNNING_BYTES and self._requests < RUNNING_REQUESTS:
                announcement = self._waiting[0]
                if len(announcement.started) >= len(announcement.ranges):
                    self._waiting.popleft()
                    continue
                requested = announcement.ranges[len(announcement.started)]
                if self._held and self._held + requested.weight > MAX_BYTES:
                    return
                work = self._client.get(announcement.request, requested.start, requested.length)
                future = self._client.loop.submit(work)
                self._keep(announcement, (requested, future))
                self._running += requested.weight
                self._requests += 1
                future.add_done_callback(partial(self._finish, requested.weight))
        except StorageError:
            self._waiting.clear()  # the process is ending, as reading the object says too
        finally:
            self._starting = False

    def _finish(self, weight: int, future: Future[GetResult]) -> None:
        with self._lock:
            self._running -= weight
            self._requests -= 1
            if not future.cancelled():
                self._start_waiting()


def result_or_none(future: Future[GetResult]) -> GetResult | None:
    """The result of a request; None if it failed: an object that did not exist then may exist now, so the caller asks again."""
    try:
        return future.result()
    except (StorageError, CancelledError):
        return None
