"""The modes of a target: a log of changes, or a copy of the rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from cdfd.delta.protocol import DELETION_VECTORS
from cdfd.delta.types.arrow_types import from_arrow
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema_merge import nullable
from cdfd.model.columns import CHANGE_COLUMNS

CHANGE_FEED: Final = "delta.enableChangeDataFeed"


@dataclass(frozen=True, slots=True)
class Mode:
    """How rows are delivered into a table.

    Attributes:
        name: as in the settings.
        operation: of its versions, for `commitInfo`.
        deletes: whether it deletes rows.
        readers, writers: features that the table needs.
        properties: of the table.
        columns: of a table that was created before any row is known.
    """

    name: str
    operation: str
    deletes: bool = False
    readers: frozenset[str] = frozenset()
    writers: frozenset[str] = frozenset()
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: StructType = field(default_factory=lambda: StructType(()))


CHANGELOG_MODE: Final = Mode("changelog", "WRITE", columns=nullable(from_arrow(pa.schema(CHANGE_COLUMNS))))


def mirror_mode(*, change_feed: bool) -> Mode:
    """A copy of the source's rows. `change_feed`: whether it has a change data feed."""
    properties = {"delta.enableDeletionVectors": "true"} | ({CHANGE_FEED: "true"} if change_feed else {})
    writers = frozenset({"changeDataFeed"}) if change_feed else frozenset[str]()
    return Mode("mirror", "MERGE", True, frozenset({DELETION_VECTORS}), writers, properties)
