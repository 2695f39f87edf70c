"""`make spark`: the shell has what it says, and leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys

from pyspark.sql import SparkSession

TYPED = """\
spark.read.format("cdfd").option("startingVersion", 0).load(table).count()
from cdfd.spark.topics import read_changes
import time
until = time.monotonic() + 60
while (found := read_changes(spark, topic, bootstrap_servers=servers, table=table).count()) < 6 and time.monotonic() < until: time.sleep(1)

print("the topic has", found, "and the folder is", folder)
"""


def test_what_it_offers(spark: SparkSession) -> None:
    command = [sys.executable, "-m", "tests.spark.shell"]
    done = subprocess.run(command, input=TYPED, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "A table at" in done.stdout
    found = re.search(r"the topic has (\d+) and the folder is (\S+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert found[1] == "6"
    assert subprocess.run(["pgrep", "-f", found[2]], capture_output=True, check=False).returncode == 1
