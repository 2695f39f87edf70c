"""Keeps the two images of an update in one batch. They are a pair if the ordinal of the post-image follows that of the pre-image."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import CHANGE_ORDINAL, CHANGE_TYPE, CHANGE_TYPES, COMMIT_VERSION, types_from_file
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.image_order import DELETE, INSERT, POST_IMAGE, PRE_IMAGE

Codes = npt.NDArray[np.int8]


def whole_pairs(batches: Iterable[ChangeBatch]) -> Generator[ChangeBatch, None, None]:
    """The same rows. A pre-image that ends a batch waits for the next batch of the version."""
    held: ChangeBatch | None = None
    for found in batches:
        if held is not None and not _continues(held, found):
            yield held
            held = None
        if held is not None:
            found = replace(found, rows=pa.concat_batches([held.rows, found.rows]))
        found, held = _split(found)
        if found.rows.num_rows or held is None:
            yield found
    if held is not None:
        yield held


def without_lone_images(batches: Iterable[ChangeBatch]) -> Generator[ChangeBatch, None, None]:
    """The same rows. Images that are in no pair become deletes and inserts. No pair may be cut by the end of `batches`."""
    for batch in whole_pairs(batches):
        rows = batch.rows
        codes = codes_of_rows(rows)
        if ((codes == PRE_IMAGE) | (codes == POST_IMAGE)).any():
            rows = with_codes(rows, codes_in_pairs(codes, pairs_of(rows, codes)))
        yield replace(batch, rows=rows)


def codes_in_pairs(codes: Codes, pairs: npt.NDArray[np.intp]) -> Codes:
    """The codes of change types, with deletes and inserts for all images but those of pairs, whose pre-images are at `pairs`."""
    found = np.where(codes == PRE_IMAGE, DELETE, np.where(codes == POST_IMAGE, INSERT, codes)).astype(np.int8)
    found[pairs], found[pairs + 1] = PRE_IMAGE, POST_IMAGE
    return found


def with_codes(rows: pa.RecordBatch, codes: Codes) -> pa.RecordBatch:
    """The rows with other change types, as positions in `CHANGE_TYPES`."""
    place = rows.schema.get_field_index(CHANGE_TYPE)
    types = pa.DictionaryArray.from_arrays(array_of(codes), CHANGE_TYPES)
    return rows.set_column(place, rows.schema.field(place), types.cast(rows.schema.field(place).type))


def filled(batches: Iterable[ChangeBatch]) -> Generator[ChangeBatch, None, None]:
    """The batches without empty ones, but for the last one of a version: it says which ordinal follows."""
    empty: ChangeBatch | None = None
    for found in batches:
        if empty is not None and empty.plan.version != found.plan.version:
            yield empty
        empty = None
        if found.rows.num_rows:
            yield found
        else:
            empty = found
    if empty is not None:
        yield empty


def codes_of_rows(rows: pa.RecordBatch) -> Codes:
    """The change types of rows, as positions in `CHANGE_TYPES`."""
    return np.asarray(to_numpy(types_from_file(rows.column(CHANGE_TYPE)).indices))


def pairs_of(rows: pa.RecordBatch, codes: Codes) -> npt.NDArray[np.intp]:
    """The positions of pre-images that are directly followed by their post-images."""
    ordinals, versions = to_numpy(rows.column(CHANGE_ORDINAL)), to_numpy(rows.column(COMMIT_VERSION))
    adjacent = (np.diff(ordinals) == 1) & (np.diff(versions) == 0)
    return np.flatnonzero((codes[:-1] == PRE_IMAGE) & (codes[1:] == POST_IMAGE) & adjacent)


def _continues(held: ChangeBatch, found: ChangeBatch) -> bool:
    return held.plan.version == found.plan.version and held.rows.schema.equals(found.rows.schema)


def _split(found: ChangeBatch) -> tuple[ChangeBatch, ChangeBatch | None]:
    """A batch, and its last row if that is a pre-image."""
    rows, count = found.rows, found.rows.num_rows
    if not count or codes_of_rows(rows.slice(count - 1))[0] != PRE_IMAGE:
        return found, None
    last = replace(found, rows=rows.slice(count - 1))
    return replace(found, rows=rows.slice(0, count - 1), following=found.following - 1), last
