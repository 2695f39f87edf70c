"""Caches how the columns of a file map to those of the table: files with the same schema share one layout.

A table of many small files has thousands with the same schema, and resolving it takes longer than reading one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdfd.delta.types.schema import TableSchema
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPE
from cdfd.scan.projection import Projection

KNOWN = 8
"""Layouts to cache: for current files, change data files, and files from before the last few schema changes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a file are read.

    Attributes:
        projection: maps the file's columns to the table's.
        schema: of the rows: the table's columns, then `_change_type`.
        views: whether any column of the file is a view, which cannot be filtered (pyarrow 26).
    """

    projection: Projection
    schema: pa.Schema
    views: bool

    @classmethod
    def plan(cls, schema: TableSchema, physical: pa.Schema) -> Layout:
        """The layout of a file with the schema `physical`, for the table's `schema`. Raises what `Projection.plan` does."""
        return cls(
            Projection.plan(schema, physical),
            pa.schema([*schema.arrow, CHANGE_COLUMNS[0]]),
            any("_view" in str(field.type) for field in physical),
        )

    def names(self, change_type: str | None) -> list[str]:
        """Columns of the file to read. They include the change type if it is not known."""
        return [*self.projection.columns, *([CHANGE_TYPE] if change_type is None else [])]


class Layouts:
    """Caches the most recently created layouts. Thread-safe."""

    def __init__(self) -> None:
        # The tuple is replaced as a whole. At worst, two threads plan the same layout.
        self._known: tuple[tuple[TableSchema, pa.Schema, Layout], ...] = ()

    def of(self, schema: TableSchema, physical: pa.Schema) -> Layout:
        """The layout of a file. Files share one if their schemas are equal, including the metadata, which has the column ids.

        Raises:
            CdfdError: see `Projection.plan`.
        """
        for table, file_schema, layout in self._known:
            if physical.equals(file_schema, check_metadata=True) and (table is schema or table == schema):
                return layout
        layout = Layout.plan(schema, physical)
        self._known = ((schema, physical, layout), *self._known)[:KNOWN]
        return layout
