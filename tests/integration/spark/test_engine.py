"""The Spark engine: what executors deliver is what the daemon delivers, once, whatever dies meanwhile."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from cdfd.deliver.assignment import Assignment
from cdfd.demo.writer import TableWriter
from cdfd.errors import MissingFileError
from cdfd.log.listing import list_live
from cdfd.log.table import Table
from cdfd.model.position import Position
from cdfd.scan.splits import plan_splits
from cdfd.sinks.jobs import Job
from cdfd.spark.engine.engine import SparkEngine
from cdfd.storage.local import LocalStorage
from tests.support import lake
from tests.support.checkpointed_table import CHECKPOINT, LAYOUTS, STATS, changed, checkpoint, filled, writer
from tests.support.kafka.delivering import Delivering, contents, in_order
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import SCHEMA, rows
from tests.support.oracle.workload import Workload
from tests.support.spark.session import Borrowed, quick

ROOT = Path(__file__).parents[3]


@pytest.fixture
def engine(spark: SparkSession) -> SparkEngine:
    return SparkEngine(Borrowed(spark))


@pytest.mark.parametrize(("seed", "form"), [(2, "flat"), (6, "cloudevents")])
async def test_the_same_records_as_the_daemon(
    engine: SparkEngine, broker: SharedBroker, name: str, tmp_path: Path, seed: int, form: str
) -> None:
    newest = [step.version for step in Workload(tmp_path / "rows", seed).steps(7)][-1]
    table = Delivering(broker.bootstrap_servers, name, str(tmp_path / "rows"), {"key": ["id"]}, {"format": form})

    embedded = await table.deliver(newest)
    first = table.records()
    await table.forget()
    on_spark = await table.deliver(newest, engine)
    second = table.since(first)
    assert contents(second) == contents(first)
    assert on_spark.rows == embedded.rows
    if form == "flat":
        assert in_order(second)


async def test_a_first_load_whose_files_executors_list(
    engine: SparkEngine, broker: SharedBroker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log lacks the rows of some files, so executors measure the ranges, too."""
    monkeypatch.setattr("cdfd.spark.engine.engine._FEW_FILES", 0)
    monkeypatch.setattr("cdfd.deliver.assignment._READ_BYTES", 40_000)
    storage, one = LocalStorage(str(tmp_path)), writer(tmp_path)
    await filled(one)
    await checkpoint(storage, CHECKPOINT, LAYOUTS["sidecars of Parquet"], STATS["some"])
    await changed(one)
    more, planning = {"key": ["id"], "start": "snapshot"}, {"snapshot_planning": "executors"}
    table = Delivering(broker.bootstrap_servers, name, str(tmp_path), more, {}, planning)

    embedded = await table.deliver(one.version)
    first = table.records()
    await table.forget()
    on_spark = await table.deliver(one.version, engine, part_size=150_000)
    second = table.since(first)
    assert contents(second) == contents(first)
    assert on_spark.rows == embedded.rows
    ordinals = [json.loads(record.value or b"")["_change_ordinal"] for record in second]
    assert sorted(ordinals) == list(range(len(second)))


@pytest.mark.parametrize("planning", ["driver", "executors"])
def test_tasks_that_die(broker: SharedBroker, name: str, tmp_path: Path, spark: SparkSession, planning: str) -> None:
    table = TableWriter(LocalStorage(tmp_path / "rows", sync=False), SCHEMA)
    do(table.create())
    added = [do(table._add(rows(*range(1000 * part, 1000 * part + 1000)))) for part in range(6)]
    do(table.commit("WRITE", added))
    asyncio.run(lake.checkpoint(table.storage, 1))
    (tmp_path / "notes").mkdir()
    # A task may fail three times. On "local-cluster[2,1,512]" executors die, too, if there is a note "cluster"; that takes a minute longer.
    command = [sys.executable, "-m", "tests.support.spark.faulty_engine", "local[2,4]", broker.bootstrap_servers, name]
    arguments = [f"{tmp_path}/rows", "1", f"{tmp_path}/notes", planning]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=150, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'insert': 6000" in done.stdout
    records = read_topic(broker.bootstrap_servers, f"{name}.rows")
    assert sorted(json.loads(record.value or b"")["id"] for record in records) == list(range(6000))
    assert {path.name for path in (tmp_path / "notes").iterdir()} >= set("012345")


