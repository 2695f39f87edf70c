"""Leaves updates out that change nothing: pre-image and post-image are side by side, and equal in all columns that are read."""

import numpy as np
import pyarrow as pa

from cdfd.model.columns import CHANGE_COLUMNS
from cdfd.model.plan import ChangePlan
from cdfd.runtime.arrays import array_of
from cdfd.scan.updates.matching import equal_rows
from cdfd.scan.updates.whole_pairs import codes_of_rows, pairs_of


def matched_by_key(plan: ChangePlan) -> bool:
    """Whether a version is refined by a key, which promises rows that differ in a column that you read."""
    return plan.refinement is not None and plan.refinement.tracking is None and not plan.refinement.images


def without_no_ops(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without such updates. Other rows keep their ordinals, so numbers are missing."""
    if rows.num_rows < 2:
        return rows
    before = pairs_of(rows, codes_of_rows(rows))
    if not len(before):
        return rows
    table = pa.Table.from_batches([rows]).select(rows.schema.names[: -len(CHANGE_COLUMNS)])
    equal = before[equal_rows(table, before, table, before + 1)]
    keep = np.ones(rows.num_rows, np.bool_)
    keep[equal] = keep[equal + 1] = False
    return rows if keep.all() else rows.filter(array_of(keep))
