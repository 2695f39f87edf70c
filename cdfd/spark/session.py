"""Sessions of Spark: the versions that cdfd works with, and the session that is active in a thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cdfd.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = (4, 1)
"""The first version whose Python data sources write Arrow batches."""


def check_versions(spark: SparkSession) -> None:
    """Check this process's PySpark, and the Spark of a session. With Spark Connect, these may differ.

    Raises:
        ConfigError: PySpark is missing, or one of them is too old.
    """
    oldest = ".".join(map(str, OLDEST))
    try:
        import pyspark
    except ImportError:
        raise ConfigError(f"Spark needs PySpark {oldest} or newer", hint="Run: pip install 'cdfd[spark]'") from None
    if _is_old(pyspark.__version__):
        raise ConfigError(
            f"PySpark {pyspark.__version__} is too old: cdfd needs {oldest} or newer",
            hint="Run: pip install 'cdfd[spark]'",
        )
    if _is_old(spark.version):
        raise ConfigError(
            f"the session's Spark {spark.version} is too old: cdfd needs {oldest} or newer",
            hint=f"Use a cluster or a Spark Connect server of Spark {oldest}",
        )


def _is_old(version: str) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) < OLDEST


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread within the block. A new thread has none.

    Spark looks for the formats that Python registers in that session, and not in the one that is called.
    """
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
