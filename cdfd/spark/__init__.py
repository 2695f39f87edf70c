"""The Spark integration of cdfd. It needs PySpark: `pip install cdfd[spark]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdfd.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register `format("cdfd")` (a table's changes) and `format("cdfd-kafka")` (a sink for them) in a session, and enable filter pushdown.

    Raises:
        ConfigError: PySpark is missing, or too old.
    """
    try:
        from pyspark.sql.datasource import DataSourceArrowWriter  # noqa: F401  # 4.1 is the first to have it
    except ImportError:
        raise ConfigError("Spark needs PySpark 4.1 or newer", hint="Run: pip install 'cdfd[spark]'") from None
    from cdfd.spark.kafka_sink import CdfdKafka
    from cdfd.spark.source import CdfdSource

    spark.dataSource.register(CdfdSource)
    # Without this setting, Spark does not push filters to Python sources.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(CdfdKafka)
