"""Leaves updates out that change nothing: pre-image and post-image are side by side, and equal in all columns that are read."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdfd.changes.batch import ChangeBatch
from cdfd.changes.columns import CHANGE_COLUMNS, CHANGE_ORDINAL, CHANGE_TYPE, types_from_file
from cdfd.changes.image_order import POST_IMAGE, PRE_IMAGE
from cdfd.changes.matching import equal_rows


def without_no_ops(batches: Iterable[ChangeBatch]) -> Generator[ChangeBatch, None, None]:
    """The batches without such updates. Other rows keep their ordinals, so numbers are missing.

    A batch may end between two images. Its last row is then in the next batch of the version.
    """
    held: ChangeBatch | None = None
    for found in batches:
        if held is not None and not _continues(held, found):
            yield held
            held = None
        if held is not None:
            found = replace(found, rows=pa.concat_batches([held.rows, found.rows]))
        found, held = _split(found)
        yield from _dropped(found)
    if held is not None:
        yield held


def _continues(held: ChangeBatch, found: ChangeBatch) -> bool:
    return held.plan.version == found.plan.version and held.rows.schema.equals(found.rows.schema)


def _split(found: ChangeBatch) -> tuple[ChangeBatch, ChangeBatch | None]:
    """A batch, and its last row if that is a pre-image."""
    rows, count = found.rows, found.rows.num_rows
    if not count or _codes(rows.slice(count - 1))[0] != PRE_IMAGE:
        return found, None
    last = replace(found, rows=rows.slice(count - 1))
    return replace(found, rows=rows.slice(0, count - 1), following=found.following - 1), last


def _dropped(found: ChangeBatch) -> Iterator[ChangeBatch]:
    rows = found.rows
    if rows.num_rows > 1:
        codes, ordinals = _codes(rows), rows.column(CHANGE_ORDINAL).to_numpy()
        pairs = (codes[:-1] == PRE_IMAGE) & (codes[1:] == POST_IMAGE) & (np.diff(ordinals) == 1)
        before = np.flatnonzero(pairs)
        if len(before):
            table = pa.Table.from_batches([rows]).select(rows.schema.names[: -len(CHANGE_COLUMNS)])
            equal = before[equal_rows(table, before, table, before + 1)]
            keep = np.ones(rows.num_rows, np.bool_)
            keep[equal] = keep[equal + 1] = False
            rows = rows if keep.all() else rows.filter(pa.array(keep))
    if rows.num_rows:
        yield replace(found, rows=rows)


def _codes(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    return np.asarray(types_from_file(rows.column(CHANGE_TYPE)).indices.to_numpy())
