"""Rows shaped on the way, delivered: a consumer has the rows that satisfy the filter, masked, however often the daemon is killed."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import time
from typing import Any

import pytest

import cdfd
from tests.integration.kafka.test_refine import change
from tests.support.kafka.pipeline import Pipeline
from tests.support.sampling import ALL, sample
from tests.support.tracked_table import TrackedTable, values

KEY = "a key of thirty-two letters, all."
WHERE = "x > 0 OR v = 'a'"


@pytest.mark.parametrize("refine", sample(["rows", "off"], 1))
def test_a_consumer_has_the_filtered_table_under_kills(pipeline: Pipeline, refine: str) -> None:
    (pipeline.folder / "mask.key").write_text(KEY + "\n")
    pipeline.configure(
        {
            "refine": refine,
            "where": WHERE,
            "columns": ["id", {"name": "v", "as": "value"}, "x"],
            "mask": {"id": {"method": "hmac_sha256", "hmac_key_file": str(pipeline.folder / "mask.key")}},
            "headers": {"letter": "v", "number": "x"},
        },
        sink={"topics": {"prefix": f"{pipeline.name}.", "partitions": 1}},
    )
    chance = random.Random(11)
    table = TrackedTable(pipeline.folder / "orders")
    table.insert([values(chance, number) for number in range(30)])
    for _ in range(3 if ALL else 1):
        with pipeline.daemon() as daemon:
            daemon.wait_for("at version")
            for _ in range(4):
                change(table, chance)
                time.sleep(chance.uniform(0, 0.05))
            daemon.kill()
    mask: dict[str, object] = {"id": {"method": "hmac_sha256", "hmac_key": KEY}}
    chosen = ["id", {"name": "v", "as": "value"}, "x"]
    expected: list[dict[str, Any]] = (
        cdfd.changes(str(table.folder), refine=refine, key="id", where=WHERE, columns=chosen, mask=mask)
        .read_all()
        .to_pylist()
    )
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        records = pipeline.read(len(expected))
        daemon.stop()
    actual = [json.loads(record.value) for record in records if record.value is not None]
    assert [place(row) for row in actual] == [place(row) for row in expected]
    last: dict[str, dict[str, Any]] = {}
    for record, row in zip(records, actual, strict=True):
        assert json.loads(record.key) == {"id": row["id"]}
        assert dict(record.headers).get("letter") == (None if row["value"] is None else row["value"].encode())
        assert (dict(record.headers).get("number") is None) == (row["x"] is None)
        last[row["id"]] = row
    kept = {key for key, row in last.items() if row["_change_type"] in ("insert", "update_postimage")}
    live = [row.values for row in table.rows]
    wanted = {hashed(row["id"]) for row in live if (row["x"] or 0) > 0 or row["v"] == "a" or row["x"] != row["x"]}
    assert kept == wanted
    assert len(wanted) < len(live)


def hashed(number: int) -> str:
    return hmac.new(KEY.encode(), str(number).encode(), hashlib.sha256).hexdigest()


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"], row["value"]
