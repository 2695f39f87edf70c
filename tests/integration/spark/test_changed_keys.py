"""An update by Spark that changes the key of a row leaves nothing under the old key."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdfd.spark.engine.engine import SparkEngine
from tests.support.kafka.changed_keys import ROWS, check, updates
from tests.support.kafka.delivering import Delivering
from tests.support.kafka.shared import SharedBroker
from tests.support.spark.session import Borrowed


@pytest.mark.parametrize(("form", "on_executors"), [("flat", False), ("debezium", True)])
async def test_nothing_is_left_under_an_old_key(
    form: str, on_executors: bool, spark: SparkSession, broker: SharedBroker, name: str, tmp_path: Path
) -> None:
    uri = str(tmp_path / "rows")
    spark.sql(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, s STRING, p INT) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    spark.sql(f"INSERT INTO delta.`{uri}` SELECT id, string(id), int(id % 2) FROM range({ROWS})")
    chance = Random(form)
    for values, where in updates(chance, 6):
        # Rows that move to another partition have their images in two files.
        moved = values | ({"p": f"int((p + {chance.randint(0, 1)}) % 2)"} if chance.random() < 0.5 else {})
        spark.sql(f"UPDATE delta.`{uri}` SET {', '.join(f'{k} = {v}' for k, v in moved.items())} WHERE {where}")
    engine = SparkEngine(Borrowed(spark)) if on_executors else None
    sink: dict[str, Any] = {"format": form, "tombstones": "always"}
    await check(Delivering(broker.bootstrap_servers, name, uri, {"key": ["id"]}, sink), engine)
