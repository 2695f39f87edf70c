"""The Spark integration of cdfd. It needs PySpark: `pip install cdfd[spark]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdfd.spark.active_session import active_session
from cdfd.spark.versions import check_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["register", "run_available"]


def register(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Register `format("cdfd")` (a table's changes) and `format("cdfd-kafka")` (a sink for them) in a session.

    Each session has its own formats, those of `newSession()` too. To register a session again changes nothing.

    Args:
        spark: the session, classic or Connect.
        push_filters: whether the session passes filters of queries to Python sources, so that cdfd skips files. In Spark 4.1, a DataFrame
            keeps the filters of its last query: a later query of it without filters lacks rows. Load a DataFrame for each query then.

    Raises:
        ConfigError: PySpark is missing, or Spark is too old.
    """
    check_versions(spark)
    from cdfd.spark.engine.kafka_sink import CdfdKafka
    from cdfd.spark.source.source import CdfdSource

    if push_filters:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    # Spark 4.1 refuses a name that the thread's active session has, if another session registers it.
    with active_session(spark):
        spark.dataSource.register(CdfdSource)
        spark.dataSource.register(CdfdKafka)


def run_available(writer: DataStreamWriter) -> None:
    """Run a query until it has read the versions that exist now, and end it. The limits of its sources apply to each micro-batch.

    Spark 4.2 does this in one run with `Trigger.AvailableNow`. Spark 4.1 ends such a run after one micro-batch, because its Python sources
    have no admission control. There, the query runs again from its checkpoint, and its last micro-batch may have newer versions too.

    Args:
        writer: of a streaming DataFrame, with a `checkpointLocation`. Its trigger is replaced.

    Raises:
        ConfigError: the query has no checkpoint to continue from.
        StreamingQueryException: the query failed.
    """
    from cdfd.spark.source.available import run_until_read

    run_until_read(writer)
