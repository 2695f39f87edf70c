"""A writer of tables whose data files are Trevni."""

import io
from typing import Any
from uuid import uuid4

import pyarrow as pa

import cdfd.trevni as trevni
from cdfd.demo.writer import Action, TableWriter, _File


class TrevniTableWriter(TableWriter):
    """The demo's writer, with another format of files. `ending` is that of their names."""

    ending = ".trv"

    def _metadata(self) -> Action:
        name, fields = super()._metadata()
        return name, {**fields, "format": {"provider": "trevni", "options": {}}}

    async def _add(self, rows: pa.Table, *, data_change: bool = True) -> Action:
        path = f"part-{uuid4()}{self.ending}"
        self._files[path] = _File(path, rows, await self._write(path, rows))
        return self._add_action(self._files[path], data_change=data_change)

    async def _change_data(self, rows: pa.Table) -> list[Action]:
        if not self.feed:
            return []
        path = f"_change_data/cdc-{uuid4()}{self.ending}"
        fields: dict[str, Any] = {"path": path, "partitionValues": {}, "size": await self._write(path, rows)}
        return [("cdc", {**fields, "dataChange": False})]

    async def _write(self, path: str, rows: pa.Table) -> int:
        buffer = io.BytesIO()
        trevni.write_table(rows, buffer)
        await self.storage.put(path, buffer.getvalue())
        return buffer.tell()
