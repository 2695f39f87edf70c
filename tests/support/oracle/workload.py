"""A seeded life of a Delta table, written by delta-rs: what the oracle tests run against.

Everything random comes from the seed: the same seed gives the same operations on the same rows, whatever the names of
the files are.
"""

import datetime
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

FEED = "delta.enableChangeDataFeed"
EPOCH = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
LOCAL = datetime.datetime.fromisoformat("1999-12-31T23:59:59.000005")

Make = Callable[[random.Random], object]


def _instant(r: random.Random) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=r.randint(-15 * 10**15, 10**15))


def _local(r: random.Random) -> datetime.datetime:
    return _instant(r).replace(tzinfo=None)


# Types of the random columns: the Arrow type, and a function that makes a value.
VALUES: dict[str, tuple[pa.DataType, Make]] = {
    "byte": (pa.int8(), lambda r: r.randint(-128, 127)),
    "short": (pa.int16(), lambda r: r.randint(-(2**15), 2**15 - 1)),
    "integer": (pa.int32(), lambda r: r.randint(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), lambda r: r.choice([-(2**63), 2**63 - 1, r.randint(-9, 9)])),
    "float": (pa.float32(), lambda r: r.choice([float("nan"), float("-inf"), -0.0, r.randint(-99, 99) / 4])),
    "double": (pa.float64(), lambda r: r.choice([float("nan"), float("inf"), 5e-324, r.random()])),
    "boolean": (pa.bool_(), lambda r: r.random() < 0.5),
    "string": (pa.string(), lambda r: r.choice(["", "a", "ü\u2028\n", '"quoted"\\', "x" * 300, "\U0001f600"])),
    "binary": (pa.binary(), lambda r: r.randbytes(r.randint(0, 5))),
    "date": (pa.date32(), lambda r: datetime.date(r.choice([1, 1582, 1969, 2020, 9999]), r.randint(1, 12), 3)),
    "decimal": (pa.decimal128(12, 3), lambda r: Decimal(r.randint(-(10**12) + 1, 10**12 - 1)).scaleb(-3)),
    "wide_decimal": (pa.decimal128(38, 10), lambda r: Decimal(r.randint(-(10**20), 10**20)).scaleb(-10)),
    "timestamp": (pa.timestamp("us", "UTC"), _instant),
    "timestamp_ntz": (pa.timestamp("us"), _local),
    "array": (pa.list_(pa.int64()), lambda r: [r.choice([None, 1, 2]) for _ in range(r.randint(0, 3))]),
    "map": (
        pa.map_(pa.string(), pa.int32()),
        lambda r: [(key, r.choice([None, 1])) for key in "ab"[: r.randint(1, 2)]],
    ),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        lambda r: {"x": r.randint(0, 9), "y": r.choice([None, "y"])},
    ),
}

