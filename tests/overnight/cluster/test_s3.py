"""Formats, engines and backfill on a cluster over a store that checks keys: rows, and no trace of the keys where Spark writes things down."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from deltalake import write_deltalake

import cdfd
from tests.standard.s3.test_daemon import recorded
from tests.support import lake
from tests.support.cluster.application import application
from tests.support.cluster.large import WITHIN, Backfill, append, change, delivered, engine
from tests.support.cluster.standalone import Standalone
from tests.support.kafka.history import Location
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.shared import SharedBroker
from tests.support.s3.fixtures import new_bucket, versitygw_server
from tests.support.s3.server import KEY_ID, SECRET, Server
from tests.support.spark.installation import S3A, jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["versitygw_server"]


KEYS = {"access_key_id": KEY_ID, "secret_access_key": SECRET}
PROVIDER = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


def batch(spark: SparkSession, uri: str, options: dict[str, str]) -> Any:
    """Its rows, and its plans as Spark prints them."""
    changes = spark.read.format("cdfd").options(**options).load(uri)
    rows = [(row._commit_version, row._change_ordinal, row.id, row.v) for row in changes.collect()]
    java: Any = changes._jdf.queryExecution()
    text = spark._jvm.org.apache.spark.sql.api.python.PythonSQLUtils
    modes = ("extended", "formatted", "codegen", "cost")
    return sorted(rows), [str(java.toString()), *(text.explainString(java, mode) for mode in modes)]


def frame(spark: SparkSession, uri: str, options: dict[str, str]) -> Any:
    """The rows of `changes`, by Spark's own reader, and its plan."""
    import cdfd.spark

    changes = cdfd.spark.changes(spark, uri, options=options, reader="auto")
    rows = [(row._commit_version, row.id, row.v) for row in changes.collect()]
    return sorted(rows), str(changes._jdf.queryExecution().toString())


def live(spark: SparkSession, uri: str, options: dict[str, str]) -> Any:
    """The rows of a snapshot whose files executors list, and the number of its tasks."""
    rows = spark.read.format("cdfd").options(**options, startingVersion="snapshot").load(uri)
    listed = [(row._commit_version, row._change_ordinal, row.id, row.v) for row in rows.collect()]
    return sorted(listed), rows.rdd.getNumPartitions()


def feed(spark: SparkSession, config: str) -> Any:
    """Run the query of `engine: spark` to the end of the table. Returns Spark's plan and progress reports."""
    from pathlib import Path

    from cdfd.config.parser import load
    from cdfd.spark.engine import queries

    settings = load(Path(config))
    table = settings.table("orders")
    assert table is not None
    query: Any = queries.start(spark, settings, table, {"config": config})
    try:
        query.processAllAvailable()
        return [query._jsq.explainInternal(True), str(query._jsq), *(each.json for each in query.recentProgress)]
    finally:
        query.stop()


@pytest.fixture
def pipeline(versitygw_server: Server, broker: SharedBroker, tmp_path: Path, name: str) -> Pipeline:
    """One with its table and its ledger in the store."""
    server = versitygw_server
    home = f"s3://{new_bucket(server)}/lake"
    place = Location(f"{home}/orders", {key: str(value) for key, value in server.options().items()})
    sections = {"progress": {"ledger": f"{home}/ledger", "interval": "200ms"}}
    made = Pipeline(tmp_path, name, broker.bootstrap_servers, broker.bootstrap_servers, place, sections)
    table = made.table()
    append(table)
    append(table)
    change(table)
    return made


@pytest.fixture
def place(versitygw_server: Server) -> dict[str, str]:
    """Where the store is, as a configuration has it."""
    return {"endpoint_url": versitygw_server.url, "region": "us-east-1"}


@pytest.fixture
def logged(tmp_path: Path) -> dict[str, str]:
    """Settings of Spark for one executor, which say as much as they can in logs and in the event log."""
    (tmp_path / "events").mkdir()
    events = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.logStageExecutorMetrics": "true",
    }
    return events | {"spark.eventLog.dir": f"file:{tmp_path}/events", "spark.log.level": "INFO", "spark.cores.max": "1"}


