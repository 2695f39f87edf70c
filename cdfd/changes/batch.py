"""A batch of change rows."""

from dataclasses import dataclass

import pyarrow as pa

from cdfd.changes.plan import ChangePlan
from cdfd.delta.schema import TableSchema


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
