"""The startup script of the shell: a session, a table of three versions, and a few things to try; see `shell.py`."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile

from pyspark.sql import SparkSession

import cdfd.spark
from tests.support.spark.session import SMALL_QUERIES, settings

_told = json.loads(os.environ["CDFD_SHELL"])
folder, table, topic, servers = (_told[name] for name in ("folder", "table", "topic", "servers"))

os.environ["PYSPARK_PYTHON"] = sys.executable
_temporary = tempfile.mkdtemp(prefix="cdfd-spark-")
atexit.register(shutil.rmtree, _temporary, ignore_errors=True)
_builder = SparkSession.builder
for _name, _value in (settings(_temporary) | SMALL_QUERIES).items():
    _builder = _builder.config(_name, _value)
spark = _builder.getOrCreate()
atexit.register(spark.stop)
cdfd.spark.register(spark)

orders = f"delta.`{table}`"
spark.sql(
    f"CREATE TABLE {orders} (order_id BIGINT, customer STRING, amount DECIMAL(10, 2), status STRING) USING delta "
    "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
)
spark.sql(
    f"INSERT INTO {orders} VALUES (1, 'Ada', 15.00, 'new'), (2, 'Grace', 250.00, 'new'), (3, 'Kurt', 7.50, 'new')"
)
spark.sql(f"UPDATE {orders} SET status = 'shipped' WHERE order_id = 2")
spark.sql(f"DELETE FROM {orders} WHERE order_id = 3")

print(
    f"""
A table at {table}, a daemon that delivers its changes, and their topic {topic} at {servers}. Try

  spark.read.format("cdfd").option("startingVersion", 0).load(table).show()

  from cdfd.spark.topics import read_changes, apply_changes
  read_changes(spark, topic, bootstrap_servers=servers, table=table).show()

  spark.sql(f"UPDATE {{orders}} SET amount = amount + 1")        # and read again

  changes = read_changes(spark, topic, bootstrap_servers=servers, table=table, streaming=True)
  copy = f"{{folder}}/copy"
  query = apply_changes(changes, copy, ["order_id"], checkpoint=f"{{copy}}.checkpoint")
  spark.read.format("delta").load(copy).show()                  # and change the table, and read again
"""
)
