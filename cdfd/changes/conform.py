"""Change rows of versions with different schemas in one schema, for readers that can have only one.

A column of the later schema is found in the earlier one by its physical name where columns are mapped (a renamed column is the same column),
else by its name; one that was not there yet is null, one that is there no more is left out, one that was narrower is widened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from cdfd.changes.columns import change_schema
from cdfd.changes.execute import ChangeBatch
from cdfd.delta.schema import ColumnMappingMode, StructType, TableSchema
from cdfd.errors import SchemaChangedError


@dataclass(frozen=True, slots=True)
class Conformer:
    """Conforms batches to the rows of `target`."""

    target: TableSchema

    @property
    def schema(self) -> pa.Schema:
        """The target's columns, then the change columns."""
        return change_schema(self.target.arrow)

    def select(self, schema: TableSchema) -> TableSchema:
        """The columns of a version's schema that the target takes values from."""
        sources = self._sources(schema)
        wanted = {sources.get(name, name) for name in self.target.names}
        kept = tuple(column for column in schema.struct if column.name in wanted)
        partitions = tuple(name for name in schema.partition_columns if name in wanted)
        return replace(schema, struct=StructType(kept), partition_columns=partitions)

    def conform(self, found: ChangeBatch) -> pa.RecordBatch:
        """A batch in the target schema; the same one where it is in it already.

        Raises:
            SchemaChangedError: a column's type changed to one that does not hold the old values.
        """
        schema, batch = self.schema, found.rows
        if batch.schema.equals(schema):
            return batch
        names = self._sources(found.schema)
        arrays = []
        for field in schema:
            source = batch.schema.get_field_index(names.get(field.name, field.name))
            if source < 0:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            arrays.append(_cast(batch.column(source), field, found.plan.version))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _sources(self, earlier: TableSchema) -> dict[str, str]:
        """Name in the target -> name in the earlier schema, of columns that were renamed in between."""
        if ColumnMappingMode.NONE in (self.target.mapping, earlier.mapping):
            return {}
        known = {earlier.physical_name(column): column.name for column in earlier.struct}
        missing = "\0"  # no column is called so: a new column must not take the values of an old one of the same name
        return {column.name: known.get(self.target.physical_name(column), missing) for column in self.target.struct}


def _cast(column: pa.Array, field: pa.Field, version: int) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise SchemaChangedError(
            f"column {field.name} is {column.type} at this version and {field.type} in the newest schema asked for",
            version=version,
            hint="Read the versions before and after the change separately, or leave the column out with `columns`",
        ) from None