# Partition columns: values whose folder name is the value itself, and values whose folder names are percent-encoded.
PLAIN: dict[str, tuple[pa.DataType, list[object]]] = {
    "string": (pa.string(), ["a", "b", "c", None]),
    "integer": (pa.int32(), [-1, 0, 7, None]),
    "date": (pa.date32(), [datetime.date(2020, 2, 29), datetime.date(1, 1, 1), None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "decimal": (pa.decimal128(6, 2), [Decimal("1.10"), Decimal("0.05"), None]),  # -7.05 it writes as "-7.-5"
    "double": (pa.float64(), [1.5, -2.25, None]),
}
AWKWARD: dict[str, tuple[pa.DataType, list[object]]] = {
    "string": (pa.string(), ["a b", "c/d", "e=f", "g%25h", "ü", "q'r", "a:b#?", None]),
    "timestamp": (pa.timestamp("us", "UTC"), [EPOCH, EPOCH + datetime.timedelta(microseconds=123456), None]),
    "timestamp_ntz": (pa.timestamp("us"), [LOCAL, None]),
}


@dataclass(frozen=True, slots=True)
class Step:
    """An operation, the version that it produced, and whether the change data feed was on in that version."""

    operation: str
    version: int
    feed: bool


@dataclass(slots=True)
class Workload:
    """One table's life; `steps()` lives it.

    Attributes:
        path: at which the table is created.
        seed: decides everything.
        cdf: whether the change data feed is on at first; it may be switched later.
        awkward: partition values whose folder names delta-rs percent-encodes.
        columns: the columns there are, partition columns among them.
        partitions: names of the partition columns.
        dropped: columns that a restore took away again; no later column has such a name.
    """

    path: Path
    seed: int
    cdf: bool = True
    awkward: bool = False
    columns: dict[str, tuple[pa.DataType, Make]] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    _random: random.Random = field(default_factory=random.Random)
    _next_id: int = 0

    def steps(self, count: int) -> Iterator[Step]:
        """Creates the table, then does `count` random things to it, yielding after each."""
        self._random.seed(self.seed)
        self._declare()
        self._create()
        yield Step("create", 0, self.cdf)
        for _ in range(count):
            operation = self._random.choices(list(OPERATIONS), [weight for weight, _ in OPERATIONS.values()])[0]
            OPERATIONS[operation][1](self)
            yield Step(operation, self.table().version(), self._feed())

    def table(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(str(self.path), version=version)

    def rows(self, ids: list[int], columns: list[str] | None = None) -> pa.Table:
        names = list(self.columns) if columns is None else columns
        arrays = {}
        for name in names:
            kind, make = self.columns[name]
            values = ids if name == "id" else [None if self._random.random() < 0.1 else make(self._random) for _ in ids]
            arrays[name] = pa.array(values, kind)
        return pa.table(arrays)

    def _declare(self) -> None:
        self.columns = {
            "id": (pa.int64(), lambda r: 0),
            "n": (pa.int32(), lambda r: r.randint(0, 9)),
            "s": (pa.string(), lambda r: r.choice("xyz")),
        }
        for kind in self._random.sample(list(VALUES), self._random.randint(2, 6)):
            self.columns[f"c_{kind}"] = VALUES[kind]
        kinds = AWKWARD if self.awkward else PLAIN
        least = 1 if self.awkward else 0
        for kind in self._random.sample(list(kinds), self._random.randint(least, 2)):
            self._partition(f"p_{kind}", *kinds[kind])

    def _partition(self, name: str, kind: pa.DataType, values: list[object]) -> None:
        self.columns[name] = (kind, lambda r: r.choice(values))
        self.partitions.append(name)

    def _create(self) -> None:
        configuration = {FEED: "true"} if self.cdf else {}
        if self._random.random() < 0.5:
            configuration["delta.checkpointInterval"] = str(self._random.randint(2, 5))
        first = self.rows(self._fresh(self._random.randint(0, 60)))
        write_deltalake(str(self.path), first, partition_by=self.partitions or None, configuration=configuration)

    def _fresh(self, count: int) -> list[int]:
        self._next_id += count
        return list(range(self._next_id - count, self._next_id))

    def _feed(self) -> bool:
        return self.table().metadata().configuration.get(FEED) == "true"

    def _new_name(self, kind: str) -> str:
        return f"c{len(self.columns) + len(self.dropped)}_{kind}"

    def _some_ids(self) -> str:
        divisor = self._random.randint(2, 9)
        return f"id % {divisor} = {self._random.randrange(divisor)}"

    def append(self) -> None:
        write_deltalake(str(self.path), self.rows(self._fresh(self._random.randint(1, 40))), mode="append")

    def append_some_columns(self) -> None:
        names = ["id", "n", *self.partitions]
        write_deltalake(str(self.path), self.rows(self._fresh(5), names), mode="append", schema_mode="merge")

    def append_new_column(self) -> None:
        kind = self._random.choice(list(VALUES))
        self.columns[self._new_name(kind)] = VALUES[kind]
        write_deltalake(str(self.path), self.rows(self._fresh(7)), mode="append", schema_mode="merge")

    def add_column(self) -> None:
        name = self._new_name("long")
        self.columns[name] = VALUES["long"]
        self.table().alter.add_columns([Field(name, PrimitiveType("long"))])

    def overwrite(self) -> None:
        write_deltalake(str(self.path), self.rows(self._fresh(self._random.randint(0, 30))), mode="overwrite")

    def overwrite_where(self) -> None:
        ids = self._fresh(self._random.randint(1, 20))
        write_deltalake(
            str(self.path), self.rows(ids), mode="overwrite", predicate=f"{self._some_ids()} or id >= {ids[0]}"
        )

    def update(self) -> None:
        updates = self._random.choice([{"n": "n + 1"}, {"s": "'up'"}, {"s": "s", "n": "n"}, {"n": "id % 100"}])
        self.table().update(updates=updates, predicate=self._random.choice([None, self._some_ids(), "id < 0"]))

    def move(self) -> None:
        """Rows that change partition: their two images are in different files."""
        if self.partitions:
            self.table().update(updates={self._random.choice(self.partitions): "null"}, predicate=self._some_ids())

    def delete(self) -> None:
        predicates = [self._some_ids(), "n > 5", "id < 0", *(f"{name} is null" for name in self.partitions)]
        self.table().delete(self._random.choice(predicates))

    def delete_all(self) -> None:
        self.table().delete()

    def merge(self) -> None:
        fresh = self._fresh(self._random.randint(0, 10))
        known = self._random.sample(range(self._next_id), min(self._next_id, 15))
        merge = self.table().merge(
            self.rows(sorted({*fresh, *known})), "s.id = t.id", source_alias="s", target_alias="t"
        )
        if self._random.random() < 0.4:
            merge = merge.when_matched_delete("t.n > 7")
        if self._random.random() < 0.8:
            merge = merge.when_matched_update_all(self._random.choice([None, "s.n > 3"]))
        if self._random.random() < 0.8:
            merge = merge.when_not_matched_insert_all(self._random.choice([None, "s.id % 2 = 0"]))
        if self._random.random() < 0.4:
            merge = merge.when_not_matched_by_source_update(updates={"s": "'orphan'"}, predicate="t.n = 3")
        if self._random.random() < 0.4:
            merge = merge.when_not_matched_by_source_delete("t.n = 4")
        merge.when_matched_update(updates={"n": "t.n"}, predicate="t.id < 0").execute()

    def compact(self) -> None:
        self.table().optimize.compact()

    def z_order(self) -> None:
        self.table().optimize.z_order(["id"])

    def restore(self) -> None:
        table = self.table()
        if table.version():
            table.restore(self._random.randint(max(0, table.version() - 4), table.version() - 1))
            left = {
                column.name for column in self.table().schema().fields
            }  # the old version's columns are back with its rows
            self.dropped |= self.columns.keys() - left
            self.columns = {name: kind for name, kind in self.columns.items() if name in left}

    def checkpoint(self) -> None:
        self.table().create_checkpoint()

    def compact_log(self) -> None:
        table = self.table()
        if table.version() >= 2:
            table.compact_logs(table.version() - 2, table.version())

    def properties(self) -> None:
        """A commit without files."""
        self.table().alter.set_table_properties({"delta.appendOnly": "false"})

    def switch_feed(self) -> None:
        self.table().alter.set_table_properties({FEED: "false" if self._feed() else "true"})


OPERATIONS: dict[str, tuple[int, Callable[[Workload], None]]] = {
    "append": (4, Workload.append),
    "append_some_columns": (1, Workload.append_some_columns),
    "append_new_column": (1, Workload.append_new_column),
    "add_column": (1, Workload.add_column),
    "overwrite": (1, Workload.overwrite),
    "overwrite_where": (2, Workload.overwrite_where),
    "update": (4, Workload.update),
    "move": (2, Workload.move),
    "delete": (3, Workload.delete),
    "delete_all": (1, Workload.delete_all),
    "merge": (5, Workload.merge),
    "compact": (2, Workload.compact),
    "z_order": (1, Workload.z_order),
    "restore": (2, Workload.restore),
    "checkpoint": (1, Workload.checkpoint),
    "compact_log": (1, Workload.compact_log),
    "properties": (1, Workload.properties),
    "switch_feed": (1, Workload.switch_feed),
}
