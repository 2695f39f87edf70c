"""The parts of the Spark engine that need no Spark: jobs, their parts and stages, errors that return as text."""

import json
import os
import pickle
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from cdfd.config.sections import SparkEngine
from cdfd.config.settings import Settings
from cdfd.deliver.assignment import Assignment
from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.schema_string import parse
from cdfd.errors import ConfigError, MissingFileError, SinkError, StorageError
from cdfd.log.bounds import After
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.scan.splits import Split, digest, plan_splits, stages
from cdfd.sinks.jobs import Job
from cdfd.sinks.kafka.progress.records import Progress, progress_of, value_of
from cdfd.sinks.kafka.transactions.sink import job_of
from cdfd.spark.source.options import SourceOptions

SCHEMA = TableSchema(parse(json.dumps({"type": "struct", "fields": []})), ())
JOB = Job("a" * 32, 7, "stream", 12, 1 << 27, "0123456789abcdef", 99)


def plan(*scans: FileScan) -> ChangePlan:
    return ChangePlan(7, 1000, SCHEMA, scans, "files")


def scan(path: str, kind: str | None, image_phase: str | None = None, size: int = 1000) -> FileScan:
    return FileScan(path, kind, {}, size, image_phase=image_phase)  # type: ignore[arg-type] # as short as can be


def settings() -> Settings:
    security = {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "username": "u", "password": "hunter2"}
    return Settings.model_validate(
        {
            "pipeline": "shop",
            "tables": [{"uri": "s3://lake/orders"}],
            "sink": {"kind": "kafka", "bootstrap_servers": "k:9092", "security": security},
            "engine": {"kind": "auto", "spark": {"conf": {"spark.hadoop.secret": "hunter3"}}},
        }
    )


class TestStages:
    def test_all_deletes_before_all_inserts(self) -> None:
        splits = plan_splits(plan(*(scan(f"{n}", kind) for kind in ("delete", "insert") for n in range(3))), 1000)
        assert [[number for number, _ in stage] for stage in stages(splits)] == [[0, 1, 2], [3, 4, 5]]

    def test_early_phases_before_late_ones(self) -> None:
        splits = plan_splits(plan(*(scan(f"{n}", None, half) for half in ("early", "late") for n in range(2))), 1000)
        assert [len(stage) for stage in stages(splits)] == [2, 2]

    def test_a_part_of_both_comes_between(self) -> None:
        scans = [scan("a", "delete"), scan("b", "delete"), scan("c", "insert"), scan("d", "insert")]
        splits = [Split(plan(*some), 0) for some in (scans[:1], scans[1:3], scans[3:])]
        assert [len(stage) for stage in stages(splits)] == [1, 1, 1]


class TestDigest:
    def test_the_same_cut_has_the_same(self) -> None:
        whole = plan(*(scan(f"{n}", "insert", size=500_000) for n in range(9)))
        assert digest(plan_splits(whole, 1_000_000)) == digest(plan_splits(whole, 1_000_000))
        assert digest(plan_splits(whole, 1_000_000)) != digest(plan_splits(whole, 2_000_000))

    def test_other_ordinals_are_another_cut(self) -> None:
        splits = plan_splits(plan(scan("a", "insert"), scan("b", "insert")), 1000)
        moved = [splits[0], replace(splits[1], ordinal=5)]
        assert digest(splits) != digest(moved)


class TestJob:
    def test_a_progress_record_keeps_it(self) -> None:
        written = value_of(Progress(Position("T", 7), job=asdict(JOB)))
        assert job_of(progress_of(written)) == JOB

    @pytest.mark.parametrize("table_id", [r'"\ud800"', '"T","whole":{"from":"\\udfff"}', '"T","counts":{"\\udfff":1}'])
    def test_text_that_could_not_be_written_again_is_refused(self, table_id: str) -> None:
        with pytest.raises(ValueError, match="surrogate"):
            progress_of(f'{{"table_id":{table_id},"version":1,"part":0,"phase":"stream","ordinal":0}}'.encode())

    def test_progress_without_a_job_has_none(self) -> None:
        assert job_of(None) is None
        assert job_of(Progress(Position("T", 7))) is None

    @pytest.mark.parametrize("wrong", [{"id": 1}, {"since": "x"}, {"version": 8}, {"phase": "snapshot"}])
    def test_one_that_is_not_understood_is_not_begun_anew(self, wrong: dict[str, str | int]) -> None:
        with pytest.raises(SinkError, match="does not know") as caught:
            job_of(Progress(Position("T", 7), job=asdict(JOB) | wrong))
        assert caught.value.version == 7
        assert caught.value.hint == "A newer version of cdfd may have written it: continue with that version"


