"""The schema of a table as readers need it: types, column mapping, partitioning.

Everything about schemas is imported from here; the types themselves, their JSON and their Arrow counterparts have rooms
of their own.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

import pyarrow as pa

from cdfd.delta.actions import Metadata
from cdfd.delta.types.arrow_types import from_arrow, to_arrow
from cdfd.delta.types.datatypes import (
    ArrayType,
    ByName,
    DataType,
    Decimal,
    MapType,
    Primitive,
    StructField,
    StructType,
)
from cdfd.delta.types.schema_string import parse, serialize
from cdfd.errors import ConfigError, LogError, MissingColumnError, UnsupportedError

__all__ = [
    "ArrayType",
    "ColumnMappingMode",
    "DataType",
    "Decimal",
    "MapType",
    "Primitive",
    "StructField",
    "StructType",
    "TableSchema",
    "column_id",
    "from_arrow",
    "mapping_mode",
    "parse",
    "physical_name",
    "serialize",
    "to_arrow",
]

MODE = "delta.columnMapping.mode"
PHYSICAL_NAME = "delta.columnMapping.physicalName"
ID = "delta.columnMapping.id"

RETURNING = "cdfd.returning"
"""Metadata of a column that its version does not have, and that a later version brings back."""


class ColumnMappingMode(StrEnum):
    """How columns of the schema are found in data files (specification, "Column Mapping")."""

    NONE = "none"
    NAME = "name"
    ID = "id"


def mapping_mode(configuration: Mapping[str, str]) -> ColumnMappingMode:
    """The mode in a table's configuration.

    Raises:
        UnsupportedError: a mode that is not one of the three.
    """
    mode = configuration.get(MODE, "none")
    try:
        return ColumnMappingMode(mode.lower())
    except ValueError as error:
        raise UnsupportedError(f"unknown {MODE} {mode!r:.80}", hint="cdfd reads none, name and id") from error


def physical_name(child: StructField, mode: ColumnMappingMode) -> str:
    """The name of a field in data files, partition values and statistics.

    A field without a physical name goes by its own, as in Spark: it was there before mapping was switched on.

    Raises:
        LogError: the physical name is not a string.
    """
    if mode is ColumnMappingMode.NONE:
        return child.name
    name = child.metadata.get(PHYSICAL_NAME, child.name)
    if not isinstance(name, str):
        raise LogError(f"column {child.name!r:.200}: {PHYSICAL_NAME} must be a string, not {name!r:.80}")
    return name


def column_id(child: StructField) -> int | None:
    """The id of a field (Parquet's `field_id`), None where it has none.

    Raises:
        LogError: the id is not a whole number of 32 bits.
    """
    number = child.metadata.get(ID)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not -(2**31) <= number < 2**31:
        raise LogError(f"column {child.name!r:.200}: {ID} must be a whole number of 32 bits, not {number!r:.80}")
    return number


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table at one version, by the names users know. A value: equal by content, and it can be pickled.

    Attributes:
        struct: the columns in order, partition columns among them.
        partition_columns: names of the columns that files hold one value of each, in the log; spelled as in `struct`.
        mapping: how the other columns are found in data files.

    Raises:
        LogError: a partition column that is not in the schema, is there twice, or is not of a primitive type.
    """

    struct: StructType
    partition_columns: tuple[str, ...] = ()
    mapping: ColumnMappingMode = ColumnMappingMode.NONE
    _arrow: pa.Schema | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        find = ByName({child.name: child for child in self.struct})
        by_name: dict[str, StructField] = {}
        for name in self.partition_columns:
            child = next(iter(find(name)), None)
            if child is None:
                raise LogError(f"partition column {name!r:.200} is not in the schema")
            if child.name in by_name:
                raise LogError(f"partition column {name!r:.200} is named twice")
            kind = child.type
            if not isinstance(kind, Primitive | Decimal) or kind == Primitive("variant"):
                raise LogError(f"partition column {name!r:.200} is of type {kind!s:.200}, not of a primitive one")
            by_name[child.name] = child
        partitions = list(by_name.values())
        # Frozen: this is how a dataclass sets what it derives.
        object.__setattr__(self, "partition_columns", tuple(each.name for each in partitions))
        try:
            arrow = to_arrow(self.struct)
        except UnsupportedError:
            arrow = None  # the columns that are read may be others
        object.__setattr__(self, "_arrow", arrow)

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the table's rows.

        Raises:
            UnsupportedError: a column is of a type that cdfd cannot read.
        """
        return to_arrow(self.struct) if self._arrow is None else self._arrow

    @classmethod
    def of(cls, metadata: Metadata) -> TableSchema:
        """The schema that a `metaData` action declares.

        Raises:
            LogError, UnsupportedError: as `parse`, `mapping_mode` and the class say.
        """
        return _schema_of(metadata.schema_string, metadata.partition_columns, mapping_mode(metadata.configuration))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, in order."""
        return tuple(child.name for child in self.struct)

    @property
    def data_fields(self) -> tuple[StructField, ...]:
        """The columns that data files hold, in the order of the schema."""
        stored = set(self.partition_columns)
        return tuple(child for child in self.struct if child.name not in stored)

    @property
    def partition_fields(self) -> tuple[StructField, ...]:
        """The columns that the log holds the values of, in the order of `partition_columns`."""
        fields = {child.name: child for child in self.struct}
        return tuple(fields[name] for name in self.partition_columns)

    def find(self, path: Sequence[str]) -> StructField | None:
        """The field at a path of names through structs, None where there is none."""
        struct: DataType = self.struct
        column: StructField | None = None
        for name in path:
            children = ByName({child.name: child for child in struct})(name) if isinstance(struct, StructType) else []
            if not children:
                return None
            column = children[0]
            struct = column.type
        return column

    def physical_name(self, child: StructField) -> str:
        """The name of a field of this table in data files, partition values and statistics."""
        return physical_name(child, self.mapping)

    def select(self, columns: Sequence[str]) -> TableSchema:
        """The schema with only these top-level columns, in the given order; names are case-insensitive.

        For a caller who chooses columns of a schema that is known. `present` is for the schemas that follow.

        Raises:
            ConfigError: a column that is not there (the hint has the nearest and all known names), one named twice, or
                none at all.
        """
        find = ByName({child.name: child for child in self.struct})
        chosen: dict[str, StructField] = {}
        for name in columns:
            child = next(iter(find(name)), None)
            if child is None:
                raise ConfigError(f"there is no column {name!r:.200}", hint=_known_columns(name, self.names))
            if child.name in chosen:
                raise ConfigError(f"column {name!r:.200} is listed twice")
            chosen[child.name] = child
        if not chosen:
            raise ConfigError("`columns` is empty", hint=f"remove `columns` to read all of {', '.join(self.names)}")
        return self._with(tuple(chosen.values()))

    def present(self, columns: Sequence[str]) -> TableSchema:
        """The schema with those of `columns` that it has, in that order; case does not count. Other versions may have the others.

        Raises:
            MissingColumnError: it has none of them.
        """
        find = ByName({child.name: child for child in self.struct})
        chosen = {child.name: child for name in columns for child in find(name)[:1]}
        if not chosen:
            raise MissingColumnError(
                f"the table has none of the columns {', '.join(columns):.500}",
                hint=f"A writer renamed or dropped them; change `columns`. {_known_columns('', self.names)}",
            )
        return self._with(tuple(chosen.values()))

    def _with(self, fields: tuple[StructField, ...]) -> TableSchema:
        names = {child.name for child in fields}
        partitions = tuple(name for name in self.partition_columns if name in names)
        return replace(self, struct=StructType(fields), partition_columns=partitions)


@lru_cache(maxsize=16)
def _schema_of(text: str, partition_columns: tuple[str, ...], mapping: ColumnMappingMode) -> TableSchema:
    """The schema of a table. Each reader of the table needs it several times, and 40,000 columns take 0.2 seconds."""
    return TableSchema(parse(text), partition_columns, mapping)


def _known_columns(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    text = ", ".join(names[:50]) + (", ..." if len(names) > 50 else "")
    return (f"Did you mean {near[0]!r}? " if near else "") + f"The columns are: {text}"
