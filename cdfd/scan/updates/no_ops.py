"""Leaves updates out that change nothing: pre-image and post-image are side by side, and equal in all columns that are read."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import CHANGE_COLUMNS
from cdfd.model.plan import ChangePlan
from cdfd.runtime.arrays import array_of
from cdfd.scan.updates.matching import equal_rows
from cdfd.scan.updates.whole_pairs import codes_of_rows, pairs_of, whole_pairs


def in_every_version(_: ChangePlan) -> bool:
    """Whether such updates are left out of a version: always."""
    return True


def where_matched_by_key(plan: ChangePlan) -> bool:
    """Whether they are left out of a version: if it is refined by a key, which promises rows that differ in a column that you read."""
    return plan.refinement is not None and plan.refinement.tracking is None and not plan.refinement.images


def without_no_ops(
    batches: Iterable[ChangeBatch], where: Callable[[ChangePlan], bool] = in_every_version
) -> Generator[ChangeBatch, None, None]:
    """The batches without such updates. Other rows keep their ordinals, so numbers are missing. A batch may be empty then.

    Args:
        batches: in order.
        where: for each plan, whether to leave them out.
    """
    for found in whole_pairs(batches):
        yield _without(found) if where(found.plan) else found


def _without(found: ChangeBatch) -> ChangeBatch:
    rows = found.rows
    if rows.num_rows < 2:
        return found
    before = pairs_of(rows, codes_of_rows(rows))
    if not len(before):
        return found
    table = pa.Table.from_batches([rows]).select(rows.schema.names[: -len(CHANGE_COLUMNS)])
    equal = before[equal_rows(table, before, table, before + 1)]
    keep = np.ones(rows.num_rows, np.bool_)
    keep[equal] = keep[equal + 1] = False
    return found if keep.all() else replace(found, rows=rows.filter(array_of(keep)))
