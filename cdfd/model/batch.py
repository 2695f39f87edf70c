"""Batches of change rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from cdfd.delta.types.schema import TableSchema
from cdfd.model.plan import ChangePlan


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Change rows of one version: the table's columns in `schema`, then the change columns.

    Attributes:
        plan: of the version.
        schema: the plan's. Rows that a version deletes while it replaces the schema have the earlier one.
        rows: the rows.
        following: `_change_ordinal` of the version's next row. One number is skipped before a post-image without its pre-image, because
            consecutive numbers mark the images of one update.
    """

    plan: ChangePlan
    schema: TableSchema
    rows: pa.RecordBatch
    following: int = 0


class VersionRows(NamedTuple):
    """The rows of one version in a run.

    Attributes:
        plan: of the version.
        rows: how many.
        following: `_change_ordinal` of the version's next row.
    """

    plan: ChangePlan
    rows: int
    following: int


@dataclass(frozen=True, slots=True)
class ChangeRun:
    """Change rows of one version, or of several versions with one schema.

    Attributes:
        versions: in order, each with its share of the rows.
        schema: as that of a `ChangeBatch`.
        rows: the rows.
    """

    versions: Sequence[VersionRows]
    schema: TableSchema
    rows: pa.RecordBatch

    @classmethod
    def of(cls, batch: ChangeBatch) -> ChangeRun:
        """The rows of a batch."""
        return cls((VersionRows(batch.plan, batch.rows.num_rows, batch.following),), batch.schema, batch.rows)

    def by_version(self) -> Iterator[ChangeBatch]:
        """The same rows, a batch for each version."""
        if len(self.versions) == 1:
            plan, _, following = self.versions[0]
            yield ChangeBatch(plan, self.schema, self.rows, following)
            return
        row = 0
        for plan, count, following in self.versions:
            yield ChangeBatch(plan, self.schema, self.rows.slice(row, count), following)
            row += count
