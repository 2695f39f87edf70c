"""Rows in Protobuf."""

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from cdfd.encode.kinds import Modes, kind_of_shape
from cdfd.encode.payload import Payload, Shape
from cdfd.encode.protobuf.cells import ProtobufWriter
from cdfd.encode.protobuf.schema import ProtobufSchema
from cdfd.trevni.avro_names import legal_path

MODES = Modes("string", "connect", "bytes")
"""Forms of values that Protobuf has types for."""


class ProtobufFormat:
    """Encodes records of one shape. Holds no state of the records: threads may share it.

    Args:
        shape: of the records.
        modes: forms of values.
        earlier: the schemas of the subject, the newest last, of which fields keep their numbers.

    Attributes:
        schema: of the records.
        name: full name of their message in it.

    Raises:
        UnsupportedError: a column is of a type that Protobuf has no form for.
        DataError: one of `earlier` is not a schema of Protobuf.
    """

    kind: Literal["PROTOBUF"] = "PROTOBUF"

    def __init__(self, shape: Shape, modes: Modes = MODES, earlier: Sequence[str] = ()) -> None:
        schema = ProtobufSchema(kind_of_shape(shape, modes), earlier)
        self._writer = ProtobufWriter(modes)
        self._fields = schema.fields
        self.schema = schema.text
        self.name = legal_path(shape.name)

    def rows(self, payload: Payload, prefix: bytes = b"") -> pa.Array:
        """The records as `large_binary`, each behind `prefix`. `DataError` as `ProtobufWriter` says."""
        return self._writer.rows(payload, self._fields, prefix)
