"""Schemas of records without a registry's server: those that were registered, and the records of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from cdfd.encode.avro.format import avro_format
from cdfd.encode.encoding import EncodedRows
from cdfd.encode.formats import MODES
from cdfd.encode.json_schema import json_schema_format
from cdfd.encode.payload import Payload, Shape
from cdfd.encode.protobuf.format import protobuf_format
from cdfd.encode.registered import Kind, Registration, SchemaFormat


class Catalog:
    """The schemas that were registered: each gets the next number.

    Attributes:
        subjects: subject and schema of each, in order.
        first: the number of the first one.
    """

    def __init__(self, first: int = 0) -> None:
        self.subjects: list[tuple[str, str]] = []
        self.kinds: list[Kind] = []
        self.first = first

    def register(self, subject: str, schema: str, kind: Kind) -> int:
        if (subject, schema) not in self.subjects:
            self.subjects.append((subject, schema))
            self.kinds.append(kind)
        return self.first + self.subjects.index((subject, schema))

    def history(self, subject: str) -> list[str]:
        return [schema for name, schema in self.subjects if name == subject]

    def schema(self, number: int) -> str:
        return self.subjects[number - self.first][1]

    @property
    def registration(self) -> Registration:
        return Registration(self)


class NoEncoding:
    """Keeps the payload of rows."""

    headers = ()

    def values(self, payload: Payload) -> pa.Array:
        self.payload = payload
        return pa.nulls(payload.count, pa.large_binary())


def payload_of(batch: pa.RecordBatch, name: str = "shop.orders.Value") -> Payload:
    """The rows of a batch as the flat envelope has them."""
    encoding = NoEncoding()
    EncodedRows(encoding, name)(batch)
    return encoding.payload


AVRO = partial(avro_format, modes=MODES["avro"])
JSON_SCHEMA = partial(json_schema_format, modes=MODES["json_schema"])
PROTOBUF = partial(protobuf_format, modes=MODES["protobuf"])


class BatchEncoder:
    """Encodes batches of one schema, without a registry.

    Args:
        make: of a shape, such as `AVRO`.
        schema: of the batches.
        name: of records.
    """

    def __init__(
        self, make: Callable[[Shape], SchemaFormat], schema: pa.Schema, name: str = "shop.orders.Value"
    ) -> None:
        self._encoding = NoEncoding()
        self._rows = EncodedRows(self._encoding, name)
        self._rows(pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema))
        self.format = make(self._encoding.payload.shape)
        self.schema = self.format.schema

    def rows(self, batch: pa.RecordBatch) -> Any:
        self._rows(batch)
        return self.format.writer.rows(self._encoding.payload, self.format.fields)
