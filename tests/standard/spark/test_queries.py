"""`cdfd.spark.engine.queries`: the query of `engine.kind: spark`, as the daemon starts it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from cdfd.config.parser import load
from cdfd.demo.writer import TableWriter
from cdfd.spark.engine import queries
from cdfd.storage.local import LocalStorage
from tests.support.kafka.daemon_process import configure
from tests.support.kafka.node import free_ports
from tests.support.kafka.pipeline import do
from tests.support.lake import SCHEMA


def test_a_query_starts_in_a_thread_that_has_no_active_session(spark: SparkSession, tmp_path: Path) -> None:
    """A daemon has a pool of threads, and starts a query again after a change of the schema. Here no broker listens."""
    do(TableWriter(LocalStorage(tmp_path / "orders", sync=False), SCHEMA).create())
    (port,) = free_ports(1)
    engine = {"kind": "spark", "spark": {"checkpoint": str(tmp_path / "checkpoints")}}
    path = configure(tmp_path, "shop", f"127.0.0.1:{port}", [{"uri": str(tmp_path / "orders")}], engine=engine)
    settings = load(path)
    table = settings.table("orders")
    assert table is not None
    with ThreadPoolExecutor(1) as pool:
        query = pool.submit(queries.start, spark, settings, table, {"config": str(path)}).result(120)
    query.stop()
    assert query.name == "shop.orders"
