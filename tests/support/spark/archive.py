"""The classes that Spark loads, in the form that the JVM has them in memory: a session needs half of the processor's time for its start.

The archive is made once, next to the jars. A JVM of another version or class path ignores it, and starts more slowly.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.cache import ROOT, locked
from tests.support.spark.home import spark_home
from tests.support.spark.installation import JARS, jars, pyspark_version

VERSION = "4.1"
"""Of PySpark. A run starts one session of another version, and making an archive takes longer than one saves."""

_MAKING = "CDFD_TEST_SPARK_CLASSES"
_SECONDS = 600
_SILENT = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""The JVM warns of each class that it cannot archive."""


def options() -> list[str]:
    """Options of a JVM with Spark's class path. The archive is made first where there is none; several processes may ask at once."""
    if place := os.environ.get(_MAKING):
        return [f"-XX:ArchiveClassesAtExit={place}", *_SILENT]
    if pyspark_version() != VERSION:
        return []
    place = _place()
    with locked(JARS / "classes"):
        if not place.exists():
            _make(place)
    return [f"-XX:SharedArchiveFile={place}", "-Xshare:auto", *_SILENT]


def _place() -> Path:
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else shutil.which("java")
    of = [os.path.realpath(java or ""), str(spark_home()), Path(__file__).read_text()]
    key = hashlib.sha256("\n".join(of).encode()).hexdigest()[:16]
    return jars()[0].parents[1] / f"classes-{key}.jsa"


def _make(place: Path) -> None:
    print("archiving the classes that Spark loads, once", file=sys.stderr, flush=True)
    partial = place.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.support.spark.archive"]
    own = {_MAKING: str(partial), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | own, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    partial.rename(place)


def main() -> None:
    """A session that does a little of all that tests do, and writes down its classes at its end."""
    import cdfd.spark
    from tests.support.spark.session import session

    with tempfile.TemporaryDirectory(prefix="cdfd-spark-") as folder, session() as spark:
        cdfd.spark.register(spark)
        table = f"delta.`{folder}/t`"
        spark.sql(
            f"CREATE TABLE {table} (id INT, v STRING) USING delta "
            "TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.enableDeletionVectors = true)"
        )
        spark.sql(f"INSERT INTO {table} SELECT id, 'a' FROM range(10)")
        spark.sql(f"UPDATE {table} SET v = 'b' WHERE id = 2")
        spark.sql(f"DELETE FROM {table} WHERE id = 3")
        spark.sql(
            f"MERGE INTO {table} t USING (SELECT 4 AS id, 'c' AS v) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        theirs = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        ours = spark.read.format("cdfd").option("startingVersion", 0)
        assert theirs.load(f"{folder}/t").count() == ours.load(f"{folder}/t").count()
        rows = spark.readStream.format("cdfd").option("startingVersion", 0).load(f"{folder}/t")
        written = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        assert written.trigger(availableNow=True).start(f"{folder}/rows").awaitTermination(_SECONDS)


if __name__ == "__main__":
    main()
