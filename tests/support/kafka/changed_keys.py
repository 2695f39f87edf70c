"""Updates that change the key of rows, and a consumer that keeps the last record of each key, as a compacted topic does."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import cdfd
from cdfd.deliver.assignment import Engine
from tests.support.kafka.delivering import Delivering, contents
from tests.support.kafka.reading import Record

Update = tuple[dict[str, str], str]
"""Expressions by column, and which rows to update, in SQL that DataFusion and Spark understand."""

ROWS = 12
"""Rows of the table, with the ids from 0 on."""


def updates(chance: Random, count: int) -> Iterator[Update]:
    """Updates that keep ids unique: keys to free ones, chains, swaps, and updates that keep the key."""
    for number in range(count):
        change = chance.choice(["free", "chain", "swap", "value"])
        if change == "free":
            # Ids that no row has had before, of one row or of several.
            yield {"id": f"id + {1000 * (number + 1)}"}, f"id % {chance.randint(2, 5)} = 0"
        elif change == "chain":
            yield {"id": "id + 1", "s": "concat(s, 'c')"}, f"id >= {chance.randint(0, 4)}"
        elif change == "swap":
            yield {"id": "CASE WHEN id % 2 = 0 THEN id + 1 ELSE id - 1 END"}, "id >= 0"
        else:
            yield {"s": "concat(s, 'v')"}, f"id % {chance.randint(1, 4)} = 0"


async def check(delivering: Delivering, engine: Engine | None = None) -> None:
    """Deliver a table version by version, and once more as a backlog: the same records, of which the table's rows are left.

    With an engine, it delivers the backlog.
    """
    uri = delivering.uri
    newest = cdfd.changes(uri).read_all()["_commit_version"].to_numpy().max()
    for version in range(int(newest) + 1):
        await delivering.deliver(version)
    one_by_one = await asyncio.to_thread(delivering.records)
    await delivering.forget()
    await delivering.deliver(int(newest), engine)
    together = await asyncio.to_thread(delivering.since, one_by_one)
    assert contents(together) == contents(one_by_one)
    live = {row["id"]: row["s"] for row in cdfd.snapshot(uri).read_all().to_pylist()}
    assert len(live) == ROWS
    for records in (one_by_one, together):
        assert folded(records) == live
    for record in together:
        event = json.loads(record.value) if record.value else {}
        assert event.get("op") != "u" or event["before"]["id"] == event["after"]["id"]
        if "_change_type" in event or event.get("op") in ("c", "d"):
            _check_headers(event, dict(record.headers))


def folded(records: Sequence[Record]) -> dict[int, str]:
    """The rows that a consumer keeps if it uses keys and values only: a null value deletes the row."""
    rows: dict[int, str] = {}
    for record in records:
        number = json.loads(record.key or b"")["id"]
        if record.value is None:
            rows.pop(number, None)
        else:
            event: dict[str, Any] = json.loads(record.value)
            image = event.get("after") or event.get("before") or event
            rows[number] = image["s"]
    return rows


def _check_headers(event: dict[str, Any], headers: dict[str, bytes]) -> None:
    is_delete = event.get("op") == "d" or event.get("_change_type") == "delete"
    named = {name for name in headers if name.endswith("key")}
    assert (
        named <= {"__cdfd.newkey", "__debezium.newkey"}
        if is_delete
        else named <= {"__cdfd.oldkey", "__debezium.oldkey"}
    )
