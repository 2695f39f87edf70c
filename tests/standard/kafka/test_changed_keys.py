"""An update that changes the key of a row leaves nothing under the old key, however far behind the daemon is."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.kafka.changed_keys import ROWS, check, updates
from tests.support.kafka.delivering import Delivering
from tests.support.kafka.shared import SharedBroker
from tests.support.sampling import sample

SINK: dict[str, Any] = {"tombstones": "always"}


@pytest.mark.parametrize("form", ["flat", "debezium", "cloudevents"])
@pytest.mark.parametrize("feed", sample([True, False], 1))
async def test_nothing_is_left_under_an_old_key(
    form: str, feed: bool, broker: SharedBroker, name: str, tmp_path: Path
) -> None:
    chance = Random(f"{form}-{feed}")
    uri = str(tmp_path / "rows")
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "s": [str(number) for number in range(ROWS)]})
    write_deltalake(uri, rows, configuration={"delta.enableChangeDataFeed": str(feed).lower()})
    for values, where in updates(chance, 8):
        DeltaTable(uri).update(predicate=where, updates=values)
    await check(Delivering(broker.bootstrap_servers, name, uri, {"key": ["id"]}, SINK | {"format": form}))


async def test_records_of_a_changed_key(broker: SharedBroker, name: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "rows")
    write_deltalake(
        uri, pa.table({"id": [1, 2], "s": ["a", "b"]}), configuration={"delta.enableChangeDataFeed": "true"}
    )
    DeltaTable(uri).update(predicate="id = 1", updates={"id": "101"})
    delivering = Delivering(
        broker.bootstrap_servers, name, uri, {"key": ["id"]}, SINK | {"format": "debezium", "topics": {"partitions": 1}}
    )
    await delivering.deliver(1)
    *_, delete, tombstone, insert = delivering.records()
    old, new = b'{"id":1}', b'{"id":101}'
    assert [(each.key, dict(each.headers)) for each in (delete, tombstone, insert)] == [
        (old, {"__debezium.newkey": new}),
        (old, {}),
        (new, {"__debezium.oldkey": old}),
    ]
    events = [json.loads(each.value or b"null") for each in (delete, tombstone, insert)]
    assert [event and (event["op"], event["before"], event["after"]) for event in events] == [
        ("d", {"id": 1, "s": "a"}, None),
        None,
        ("c", None, {"id": 101, "s": "a"}),
    ]
