"""VACUUM lists what delta-spark's lists, and leaves tables that delta-spark reads."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cdfd.cli.commands.vacuum import run


async def test_the_same_files_as_spark(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "t"

    async def sql(text: str) -> list[Any]:
        return await asyncio.to_thread(lambda: spark.sql(text.replace("TARGET", f"delta.`{folder}`")).collect())

    await sql(
        """CREATE TABLE TARGET (n INT, day STRING) USING delta PARTITIONED BY (day) TBLPROPERTIES (
        'delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = 'true', 'delta.enableRowTracking' = 'true',
        'delta.deletedFileRetentionDuration' = 'interval 0 hours')"""
    )
    await sql("INSERT INTO TARGET SELECT id, concat('a=', id % 2) FROM range(10)")
    await sql("DELETE FROM TARGET WHERE n = 1")
    await sql("UPDATE TARGET SET n = 20 WHERE n = 2")
    await sql("DELETE FROM TARGET WHERE n = 3")
    await sql("OPTIMIZE TARGET")
    (folder / "orphan").write_bytes(b"1")
    time.sleep(1)
    ours = json.loads(await asyncio.to_thread(run, str(folder), as_json=True))["files"]
    theirs = [row[0].removeprefix(f"file:{folder}/") for row in await sql("VACUUM TARGET DRY RUN")]
    assert any("deletion_vector" in path for path in ours)
    assert any(path.startswith("_change_data/") for path in ours)
    assert sorted(ours) == sorted(path.replace("%253D", "%3D") for path in theirs if (folder / path).is_file())
    rows = await sql("SELECT * FROM TARGET ORDER BY n")
    await asyncio.to_thread(run, str(folder), delete=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert await sql("SELECT * FROM TARGET ORDER BY n") == rows
    await sql("INSERT INTO TARGET VALUES (100, 'a=0')")
    assert len(await sql("SELECT * FROM TARGET")) == len(rows) + 1
