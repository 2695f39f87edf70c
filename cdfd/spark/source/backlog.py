"""The backlog of a stream: the part of a table that a micro-batch leaves to later ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from cdfd.delta.actions import Add, Cdc, Remove
from cdfd.errors import CdfdError
from cdfd.log.log import DeltaLog
from cdfd.model.plan import Changes

MOST_COUNTED = 1000
"""Versions whose bytes one micro-batch counts. Each version is counted once, so a larger backlog is known some micro-batches later."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The versions that are left to read after a position, as of the planning of the micro-batch that ends there.

    Attributes:
        newest: the newest version.
        since_ms: when the first of the versions was committed that are not read completely, in ms since the Unix epoch.
        bytes: of the files to read; None if they are not counted.
    """

    newest: int
    since_ms: int
    bytes: int | None = None

    def to_json(self) -> dict[str, int]:
        """For an offset, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, document: object) -> Backlog | None:
        """From an offset; None if it has none, or another release's."""
        if not isinstance(document, Mapping):
            return None
        counts: list[Any] = [document.get(name) for name in ("newest", "since_ms", "bytes")]
        numbers = counts if counts[2] is not None else counts[:2]
        if any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in numbers):
            return None
        return cls(*counts)


@dataclass(slots=True)
class PendingBytes:
    """Counts the bytes of the files of pending versions, from their log entries.

    Attributes:
        log: of the table. No other reader may share it, because it is read far ahead of the position.
        changes: the source of change rows.
    """

    log: DeltaLog
    changes: Changes
    _sizes: dict[int, int] = field(default_factory=dict)

    async def between(self, first: int, last: int, most: int = MOST_COUNTED) -> int | None:
        """Bytes of the versions from `first` to `last`; None if more than `most` of them are not counted yet, or one cannot be read."""
        for version in [version for version in self._sizes if version < first]:
            del self._sizes[version]
        for version in range(first, last + 1):
            if version in self._sizes:
                continue
            if not most:
                return None
            try:
                entry = await self.log.entry(version)
            except CdfdError:
                return None  # planning the version raises it again
            commit = entry.commit
            files: Iterable[Add | Remove | Cdc] = commit.cdcs
            if not commit.cdcs or self.changes == "files":
                files = (each for each in chain[Add | Remove](commit.adds, commit.removes) if each.data_change)
            self._sizes[version] = sum(max(0, each.size or 0) for each in files)
            most -= 1
        return sum(self._sizes[version] for version in range(first, last + 1))
