"""Tables with row tracking, written by a model that knows what each version truly changes."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.delta import deletion_vector
from cdfd.delta.roaring import RowSet
from cdfd.delta.types.schema import from_arrow, serialize
from tests.support.fold import Row as Bag
from tests.support.fold import row_of

ROW_ID, ROW_VERSION = "_row-id-col-1", "_row-commit-version-col-1"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.string()),
        ("x", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("a", pa.binary()), ("b", pa.map_(pa.string(), pa.int64()))])),
    ]
)
Values = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A row, and its id and commit version."""

    row_id: int
    version: int
    values: Values


@dataclass
class File:
    """A live file: all rows that were written to it, and those that its deletion vector hides."""

    path: str
    base: int
    version: int
    rows: list[Row]
    size: int
    hidden: frozenset[int] = frozenset()

    @property
    def live(self) -> list[Row]:
        return [row for number, row in enumerate(self.rows) if number not in self.hidden]


@dataclass
class TrackedTable:
    """A table in a folder.

    Attributes:
        folder: its root.
        tracked: whether its files have row ids.
        truth: for each version, the changes that it makes, as a multiset of rows with their change type.
    """

    folder: Path
    tracked: bool = True
    files: list[File] = field(default_factory=list)
    truth: list[Counter[Bag]] = field(default_factory=list)
    _next_id: int = 0
    _written: int = 0
    _extra: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "_delta_log").mkdir(parents=True)
        features = ["rowTracking", "domainMetadata", "deletionVectors"]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": features if self.tracked else ["deletionVectors"],
        }
        self.commit([{"protocol": protocol}, {"metaData": self.metadata()}], [])

    def metadata(self, **more: str) -> dict[str, Any]:
        configuration = {
            "delta.enableRowTracking": str(self.tracked).lower(),
            "delta.rowTracking.materializedRowIdColumnName": ROW_ID,
            "delta.rowTracking.materializedRowCommitVersionColumnName": ROW_VERSION,
        }
        return {
            "id": "tracked",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": serialize(from_arrow(SCHEMA)),
            "partitionColumns": [],
            "configuration": configuration | more,
        }

    @property
    def version(self) -> int:
        """The version that the next commit makes."""
        return len(self.truth)

    @property
    def rows(self) -> list[Row]:
        return [row for file in self.files for row in file.live]

    def contents(self) -> Counter[Bag]:
        return Counter(row_of(row.values) for row in self.rows)

    def commit(self, actions: Sequence[dict[str, Any]], truth: Iterable[tuple[str, Values]], **info: Any) -> None:
        """Write a log entry."""
        entry = [{"commitInfo": {"operation": "TEST", "timestamp": 1} | info}, *actions]
        name = self.folder / "_delta_log" / f"{self.version:020}.json"
        name.write_bytes(b"\n".join(map(orjson.dumps, entry)))
        self.truth.append(Counter(row_of({**values, "_change_type": kind}) for kind, values in truth))

    def write(self, rows: Sequence[Row], data_change: bool = True) -> dict[str, Any]:
        """A new file with these rows: an add. Rows whose commit version is this one, and whose ids follow, are not stored."""
        self._written += 1
        path = f"part-{random.Random(self._written).randrange(10**6):06}-{self._written}.parquet"
        base, version = self._next_id, self.version
        self._next_id += len(rows)
        numbered = [replace(row, row_id=base + number) if row.row_id < 0 else row for number, row in enumerate(rows)]
        columns = pa.Table.from_pylist([row.values for row in numbered], SCHEMA)
        if any(row.row_id >= 0 for row in rows) and self.tracked:
            stored = [old.row_id if old.row_id >= 0 else None for old in rows]
            versions = [row.version if row.version != version else None for row in numbered]
            columns = columns.append_column(ROW_ID, pa.array(stored, pa.int64()))
            columns = columns.append_column(ROW_VERSION, pa.array(versions, pa.int64()))
        pq.write_table(columns, self.folder / path, row_group_size=3)
        size = (self.folder / path).stat().st_size
        file = File(path, base, version, numbered, size)
        self.files.append(file)
        return {"add": self._action(file, data_change) | {"modificationTime": 1}}

    def remove(self, file: File, data_change: bool = True) -> dict[str, Any]:
        self.files.remove(file)
        return {"remove": self._action(file, data_change) | {"deletionTimestamp": 1}}

    def hide(self, file: File, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """The same file with more rows hidden."""
        removed = self.remove(file)
        hidden = replace(file, hidden=file.hidden | frozenset(numbers))
        self.files.append(hidden)
        return [removed, {"add": self._action(hidden, True) | {"modificationTime": 1}}]

    def _action(self, file: File, data_change: bool) -> dict[str, Any]:
        action = {"path": file.path, "partitionValues": {}, "size": file.size, "dataChange": data_change}
        if self.tracked:
            action |= {"baseRowId": file.base, "defaultRowCommitVersion": file.version}
        if file.hidden:
            vector = deletion_vector.inline(RowSet.of(sorted(file.hidden)))
            action["deletionVector"] = {
                "storageType": vector.storage_type,
                "pathOrInlineDv": vector.path_or_inline,
                "sizeInBytes": vector.size_in_bytes,
                "cardinality": vector.cardinality,
            }
        return action

    def insert(self, values: Sequence[Values]) -> None:
        rows = [Row(-1, self.version, row) for row in values]
        self.commit([self.write(rows)], [("insert", row) for row in values])

    def change(
        self,
        chance: random.Random,
        updates: dict[int, Values],
        deletes: set[int],
        inserts: Sequence[Values] = (),
        vectors: bool = False,
        **info: Any,
    ) -> None:
        """Rewrite the files of the rows with these ids (and some others), or hide them by deletion vectors."""
        version, actions, written = self.version, list[dict[str, Any]](), list[Row]()
        truth: list[tuple[str, Values]] = [("insert", row) for row in inserts]
        for file in list(self.files):
            touched = {row.row_id for row in file.live} & (updates.keys() | deletes)
            if not touched and chance.random() < 0.7:
                continue
            for row in file.live:
                if row.row_id in deletes:
                    truth.append(("delete", row.values))
                elif row.row_id in updates:
                    new = updates[row.row_id]
                    truth += [("update_preimage", row.values), ("update_postimage", new)]
                    written.append(Row(row.row_id, version, new))
                elif not vectors:
                    written.append(row)
            if vectors:
                gone = [n for n, row in enumerate(file.rows) if row.row_id in touched and n not in file.hidden]
                actions += self.hide(file, gone) if gone else []
            else:
                actions.append(self.remove(file))
        written += [Row(-1, version, row) for row in inserts]
        chance.shuffle(written)
        while written:
            count = chance.randint(1, max(1, len(written)))
            actions.append(self.write(written[:count]))
            written = written[count:]
        self.commit(actions, truth, **info)


def values(chance: random.Random, number: int) -> Values:
    """A row; some of them are equal but for their id."""
    return {
        "id": number,
        "v": chance.choice(["a", "b", None]),
        "x": chance.choice([1.5, float("nan"), None]),
        "tags": chance.choice([None, [], ["a", None]]),
        "at": chance.choice([None, {"a": b"\0", "b": [("k", 1)]}, {"a": None, "b": []}]),
    }
