"""Applies a shape to change rows, batch by batch.

| update's images           | becomes                  |
|---------------------------|--------------------------|
| both satisfy the filter   | the update               |
| only the pre-image does   | a delete                 |
| only the post-image does  | an insert                |
| neither                   | nothing                  |
| apart from each other     | a delete, or an insert   |

Rows keep their ordinals, so numbers are missing. Readers with another filter agree about the numbers of rows if they read the same files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cdfd.delta.types.schema import TableSchema
from cdfd.errors import CdfdError
from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPE, CHANGE_TYPES, change_codes
from cdfd.plan.shape.compiler import Filter, compile_filter
from cdfd.plan.shape.masks import Apply
from cdfd.plan.shape.shape import Shape
from cdfd.runtime.arrays import array_of
from cdfd.scan.image_order import POST_IMAGE, PRE_IMAGE
from cdfd.scan.updates.whole_pairs import codes_in_pairs, pairs_of, with_codes, without_no_ops


@dataclass(frozen=True, slots=True)
class _Columns:
    """The published columns of rows of one schema: their positions in the rows, and their masks."""

    source: pa.Schema
    filter: Filter | None
    published: TableSchema
    schema: pa.Schema
    columns: tuple[tuple[int, Apply | None], ...]


@dataclass(slots=True)
class RowShaper:
    """Applies a shape. It keeps what it found out about the last schema.

    Attributes:
        shape: the shape.
    """

    shape: Shape
    _cache: list[tuple[TableSchema, _Columns]] = field(default_factory=list)

    def shape_batch(self, batch: ChangeBatch, *, drop_unchanged: bool = False) -> ChangeBatch:
        """A batch in that shape. It may be empty then.

        Args:
            batch: of whole pairs.
            drop_unchanged: whether updates whose published images are equal are left out. Without their pre-images, nothing tells them.

        Raises:
            CdfdError: the filter or a mask does not fit a version's columns; it names the version.
        """
        try:
            columns = self._columns(batch.schema, batch.rows.schema)
            rows = batch.rows
            if rows.num_rows and columns.filter is not None:
                rows = _filter(rows, columns.filter)
            arrays = [
                rows.column(place) if mask is None else mask(rows.column(place)) for place, mask in columns.columns
            ]
            rows = pa.RecordBatch.from_arrays(arrays, schema=columns.schema)
            if drop_unchanged:
                rows = without_no_ops(rows)
            if rows.num_rows and self.shape.excluded:
                codes = [place for place, name in enumerate(CHANGE_TYPES.to_pylist()) if name in self.shape.excluded]
                rows = rows.filter(array_of(~np.isin(change_codes(rows.column(CHANGE_TYPE)), codes)))
            return replace(batch, schema=columns.published, rows=rows)
        except CdfdError as error:
            raise error.within(version=batch.plan.version) from None

    def _columns(self, schema: TableSchema, rows: pa.Schema) -> _Columns:
        for cached, columns in self._cache:
            if (cached is schema or cached == schema) and columns.source.equals(rows):
                return columns
        sources, fields, published = [], [], self.shape.published(schema)
        for (child, name, mask), column in zip(self.shape.columns_of(schema), published.arrow, strict=True):
            sources.append((rows.get_field_index(child.name), None if mask is None else mask.applied(child)))
            assert name == column.name
            fields.append(column)
        first = len(rows) - len(CHANGE_COLUMNS)
        sources += [(position, None) for position in range(first, len(rows))]
        where = None if self.shape.where is None else compile_filter(self.shape.where, schema)
        columns = _Columns(rows, where, published, pa.schema([*fields, *CHANGE_COLUMNS]), tuple(sources))
        self._cache = [(schema, columns), *self._cache][:2]
        return columns


def _filter(rows: pa.RecordBatch, where: Filter) -> pa.RecordBatch:
    """The rows that satisfy a filter, with the change types that they have for a reader who sees no others."""
    mask, codes = where(rows), change_codes(rows.column(CHANGE_TYPE))
    if not ((codes == PRE_IMAGE) | (codes == POST_IMAGE)).any():
        return rows if mask.all() else rows.filter(array_of(mask))
    before = pairs_of(rows, codes)
    whole = before[mask[before] & mask[before + 1]]
    corrected = codes_in_pairs(codes, whole)
    if not (corrected == codes).all():
        rows = with_codes(rows, corrected)
    return rows if mask.all() else rows.filter(array_of(mask))
