"""Plans and cuts of the golden tables. A position within a version counts scans and ordinals, and a job has a digest of its cut."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson

import cdfd
from cdfd.config.settings import Settings
from cdfd.daemon.engines import EmbeddedEngine
from cdfd.deliver import assignment as assignments
from cdfd.deliver.admission import Admission
from cdfd.deliver.assignment import Assignment
from cdfd.deliver.large_versions import LargeVersions
from cdfd.deliver.path_ranges import sampled_bounds
from cdfd.deliver.splits import measure
from cdfd.log.listing import list_live
from cdfd.log.table import Table, versions
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan import refining
from cdfd.plan.row_options import RowOptions
from cdfd.scan.execute import Execution
from cdfd.scan.splits import FILE_BYTES, digest, place_splits, plan_splits
from cdfd.scan.updates.equality import hashes
from cdfd.sinks.base import Write
from cdfd.sinks.jobs import Counts, Delivered, Job
from cdfd.spark.source import partitioning
from cdfd.spark.source.offsets import Offset
from cdfd.spark.source.source import CdfdSource
from tests.support.upgrade.rows import KEYS

MODES: Mapping[str, Mapping[str, Any]] = {
    "feed-auto": {"key": ("id",)},
    "feed-keyless": {},
    "feed-files": {"changes": "files", "key": ("id",)},
    "feed-off": {"changes": "files", "refine": "off"},
    "tracked-rows": {"refine": "rows"},
    "tracked-rows-and-key": {"refine": "rows", "key": ("id",)},
    "tracked-off": {"refine": "off"},
}
"""Ways to read the golden tables, by table and name."""

_BUCKET_BYTES = 2_500
"""A few files fill a bucket."""


@contextmanager
def small_buckets() -> Iterator[None]:
    """Versions of the golden tables have several buckets, and not one of 32 MiB."""
    with patch.object(refining, "BUCKET_BYTES", _BUCKET_BYTES):
        yield


def rows(mode: str, lake: Path) -> bytes:
    """The change rows of a table, in order."""
    with small_buckets():
        listed = cdfd.changes(_table(mode, lake), 0, **MODES[mode]).read_all().to_pylist()
    return _lines(
        [row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"], row["v"]] for row in listed
    )


def plans(mode: str, lake: Path) -> bytes:
    """The plan of each version, scan by scan, and of the snapshot."""
    with small_buckets():
        return _lines(asyncio.run(_plans(Table.open(_table(mode, lake)), MODES[mode])))


def _table(mode: str, lake: Path) -> Path:
    return lake / mode.partition("-")[0]


async def _plans(table: Table, options: Mapping[str, Any]) -> list[Any]:
    execution = Execution(table.files, workers=1)
    with table.tailer() as tailer:
        rows = RowOptions(**{**options, "key": tuple(options.get("key", ()))})
        stream = table.stream(rows)
        planned = [version async for version in versions(tailer, stream, 0, await table.log.latest_version())]
        planned.append(await table.stream(rows).snapshot())
    return [_plan(each.plan, execution) for each in planned]


def _plan(plan: ChangePlan, execution: Execution) -> Any:
    splits = plan_splits(plan, FILE_BYTES)
    if not all(each.is_placed for each in splits):
        splits = place_splits(plan, splits, [measure(each, execution) for each in splits])
    scans = [[each.part, each.ordinal, each.following, *map(_scan, each.plan.scans)] for each in splits]
    cut_as = digest(splits) if splits else None
    return {"version": plan.version, "origin": plan.origin, "digest": cut_as, "scans": scans}


def _scan(scan: FileScan) -> str:
    place = scan.path if scan.bucket is None else f"bucket {scan.bucket.number}/{scan.bucket.of}"
    return " ".join(filter(None, [place, scan.change_type, scan.image_phase]))


@dataclass
class JobStore:
    """A sink that stores a job, and a record of each part that is delivered: as Kafka does.

    Attributes:
        job: as stored; None: none yet.
        delivered: by number of part: the job, and the ordinals of the rows.
    """

    job: Job | None = None
    delivered: dict[int, tuple[str, list[int]]] = field(default_factory=dict)

    def takes_job(self, position: Position) -> bool:
        return True

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> Job:
        self.job = Job("begun", position.version, position.phase, parts, size, digest, 0)
        return self.job

    async def claim_job(self, position: Position, job: Job) -> None:
        assert job == self.job

    async def finish_job(self, version: Version, position: Position, job: Job, parts: object) -> None:
        assert job == self.job

    async def deliver_part(
        self, table: object, number: int, job: Job, position: Position, write: Write, role: str | None
    ) -> Delivered:
        of_job, ordinals = self.delivered.get(number, ("", []))
        if of_job != job.id:
            ordinals = []
            await write(_Ordinals(ordinals))  # type: ignore[arg-type] # as much of one as a part needs
            self.delivered[number] = job.id, ordinals
        return Delivered({"insert": len(ordinals)})


class _Ordinals:
    """A delivery that keeps the ordinals of its rows."""

    def __init__(self, ordinals: list[int]) -> None:
        self._ordinals = ordinals

    async def start_version(self, version: Version) -> None: ...

    async def write(self, batch: Any) -> Counts:
        self._ordinals += batch.column("_change_ordinal").to_pylist()
        return {}


JOBS = (
    ("feed", 17, "stream", "driver", {"key": ["id"]}),
    ("feed", 18, "stream", "driver", {"key": ["id"]}),
    ("feed", 19, "stream", "driver", {"key": ["id"]}),
    ("feed", 19, "stream", "driver", {"changes": "files", "refine": "off"}),
    ("feed", 20, "stream", "driver", {"key": ["id"]}),
    ("feed", 20, "snapshot", "driver", {}),
    ("feed", 20, "snapshot", "executors", {}),
    ("tracked", 5, "stream", "driver", {}),
)
"""Versions that are delivered as jobs: table, version, phase, who lists the files of a snapshot, settings of the table."""


def jobs(lake: Path) -> bytes:
    """All `JOBS`, delivered."""
    return _lines(_delivered(number, lake) for number in range(len(JOBS)))


def _delivered(number: int, lake: Path) -> Any:
    store = run_job(number, lake, JobStore())
    assert store.job is not None
    deliveries = {str(part): _range(ordinals) for part, (_, ordinals) in sorted(store.delivered.items())}
    return {"parts": store.job.parts, "digest": store.job.digest, "bytes": store.job.bytes, "deliveries": deliveries}


def _range(ordinals: list[int]) -> list[int]:
    return [min(ordinals), max(ordinals), len(ordinals)] if ordinals else []


def run_job(number: int, lake: Path, store: JobStore) -> JobStore:
    """Deliver one of `JOBS`, or the rest of it."""
    with small_buckets(), patch.object(assignments, "connector", lambda config: store):
        asyncio.run(_run_job(JOBS[number], lake, store))
    return store


async def _run_job(wanted: tuple[str, int, Any, Any, Mapping[str, Any]], lake: Path, store: JobStore) -> None:
    name, at, phase, planning, options = wanted
    path = str(lake / name)
    sink = {"kind": "kafka", "bootstrap_servers": "nowhere:9092"}
    config = Settings.model_validate({"pipeline": "golden", "tables": [{"uri": path, **options}], "sink": sink})
    configured, source = config.listed[0], Table.open(path)
    large = LargeVersions(
        path,
        store,  # type: ignore[arg-type] # as much of one as a job needs
        partial(Assignment.of, config, configured.name),
        EmbeddedEngine(Admission(1)),
        0,
        300_000,
        asyncio.Event(),
        planning,
    )
    with source.tailer() as tailer:
        header = await source.log.header()
        position = Position(header.metadata.id, at, phase=phase)
        stream = source.stream(configured.rows)
        if phase == "snapshot":
            version = await large.snapshot(stream, position, tailer)
        else:
            (version,) = [each async for each in versions(tailer, stream, at, at)]
        assert await large.deliver(version, position) is not None


BATCHES = (
    ("feed", (17, "stream", 0), (21, "stream", 0), {"key": "id"}),
    ("feed", (17, "stream", 0), (21, "stream", 0), {"changes": "files", "refine": "off"}),
    ("feed", (20, "snapshot", 0), (21, "stream", 0), {}),
    ("feed", (20, "snapshot", 3), (20, "snapshot", 9), {}),
    ("tracked", (1, "stream", 0), (7, "stream", 0), {}),
)
"""Micro-batches of `format("cdfd")`: table, start, end, options."""


def micro_batches(lake: Path) -> bytes:
    """The ordinals of each partition. Spark repeats a micro-batch after a restart, and the sink knows its partitions by number."""
    with small_buckets(), patch.object(partitioning, "LEAST_BYTES", 300_000):
        return _lines(_partitions(lake, *batch) for batch in BATCHES)


def _partitions(lake: Path, name: str, start: Any, end: Any, options: Mapping[str, str]) -> Any:
    source = CdfdSource({"path": str(lake / name), "startingVersion": "1", **options})
    reader = source.streamReader(source.schema())
    try:
        ends = [_offset(name, at) for at in (start, end)]
        return [_ordinals(reader, part) for part in reader.partitions(*ends)]
    finally:
        reader.stop()


def _ordinals(reader: Any, partition: Any) -> list[list[int]]:
    rows = (row for batch in reader.read(partition) for row in batch.to_pylist())
    return [[row["_commit_version"], row["_change_ordinal"]] for row in rows]


def _offset(table: str, at: tuple[int, Any, int]) -> dict[str, Any]:
    version, phase, part = at
    table_id = {"feed": "T", "tracked": "tracked"}[table]
    return Offset(Position(table_id, version, part, phase, part), 1, "stream").to_json()


def bounds(lake: Path) -> bytes:
    """Paths between ranges of a snapshot, of which there are fewer than files."""
    table = Table.open(lake / "feed")
    live = asyncio.run(list_live(table.log, 18))
    assert live is not None
    return _lines([sampled_bounds(live, table.log.storage, 4).to_pylist()])


def buckets(lake: Path) -> bytes:
    """The bucket of each key, by type: rows of a key must be where a daemon that died has put them."""
    by_name = {}
    for name in KEYS.schema.names[:-4]:
        by_name[name] = (hashes([KEYS.column(name)], KEYS.num_rows) % np.uint64(4096)).tolist()
    return json.dumps(by_name, indent=1).encode() + b"\n"


def _lines(documents: Any) -> bytes:
    return b"".join(orjson.dumps(each) + b"\n" for each in documents)


PLANS: Mapping[str, Callable[[Path], bytes]] = {
    **{f"plans/{mode}.jsonl": partial(plans, mode) for mode in MODES},
    **{f"rows/{mode}.jsonl": partial(rows, mode) for mode in MODES},
    "jobs.jsonl": jobs,
    "spark/batches.jsonl": micro_batches,
    "bounds.json": bounds,
    "buckets.json": buckets,
}
"""The function that rewrites each golden file, for a lake with copies of the golden tables."""
