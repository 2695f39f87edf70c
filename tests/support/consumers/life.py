"""The life of a table, from a seed: rows of many types come, change, get other keys and go; a column is added, another one becomes wider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.consumers.images import Images, images
from tests.support.oracle.workload import VALUES

SCALARS = (
    *("byte", "short", "integer", "long", "float", "double", "boolean", "string", "binary", "date"),
    *("decimal", "wide_decimal", "timestamp", "timestamp_ntz"),
)
NESTED = ("array", "map", "struct")
ADDED = "added"
"""The column that is added in the middle of the life, a decimal."""
WIDENED = "widened"
"""The column that is an integer at first and a long later."""
MOVED = 1_000_000
"""The number that an update adds to a key that it changes. A key may change more than once."""

_DECIMAL = pa.decimal128(12, 3)
_PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors", "typeWidening"],
    "writerFeatures": ["deletionVectors", "changeDataFeed", "typeWidening"],
}


class Life:
    """A new table in a folder. Each step commits one version; the same seed has the same steps.

    Args:
        folder: where it is to be.
        seed: decides everything.
        steps: the length of the life. The column is added after a third of it, the other one widened after two thirds.
        feed: whether updates write change data files.
        columns: its columns besides `id`, the key; names of `VALUES`.
    """

    def __init__(
        self, folder: str, seed: int, *, steps: int = 30, feed: bool = True, columns: Sequence[str] = SCALARS
    ) -> None:
        self.steps = steps
        self._columns = {name: VALUES[name] for name in columns}
        self._random = Random(seed)
        self._next = 0
        self._number = 0
        kinds = [(name, kind) for name, (kind, _) in self._columns.items()]
        schema = pa.schema([("id", pa.int64()), *kinds, (WIDENED, pa.int32())])
        properties = {"delta.enableTypeWidening": "true"}
        self._table = TableWriter(LocalStorage(folder, sync=False), schema, feed=feed, properties=properties)
        asyncio.run(self._create())

    @property
    def version(self) -> int:
        """The newest version of the table."""
        return self._table.version

    @property
    def schema(self) -> pa.Schema:
        """Of the rows, as it is now."""
        return self._table.schema

    def images(self) -> Images:
        """The live rows by `id`, as the writer knows them."""
        return images(self._table.rows().to_pylist(maps_as_pydicts="strict"), self.schema)

    def step(self) -> bool:
        """Commit a version. False once the life is over."""
        if self._number == self.steps:
            return False
        self._number += 1
        asyncio.run(self._step())
        return True

    async def _create(self) -> None:
        await self._table.commit("CREATE TABLE", [("protocol", _PROTOCOL), self._table._metadata()])

    async def _step(self) -> None:
        table, random = self._table, self._random
        if self._number == max(1, self.steps // 3):
            await table.add_column(pa.field(ADDED, _DECIMAL))
            return
        if self._number == max(2, 2 * self.steps // 3):
            await self._widen()
            return
        ids = sorted(table.rows()["id"].to_pylist())
        some = random.sample(ids, min(len(ids), random.randint(1, 4)))
        match random.randrange(10):
            case 0 | 1 if some:
                await table.update(_among(some), {"string": pc.scalar(f"updated at {table.version}")})
            case 2 if some:
                await table.update(_among(some[:1]), {"id": pc.field("id") + MOVED})
            case 3 | 4:
                await table.merge(self._rows([*some, *self._fresh(2)]), "id")
            case 5 if len(some) < len(ids):
                await table.delete(_among(some))
            case 6:
                await table.optimize()
            case 7 if some:
                # A row goes, and comes back in the next version with other values.
                await table.delete(_among(some[:1]))
                await table.insert(self._rows(some[:1]))
            case _:
                await table.insert(self._rows(self._fresh(random.randint(1, 4))))

    async def _widen(self) -> None:
        table = self._table
        place = table.schema.get_field_index(WIDENED)
        table.schema = table.schema.set(place, pa.field(WIDENED, pa.int64()))
        kind, metadata = table._metadata()
        struct = json.loads(metadata["schemaString"])
        struct["fields"][place]["metadata"] = {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}
        await table.commit("CHANGE COLUMN", [(kind, {**metadata, "schemaString": json.dumps(struct)})])

    def _fresh(self, count: int) -> range:
        self._next += count
        return range(self._next - count, self._next)

    def _rows(self, ids: Sequence[int]) -> pa.Table:
        """New values for rows; each is null now and then."""
        rows = [self._row(number) for number in ids]
        return pa.Table.from_pylist(rows, schema=self._table.schema)

    def _row(self, number: int) -> Mapping[str, Any]:
        random = self._random
        row: dict[str, Any] = {"id": number}
        for field in self._table.schema:
            if field.name == "id" or random.random() < 0.15:
                continue
            if field.name == WIDENED:
                row[WIDENED] = random.randint(-(2**31), 2**31 - 1) << (31 if field.type == pa.int64() else 0)
            elif field.name == ADDED:
                row[ADDED] = Decimal(random.randint(-(10**6), 10**6)).scaleb(-3)
            else:
                row[field.name] = self._columns[field.name][1](random)
        return row


def _among(ids: Sequence[int]) -> pc.Expression:
    return pc.is_in(pc.field("id"), pa.array(ids, pa.int64()))
