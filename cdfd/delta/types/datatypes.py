"""The types a column of a Delta table can have, as immutable values (specification, "Schema Serialization Format")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import pyarrow as pa

PrimitiveName: TypeAlias = Literal[
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "float",
    "double",
    "boolean",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "void",
    "variant",
]

MAX_PRECISION = 38
"""Most digits of a decimal (specification, "Primitive Types")."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type that its name says all about; `timestamp` is an instant, `timestamp_ntz` the reading of a wall clock."""

    name: PrimitiveName

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Decimal:
    """A signed number of at most `precision` decimal digits (1 to 38), `scale` of them right of the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A type of some writers only.

    Attributes:
        name: as it stands in the schema.
        arrow: the Arrow type in which its values are read; None: cdfd cannot read them.
    """

    name: str
    arrow: pa.DataType | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class StructField:
    """A column, top-level or nested. `metadata` is as it stands in the schema: part of equality, not of the hash."""

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class StructType:
    """Fields in order; of a whole table, or of a column."""

    fields: tuple[StructField, ...]

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{child.name}:{child.type}" for child in self.fields) + ">"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A list of elements of one type."""

    element: DataType
    contains_null: bool = True

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """Pairs of keys, never null, and values."""

    key: DataType
    value: DataType
    value_contains_null: bool = True

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


DataType: TypeAlias = Primitive | Decimal | Foreign | StructType | ArrayType | MapType

VOID = Primitive("void")


def is_nested(kind: DataType) -> bool:
    """Whether values of a type have values inside of them, so that they have no order, and partition no table."""
    return isinstance(kind, StructType | ArrayType | MapType)


_Named = TypeVar("_Named")


class ByName(Generic[_Named]):
    """Finds what is called by a name: exactly if there is one, else all that differ only in case, as Spark resolves names."""

    def __init__(self, candidates: Mapping[str, _Named]) -> None:
        self._candidates = candidates
        self._folded: dict[str, list[_Named]] | None = None

    def __call__(self, name: str) -> list[_Named]:
        """All candidates of that name."""
        if name in self._candidates:
            return [self._candidates[name]]
        if self._folded is None:
            self._folded = {}
            for spelling, candidate in self._candidates.items():
                self._folded.setdefault(spelling.lower(), []).append(candidate)
        return self._folded.get(name.lower(), [])


def without_void(struct: StructType) -> StructType:
    """The struct without columns of type void, nor structs of nothing but void.

    They hold nothing but nulls and cannot be in a Parquet file. Spark drops them on read (specification, note in "Primitive Types").
    """
    kept = (
        StructField(child.name, _without_void(child.type), child.nullable, child.metadata)
        for child in struct
        if not _is_void(child.type)
    )
    return StructType(tuple(kept))


def types_in(kind: DataType) -> Iterator[DataType]:
    """A type and all types within it, each before those that it holds."""
    yield kind
    match kind:
        case StructType():
            for child in kind:
                yield from types_in(child.type)
        case ArrayType(element):
            yield from types_in(element)
        case MapType(key, value):
            yield from types_in(key)
            yield from types_in(value)


def fields_in(kind: DataType) -> Iterator[StructField]:
    """All fields within a type, each before those that it holds."""
    for inner in types_in(kind):
        if isinstance(inner, StructType):
            yield from inner


def map_fields(kind: DataType, change: Callable[[StructField], StructField]) -> DataType:
    """A type with all fields within it changed, each before those that it holds."""
    match kind:
        case StructType(fields):
            changed = map(change, fields)
            return StructType(tuple(replace(child, type=map_fields(child.type, change)) for child in changed))
        case ArrayType(element):
            return replace(kind, element=map_fields(element, change))
        case MapType(key, value):
            return replace(kind, key=map_fields(key, change), value=map_fields(value, change))
    return kind


def _without_void(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return without_void(kind)
        case ArrayType(element, contains_null):
            return ArrayType(_without_void(element), contains_null)
        case MapType(key, value, value_contains_null):
            return MapType(_without_void(key), _without_void(value), value_contains_null)
    return kind


def _is_void(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(_is_void(child.type) for child in kind)
    return kind == VOID
