"""`engine.kind: spark`: Spark delivers for `cdfd run`. Every change arrives once and in order, whichever process is killed."""

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.commands import CDFD
from tests.support.kafka.node import free_ports
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import rows
from tests.support.spark.installation import missing
from tests.support.spark.session import quick

VERSIONS = 7
WITHIN = 180.0  # seconds until a test gives up; Spark takes a while to start


@pytest.fixture
def pipeline(broker: SharedBroker, tmp_path: Path, name: str) -> Pipeline:
    if (reason := missing()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    pipeline = Pipeline(tmp_path, name, broker.bootstrap_servers, broker.bootstrap_servers)
    (port,) = free_ports(1)
    pipeline.sections = {"http": {"listen": f"127.0.0.1:{port}"}}
    return pipeline


def engine(pipeline: Pipeline, **more: object) -> dict[str, Any]:
    """A file at a time: as many micro-batches as can be."""
    spark = {"master": "local[2]", "checkpoint": str(pipeline.folder / "checkpoints"), "batch_size": 1}
    return {"kind": "spark", "spark": spark | more}


def test_killed_in_the_middle_and_a_schema_that_changes(pipeline: Pipeline) -> None:
    table = pipeline.table()
    for number in range(VERSIONS):
        do(table.insert(rows(*range(10 * number, 10 * number + 10))))
    do(table.update(pc.field("id") < 5, {"v": pc.scalar("b")}))
    do(table.delete(pc.field("id") == 7))
    pipeline.configure(engine=engine(pipeline, conf=quick(str(pipeline.folder))))
    # Rows are seen before Spark's own commit of their micro-batch, which then comes again.
    for seen in (10, 40):
        with pipeline.daemon() as daemon:
            pipeline.read(seen, timeout=WITHIN)
            daemon.kill()
    # The last one has Spark as it is installed.
    pipeline.configure(engine=engine(pipeline))
    with pipeline.daemon() as daemon:
        pipeline.read(10 * VERSIONS + 11, timeout=WITHIN)
        pipeline.check()
        # Readers see the rows a moment before the query reports its position.
        caught_up(pipeline)
        do(table.add_column(pa.field("x", pa.int64())))
        do(table.delete(pc.field("id") == 8))
        last = pipeline.read(10 * VERSIONS + 12, timeout=WITHIN)
        daemon.wait_for("restarting the query")
        daemon.stop()
    (deleted,) = [each for record in last if (each := json.loads(record.value or b"{}")).get("id") == 8 and "x" in each]
    assert deleted["_change_type"] == "delete"


def test_a_key_column_renamed_only_in_case_ends_delivery(pipeline: Pipeline) -> None:
    """As with the daemon's own loops: the key of every record would be another one. So it is after a restart."""
    table = pipeline.table()
    do(table.insert(rows(0, 1, 2)))
    options = {"key": ["id"], "on_schema_change": "continue"}
    pipeline.configure(engine=engine(pipeline, conf=quick(str(pipeline.folder))), table=options)
    with pipeline.daemon() as daemon:
        pipeline.read(3, timeout=WITHIN)
        table.schema = pa.schema([pa.field("ID", pa.int64()), *list(table.schema)[1:]])
        do(table.commit("REPLACE COLUMNS", [table._metadata()]))
        do(table.insert(rows(3).rename_columns(["ID", *rows(3).column_names[1:]])))
        assert daemon.ended(WITHIN) == 1, daemon.log()
        assert "the key column 'id' is 'ID' now" in daemon.error
    with pipeline.daemon() as daemon:
        assert daemon.ended(WITHIN) == 1, daemon.log()
        assert "the key column 'id' is 'ID' now" in daemon.error
    # Each line is an object, also those that the JVM prints.
    assert daemon.said == []
    assert "spark" in {line.get("program") for line in daemon.lines}
    assert sorted(record.key or b"" for record in pipeline.read()) == [b'{"id":0}', b'{"id":1}', b'{"id":2}']


def test_executors_publish_again(pipeline: Pipeline) -> None:
    table = pipeline.table()
    for number in range(3):
        do(table.insert(rows(*range(10 * number, 10 * number + 10))))
    do(table.delete(pc.field("id") == 7))
    # The snapshot is three files of some 700 bytes each.
    pipeline.configure(engine={"spark": {"master": "local[2]", "part_size": 1000}})
    command = [*CDFD, "backfill", "-c", str(pipeline.config), "orders", "--snapshot", "--from", "2", "--until", "now"]
    for engine, expected in (("spark", 31), ("embedded", 62)):
        ended = subprocess.run([*command, "--engine", engine], capture_output=True, text=True, timeout=WITHIN)
        assert ended.returncode == 0, ended.stderr
        assert "31 rows (1 delete, 30 insert)" in ended.stdout
        assert ("as a job of" in ended.stderr) == (engine == "spark")
        assert len(pipeline.read(expected)) == expected
    records = Counter((record.key, record.value) for record in pipeline.read())
    assert set(records.values()) == {2}


def caught_up(pipeline: Pipeline) -> None:
    """Wait until the daemon is ready, at a version after the inserts. It learns that after the micro-batch's commit."""
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        # If the daemon before it has delivered all rows, this one may not listen yet.
        status: Any = "it does not listen"
        with contextlib.suppress(urllib.error.URLError):
            status = document(pipeline, "status")["tables"]["orders"]
            if status["not_ready"] is None and status["position"]["version"] > VERSIONS:
                return
        time.sleep(0.2)
    pytest.fail(f"not at the tip: {status}")


def document(pipeline: Pipeline, what: str) -> dict[str, Any]:
    listen = json.loads(pipeline.config.read_text())["http"]["listen"]
    with urllib.request.urlopen(f"http://{listen}/{what}", timeout=10) as answer:
        content: dict[str, Any] = json.load(answer)
        return content
