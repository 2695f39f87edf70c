"""Rows in Avro."""

from typing import Literal

import pyarrow as pa

from cdfd.encode.avro.cells import AvroWriter
from cdfd.encode.avro.schema import record_schema
from cdfd.encode.kinds import Modes, kind_of_shape
from cdfd.encode.payload import Payload, Shape
from cdfd.trevni.avro_names import legal_path

MODES = Modes("precise", "micros", "bytes")
"""Forms of values that Avro has names for."""


class AvroFormat:
    """Encodes records of one shape. Holds no state of the records: threads may share it.

    Args:
        shape: of the records.
        modes: forms of values.
        names: whether the schema has Kafka Connect's names of types.

    Attributes:
        schema: of the records, as JSON.
        name: full name of the record in it.

    Raises:
        UnsupportedError: a column is of a type that Avro has no form for.
    """

    kind: Literal["AVRO"] = "AVRO"

    def __init__(self, shape: Shape, modes: Modes = MODES, *, names: bool = True) -> None:
        kind = kind_of_shape(shape, modes)
        self._writer = AvroWriter(modes)
        self._fields = kind.fields
        self.name = legal_path(shape.name)
        self.schema = record_schema(kind, names=names)

    def rows(self, payload: Payload, prefix: bytes = b"") -> pa.Array:
        """The records as `large_binary`, each behind `prefix`. `DataError` as `AvroWriter` says."""
        return self._writer.rows(payload, self._fields, prefix)
