"""The copy of a configuration that Spark's driver reads, which may hold secrets."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdfd.config.parser import load
from cdfd.spark.engine.feed import copy_document

CONFIG = """
pipeline: p
tables: [{uri: lake/orders}]
sink:
  kind: kafka
  bootstrap_servers: a:1
  security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: hunter2}
progress: {ledger: none}
engine: {kind: spark, spark: {checkpoint: /checkpoints}}
"""
HOLDER = """
import sys, time
from pathlib import Path
from cdfd.config.parser import load
from cdfd.spark.engine.feed import copy_document

path = Path(sys.argv[1])
with copy_document(load(path), path) as document:
    print(document["config"], flush=True)
    time.sleep(60)
"""
READER = """
import sys
from cdfd.spark.engine.sink_options import SinkOptions

found = SinkOptions.parse({"config": sys.argv[1], "folder": sys.argv[2]})
print(found.table.uri, found.sink.security.password.reveal())
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has files in memory")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "etc" / "cdfd.yaml"
    file.parent.mkdir()
    file.write_text(CONFIG)
    return file


def test_another_process_reads_what_the_file_said_at_the_start(path: Path) -> None:
    with copy_document(load(path), path) as document:
        path.write_text("pipeline: other")
        command = [sys.executable, "-c", READER, document["config"], document["folder"]]
        read = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert read.stdout == f"{path.parent}/lake/orders hunter2\n"
    assert not os.path.exists(document["config"])


def test_a_kill_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", HOLDER, str(path)]
    environ = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as holder:
        assert holder.stdout is not None
        copy = holder.stdout.readline().strip()
        assert Path(copy).read_text() == CONFIG
        assert b"hunter2" not in Path(f"/proc/{holder.pid}/cmdline").read_bytes()
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
    assert not os.path.exists(copy)
    assert not any((tmp_path / "tmp").iterdir())


def test_a_driver_elsewhere_has_its_own_file(path: Path) -> None:
    path.write_text(CONFIG.replace("checkpoint: /", "remote: 'sc://driver', checkpoint: /"))
    with copy_document(load(path), path) as document:
        assert document == {"config": str(path)}
