"""The active session of a thread. Spark looks for the formats that Python registers in that session, and not in the one that is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread within the block. A new thread has none."""
    own: Any = getattr(spark, "_jsparkSession", None)
    if own is None:  # sessions of Spark Connect share nothing
        yield
        return
    context: Any = spark.sparkContext
    sessions = getattr(context._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(own)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
