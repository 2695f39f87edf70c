"""Objects that will be asked for soon, fetched meanwhile: several round trips at a time instead of one after the other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

from cdfd.errors import StorageError
from cdfd.storage.s3.client import Got, S3Client
from cdfd.storage.s3.errors import Request

OBJECTS, BYTES = 64, 72 << 20
"""Of objects that nobody came for yet, at most; the oldest go first."""


class Ahead(NamedTuple):
    """A range to ask for: its start, from the end where negative, its length, and how many bytes it may be."""

    start: int
    length: int | None
    weight: int


Begun = Sequence[tuple[Ahead, Future[Got]]]
"""Ranges of an object that were asked for."""


class Expected:
    """Requests under way, by path. Used from any thread."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, tuple[Begun, int]] = OrderedDict()
        self._bytes = 0

    def begin(self, request: Request, ranges: Sequence[Ahead]) -> None:
        """Ask for ranges of an object."""
        with self._lock:
            if request.path in self._waiting:
                return
            get, submit = self._client.get, self._client.loop.submit
            begun = [(ahead, submit(get(request, ahead.start, ahead.length))) for ahead in ranges]
            weight = sum(ahead.weight for ahead in ranges)
            self._waiting[request.path] = begun, weight
            self._bytes += weight
            while len(self._waiting) > OBJECTS or self._bytes > BYTES:
                _, (dropped, old) = self._waiting.popitem(last=False)
                self._bytes -= old
                for _, future in dropped:
                    future.cancel()

    def take(self, path: str) -> Begun:
        """The requests for a path, in the order of the ranges; none where none was begun. For one taker."""
        with self._lock:
            begun, weight = self._waiting.pop(path, ((), 0))
            self._bytes -= weight
            return begun


def result(future: Future[Got]) -> Got | None:
    """What was got; None where it was not: what is not there yet may be by now, so that only an answer of now counts."""
    try:
        return future.result()
    except (StorageError, CancelledError):
        return None
