"""The columns of a Parquet file as trees, with the levels at which values exist and are null.

Levels: https://github.com/apache/parquet-format/blob/master/README.md#nested-encoding
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_SAME = {
    ("INT32", "int32"): "four",
    ("INT32", "int16"): "four",
    ("INT32", "int8"): "four",
    ("INT32", "date32[day]"): "four",
    ("INT64", "int64"): "eight",
    ("FLOAT", "float"): "four",
    ("DOUBLE", "double"): "eight",
    ("BOOLEAN", "bool"): "bit",
    ("BYTE_ARRAY", "string"): "strings",
    ("BYTE_ARRAY", "binary"): "strings",
}
"""Kinds of values, by physical type and Arrow's type."""
_UNITS = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True, slots=True)
class Node:
    """A column of a file, or one in it.

    Attributes:
        type: of its array.
        leaf: number of its first leaf in the file.
        kind: of the values of a leaf; empty for others.
        width: bytes of a value of a leaf that is stored as bytes of one length.
        depth: lists around it.
        exists: the least definition level of a value that has a place in the array.
        valid: that of one that is not null.
        nullable: whether values can be null.
        children: of a struct, a list (its items) or a map (its entries).
    """

    type: pa.DataType
    leaf: int
    kind: str
    width: int
    depth: int
    exists: int
    valid: int
    nullable: bool
    children: tuple[Node, ...] = ()

    def leaves(self) -> Iterator[Node]:
        """Its leaves, in order."""
        if self.kind:
            yield self
        for child in self.children:
            yield from child.leaves()


_known: tuple[tuple[Any, pa.Schema, tuple[Node | None, ...]], ...] = ()
"""Columns of the schemas that were read last: files of a table share a schema. Replaced as a whole, so it is thread-safe."""


def nodes_of(parquet: Any, schema: pa.Schema) -> Sequence[Node | None]:
    """The top-level columns of a file; None for those that the kernel does not read. `parquet` is the file's Parquet schema."""
    global _known
    for known, arrow, found in _known:
        if schema is arrow or (schema.equals(arrow) and parquet.equals(known)):
            return found
    nodes, leaf = list[Node | None](), 0
    for field in schema:
        count = _leaf_count(field.type)
        nodes.append(_Tree(parquet, leaf).node(field, 0, 0, 0) if leaf + count <= len(parquet) else None)
        leaf += count
    if leaf != len(parquet):
        nodes = [None] * len(nodes)
    _known = ((parquet, schema, tuple(nodes)), *_known)[:8]
    return _known[0][2]


def _leaf_count(kind: Any) -> int:
    return sum(_leaf_count(kind.field(place).type) for place in range(kind.num_fields)) if kind.num_fields else 1


class _Tree:
    """Makes nodes of the fields of a schema."""

    def __init__(self, parquet: Any, leaf: int) -> None:
        self._parquet = parquet
        self._leaf = leaf

    def node(self, field: Any, depth: int, exists: int, level: int) -> Node | None:
        """The node of a field; None for one that the kernel does not read. `level` is the definition level of what it is in."""
        kind, first, level = field.type, self._leaf, level + field.nullable
        if pa.types.is_struct(kind):
            found = [self.node(kind.field(place), depth, exists, level) for place in range(kind.num_fields)]
        elif pa.types.is_list(kind):
            found = [self.node(kind.value_field, depth + 1, level + 1, level + 1)]
        elif pa.types.is_map(kind):
            entries = pa.field("", pa.struct([kind.key_field, kind.item_field]), nullable=False)
            found = [self.node(entries, depth + 1, level + 1, level + 1)]
        else:
            return self._leaf_node(field, depth, exists, level)
        children = tuple(child for child in found if child is not None)
        if not found or len(children) < len(found):
            return None
        return Node(kind, first, "", 0, depth, exists, level, field.nullable, children)

    def _leaf_node(self, field: Any, depth: int, exists: int, level: int) -> Node | None:
        column = self._parquet.column(self._leaf)
        self._leaf += 1
        kind = _kind_of(column, field.type)
        if not kind or column.max_definition_level != level or column.max_repetition_level != depth:
            return None
        return Node(field.type, self._leaf - 1, kind, column.length, depth, exists, level, field.nullable)


def _kind_of(column: Any, kind: Any) -> str:
    """The kind of a leaf's values; empty for one that the kernel does not read."""
    physical = column.physical_type
    if pa.types.is_timestamp(kind):
        if physical == "INT96":
            return "int96" if kind.unit == "us" else ""
        return "eight" if physical == "INT64" and _UNITS.get(kind.unit, "?") in str(column.logical_type) else ""
    if pa.types.is_decimal128(kind):
        if physical == "FIXED_LEN_BYTE_ARRAY":
            return "decimal_bytes" if 1 <= column.length <= 16 else ""
        return {"INT32": "decimal4", "INT64": "decimal8"}.get(physical, "")
    return _SAME.get((physical, str(kind)), "")
