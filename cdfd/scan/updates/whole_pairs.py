"""Pairs of images: the ordinal of the post-image follows that of the pre-image. Both are in one batch."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.errors import CdfdError
from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import (
    CHANGE_COLUMNS,
    CHANGE_ORDINAL,
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_VERSION,
    change_codes,
)
from cdfd.model.plan import ChangePlan
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.image_order import DELETE, INSERT, POST_IMAGE, PRE_IMAGE, Codes
from cdfd.scan.joined import Scanned
from cdfd.scan.updates.matching import equal_rows


def whole_pairs(batches: Iterable[ChangeBatch]) -> Generator[ChangeBatch, None, None]:
    """The same rows. An update whose images are the last row of a batch and the first row of the next one gets a batch of its own.

    So few rows are copied. The error that ends `batches` is raised after all rows before it.
    """
    waiting: ChangeBatch | None = None
    try:
        for batch in batches:
            if waiting is not None and _are_pair(waiting.rows, batch.rows):
                last = waiting.rows.num_rows - 1
                if last:
                    following = waiting.rows.column(CHANGE_ORDINAL)[last - 1].as_py() + 1
                    yield replace(waiting, rows=waiting.rows.slice(0, last), following=following)
                images = pa.concat_batches([waiting.rows.slice(last), batch.rows.slice(0, 1)])
                yield replace(batch, rows=images, following=waiting.following + 1)
                waiting, batch = None, replace(batch, rows=batch.rows.slice(1))
                if not batch.rows.num_rows:
                    continue
            if waiting is not None:
                yield waiting
            last = str(batch.rows.column(CHANGE_TYPE)[-1]) if batch.rows.num_rows else ""
            waiting = batch if last.startswith("update_pre") else None
            if waiting is None:
                yield batch
    except CdfdError:
        if waiting is not None:
            yield waiting
        raise
    if waiting is not None:
        yield waiting


def with_moves_apart(scanned: Scanned) -> Scanned:
    """The same rows. An update that changes the key is a delete and an insert."""
    first, end = scanned.moved
    column = scanned.rows.column(scanned.rows.num_columns - 1)
    codes = np.array(to_numpy(column.indices))
    codes[first:end] = np.where(codes[first:end] == PRE_IMAGE, DELETE, INSERT)
    return scanned._replace(rows=with_codes(scanned.rows, codes), moved=(0, 0))


def without_lone_images(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows. Images that are in no pair become deletes and inserts."""
    codes = change_codes(rows.column(CHANGE_TYPE))
    if not ((codes == PRE_IMAGE) | (codes == POST_IMAGE)).any():
        return rows
    return with_codes(rows, codes_in_pairs(codes, pairs_of(rows, codes)))


def matched_by_key(plan: ChangePlan) -> bool:
    """Whether a version is refined by a key, which promises rows that differ in a column that you read."""
    return plan.refinement is not None and plan.refinement.tracking is None and not plan.refinement.images


def without_no_ops(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without updates that change nothing: both images are equal in all columns that are read.

    Other rows keep their ordinals, so numbers are missing.
    """
    if rows.num_rows < 2:
        return rows
    before = pairs_of(rows, change_codes(rows.column(CHANGE_TYPE)))
    if not len(before):
        return rows
    table = pa.Table.from_batches([rows]).select(rows.schema.names[: -len(CHANGE_COLUMNS)])
    equal = before[equal_rows(table, before, table, before + 1)]
    keep = np.ones(rows.num_rows, np.bool_)
    keep[equal] = keep[equal + 1] = False
    return rows if keep.all() else rows.filter(array_of(keep))


def codes_in_pairs(codes: Codes, pairs: npt.NDArray[np.intp]) -> Codes:
    """The codes of change types, with deletes and inserts for all images but those of pairs, whose pre-images are at `pairs`."""
    paired = np.where(codes == PRE_IMAGE, DELETE, np.where(codes == POST_IMAGE, INSERT, codes)).astype(np.int8)
    paired[pairs], paired[pairs + 1] = PRE_IMAGE, POST_IMAGE
    return paired


def with_codes(rows: pa.RecordBatch, codes: Codes) -> pa.RecordBatch:
    """The rows with other change types, as positions in `CHANGE_TYPES`."""
    place = rows.schema.get_field_index(CHANGE_TYPE)
    types = pa.DictionaryArray.from_arrays(array_of(codes), CHANGE_TYPES)
    return rows.set_column(place, rows.schema.field(place), types.cast(rows.schema.field(place).type))


def pairs_of(rows: pa.RecordBatch, codes: Codes) -> npt.NDArray[np.intp]:
    """The positions of pre-images that are directly followed by their post-images."""
    pairs = np.flatnonzero((codes[:-1] == PRE_IMAGE) & (codes[1:] == POST_IMAGE))
    if not len(pairs):
        return pairs
    ordinals, versions = to_numpy(rows.column(CHANGE_ORDINAL)), to_numpy(rows.column(COMMIT_VERSION))
    following = (versions[pairs] == versions[pairs + 1]) & (ordinals[pairs + 1] - ordinals[pairs] == 1)
    whole: npt.NDArray[np.intp] = pairs[following]
    return whole


def _are_pair(before: pa.RecordBatch, after: pa.RecordBatch) -> bool:
    """Whether the last row and the first row of two batches are images of one update."""
    if not after.num_rows or not before.schema.equals(after.schema):
        return False
    if not str(after.column(CHANGE_TYPE)[0]).startswith("update_post"):
        return False
    last = before.num_rows - 1
    versions, ordinals = (
        (before.column(name)[last].as_py(), after.column(name)[0].as_py()) for name in (COMMIT_VERSION, CHANGE_ORDINAL)
    )
    return bool(versions[0] == versions[1] and ordinals[0] + 1 == ordinals[1])
