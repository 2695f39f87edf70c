"""Pipelines whose daemon has stopped: the real daemon of a release delivered some versions of `tables/feed`, and the next one resumes.

`pipelines/<sink>/` has the sink and the ledger. `kafka/pipelines.jsonl` has the records of a topic of positions, by name.
"""

import asyncio
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

import cdfd
from cdfd.config.parser import load
from cdfd.model.position import Position
from cdfd.sinks.base import connector
from cdfd.sinks.kafka.progress.records import Progress, key_of
from tests.support.kafka.daemon_process import Daemon, until
from tests.support.upgrade.copies import GOLDEN, lines
from tests.support.upgrade.documents import written_progress
from tests.support.upgrade.tables import copy_tables

Change = tuple[int, int, str, int, str]

PIPELINE, TABLE = "golden", "orders"
LAST = 19
"""The last version that the daemon of a golden pipeline has delivered."""
NEWEST = 23
"""Of `tables/feed`."""

SINKS: Mapping[str, Mapping[str, Any]] = {
    "files": {"kind": "files"},
    "changelog": {"kind": "delta"},
    "mirror": {"kind": "delta", "mode": "mirror", "change_feed": True},
}
"""The section `sink` of each pipeline, but for its path."""


def configure(folder: Path, sink: Mapping[str, Any], *, pipeline: str = PIPELINE, **table: Any) -> Path:
    """The configuration of a pipeline in a folder."""
    document = {
        "pipeline": pipeline,
        "tables": [{"uri": str(folder / "lake" / "feed"), "name": TABLE, "topic": TABLE, "key": ["id"]} | table],
        "sink": sink,
        "progress": {"ledger": str(folder / "ledger")},
        "poll": {"interval": "50ms", "max_interval": "200ms"},
        "http": {"listen": None},
    }
    path = folder / "cdfd.yaml"
    path.write_text(json.dumps(document))
    return path


def deliver(config: Path, last: int) -> None:
    """Run a daemon until it has delivered a version, and stop it."""
    settings = load(config)
    (table,) = settings.listed

    def delivered() -> bool:
        assert daemon.running, daemon.log()
        position = asyncio.run(connector(settings).position(table))
        return position is not None and position.version > last and position.phase == "stream"

    with Daemon(config) as daemon:
        daemon.wait_for("at version")
        until(delivered)
        daemon.stop()


def changes(rows: Iterable[Mapping[str, Any]]) -> list[Change]:
    return [(row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"], row["v"]) for row in rows]


def wanted(lake: Path, start: int = 0) -> list[Change]:
    return changes(cdfd.changes(lake / "feed", start, key="id").read_all().to_pylist())


def resumed(name: str, folder: Path) -> Path:
    """Let the current daemon resume a golden pipeline. Returns the place of its sink."""
    shutil.copytree(GOLDEN / "pipelines" / name, folder, dirs_exist_ok=True)
    # A table without a position would begin with the newest version.
    deliver(configure(folder, {**SINKS[name], "path": str(folder / "out")}, start="earliest"), NEWEST)
    return folder / "out" / TABLE


def write_pipeline(name: str, folder: Path, golden: Path) -> None:
    """Deliver the first versions of the table, and keep what is left behind."""
    copy_tables(folder / "lake")
    for version in range(LAST + 1, NEWEST + 1):
        (folder / "lake" / "feed" / "_delta_log" / f"{version:020}.json").unlink()
    deliver(configure(folder, {**SINKS[name], "path": str(folder / "out")}, start="earliest"), LAST)
    for part in ("out", "ledger"):
        if (folder / part).exists():
            shutil.copytree(folder / part, golden / part)


_JOB = {"id": "0" * 32, "bytes": 300_000, "since": 0}


def kafka_pipelines() -> bytes:
    """Topics of positions: in the middle of a version, and in the middle of jobs, of which every other part is delivered."""
    stored = {"files of a version": [_record(TABLE, Progress(Position("T", 18, 1, "stream", 1)))]}
    for name, number, phase, version in (("job", 1, "stream", 18), ("job of a snapshot", 6, "snapshot", 20)):
        golden = orjson.loads(lines("jobs.jsonl")[number])
        job = _JOB | {"version": version, "phase": phase, "parts": golden["parts"], "digest": golden["digest"]}
        position = Position("T", version, phase=phase)  # type: ignore[arg-type] # one of both
        stored[name] = [_record(TABLE, Progress(position, announced=True, job=job))]
        for place, (part, ordinals) in enumerate(golden["deliveries"].items()):
            if place % 2 == 0:
                of_part = Progress(position.after_version(), {"insert": ordinals[2]}, job={"id": "0" * 32})
                stored[name].append(_record(f"{TABLE}.part.{part}", of_part))
    return b"".join(orjson.dumps({"name": name, "records": records}) + b"\n" for name, records in stored.items())


def _record(name: str, progress: Progress) -> list[str]:
    return [key_of(PIPELINE, name).decode(), written_progress(progress).decode()]