class TestAssignment:
    def test_it_travels_and_shows_no_secret(self) -> None:
        version = Version(plan(scan("a", "insert")), "T")
        made = replace(Assignment.of(settings(), "orders", version, Position("T", 7)), job=JOB)
        assert pickle.loads(pickle.dumps(made)) == made
        assert made.version.plan.scans == ()
        assert "hunter" not in repr(made)
        assert "hunter" not in json.dumps(settings().public())


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("snapshot", "snapshot"),
        ("latest", "latest"),
        ("12", 12),
        ("after 41", After(41)),
        ("1 hour ago", timedelta(hours=1)),
        ("after 1 hour ago", After(timedelta(hours=1))),
        ("2026-01-01", datetime(2026, 1, 1, tzinfo=UTC)),
        ("1767225600000", datetime(2026, 1, 1, tzinfo=UTC)),
        ("after 2026-01-01T00:00:00Z", After(datetime(2026, 1, 1, tzinfo=UTC))),
    ],
)
def test_a_query_starts_as_configured(start: str, expected: object, caplog: pytest.LogCaptureFixture) -> None:
    queries = pytest.importorskip("cdfd.spark.engine.queries")
    tables = [{"uri": "/orders", "start": start}]
    sink = {"kind": "kafka", "bootstrap_servers": "k:9092"}
    config = Settings.model_validate({"pipeline": "shop", "tables": tables, "sink": sink})
    options = queries.source_options(config, config.listed[0])
    assert SourceOptions.parse({"path": "/orders", **options}).start == expected
    assert caplog.records == []


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        (
            {"master": "spark://host:7077", "conf": {"spark.pyspark.python": "environment/bin/python"}},
            "environment/bin/python",
        ),
        ({"master": "spark://host:7077"}, None),
        ({"master": "local[2]"}, sys.executable),
    ],
)
def test_the_python_of_executors(settings: dict[str, Any], chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark reads the environment; the setting alone would be of no use to a daemon that `spark-submit` has not started."""
    sessions = pytest.importorskip("cdfd.spark.engine.sessions")
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")
    sessions._choose_python(SparkEngine.model_validate(settings))
    assert os.environ.get("PYSPARK_PYTHON") == chosen


class TestNotStarted:
    """An error of Spark's start, whose first line says nothing."""

    error = RuntimeError("An error occurred while calling None.org.apache.spark.X.\n: java.lang.E: no master\n\tat a")

    def test_at_first_the_settings_may_be_wrong(self) -> None:
        sessions = pytest.importorskip("cdfd.spark.engine.sessions")
        actual = sessions.Sessions(SparkEngine(), "x")._not_started(self.error)
        assert (actual.what, actual.retriable) == ("cannot start Spark: java.lang.E: no master", False)

    @pytest.mark.parametrize(
        ("port", "retriable", "said"), [(None, True, "reached"), ("1", False, "run spark-submit again")]
    )
    def test_later_the_cluster_is_away(
        self, port: str | None, retriable: bool, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sessions = pytest.importorskip("cdfd.spark.engine.sessions")
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", port or "")
        if port is None:
            monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
        made = sessions.Sessions(SparkEngine(), "x")
        made._has_started = True
        actual = made._not_started(self.error)
        assert actual.retriable is retriable
        assert said in actual.hint


def test_an_old_spark_is_refused_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large versions and backfills need no format, so nothing else looks at the version."""
    sessions = pytest.importorskip("cdfd.spark.engine.sessions")
    made, stopped = SimpleNamespace(version="4.0.1"), []
    builder = SimpleNamespace(config=lambda *_: builder, getOrCreate=lambda: made)  # type: ignore[has-type]
    monkeypatch.setattr(sessions, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(sessions, "_stop", stopped.append)
    monkeypatch.setattr(sessions, "_start_jvm", lambda *_: None)
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    with pytest.raises(ConfigError, match=r"the session's Spark 4\.0\.1 is too old: cdfd needs 4\.1 or newer"):
        sessions.Sessions(SparkEngine(), "x").get()
    assert stopped == [made]


class TestTasks:
    def test_an_error_comes_back_as_it_was(self) -> None:
        tasks = pytest.importorskip("cdfd.spark.engine.tasks")
        error = MissingFileError("the file is gone", table="s3://t", version=7, path="a=ü/b", hint="Look")
        text = f"org.apache.spark.SparkException: Job aborted\nTraceback ...\nTaskError: {tasks.TaskError(error)}\n\tat x.y(Z.scala)"
        actual = tasks.translate(RuntimeError(text))
        assert type(actual) is MissingFileError
        assert str(actual) == str(error)
        retriable = StorageError("slow", retriable=True)
        assert tasks.translate(RuntimeError(str(tasks.TaskError(retriable)))).retriable

    def test_what_is_not_ours_says_that_spark_failed(self) -> None:
        tasks = pytest.importorskip("cdfd.spark.engine.tasks")
        actual = tasks.translate(RuntimeError("\nExecutor lost\n\tat a\n\tat b"))
        assert (type(actual), actual.retriable) == (SinkError, True)
        assert str(actual).startswith("Spark did not finish the job: Executor lost. ")

    def test_the_reason_is_that_of_the_python_process(self) -> None:
        tasks = pytest.importorskip("cdfd.spark.engine.tasks")
        trace = "Traceback (most recent call last):\n  File \"/x\", line 3, in main\n    foo()\nModuleNotFoundError: No module named 'cdfd'"
        text = f"[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: {trace}\n SQLSTATE: 38000"
        actual = tasks.translate(RuntimeError(text))
        assert actual.what == "Spark did not finish the job: ModuleNotFoundError: No module named 'cdfd'"
        assert actual.hint.startswith("Install this version of cdfd in the Python of Spark's driver and executors")

    def test_waves_hold_all_items_in_order(self) -> None:
        tasks = pytest.importorskip("cdfd.spark.engine.tasks")
        items = [bytes(size) for size in (10, 17 << 20, 5, 9 << 20, 8 << 20)] + [b""] * 2500
        actual = list(tasks.waves(items))
        assert [item for wave in actual for item in wave] == items
        assert [len(wave) for wave in actual][:3] == [1, 1, 2]
        assert max(map(len, actual)) == 1000
        assert list(tasks.waves([])) == []
