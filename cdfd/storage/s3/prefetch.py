"""Prefetching of objects that will be read soon: several round trips at a time instead of one after the other."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

from cdfd.errors import StorageError
from cdfd.storage.s3.client import S3Client
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.objects import GetResult

MAX_OBJECTS, MAX_BYTES = 1024, 72 << 20
"""Prefetched objects that are not read yet, at most, and their bytes; the oldest are dropped first. Small ones are read in groups of many."""


class PrefetchRange(NamedTuple):
    """A range to fetch: its start (from the end if negative), its length, and its bytes, at most."""

    start: int
    length: int | None
    weight: int


StartedRanges = Sequence[tuple[PrefetchRange, Future[GetResult]]]
"""Ranges of an object whose requests are running or finished."""


class Prefetcher:
    """Prefetch requests by path. Thread-safe."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._started: OrderedDict[str, tuple[StartedRanges, int]] = OrderedDict()
        self._bytes = 0

    def start(self, request: Request, ranges: Sequence[PrefetchRange]) -> None:
        """Start to fetch ranges of an object."""
        with self._lock:
            if request.path in self._started:
                return
            get, submit = self._client.get, self._client.loop.submit
            started = [(requested, submit(get(request, requested.start, requested.length))) for requested in ranges]
            weight = sum(requested.weight for requested in ranges)
            self._started[request.path] = started, weight
            self._bytes += weight
            while len(self._started) > MAX_OBJECTS or self._bytes > MAX_BYTES:
                _, (dropped, old) = self._started.popitem(last=False)
                self._bytes -= old
                for _, future in dropped:
                    future.cancel()

    def take(self, path: str) -> StartedRanges:
        """Remove and return the requests for a path, in the order of the ranges; empty if there are none."""
        with self._lock:
            started, weight = self._started.pop(path, ((), 0))
            self._bytes -= weight
            return started


def result_or_none(future: Future[GetResult]) -> GetResult | None:
    """The result of a request; None if it failed: an object that did not exist then may exist now, so the caller asks again."""
    try:
        return future.result()
    except (StorageError, CancelledError):
        return None
