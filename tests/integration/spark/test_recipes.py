"""The script of the recipes, with a local Spark and a broker: each run delivers what is new, once."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from tests.integration.docs.test_recipes import script
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker


def test_each_run_delivers_what_is_new(spark: SparkSession, broker: SharedBroker, name: str, tmp_path: Path) -> None:
    table, topic = tmp_path / "orders", f"{name}.orders"
    spark.sql(f"CREATE TABLE delta.`{table}` (order_id BIGINT) USING delta")
    arguments = [
        f"--uri={table}",
        f"--pipeline={name}",
        f"--checkpoint={tmp_path / 'checkpoint'}",
        "--source=startingVersion=earliest",
        f"--sink=bootstrap_servers={broker.bootstrap_servers}",
        f"--sink=topic={topic}",
        "--sink=key=order_id",
    ]
    for order in (1, 2):
        spark.sql(f"INSERT INTO delta.`{table}` VALUES ({order})")
        script().main(arguments)
        sent = [json.loads(record.value or b"") for record in read_topic(broker.bootstrap_servers, topic)]
        assert sorted(row["order_id"] for row in sent) == list(range(1, order + 1))