def keys_of_a_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Path of a file with the keys. This process has no others."""
    keys = "".join(f"aws_{name} = {value}\n" for name, value in KEYS.items())
    (folder / "keys").write_text(f"[default]\n{keys}")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    return f"{folder}/keys"


def s3a(cluster: Standalone, folder: Path, server: Server) -> dict[str, str]:
    """Settings of Spark with which its driver reaches the store, with the keys of its machine."""
    path = cluster.conf(folder)["spark.driver.extraClassPath"]
    hadoop = {
        "endpoint": server.url,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "aws.credentials.provider": PROVIDER,
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()} | {
        "spark.driver.extraClassPath": ":".join([path, *map(str, jars(S3A))]),
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,  # Spark's own
    }


def objects(server: Server, bucket: str, prefix: str) -> Iterator[tuple[str, bytes]]:
    """All below a prefix."""
    client = boto3.client(
        "s3", endpoint_url=server.url, aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET, region_name="us-east-1"
    )
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for each in page.get("Contents", []):
                yield each["Key"], client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
    finally:
        client.close()


def written(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    """All files but those of the packed environment. Workers remove those of ended applications meanwhile."""
    for top in folders:
        for place, below, names in os.walk(top):
            below[:] = [name for name in below if name != "environment"]
            for name in names:
                if not name.endswith(".zip"):
                    with suppress(FileNotFoundError):
                        yield Path(place, name), Path(place, name).read_bytes()


def leaks(*texts_of: tuple[object, bytes | str]) -> list[str]:
    """Where a key is."""
    texts = [(place, text.encode() if isinstance(text, str) else text) for place, text in texts_of]
    return [f"{key} in {place}" for place, text in texts for key in KEYS.values() if key.encode() in text]


def test_formats_with_keys_in_options(
    cluster: Standalone, pipeline: Pipeline, place: dict[str, str], logged: dict[str, str]
) -> None:
    """A batch, and the query of `engine: spark`. Executors have no other keys."""
    folder = pipeline.folder
    checkpoint = {"kind": "spark", "spark": {"checkpoint": f"{folder}/checkpoints"}}
    pipeline.configure(storage={"s3": place | KEYS}, engine=checkpoint)
    options = {f"storage.{name}": value for name, value in (place | KEYS).items()} | {"maxPartitionBytes": "1KB"}
    with application(cluster, folder / "driver", logged, packed=False) as driver:
        rows, plans = driver.run(batch, uri=pipeline.uri, options=options)
        ours = cdfd.changes(pipeline.uri, storage_options=pipeline.place.options).read_all().to_pylist()
        assert rows == sorted([row["_commit_version"], row["_change_ordinal"], row["id"], row["v"]] for row in ours)
        said = driver.run(feed, config=str(pipeline.config))
        files = list(written(folder / "driver", folder / "checkpoints", folder / "events", cluster.folder))
    delivered(pipeline)
    for needed in ("driver.log", "offsets/0", "events_1", "worker-0/log"):
        assert any(needed in str(path) for path, _ in files), needed
    assert any(path.name == "stderr" and b"Running task" in text for path, text in files)
    assert len(leaks((pipeline.config, pipeline.config.read_bytes()))) == len(KEYS)  # the search finds them
    assert not leaks(*files, *(("a plan", text) for text in plans), *(("the query", text) for text in said))


def test_formats_with_keys_of_each_machine(
    cluster: Standalone,
    pipeline: Pipeline,
    versitygw_server: Server,
    place: dict[str, str],
    logged: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A snapshot whose files executors list, and a query that resumes from its checkpoint in the store."""
    folder = pipeline.folder
    keys = {"AWS_SHARED_CREDENTIALS_FILE": keys_of_a_machine(folder, monkeypatch)}
    bucket = pipeline.uri.split("/")[2]
    checkpoint = {"kind": "spark", "spark": {"checkpoint": f"s3a://{bucket}/checkpoints"}}
    pipeline.configure(storage={"s3": place}, engine=checkpoint)
    pipeline.place.delta().create_checkpoint()
    options = {f"storage.{name}": value for name, value in place.items()}
    options |= {"snapshotPlanning": "executors", "maxPartitionBytes": "1KB"}
    conf = logged | s3a(cluster, folder, versitygw_server) | {f"spark.executorEnv.{name}": keys[name] for name in keys}
    with application(cluster, folder / "driver", conf, packed=False, variables=keys) as driver:
        rows, tasks = driver.run(live, uri=pipeline.uri, options=options)
        said = driver.run(feed, config=str(pipeline.config))
        delivered(pipeline)
        write_deltalake(pipeline.place.delta(), lake.rows(90_000, 90_001), mode="append")
        said += driver.run(feed, config=str(pipeline.config))
        files = list(written(folder / "driver", folder / "events", cluster.folder))
    delivered(pipeline)
    assert tasks > 1
    ours = cdfd.snapshot(pipeline.uri, 4, storage_options=pipeline.place.options).read_all().to_pylist()
    assert rows == sorted([row["_commit_version"], row["_change_ordinal"], row["id"], row["v"]] for row in ours)
    kept = list(objects(versitygw_server, bucket, "checkpoints/"))
    assert {"offsets/0", "offsets/1", "commits/1"} <= {"/".join(name.split("/")[-2:]) for name, _ in kept}
    assert not leaks(*kept, *files, *(("the query", text) for text in said))


