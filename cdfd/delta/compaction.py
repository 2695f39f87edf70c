"""A log compaction file, `x.y.compacted.json`: what several versions come to, in the form of one log entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from cdfd.delta import action_fields
from cdfd.delta import commit as commits
from cdfd.delta.actions import Add, DomainMetadata, FileKey, Metadata, Protocol, Remove, Txn
from cdfd.delta.commit import Commit
from cdfd.delta.files import FileList

F = TypeVar("F", bound=Add | Remove)


def parse(end: int, data: bytes | Iterable[bytes], *, with_stats: bool = False) -> Commit:
    """Parse a compaction of the versions up to `end`.

    It should hold each logical file, appId and so on once. Some writers only put the entries together, the newest first: so of several
    actions that reconcile with each other (specification, "Action Reconciliation") the first one counts.

    Raises:
        LogError: as `commit.parse`, contradictions apart.
    """
    reader = _Reader(end, with_stats)
    for number, line in enumerate(commits.lines(data), 1):
        reader.take(number, line)
    return reader.commit()


class _Reader(commits.Reader):
    """Keeps the first of the actions that reconcile with each other."""

    def __init__(self, version: int, with_stats: bool) -> None:
        super().__init__(version, with_stats)
        self.seen: set[FileKey] = set()
        self.takers = {
            **self.takers,
            "add": lambda fields: self._first(self.adds, action_fields.add(fields, self.with_stats)),
            "remove": lambda fields: self._first(self.removes, action_fields.remove(fields)),
            "cdc": lambda fields: None,
        }

    def _first(self, files: FileList[F], value: F) -> None:
        if value.key not in self.seen:
            self.seen.add(value.key)
            files.append(value)

    def once(self, name: str, value: Metadata | Protocol) -> None:
        self.single.setdefault(name, value)

    def add_txn(self, value: Txn) -> None:
        self.txns.setdefault(value.app_id, value)

    def add_domain(self, value: DomainMetadata) -> None:
        self.domains.setdefault(value.domain, value)
