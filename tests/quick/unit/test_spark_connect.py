"""`engine.spark.remote`: a server of Spark Connect gets no setting that it would ignore, and needs packages that an error names."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cdfd.config.parser import parse
from cdfd.config.problems import ConfigProblems
from cdfd.config.settings import Settings

TOKEN = "t0ken-of-this-test"
# A process of its own: PySpark keeps the choice between classic and Connect in the environment.
START = """
import sys

sys.modules["grpc"] = None  # as where it is not installed
from cdfd.config.sections import SparkEngine
from cdfd.errors import ConfigError
from cdfd.spark.engine.sessions import Sessions

try:
    Sessions(SparkEngine.model_validate({"remote": sys.argv[1]}), "test").get()
except ConfigError as error:
    print(error)
"""


def settings(kind: str, **spark: object) -> Settings:
    document = {
        "pipeline": "p",
        "tables": [{"uri": "lake/orders"}],
        "sink": {"kind": "kafka", "bootstrap_servers": "a:1"},
        "engine": {"kind": kind, "spark": {"checkpoint": "/checkpoints", **spark}},
    }
    return parse(json.dumps(document), {})


@pytest.mark.parametrize("kind", ["spark", "auto", "embedded"])
@pytest.mark.parametrize("name", ["spark.executor.memory", "spark.dynamicAllocation.enabled", "spark.task.maxFailures"])
def test_a_setting_that_a_server_ignores(kind: str, name: str) -> None:
    """With any engine: a backfill chooses its own."""
    with pytest.raises(
        ConfigProblems, match="does not take this from its clients; set it where the server starts"
    ) as caught:
        settings(kind, remote="sc://host:15002", conf={name: "4", "spark.sql.shuffle.partitions": "2"})
    assert name in str(caught.value)
    assert "shuffle" not in str(caught.value)
    assert settings(kind, conf={name: "4"}).engine.spark.conf[name].reveal() == "4"


def test_a_setting_of_a_session() -> None:
    actual = settings(
        "spark", remote="sc://host:15002", conf={"spark.sql.session.timeZone": "UTC", "spark.hadoop.a": "b"}
    )
    assert len(actual.engine.spark.conf) == 2


def test_missing_package_is_named_without_the_token() -> None:
    """The error names the extra, and has no token."""
    pytest.importorskip("pyspark")
    command = [sys.executable, "-c", START, f"sc://host:15002/;token={TOKEN}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "cannot start Spark" in done.stdout
    assert "pyspark[connect]" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
