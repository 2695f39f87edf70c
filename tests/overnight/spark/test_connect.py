"""Spark Connect: `connect_cases.py`, as a client of the server that PySpark ships. Both have packages that the tests' own Python lacks."""

import json
import subprocess
from pathlib import Path

from tests.support.cache import ROOT
from tests.support.kafka.shared import SharedBroker
from tests.support.spark import environments
from tests.support.spark.connect_server import connect_server

SECONDS = 900


def test_cases(needs_spark: None, broker: SharedBroker, tmp_path: Path) -> None:
    python = environments.python(*environments.CONNECT)
    with connect_server(tmp_path, python) as url:
        variables = {"CDFD_CONNECT": json.dumps([url, broker.bootstrap_servers])}
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "faulthandler_timeout=300",
            "-o",
            "faulthandler_exit_on_timeout=true",
            f"--basetemp={tmp_path}/cases",
        ]
        done = subprocess.run(
            [*command, "-W", "default", str(ROOT / "tests" / "support" / "spark" / "connect_cases.py")],
            env=environments.variables() | variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
