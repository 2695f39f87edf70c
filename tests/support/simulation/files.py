"""The files of writers: Parquet files, log entries with their actions, and checkpoints."""

import io
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.delta import deletion_vector
from cdfd.delta.types import schema as schemas
from tests.support import checkpoint_layout

Row = tuple[int, str, int | None]
"""id, v, and extra where the table has that column by then."""
Action = dict[str, Any]
Change = tuple[Any, ...]
"""A change type, and the row."""

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string()), ("extra", pa.int32())])
TYPE = "_change_type"
PROTOCOL = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "changeDataFeed"],
    }
}


@cache
def parquet(rows: tuple[tuple[Any, ...], ...], width: int, *, typed: bool = False) -> bytes:
    """A file of these rows; a seed finds most of its files here, because names and rows do not depend on it."""
    schema = pa.schema(list(COLUMNS)[:width])
    if typed:
        schema = schema.append(pa.field(TYPE, pa.string()))
        rows = tuple((*row[1 : width + 1], row[0]) for row in rows)
    columns = [pa.array([row[at] for row in rows], schema.field(at).type) for at in range(len(schema))]
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), buffer, compression="none", use_dictionary=False)
    return buffer.getvalue()


@cache
def schema_string(width: int) -> str:
    return schemas.serialize(schemas.from_arrow(pa.schema(list(COLUMNS)[:width])))


@dataclass(frozen=True, slots=True)
class File:
    """A live data file: its rows, and the numbers of those that a deletion vector hides."""

    path: str
    rows: tuple[Row, ...]
    size: int
    hidden: frozenset[int] = frozenset()

    def live(self) -> list[Row]:
        return [row for number, row in enumerate(self.rows) if number not in self.hidden]

    def action(self, name: str, *, data_change: bool = True) -> Action:
        fields: Action = {"path": self.path, "partitionValues": {}, "size": self.size, "dataChange": data_change}
        if name == "add":
            fields |= {"modificationTime": 0, "stats": f'{{"numRecords":{len(self.rows)}}}'}
        else:
            fields |= {"deletionTimestamp": 0, "extendedFileMetadata": True}
        if self.hidden:
            vector = _vector(self.hidden)
            fields["deletionVector"] = vector
        return {name: fields}


@cache
def _vector(hidden: frozenset[int]) -> Action:
    made = deletion_vector.inline(deletion_vector.RowSet.of(sorted(hidden)))
    return {
        "storageType": made.storage_type,
        "pathOrInlineDv": made.path_or_inline,
        "sizeInBytes": made.size_in_bytes,
        "cardinality": made.cardinality,
    }


def checkpoint(rows: list[Action]) -> bytes:
    return _checkpoint(orjson.dumps(rows))


@cache
def _checkpoint(rows: bytes) -> bytes:
    as_pairs = [
        {name: {key: list(value.items()) if key in _MAPS else value for key, value in fields.items()}}
        for action in orjson.loads(rows)
        for name, fields in action.items()
    ]
    for row in as_pairs:
        for fields in row.values():
            if "format" in fields:
                fields["format"] = {"provider": "parquet", "options": []}
    return checkpoint_layout.parquet(
        checkpoint_layout.table(as_pairs, ("protocol", "metaData", "add")), compression="none"
    )


_MAPS = ("partitionValues", "configuration")
