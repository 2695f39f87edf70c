"""Schema reconciliation: change rows of versions with different schemas in one schema, for readers that accept only one.

A column of the later schema is found in the earlier one by its physical name where columns are mapped, else by its name. So a renamed column
is the same column. One that is new in the later schema is null, one that was dropped is left out, and a narrower one is widened. The same
holds inside structs, lists and maps. One that RESTORE brings back has its values also where it was dropped: the files still have them, and a
row has to be deleted as it was inserted.

An overwrite can give a column that looks the same a new physical name. It replaces the old one in one version, so it is the same column, too
(see `with_replaced`). A column that was dropped is not replaced by a column that a later version adds.

Nothing is converted twice: files of the earlier version are read by its physical names, directly into the later names and types.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa

from cdfd.delta.types.datatypes import VOID, ByName
from cdfd.delta.types.schema import (
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
from cdfd.delta.types.schema_change import as_returning, common_mapping, pair_fields, widens
from cdfd.errors import SchemaChangedError
from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import change_schema


@dataclass(frozen=True, slots=True)
class SchemaReconciler:
    """Brings batches into the schema `target`.

    Attributes:
        target: the schema of the table's columns.
        constants: by name, the values of columns in batches that do not have them; null for other columns.
        schema: the target's columns, then the change columns.
    """

    target: TableSchema
    constants: Mapping[str, Any] = field(default_factory=dict, compare=False)
    schema: pa.Schema = field(init=False, compare=False, repr=False)
    # Versions share their schema until it changes, and every file asks for it; comparing a wide one takes longer than planning a version.
    _selected: dict[int, tuple[TableSchema, TableSchema]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", change_schema(self.target.arrow))

    def select(self, schema: TableSchema) -> TableSchema:
        """The schema in which to read files of a version with `schema`: those columns of the target that this version has.

        Raises:
            SchemaChangedError: a column's type changed to one that cannot hold the old values.
        """
        selected = self._selected.get(id(schema))
        if selected is None:
            # The schema is kept too, so that no other one gets its id.
            selected = self._selected[id(schema)] = schema, self._select(schema)
        return selected[1]

    def _select(self, schema: TableSchema) -> TableSchema:
        if schema == self.target:
            return schema
        is_traced = any(_REPLACED in child.metadata for child in self.target.struct)
        mode = self.target.mapping if is_traced else common_mapping(schema, self.target)
        matching = _FieldMatching(schema.mapping, mode)
        pairs = matching.match(schema.struct, self.target.struct, is_replaced=False)
        partitioning = set(self.target.partition_columns)
        kept = tuple(
            as_returning(column) if source is None else matching.field(source, column, column.name)
            for source, column in pairs
            if source is not None or (matching.by_physical_name and column.name not in partitioning)
        )
        stored = set(schema.partition_columns)
        partitions = tuple(column.name for source, column in pairs if source is not None and source.name in stored)
        by_id = schema.mapping is ColumnMappingMode.ID
        return TableSchema(StructType(kept), partitions, ColumnMappingMode.ID if by_id else ColumnMappingMode.NAME)

    def reconcile(self, batch: ChangeBatch) -> pa.RecordBatch:
        """A batch that was read in the schema from `select`, with all columns of the target."""
        schema, rows = self.schema, batch.rows
        if rows.schema.equals(schema):
            return rows
        return pa.RecordBatch.from_arrays([self._column(rows, field) for field in schema], schema=schema)

    def _column(self, rows: pa.RecordBatch, field: Any) -> Any:
        position = rows.schema.get_field_index(field.name)
        if position >= 0:
            return rows.column(position)
        constant = self.constants.get(field.name)
        return pa.nulls(rows.num_rows, field.type) if constant is None else pa.repeat(constant, rows.num_rows)


@dataclass(frozen=True, slots=True)
class _FieldMatching:
    old: ColumnMappingMode
    new: ColumnMappingMode

    @property
    def by_physical_name(self) -> bool:
        """Whether a column has its physical name for good: files have it although their version does not, if RESTORE brings it back."""
        return ColumnMappingMode.NONE not in (self.old, self.new)

    def match(
        self, old: StructType, new: StructType, *, is_replaced: bool
    ) -> list[tuple[StructField | None, StructField]]:
        """Each field of the later struct, with its counterpart in the earlier one, if any. `is_replaced`: the later struct replaced it."""
        if is_replaced:
            replaced = pair_fields(old, self.old, new, self.new)
            return [(replaced.get(child.name), child) for child in new]
        # A table whose mapping is switched off rewrites its files, so only names are left to match by.
        map_in_order = self.new is not ColumnMappingMode.NONE
        find = ByName({physical_name(child, self.old) if map_in_order else child.name: child for child in old})
        return [(next((each for name in _names(child, self.new) for each in find(name)), None), child) for child in new]

    def field(self, old: StructField, new: StructField, column: str) -> StructField:
        """The later field, with the physical name of the earlier one."""
        physical = physical_name(old, self.old)
        is_replaced = self.new is not ColumnMappingMode.NONE and physical != physical_name(new, self.new)
        kind = self._type(old.type, new.type, column, is_replaced)
        return StructField(new.name, kind, new.nullable, {**old.metadata, PHYSICAL_NAME: physical})

    def _type(self, old: DataType, new: DataType, column: str, is_replaced: bool) -> DataType:
        match old, new:
            case StructType(), StructType():
                # No column has this physical name: a new field must not read the values of an old field of the same name.
                unknown = {} if self.by_physical_name and not is_replaced else {PHYSICAL_NAME: "\0"}
                return StructType(
                    tuple(
                        as_returning(replace(child, metadata={**child.metadata, **unknown}))
                        if source is None
                        else self.field(source, child, f"{column}.{child.name}")
                        for source, child in self.match(old, new, is_replaced=is_replaced)
                    )
                )
            case ArrayType(), ArrayType():
                element = self._type(old.element, new.element, f"{column}.element", is_replaced)
                return ArrayType(element, new.contains_null)
            case MapType(), MapType():
                key = self._type(old.key, new.key, f"{column}.key", is_replaced)
                value = self._type(old.value, new.value, f"{column}.value", is_replaced)
                return MapType(key, value, new.value_contains_null)
            case _ if old in (new, VOID) or widens(old, new):
                return new
        raise SchemaChangedError(
            f"column {column} has type {old!s:.200} at this version, and cannot be read as {new!s:.200}",
            hint="Read the versions before and after the change separately, or leave the column out with `columns`",
        )


_REPLACED = "cdfd.replaced"
"""Metadata of a column: the physical names of the columns that it replaced."""


def _names(child: StructField, mode: ColumnMappingMode) -> Iterator[str]:
    """The physical names of a column: its own, then those of the columns that it replaced."""
    yield physical_name(child, mode)
    yield from cast(Sequence[str], child.metadata.get(_REPLACED, ()))


def with_replaced(schemas: Sequence[TableSchema]) -> TableSchema:
    """The last of the schemas that a table has had, in order; each of its columns knows the columns that it replaced.

    A column replaces another one if one version has the one and the next version the other, by the same name. Only an overwrite does so.
    """
    target = schemas[-1]
    names = {child.name: [target.physical_name(child)] for child in target.struct}
    for old, new in reversed(list(pairwise(schemas))):
        if ColumnMappingMode.NONE in (old.mapping, new.mapping):
            continue
        physical = {child.name: new.physical_name(child) for child in new.struct}
        for name, before in pair_fields(old.struct, old.mapping, new.struct, new.mapping).items():
            for known in names.values():
                if physical[name] in known and (replaced := old.physical_name(before)) not in known:
                    known.append(replaced)
    fields = tuple(
        replace(child, metadata={**child.metadata, _REPLACED: tuple(names[child.name][1:])})
        if len(names[child.name]) > 1
        else child
        for child in target.struct
    )
    return replace(target, struct=StructType(fields))
