"""A version of a table, planned."""

from __future__ import annotations

from dataclasses import dataclass

from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.schema_change import SchemaChange
from cdfd.model.plan import ChangePlan


@dataclass(frozen=True, slots=True)
class Touched:
    """The files of an incremental snapshot that a version touches, by number, in order.

    Attributes:
        removed: files that it removes.
        returned: files that it adds as they were.
    """

    removed: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """One version, planned.

    Attributes:
        plan: its changes.
        table_id: of positions: `metaData.id` where the reading began, or in force.
        schema_change: the difference to the schema of the version before; None if there is none, or no version before.
        only_txns: the appIds of a version that consists of transaction identifiers alone; empty for other versions.
        digest: hash of its log entry (see `cdfd.log.entry`); None if the entry is gone.
        touched: the files of an incremental snapshot that it removes or brings back; None if there is no incremental snapshot.
        mapped_before: the schema of the version before, if this one switches its column mapping off. Names tell which column is which.
    """

    plan: ChangePlan
    table_id: str
    schema_change: SchemaChange | None = None
    only_txns: tuple[str, ...] = ()
    digest: str | None = None
    touched: Touched | None = None
    mapped_before: TableSchema | None = None
