"""The port between envelopes and encodings: the fields of records, and their values in columns.

An envelope (`cdfd.encode.row_records`, `cdfd.encode.debezium`) makes a `Payload` of change rows. An encoding makes bytes of it: one text a
record. Neither knows the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Shape:
    """A struct: of a whole record, or within one.

    Attributes:
        name: full name of its schema, as Kafka Connect has it.
        fields: in order.
    """

    name: str
    fields: tuple[ShapeField, ...]


@dataclass(frozen=True, slots=True)
class ShapeField:
    """A field of a struct.

    Attributes:
        name: of the field.
        type: of its values.
        nullable: whether there can be nulls.
        symbols: the strings that occur, if they are known.
        of_table: whether it is the table's, and not the envelope's own.
    """

    name: str
    type: pa.DataType | Shape
    nullable: bool = True
    symbols: tuple[str, ...] = ()
    of_table: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """The same value in every record: a text, an integer, or none."""

    value: str | int | None


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A struct that is in every record."""

    values: Sequence[Value]


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Structs that are rows of a batch.

    Attributes:
        batch: of all rows; the struct has its columns.
        index: for each record its row.
        nulls: which records have none, or None if all have one. An index beneath a null need not be in range.
    """

    batch: pa.RecordBatch
    index: npt.NDArray[np.signedinteger]
    nulls: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """Texts of numbers.

    Attributes:
        separators: before, between and after the numbers.
        numbers: of each text.
    """

    separators: Sequence[str]
    numbers: Sequence[npt.NDArray[np.signedinteger]]


Value: TypeAlias = "pa.Array | Constant | Group | Images | Joined"
"""The values of a field in all records."""


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """Records.

    Attributes:
        shape: of each. The same object for as long as the shape is the same, so that encodings prepare once.
        values: of its fields.
        count: how many records there are.
    """

    shape: Shape
    values: Sequence[Value]
    count: int
