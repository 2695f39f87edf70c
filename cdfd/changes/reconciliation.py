"""Change rows of versions with different schemas in one schema, for readers that can have only one.

A column of the later schema is found in the earlier one by its physical name where columns are mapped (a renamed column is the same column),
else by its name; one that was not there yet is null, one that is there no more is left out, one that was narrower is widened. The same holds
inside of structs, lists and maps.

Nothing is converted twice: the files of the earlier version are read with its physical names under the names and in the types of the later.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdfd.changes.columns import change_schema
from cdfd.changes.execute import ChangeBatch
from cdfd.delta.datatypes import ByName
from cdfd.delta.schema import (
    PHYSICAL_NAME,
    ArrayType,
    ColumnMappingMode,
    DataType,
    MapType,
    StructField,
    StructType,
    TableSchema,
    physical_name,
)
from cdfd.delta.schema_change import widens
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
        """In which schema to read the files of a version whose schema is `schema`: those of the target's columns that it has.

        Raises:
            SchemaChangedError: a column's type changed to one that does not hold the old values.
        """
        if schema == self.target:
            return schema
        pairing = _Pairing(schema.mapping, self.target.mapping)
        pairs = pairing.pairs(schema.struct, self.target.struct)
        kept = tuple(pairing.field(source, column, column.name) for source, column in pairs if source is not None)
        stored = set(schema.partition_columns)
        partitions = tuple(column.name for source, column in pairs if source is not None and source.name in stored)
        return TableSchema(StructType(kept), partitions, pairing.mode)

    def conform(self, found: ChangeBatch) -> pa.RecordBatch:
        """A batch that was read as `select` says, with all columns of the target."""
        schema, batch = self.schema, found.rows
        if batch.schema.equals(schema):
            return batch
        positions = [batch.schema.get_field_index(field.name) for field in schema]
        arrays = [
            pa.nulls(batch.num_rows, field.type) if position < 0 else batch.column(position)
            for field, position in zip(schema, positions, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class _Pairing:
    """Which field of an earlier schema is which of a later one."""

    old: ColumnMappingMode
    new: ColumnMappingMode

    @property
    def mode(self) -> ColumnMappingMode:
        """How fields that `field` made are found in the earlier version's files."""
        return ColumnMappingMode.ID if self.old is ColumnMappingMode.ID else ColumnMappingMode.NAME

    def pairs(self, old: StructType, new: StructType) -> list[tuple[StructField | None, StructField]]:
        """Each field of the later struct, with what it was in the earlier one."""
        # Where mapping is switched off again the files are rewritten, and names are all that is left.
        mapped = self.new is not ColumnMappingMode.NONE
        find = ByName({physical_name(child, self.old) if mapped else child.name: child for child in old})
        return [(next(iter(find(physical_name(child, self.new))), None), child) for child in new]

    def field(self, old: StructField, new: StructField, column: str) -> StructField:
        """The later field, to be found where the earlier one was."""
        metadata = {**old.metadata, PHYSICAL_NAME: physical_name(old, self.old)}
        return StructField(new.name, self._type(old.type, new.type, column), new.nullable, metadata)

    def _type(self, old: DataType, new: DataType, column: str) -> DataType:
        match old, new:
            case StructType(), StructType():
                return StructType(
                    tuple(
                        self._absent(child) if source is None else self.field(source, child, f"{column}.{child.name}")
                        for source, child in self.pairs(old, new)
                    )
                )
            case ArrayType(), ArrayType():
                return ArrayType(self._type(old.element, new.element, f"{column}.element"), new.contains_null)
            case MapType(), MapType():
                key = self._type(old.key, new.key, f"{column}.key")
                return MapType(key, self._type(old.value, new.value, f"{column}.value"), new.value_contains_null)
            case _ if old == new or widens(old, new):
                return new
        raise SchemaChangedError(
            f"column {column} is {old!s:.200} at this version and {new!s:.200} in the newest schema asked for",
            hint="Read the versions before and after the change separately, or leave the column out with `columns`",
        )

    def _absent(self, child: StructField) -> StructField:
        """A field that the earlier version does not have; in a struct it is there, full of nulls."""
        # No column is called so: a new field must not take the values of an old one of the same name.
        return StructField(child.name, child.type, child.nullable, {**child.metadata, PHYSICAL_NAME: "\0"})
