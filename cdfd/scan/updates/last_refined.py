"""The refined versions that were read last. Apart from `refined`, which few tables need: importing it takes a while."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdfd.scan.updates.refined import RefinedVersion


@lru_cache(maxsize=64)
def refined_versions(*place: str) -> RefinedVersions:
    """The refined version of a table that this process has read last, by the names of the place."""
    return RefinedVersions()


class RefinedVersions:
    """Keeps the version that was refined last, because its parts may be delivered one at a time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: RefinedVersion | None = None

    def of(self, version: RefinedVersion) -> RefinedVersion:
        """The version that was refined already, if it is this one; else this one, which is kept."""
        with self._lock:
            if self._last is None or not self._last.is_like(version):
                self._last = version
            return self._last

    def forget(self, version: RefinedVersion) -> None:
        """Let go of a version that is read to its end."""
        with self._lock:
            if self._last is version:
                self._last = None
