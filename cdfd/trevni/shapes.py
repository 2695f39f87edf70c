"""How rows are made of physical columns: a tree whose leaves are columns.

record   its fields                          no column of its own
array    lengths, and then its items         one column; an array of simple items has them in the same column
map      lengths, then keys, then values     one column for the lengths
union    each branch is an array of at most one item; the branch of nulls is nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from cdfd.trevni.values.value_types import ValueType


@dataclass(frozen=True, slots=True)
class Leaf:
    """Values of one column.

    Attributes:
        column: number of the column.
        kind: type of the column's values.
        arrow: Arrow type of the values.
        symbols: of an enum, whose values are their numbers.
    """

    column: int
    kind: ValueType
    arrow: pa.DataType
    symbols: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record: its name in Arrow, and its id where the schema has one."""

    name: str
    shape: Shape
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Fields in order."""

    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Lists. `inner` says that the items' values are in the same column. Maps have `entries`: the shapes of keys and values."""

    column: int
    items: Shape
    inner: bool
    entries: tuple[Shape, Shape] | None = None


@dataclass(frozen=True, slots=True)
class Map:
    """Maps, as lists of keys and values."""

    column: int
    key: Leaf
    value: Shape


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a union, or None's place in it."""

    column: int
    shape: Shape
    inner: bool
    name: str


@dataclass(frozen=True, slots=True)
class Union:
    """One of its branches; None is the branch of nulls."""

    branches: tuple[Branch | None, ...]

    @property
    def optional(self) -> Branch | None:
        """The branch beside the one of nulls, if there are these two. None otherwise."""
        branches = [branch for branch in self.branches if branch is not None]
        return branches[0] if len(branches) == 1 and len(self.branches) == 2 else None


Shape: TypeAlias = Leaf | Record | Array | Map | Union


def arrow_type(shape: Shape) -> pa.DataType:
    """The Arrow type of a shape's values."""
    match shape:
        case Leaf(arrow=arrow):
            return arrow
        case Record(fields):
            return pa.struct([arrow_field(field.name, field.shape, field.id) for field in fields])
        case Array(entries=None, items=items):
            return pa.list_(arrow_field("element", items))
        case Array(entries=(key, value)) | Map(key=key, value=value):
            return pa.map_(arrow_type(key), arrow_field("value", value))
        case Union(branches):
            if shape.optional is not None:
                return arrow_type(shape.optional.shape)
            return pa.dense_union(
                [
                    pa.field("null", pa.null()) if branch is None else arrow_field(branch.name, branch.shape)
                    for branch in branches
                ]
            )


def arrow_field(name: str, shape: Shape, id: int | None = None) -> Any:
    """The Arrow field of a shape. The Parquet reader's key has its id, if it has one."""
    nullable = isinstance(shape, Union) or (isinstance(shape, Leaf) and shape.kind is ValueType.NULL)
    field = pa.field(name, arrow_type(shape), nullable=nullable)
    return field if id is None else field.with_metadata({b"PARQUET:field_id": str(id).encode()})


def width_of(shape: Shape) -> int:
    """Bytes that a value takes besides its text, about, if each of its lists and maps has one item. A null takes as many."""
    match shape:
        case Leaf(arrow=arrow):
            # Arrow's types of texts, and extensions of them, have no width.
            return max(1, arrow.bit_width // 8) if any(matches(arrow) for matches in _WITH_WIDTH) else 4
        case Record(fields):
            return sum(width_of(field.shape) for field in fields)
        case Array(items=items):
            return 4 + width_of(items)
        case Map(key=key, value=value):
            return 4 + width_of(key) + width_of(value)
        case Union(branches):
            return 1 + sum(width_of(branch.shape) for branch in branches if branch is not None)


_WITH_WIDTH = pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary


def widths_of(shape: Shape) -> Iterator[tuple[int, int]]:
    """The physical columns of a shape, each with the bytes that one of its values takes besides a text, about. A null takes as many."""
    match shape:
        case Leaf(column=column):
            yield column, width_of(shape)
        case Record(fields):
            for field in fields:
                yield from widths_of(field.shape)
        case Array(column=column, items=items):
            yield column, 4
            yield from widths_of(items)
        case Map(column=column, key=key, value=value):
            yield column, 4
            yield key.column, width_of(key)
            yield from widths_of(value)
        case Union(branches):
            for branch in branches:
                if branch is not None:
                    yield branch.column, width_of(branch.shape)
                    yield from widths_of(branch.shape)
