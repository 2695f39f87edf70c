"""Converts Spark's change rows to those that the daemon reads. The types are the same, so that their encoding is the same.

In Spark, all fields of a streaming source are nullable, variants are text or structs, times have the session's zone and microseconds, and
change types are text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from cdfd.delta.types.arrow_types import to_arrow
from cdfd.delta.types.schema_string import parse
from cdfd.errors import CdfdError, ConfigError, DataError
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPES, change_codes
from cdfd.runtime.arrays import array_of
from cdfd.spark.records.arrow import conform

_CHANGES: Final = {field.name: field for field in CHANGE_COLUMNS}
_VARIANT: Final = pa.json_(pa.string())


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """Converts Spark's batches to change rows.

    Attributes:
        schema: of the rows: the table's columns, then the change columns.
        sources: for each column, its position in Spark's batches.
    """

    schema: pa.Schema
    sources: tuple[int, ...]

    @classmethod
    def plan(cls, spark_schema: str, table: pa.Schema, columns: Sequence[str] | None = None) -> ChangeRows:
        """Plan the conversion of rows that are written to a sink.

        Args:
            spark_schema: of Spark's rows, as its JSON.
            table: schema of the table. Its types apply, unless Spark's column has another type.
            columns: the table's columns to deliver; None: all.

        Raises:
            ConfigError: these are not change rows.
            UnsupportedError: a column has a type that Delta does not support.
        """
        try:
            user_fields = to_arrow(parse(spark_schema))
        except CdfdError as error:
            raise ConfigError(
                f"columns that cannot be delivered: {error.what}", hint="Cast them, or leave them out"
            ) from error
        places = {name: place for place, name in enumerate(user_fields.names)}
        missing = [name for name in _CHANGES if name not in places]
        if missing:
            raise ConfigError(
                f"these are not change rows: there is no column {', '.join(missing)}",
                hint='Write rows of format("cdfd"), with all four change columns',
            )
        columns_of_table = {field.name.lower(): field for field in table}
        wanted = None if columns is None else {name.lower() for name in columns}
        fields, sources = [], []
        for field in user_fields:
            if field.name not in _CHANGES and (wanted is None or field.name.lower() in wanted):
                column = columns_of_table.get(field.name.lower())
                fields.append(column if column is not None and _bare(field.type) == _bare(column.type) else field)
                sources.append(places[field.name])
        sources += [places[name] for name in _CHANGES]
        return cls(pa.schema([*fields, *_CHANGES.values()]), tuple(sources))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch. Columns with the right type are not copied.

        Raises:
            DataError: a change column or a variant is invalid.
        """
        fields = list(self.schema)
        columns = [batch.column(place) for place in self.sources]
        last = len(fields) - len(_CHANGES)
        types, *numbers = columns[last:]
        if any(column.null_count for column in numbers):
            raise DataError("a change row without version, time or ordinal")
        try:
            arrays = [
                conform(column, field.type, strict=False) for column, field in zip(columns[:last], fields, strict=False)
            ]
            arrays += [pa.DictionaryArray.from_arrays(array_of(change_codes(types)), CHANGE_TYPES)]
            arrays += [column.cast(field.type) for column, field in zip(numbers, fields[last + 1 :], strict=True)]
        except pa.ArrowInvalid as error:
            raise DataError(f"cannot convert rows of Spark: {error}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _bare(kind: Any) -> pa.DataType:
    """A type without nullability, and with variants as text."""
    if kind == _VARIANT:
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _bare(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_type), _bare(kind.item_type))
    return kind
