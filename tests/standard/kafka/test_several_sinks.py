"""Kafka, files and a mirror in one daemon: each gets every change once, whatever becomes of the daemon and of the others."""

import json
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cdfd as package
from cdfd.cli.commands import progress
from tests.support.kafka.daemon_process import until
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.proxy import Proxy
from tests.support.lake import rows
from tests.support.sampling import ALL, sample

KILLS = 6 if ALL else 2
NAMES = ("_commit_version", "_change_ordinal", "_change_type", "id", "v")


def several(pipeline: Pipeline) -> None:
    """The pipeline's Kafka sink as the sink `events`, and beside it `lines`, which has JSON lines, and `copy`, a mirror."""
    pipeline.add_sinks(
        lines={"kind": "files", "path": str(pipeline.folder / "lines"), "format": "jsonl"},
        copy={"kind": "delta", "path": str(pipeline.folder / "copies"), "mode": "mirror"},
    )


def lines(pipeline: Pipeline) -> list[list[Any]]:
    files = sorted((pipeline.folder / "lines" / pipeline.topic).glob("*.jsonl"))
    return [[row[name] for name in NAMES] for file in files for row in map(json.loads, file.read_text().splitlines())]


def delivered(pipeline: Pipeline) -> dict[str, int | None]:
    """The version that each sink has."""
    text, _ = progress.show(pipeline.config, as_json=True)
    return {each["sink"]: each["delivered_version"] for each in json.loads(text)["tables"]}


def has_version(pipeline: Pipeline, version: int) -> bool:
    """Whether the files have rows of a version as their last ones."""
    return bool(shown := lines(pipeline)) and shown[-1][0] == version


def check_others(pipeline: Pipeline) -> None:
    """Assert that the files and the mirror have every change of the table, which is at rest, once."""
    newest = pipeline.place.delta().version()
    until(lambda: {delivered(pipeline)[sink] for sink in ("lines", "copy")} == {newest})
    changes = package.changes(pipeline.uri, 0, key=["id"]).read_all().to_pylist()
    assert lines(pipeline) == [[row[name] for name in NAMES] for row in changes]
    live = package.snapshot(pipeline.uri).read_all().select(["id", "v"]).sort_by("id")
    copy = (
        package.snapshot(Path(pipeline.folder) / "copies" / pipeline.topic).read_all().select(["id", "v"]).sort_by("id")
    )
    assert copy.to_pylist() == live.to_pylist()


@pytest.mark.parametrize("seed", sample([1, 2], 1))
def test_killed_daemons_deliver_every_change_once_into_each_sink(pipeline: Pipeline, seed: int) -> None:
    random = Random(seed)
    several(pipeline)
    with pipeline.writing(seed) as writing:
        for _ in range(KILLS):
            with pipeline.daemon() as daemon:
                daemon.wait_for("at version")
                time.sleep(random.uniform(0, 1))  # a random moment is what is tested
                daemon.kill()
        writing.stop()
    assert pipeline.finish() > KILLS
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")  # before it has begun, SIGTERM ends it as any process
        check_others(pipeline)
        daemon.stop()


def test_a_broker_that_is_away_or_hangs_delays_no_other_sink(proxied: Pipeline, proxy: Proxy) -> None:
    several(proxied)
    table = proxied.table()
    with proxied.daemon() as daemon:
        do(table.insert(rows(1)))
        proxied.read(1)
        for number, fault in enumerate((proxy.stall, proxy.refuse), 2):
            fault()
            for each in range(3):
                version = do(table.insert(rows(10 * number + each)))
                began = time.monotonic()
                until(partial(has_version, proxied, version))
                assert time.monotonic() - began < 5
            proxy.resume()
            assert proxied.check() == 1 + 3 * (number - 1)
        check_others(proxied)
        daemon.stop()


def test_a_kafka_sink_goes_on_when_the_file_gets_several_sinks(pipeline: Pipeline) -> None:
    table = pipeline.table()
    do(table.insert(rows(1, 2)))
    assert pipeline.finish() == 2
    do(table.insert(rows(3)))
    several(pipeline)
    assert delivered(pipeline) == {"events": 1, "lines": None, "copy": None}
    assert pipeline.finish() == 3
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")  # before it has begun, SIGTERM ends it as any process
        check_others(pipeline)
        daemon.stop()
