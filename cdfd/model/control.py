"""The state that operators give a table: paused or not, and the files to publish again. Stored with the table's position. Pure.

{"paused": {"id": "ops-7", "at_ms": 1767225600000},
 "snapshot": {"id": "ops-8", "version": 41, "next": 12, "ordinal": 1099511640000, "rows": 12288, ...},
 "snapshots": 1, "recent": ["ops-7", "ops-8"]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from cdfd.model.position import LATEST_MS, MOST, ORDINAL_SPAN

RECENT = 16
"""Ids of requests that a table remembers. A request with one of them is not carried out again."""
_SNAPSHOTS = 4096  # times ORDINAL_SPAN, the ordinals are still integers that every JSON reader can represent

_LONGEST_TEXT = 4096


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause.

    Attributes:
        id: of the request.
        at_ms: when it began, in ms since the Unix epoch.
    """

    id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Resnapshot:
    """The progress of an incremental snapshot. Its files are those that are live at one version, numbered in the order of their paths.

    Attributes:
        id: of the request.
        version: the version whose live files are published; -1 until the stream is at the beginning of a version.
        next: the files before this number are published.
        ordinal: `_change_ordinal` of the next row.
        rows: rows so far.
        where: the condition that selects files; empty: all files.
        ahead_of: a version that removes files; those of them that were to be published later are published before it. -1: none.
        ahead: how many of these are published.
    """

    id: str
    version: int = -1
    next: int = 0
    ordinal: int = 0
    rows: int = 0
    where: str = ""
    ahead_of: int = -1
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Control:
    """The state of a table.

    Attributes:
        paused: the pause; None: not paused.
        snapshot: the incremental snapshot in progress; None: there is none.
        snapshots: how many incremental snapshots have begun.
        recent: ids of the newest requests that the table has answered.
    """

    paused: Pause | None = None
    snapshot: Resnapshot | None = None
    snapshots: int = 0
    recent: tuple[str, ...] = ()

    def remember(self, id: str) -> Control:
        """The same, with the id of a request that is answered."""
        return replace(self, recent=(*self.recent, id)[-RECENT:])

    def begin(self, id: str, where: str) -> Control:
        """The same, with a new incremental snapshot."""
        # The version's own changes have smaller ordinals.
        ordinal = ORDINAL_SPAN * (1 + self.snapshots % _SNAPSHOTS)
        begun = Resnapshot(id, ordinal=ordinal, where=where)
        return replace(self, snapshot=begun, snapshots=self.snapshots + 1).remember(id)

    def document(self) -> dict[str, Any]:
        """The fields for JSON; empty for the state of a table that was never controlled."""
        return {name: value for name, value in asdict(self).items() if value not in (None, 0, ())}

    @classmethod
    def parse(cls, document: object) -> Self:
        """The state in a document. `ValueError` if it is invalid. Unknown fields are ignored."""
        document = _object({"control": document}, "control") or {}
        recent, snapshots = document.get("recent", []), document.get("snapshots", 0)
        if (
            not isinstance(recent, list | tuple)
            or len(recent) > RECENT
            or not all(isinstance(id, str) for id in recent)
        ):
            raise ValueError("control has invalid ids")
        if type(snapshots) is not int or not 0 <= snapshots <= MOST:
            raise ValueError("control has an invalid number of snapshots")
        fields, resnapshot = _object(document, "snapshot"), None
        if fields is not None:
            names = ("version", "next", "ordinal", "rows", "ahead_of", "ahead")
            numbers = {name: _number(fields, name) for name in names}
            resnapshot = Resnapshot(_text(fields, "id"), where=_text(fields, "where"), **numbers)
        fields, pause = _object(document, "paused"), None
        if fields is not None:
            pause = Pause(_text(fields, "id"), _number(fields, "at_ms", LATEST_MS))
        return cls(pause, resnapshot, snapshots, tuple(recent))


EMPTY = Control()
"""The state of a table that was never controlled."""


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")
    return value


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise ValueError(f"{name} is not a text")
    return value


def _number(document: Mapping[str, Any], name: str, most: int = MOST) -> int:
    value = document.get(name)
    if type(value) is not int or not -1 <= value <= most:
        raise ValueError(f"{name} is not a number")
    return value
