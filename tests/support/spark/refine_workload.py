"""A random table, with row tracking unless that is off: what the oracles of refinement read.

The seed determines all of it. Its remainders choose deletion vectors, column mapping and partitions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark.workload import REFUSALS, name_of, settings

LENGTH = 7
REFUSED = ("DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE", "DELTA_MERGE_ADD_VOID_COLUMN")


class Life:
    """A table, and what is done to it."""

    def __init__(self, spark: SparkSession, path: Path, seed: int, *, tracking: bool = True, feed: bool = True) -> None:
        self.spark, self.path, self.name = spark, str(path), f"delta.`{path}`"
        self.chance = random.Random(seed)
        self.next = 0
        properties = {"delta.enableChangeDataFeed": str(feed).lower()}
        properties["delta.enableRowTracking"] = str(tracking).lower()
        properties["delta.enableDeletionVectors"] = str(seed % 2 == 0).lower()
        if seed % 3 == 1:
            properties["delta.columnMapping.mode"] = self.chance.choice(["name", "id"])
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        partitioned = "PARTITIONED BY (p)" if seed % 4 > 1 else ""
        spark.sql(
            f"CREATE TABLE {self.name} (id BIGINT, p INT, v STRING, x DOUBLE, n STRUCT<a: ARRAY<INT>, b: BINARY>) "
            f"USING delta {partitioned} TBLPROPERTIES ({listed})"
        )
        self.insert()
        self.insert()

    def rows(self, ids: list[int]) -> str:
        """A query for rows with these ids."""
        values = [
            f"({each}L, {self.chance.randint(0, 1)}, {self.chance.choice(['NULL', repr('a'), repr('b')])}, "
            f"{self.chance.choice(['1.5D', 'double(' + repr('NaN') + ')', 'NULL'])}, "
            f"named_struct('a', array({self.chance.choice(['1', '1, NULL', '2'])}), 'b', {self.chance.choice(['X' + repr('00'), 'NULL'])}))"
            for each in ids
        ]
        return f"SELECT * FROM VALUES {', '.join(values)} AS t(id, p, v, x, n)"

    def fresh(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    def known(self) -> list[int]:
        return self.chance.sample(range(self.next), min(self.next, self.chance.randint(1, 6)))

    def where(self) -> str:
        return self.chance.choice(
            [f"id IN ({', '.join(map(str, self.known()))})", "v = 'a'", f"id < {self.next // 2}", "p = 1"]
        )

    def sql(self, statement: str) -> None:
        self.spark.sql(statement)

    def insert(self) -> None:
        self.sql(f"INSERT INTO {self.name} (id, p, v, x, n) {self.rows(self.fresh(self.chance.randint(1, 8)))}")

    def update(self) -> None:
        change = self.chance.choice(["v = 'z'", "x = x", "p = 1 - p", "id = id", "n = NULL", "v = concat(v, 'c')"])
        self.sql(f"UPDATE {self.name} SET {change} WHERE {self.where()}")

    def delete(self) -> None:
        self.sql(f"DELETE FROM {self.name} WHERE {self.where()}")

    def merge(self) -> None:
        matched = self.chance.choice(["UPDATE SET v = s.v, x = s.x", "UPDATE SET p = s.p", "DELETE"])
        ids = sorted({*self.known(), *self.fresh(2)})
        self.sql(
            f"MERGE INTO {self.name} t USING ({self.rows(ids)}) s ON t.id = s.id WHEN MATCHED AND t.id % 2 = 0 THEN {matched} "
            "WHEN NOT MATCHED THEN INSERT (id, p, v, x, n) VALUES (s.id, s.p, s.v, s.x, s.n)"
        )

    def optimize(self) -> None:
        self.sql(f"OPTIMIZE {self.name}")

    def purge(self) -> None:
        self.sql(f"REORG TABLE {self.name} APPLY (PURGE)")

    def restore(self) -> None:
        self.sql(f"RESTORE TABLE {self.name} TO VERSION AS OF {self.chance.randint(1, self.version())}")

    def overwrite(self) -> None:
        self.spark.sql(self.rows(self.fresh(3))).write.format("delta").mode("overwrite").save(self.path)

    def replace_where(self) -> None:
        rows = self.spark.sql(f"SELECT * FROM ({self.rows(self.fresh(3))}) WHERE p = 1")
        rows.write.format("delta").mode("overwrite").option("replaceWhere", "p = 1").save(self.path)

    def evolve(self) -> None:
        with settings(self.spark, {"spark.databricks.delta.schema.autoMerge.enabled": "true"}):
            self.sql(
                f"MERGE INTO {self.name} t USING (SELECT *, id AS c{self.version()} FROM ({self.rows(self.known())})) s "
                "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

    def add_column(self) -> None:
        self.sql(f"ALTER TABLE {self.name} ADD COLUMN d{self.version()} STRING")

    def version(self) -> int:
        return max(int(entry.stem) for entry in Path(self.path, "_delta_log").glob("*.json") if entry.stem.isdigit())

    def has_change_data(self, version: int) -> bool:
        entry = Path(self.path, "_delta_log", f"{version:020}.json").read_text(encoding="utf-8")
        return any("cdc" in json.loads(line) for line in entry.splitlines())

    def live(self) -> None:
        operations: dict[Callable[[], None], int] = {
            **dict.fromkeys((self.update, self.merge, self.delete), 4),
            **dict.fromkeys((self.optimize, self.purge, self.restore), 2),
            **dict.fromkeys((self.overwrite, self.replace_where, self.evolve, self.add_column, self.insert), 1),
        }
        for operation in self.chance.choices(list(operations), list(operations.values()), k=LENGTH):
            try:
                operation()
            except REFUSALS as error:
                # Some restores and merges are refused: nothing is committed then.
                if name_of(error) not in REFUSED and "RESTORE" not in name_of(error):
                    raise
