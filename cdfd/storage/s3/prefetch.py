"""Objects that will be asked for soon, fetched meanwhile: several round trips at a time instead of one after the other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

from cdfd.errors import StorageError
from cdfd.storage.s3.client import GetResult, S3Client
from cdfd.storage.s3.errors import Request

MAX_OBJECTS, MAX_BYTES = 64, 72 << 20
"""Of objects that nobody came for yet, at most; the oldest go first."""


class PrefetchRange(NamedTuple):
    """A range to ask for: its start, from the end where negative, its length, and how many bytes it may be."""

    start: int
    length: int | None
    weight: int


StartedRanges = Sequence[tuple[PrefetchRange, Future[GetResult]]]
"""Ranges of an object that were asked for."""


class Prefetcher:
    """Requests under way, by path. Used from any thread."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._started: OrderedDict[str, tuple[StartedRanges, int]] = OrderedDict()
        self._bytes = 0

    def start(self, request: Request, ranges: Sequence[PrefetchRange]) -> None:
        """Ask for ranges of an object."""
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
        """The requests for a path, in the order of the ranges; none where none was begun. For one taker."""
        with self._lock:
            started, weight = self._started.pop(path, ((), 0))
            self._bytes -= weight
            return started


def result_or_none(future: Future[GetResult]) -> GetResult | None:
    """What was got; None where it was not: what is not there yet may be by now, so that only an answer of now counts."""
    try:
        return future.result()
    except (StorageError, CancelledError):
        return None
