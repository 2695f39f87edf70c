"""Refinement, delivered: each true change once however often the daemon is killed, and no record for rows that only moved."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

import cdfd
from tests.support.kafka.pipeline import Pipeline
from tests.support.tracked_table import TrackedTable, values


@pytest.mark.parametrize("refine", ["rows", "key"])
def test_each_true_change_once_under_kills(pipeline: Pipeline, refine: Any) -> None:
    pipeline.configure({"refine": refine}, sink={"topics": {"prefix": f"{pipeline.name}.", "partitions": 1}})
    chance = random.Random(7)
    table = TrackedTable(pipeline.folder / "orders")
    table.insert([values(chance, number) for number in range(30)])
    rewrites = 0
    for _ in range(5):
        with pipeline.daemon() as daemon:
            daemon.wait_for("at version")
            for _ in range(4):
                rewrites += change(table, chance)
                time.sleep(chance.uniform(0, 0.05))
            daemon.kill()
    assert rewrites
    expected = cdfd.changes(str(table.folder), refine=refine, key="id").read_all().to_pylist()
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        records = pipeline.read(len(expected))
        daemon.stop()
    actual = [json.loads(record.value) for record in records if record.value is not None]
    assert [place(row) for row in actual] == [place(row) for row in expected]
    last = {row["id"]: row for row in actual}
    kept = [
        (key, row["v"], row["tags"])
        for key, row in last.items()
        if row["_change_type"] in ("insert", "update_postimage")
    ]
    assert sorted(kept, key=repr) == sorted(
        ((row.values["id"], row.values["v"], row.values["tags"]) for row in table.rows), key=repr
    )
    # The table says itself how many changes it made; its files have many more rows.
    true = sum(count for version in table.truth for count in version.values())
    assert len(actual) <= true < cdfd.changes(str(table.folder), refine="off").read_all().num_rows
    assert len(actual) == true or refine == "key"


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"], row["v"]


def change(table: TrackedTable, chance: random.Random) -> int:
    """One version: a rewrite without a change (1), or an update, deletes and inserts (0)."""
    if chance.random() < 0.3:
        table.change(chance, {}, set())
        return 1
    live = {row.row_id: row for row in table.rows}
    chosen = chance.sample(sorted(live), 6)
    updates = {row: values(chance, live[row].values["id"]) for row in chosen[:4]}
    fresh = [values(chance, 1000 * table.version + number) for number in range(2)]
    table.change(chance, updates, set(chosen[4:]), fresh, vectors=chance.random() < 0.3)
    return 0
