"""A table with column mapping, one of whose columns is renamed."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.delta.actions import Metadata
from cdfd.delta.write.writing import metadata_fields
from cdfd.demo.writer import Action, TableWriter
from cdfd.runtime.clock import Clock
from cdfd.storage.base import Storage
from tests.support.lake import SCHEMA


async def renamed_table(storage: Storage, clock: Clock, *, removes: bool = False) -> None:
    """Version 1 inserts a row, version 2 renames its column `ssn` to `tax_id`, and version 3 inserts another row.

    Args:
        storage: for the table.
        clock: of the commits.
        removes: whether version 2 deletes the first row, too.
    """
    writer = TableWriter(storage, SCHEMA, clock=clock, table_id="T")

    def metadata(name: str) -> Action:
        columns = (("id", "long", "p0", 1), (name, "string", "p1", 2))
        fields = [
            {
                "name": column,
                "type": kind,
                "nullable": True,
                "metadata": {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number},
            }
            for column, kind, physical, number in columns
        ]
        schema = json.dumps({"type": "struct", "fields": fields})
        properties = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
        return "metaData", metadata_fields(Metadata("T", schema, (), properties))

    async def add(path: str, row: int) -> Action:
        file = io.BytesIO()
        pq.write_table(pa.table({"p0": [row], "p1": [f"secret {row}"]}), file)
        await storage.put(path, file.getvalue())
        size = len(file.getvalue())
        return "add", {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}

    await writer.commit("CREATE", [("protocol", {"minReaderVersion": 2, "minWriterVersion": 5}), metadata("ssn")])
    await writer.commit("WRITE", [await add("first.parquet", 1)])
    removed = {"path": "first.parquet", "deletionTimestamp": 1, "dataChange": True, "partitionValues": {}}
    await writer.commit("RENAME COLUMN", [metadata("tax_id"), *([("remove", removed)] if removes else [])])
    await writer.commit("WRITE", [await add("second.parquet", 2)])
