"""The ten types of Trevni values (specification, "Type Names")."""

from enum import StrEnum

import pyarrow as pa


class ValueType(StrEnum):
    """A type's name, as a file has it."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FIXED32 = "fixed32"
    FIXED64 = "fixed64"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"


WIDTHS = {ValueType.FIXED32: 4, ValueType.FLOAT: 4, ValueType.FIXED64: 8, ValueType.DOUBLE: 8}
"""Bytes of a value, of types whose values all have the same number of bytes."""

ARROW = {
    ValueType.NULL: pa.null(),
    ValueType.BOOLEAN: pa.bool_(),
    ValueType.INT: pa.int32(),
    ValueType.LONG: pa.int64(),
    ValueType.FIXED32: pa.int32(),
    ValueType.FIXED64: pa.int64(),
    ValueType.FLOAT: pa.float32(),
    ValueType.DOUBLE: pa.float64(),
    ValueType.STRING: pa.string(),
    ValueType.BYTES: pa.binary(),
}
"""The Arrow type of a column's values."""