def test_frames_with_keys_of_spark_and_other_ones_in_options(
    cluster: Standalone,
    pipeline: Pipeline,
    versitygw_server: Server,
    place: dict[str, str],
    logged: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """cdfd plans with the keys of its options. Spark reads with those of its machines, because its settings say where they are."""
    folder = pipeline.folder
    keys = {"AWS_SHARED_CREDENTIALS_FILE": keys_of_a_machine(folder, monkeypatch)}
    options = {f"storage.{name}": value for name, value in (place | KEYS).items()}
    conf = logged | s3a(cluster, folder, versitygw_server) | {f"spark.executorEnv.{name}": keys[name] for name in keys}
    conf["spark.executor.extraClassPath"] = conf["spark.driver.extraClassPath"]
    with application(cluster, folder / "driver", conf, packed=False, variables=keys) as driver:
        rows, plan = driver.run(frame, uri=pipeline.uri, options=options)
        files = list(written(folder / "driver", folder / "events", cluster.folder))
    ours = cdfd.changes(pipeline.uri, storage_options=pipeline.place.options).read_all().to_pylist()
    assert rows == sorted([row["_commit_version"], row["id"], row["v"]] for row in ours)
    assert "FileScan parquet" in plan
    assert not leaks(*files, ("the plan", plan))


def test_the_daemon_and_backfill(
    cluster: Standalone,
    pipeline: Pipeline,
    place: dict[str, str],
    logged: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`engine: auto` with keys that each machine finds by itself, then a backfill with keys of the configuration."""
    folder = pipeline.folder
    keys = keys_of_a_machine(folder, monkeypatch)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", keys)
    actual = {"spark.executorEnv.AWS_SHARED_CREDENTIALS_FILE": keys}
    pipeline.configure(storage={"s3": place}, engine=engine(cluster, folder, "auto", logged | actual))
    with pipeline.daemon() as daemon:
        rows = delivered(pipeline)
        files = list(written(folder / "events", cluster.folder))
        daemon.wait_for(lambda line: "tasks done" in line["message"])
        daemon.stop()
    files.append((Path("daemon"), f"{daemon.lines}{daemon.said}".encode()))
    assert recorded(pipeline) == 4
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE")
    pipeline.configure(storage={"s3": place | KEYS}, engine=engine(cluster, folder, "embedded", logged))
    with Backfill(pipeline) as backfill:
        code, said = backfill.ended()
    files += [*written(folder / "events", cluster.folder), (Path("backfill"), said.encode())]
    assert code == 0, said
    twice = Counter(record.value for record in pipeline.read(2 * rows, timeout=WITHIN))
    assert set(twice.values()) == {2}
    assert len(twice) == rows
    assert not leaks(*files)
