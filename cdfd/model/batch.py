"""Batches of change rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from cdfd.delta.types.schema import TableSchema
from cdfd.model.plan import ChangePlan


class VersionRows(NamedTuple):
    """The rows of one version in a batch.

    Attributes:
        plan: of the version.
        rows: how many.
        following: `_change_ordinal` of the version's next row.
    """

    plan: ChangePlan
    rows: int
    following: int


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Change rows of one version, or of several versions with one schema: the table's columns in `schema`, then the change columns.

    No batch ends between the images of an update.

    Attributes:
        plan: of the version, or of the last one.
        schema: the plan's. Rows that a version deletes while it replaces the schema have the earlier one.
        rows: the rows.
        following: `_change_ordinal` of the version's next row. One number is skipped before a post-image without its pre-image, because
            consecutive numbers mark the images of one update.
        earlier: versions before the last one, in order, each with its share of the rows.
    """

    plan: ChangePlan
    schema: TableSchema
    rows: pa.RecordBatch
    following: int = 0
    earlier: Sequence[VersionRows] = ()

    def by_version(self) -> Iterator[ChangeBatch]:
        """The same rows, a batch for each version."""
        row = 0
        for plan, count, following in self.earlier:
            yield ChangeBatch(plan, self.schema, self.rows.slice(row, count), following)
            row += count
        yield ChangeBatch(self.plan, self.schema, self.rows.slice(row), self.following) if row else self
