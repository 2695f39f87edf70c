"""The versions of Spark that cdfd works with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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
