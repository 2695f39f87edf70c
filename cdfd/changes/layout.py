"""What files of one schema have in common: how their columns become the table's, resolved once and not for every file.

A table of many small files has thousands that are alike, and resolving takes longer than reading one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdfd.changes.columns import CHANGE_COLUMNS, CHANGE_TYPE
from cdfd.changes.projection import Projection
from cdfd.delta.schema import TableSchema

KNOWN = 8
"""Layouts to remember; a table's files of now, its change data files, and those of before the last few changes of its schema."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a file are read.

    Attributes:
        projection: which column is which.
        schema: of what is read: the table's columns, then `_change_type`.
        views: whether the file's columns are, in part, views, which cannot be filtered (pyarrow 26).
    """

    projection: Projection
    schema: pa.Schema
    views: bool

    @classmethod
    def plan(cls, schema: TableSchema, physical: pa.Schema) -> Layout:
        """Of a file whose schema is `physical`, for a table's. Raises what `Projection.plan` does."""
        return cls(
            Projection.plan(schema, physical),
            pa.schema([*schema.arrow, CHANGE_COLUMNS[0]]),
            any("_view" in str(field.type) for field in physical),
        )

    def names(self, change_type: str | None) -> list[str]:
        """Columns of the file to read; the change type is one of them where it is not known."""
        return [*self.projection.columns, *([CHANGE_TYPE] if change_type is None else [])]


class Layouts:
    """Remembers the layouts that were used last. Used from any thread."""

    def __init__(self) -> None:
        # Replaced as a whole: at worst, two threads plan the same one.
        self._known: tuple[tuple[TableSchema, pa.Schema, Layout], ...] = ()

    def of(self, schema: TableSchema, physical: pa.Schema) -> Layout:
        """The layout of a file. Files are alike where their schemas are the same with all metadata, in which the ids of columns are.

        Raises:
            CdfdError: as `Projection.plan` says.
        """
        for table, known, layout in self._known:
            if physical.equals(known, check_metadata=True) and (table is schema or table == schema):
                return layout
        layout = Layout.plan(schema, physical)
        self._known = ((schema, physical, layout), *self._known)[:KNOWN]
        return layout
