"""Objects that will be asked for soon, fetched meanwhile: several round trips at a time instead of one after the other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import CancelledError, Future

from cdfd.errors import StorageError
from cdfd.storage.s3_client import Got, S3Client
from cdfd.storage.s3_errors import Request

OBJECTS, BYTES = 64, 72 << 20
"""Of objects that nobody came for yet, at most; the oldest go first."""


class Expected:
    """Requests under way, by path. Used from any thread."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, tuple[Future[Got], int]] = OrderedDict()
        self._bytes = 0

    def begin(self, request: Request, start: int, length: int | None, weight: int) -> None:
        """Ask for a range of an object; `weight` is how many bytes that may be."""
        with self._lock:
            if request.path in self._waiting:
                return
            self._waiting[request.path] = self._client.loop.submit(self._client.get(request, start, length)), weight
            self._bytes += weight
            while len(self._waiting) > OBJECTS or self._bytes > BYTES:
                _, (future, old) = self._waiting.popitem(last=False)
                self._bytes -= old
                future.cancel()

    def take(self, path: str) -> Future[Got] | None:
        """The request for a path, where one was begun; for one taker."""
        with self._lock:
            found = self._waiting.pop(path, None)
            if found is None:
                return None
            self._bytes -= found[1]
            return found[0]


def result(future: Future[Got]) -> Got | None:
    """What was got; None where it was not: what is not there yet may be by now, so that only an answer of now counts."""
    try:
        return future.result()
    except (StorageError, CancelledError):
        return None
