"""Which columns of a version are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cdfd.delta.types.schema import TableSchema

Select = Callable[[TableSchema], TableSchema]
"""Chooses columns: from the schema of a version to the schema to read it in."""


def all_columns(schema: TableSchema) -> TableSchema:
    """All columns."""
    return schema


def named_columns(columns: Sequence[str], schema: TableSchema) -> TableSchema:
    """Those of `columns` that this version has, in that order. A column that was added later or dropped earlier is left out.

    Raises:
        MissingColumnError: this version has none of them.
    """
    return schema.present(columns)
