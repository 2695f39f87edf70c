"""Names of delivery files. A name alone determines the position after the delivery. No I/O.

    00000000000000000012.jsonl                              all of version 12
    00000000000000000012.to.00000000000000000015.jsonl      versions 12, 13 and 14
    00000000000000000012.0000000003.jsonl                   the rest of version 12, from part 3 on
    00000000000000000012-snapshot.0000000000.jsonl          all live rows of version 12
    00000000000000000012.0000000000.to.00000000000000000012.0000000003.4711.jsonl
                                                            version 12 up to part 3, which begins with row 4711

    00000000000000000012.z-resnapshot.00001099511627776.jsonl
                                                            rows of an incremental snapshot after version 12, from that ordinal on

A name begins with the first position (version, phase, part). If the next delivery does not begin at the next version, `.to.` and its
position (version, phase, part, ordinal) follow. Names sort as text in the order of delivery: `-` sorts before `.`, so a version's snapshot
comes before its changes. Rows of an incremental snapshot come after the changes of the version before them, because letters sort after
digits, and `z` after the names of formats.
"""

import re
from dataclasses import dataclass

from cdfd.model.position import Position
from cdfd.runtime.registry import FILE_FORMATS

_NAME = re.compile(
    r"(?P<version>\d{20})(?P<snapshot>-snapshot)?(?:\.(?P<part>\d{10,19}))?"
    r"(?:\.to\.(?P<next_version>\d{20})(?P<next_snapshot>-snapshot)?"
    r"(?:\.(?P<next_part>\d{10,19})\.(?P<next_ordinal>\d{1,19}))?)?"
    r"\.[a-z0-9]+",
    re.ASCII,
)


CHUNK = re.compile(r"\d{20}\.z-resnapshot\.\d{17}\.[a-z0-9]+", re.ASCII)
"""The name of a file with rows of an incremental snapshot."""


@dataclass(frozen=True, slots=True)
class DeliveryName:
    """A delivery, from the name of its file.

    Attributes:
        name: the file's name.
        first: the first position, without its ordinal, which is in the name of the previous delivery.
        following: the position after it.
    """

    name: str
    first: Position
    following: Position


def delivery_name(first: Position, following: Position, suffix: str) -> str:
    """The name of the file with the rows from `first` up to `following`; `suffix` is of the format."""
    name = f"{first.version:020d}"
    if first.phase == "snapshot":
        name += "-snapshot"
    if first.part or first.phase == "snapshot" or following.version == first.version:
        name += f".{first.part:010d}"
    if following != first.after_version():
        name += f".to.{following.version:020d}"
        if following.phase == "snapshot":
            name += "-snapshot"
        if following.part or following.ordinal:
            name += f".{following.part:010d}.{following.ordinal}"
    return name + suffix


def parse_delivery_name(name: str, table_id: str) -> DeliveryName | None:
    """The delivery of a table, from a file's name; None for other files."""
    match = _NAME.fullmatch(name)
    if match is None or not name.endswith(tuple(FILE_FORMATS.load(each).suffix for each in FILE_FORMATS.names())):
        return None
    first = _position(table_id, match["version"], match["snapshot"], match["part"])
    if match["next_version"] is None:
        return DeliveryName(name, first, first.after_version())
    following = _position(
        table_id, match["next_version"], match["next_snapshot"], match["next_part"], match["next_ordinal"]
    )
    return DeliveryName(name, first, following)


def chunk_name(version: int, ordinal: int, suffix: str) -> str:
    """The name of the file with rows of an incremental snapshot, after `version`. `ordinal`: of the first row."""
    return f"{version:020d}.z-resnapshot.{ordinal:017d}{suffix}"


def _position(
    table_id: str, version: str, snapshot: str | None, part: str | None, ordinal: str | None = None
) -> Position:
    return Position(table_id, int(version), int(part or 0), "snapshot" if snapshot else "stream", int(ordinal or 0))