def test_a_daemon_that_is_killed_while_a_job_runs(
    broker: SharedBroker, name: str, tmp_path: Path, spark: SparkSession
) -> None:
    """With its Spark. The next one has none, and finishes what was begun on it."""
    pipeline = Pipeline(tmp_path, name, broker.bootstrap_servers, broker.bootstrap_servers)
    table = pipeline.table()
    for first in range(0, 12_000, 1000):
        do(table.insert(rows(*range(first, first + 1000))))
    do(table.delete(pc.field("id") < 500))
    conf = {"spark.ui.enabled": "false"} | quick(str(tmp_path))
    on_spark = {"threshold": "1KiB", "part_size": "100KB", "master": "local[2]", "conf": conf}
    start, transactions = {"start": "snapshot"}, {"prefix": f"{name}.", "partitions": 3, "transactions": True}
    sink = {"topics": transactions}
    pipeline.configure(start, sink=sink, engine={"kind": "auto", "spark": on_spark})
    with pipeline.daemon() as daemon:
        daemon.wait_for("is delivered as a job of", timeout=150)
        pipeline.read(1000, timeout=120)
        daemon.kill()
    pipeline.configure(start, sink=sink, engine={"kind": "embedded"})
    with pipeline.daemon() as daemon:
        daemon.wait_for("continues as a job of")
        daemon.wait_for("completed")
        pipeline.check(table.version, snapshot=True)
        daemon.stop()
    pipeline.check(table.version, snapshot=True)
    told = [json.loads(record.value or b"") for record in read_topic(broker.bootstrap_servers, f"{name}.transactions")]
    assert [each["status"] for each in told] == ["BEGIN", "END"]
    assert told[1]["event_count"] == 11_500


def test_an_error_of_an_executor_is_the_daemons_own(
    engine: SparkEngine, broker: SharedBroker, name: str, tmp_path: Path
) -> None:
    table = TableWriter(LocalStorage(tmp_path / "rows", sync=False), SCHEMA)
    do(table.create())
    do(table.commit("WRITE", [do(table._add(rows(number))) for number in range(3)]))
    gone = next((tmp_path / "rows").glob("part-*"))
    gone.unlink()
    delivering = Delivering(broker.bootstrap_servers, name, f"{tmp_path}/rows", {}, {})
    with pytest.raises(MissingFileError) as raised:
        asyncio.run(delivering.deliver(1, engine))
    actual = raised.value
    assert (actual.table, actual.version, actual.path) == (f"{tmp_path}/rows", 1, gone.name)
    assert str(actual).startswith("the file is gone (table ")


def test_a_stop_cancels_the_job_and_the_next_start_goes_on_with_it(
    engine: SparkEngine, broker: SharedBroker, name: str, tmp_path: Path
) -> None:
    table = TableWriter(LocalStorage(tmp_path / "rows", sync=False), SCHEMA)
    do(table.create())
    do(table.commit("WRITE", [do(table._add(rows(number))) for number in range(12)]))
    delivering = Delivering(broker.bootstrap_servers, name, f"{tmp_path}/rows", {}, {})
    stopped = asyncio.run(
        delivering.deliver(1, engine, part_size=100_000, stop_when=lambda: bool(delivering.records()))
    )
    assert not stopped.rows["insert"]
    assert len(delivering.records()) < 12
    asyncio.run(delivering.deliver(1, engine, part_size=1 << 20))
    records = delivering.records()
    assert sorted(json.loads(record.value or b"")["id"] for record in records) == list(range(12))


@pytest.mark.parametrize("files", [1, 3])
async def test_two_attempts_at_once(
    engine: SparkEngine, broker: SharedBroker, name: str, tmp_path: Path, files: int
) -> None:
    """As a speculative one: the later fences the earlier, which sees the part delivered. Files of a range are deliveries, too."""
    table = TableWriter(LocalStorage(tmp_path / "rows", sync=False), SCHEMA)
    await table.create()
    each = 100_000 // files + 1
    await table.commit("WRITE", [await table._add(rows(*range(n * each, n * each + each))) for n in range(files)])
    await lake.checkpoint(table.storage, 1)
    delivering = Delivering(broker.bootstrap_servers, name, f"{tmp_path}/rows", {}, {})
    config = delivering.settings("auto")

    await delivering.deliver(0)  # the topics are there
    source = Table.open(f"{tmp_path}/rows")
    version = await source.stream().snapshot(1)
    position = Position(version.table_id, 1, phase="snapshot")
    size = 1 << 30 if files == 1 else 400_000
    assignment = replace(Assignment.of(config, "rows", version, position), job=Job("j", 1, "snapshot", 1, size, "", 0))
    if files == 1:
        part = plan_splits(version.plan, size)[0]
    else:
        live = await list_live(source.log, 1)
        assert live is not None
        (part,) = assignment.ranges(version.plan, live, 1 << 40)
    actual = await asyncio.gather(*(engine.deliver(assignment, [(0, part)]) for _ in range(2)))
    assert [[part.counts["insert"] for part in attempt] for attempt in actual] == [[each] * files] * 2
    ordinals = [json.loads(record.value or b"")["_change_ordinal"] for record in delivering.records()]
    assert sorted(ordinals) == list(range(files * each))
