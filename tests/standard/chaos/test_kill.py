"""A daemon that is killed again and again while a writer commits: nothing is lost and nothing comes twice."""

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.fold import SIGN
from tests.support.kafka.daemon_process import Daemon, Line
from tests.support.lake import SCHEMA, rows
from tests.support.sampling import ALL, sample

WITHIN = 300  # seconds until a test gives up: it starts twelve daemons


async def commit_until(stop: asyncio.Event, writer: TableWriter, random: Random) -> None:
    """Change the table in every way, again and again."""
    new = 0
    while not stop.is_set():
        some = pc.is_in(pc.field("id"), pa.array(random.sample(range(new + 1), min(new + 1, 4))))
        held = pc.any(pc.is_in(writer.rows()["id"], pa.array([0, 1, 2, 3, 4]))).as_py()
        match random.randrange(10):
            case 0 if held:
                await writer.update(pc.field("id") < 5, {"v": pc.scalar(f"u{writer.version}")})
            case 1:
                await writer.merge(rows(*range(new - 2, new + 2), v=f"m{writer.version}"), "id")
                new += 2
            case 2 if writer.rows().filter(some).num_rows:
                await writer.delete(some)
            case 3:
                await writer.optimize()
            case 4 if len(writer.schema) < 4:
                await writer.add_column(pa.field(f"c{len(writer.schema)}", pa.int32()))
            case _:
                count = random.randint(1, 5)
                await writer.insert(rows(*range(new, new + count), v=f"i{writer.version}"))
                new += count
        await asyncio.sleep(random.uniform(0, 0.02))


def is_ready(line: Line) -> bool:
    return any(text in line["message"] for text in ("starting at version", "resuming at version"))


async def killed_and_killed(config: Path, kills: int, random: Random, writer: TableWriter) -> None:
    """Kill daemons. On a busy machine the writer is slow, so they live until it has committed."""
    for kill in range(kills):
        before = writer.version
        with Daemon(config) as daemon:
            if kill % 4 < 3:  # else wherever it may be, most likely not yet there
                await asyncio.to_thread(daemon.wait_for, is_ready)
                while writer.version < before + 10:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(random.uniform(0, 0.2))
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL


async def caught_up(config: Path, place: Path, version: int) -> None:
    with Daemon(config) as daemon:
        await asyncio.to_thread(daemon.wait_for, is_ready)  # before that, SIGTERM ends a process as it does any other
        while json.loads((place / "_position.json").read_text())["version"] <= version:
            assert daemon.running
            await asyncio.sleep(0.02)
        daemon.stop()


def delivered(place: Path) -> list[dict[str, Any]]:
    listing: list[dict[str, Any]] = []
    for file in sorted(place.iterdir()):
        if file.suffix == ".jsonl":
            listing += map(json.loads, file.read_text().splitlines())
        elif file.suffix == ".parquet":
            listing += pq.ParquetFile(file).read().to_pylist()
    return listing


def told(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"], row["v"]


@pytest.mark.parametrize(
    ("seed", "format", "start", "kills"),
    sample([(1, "jsonl", "earliest", 12 if ALL else 4), (2, "parquet", "snapshot", 6)], 1),
)
async def test_killed_daemons_deliver_every_change_once(
    tmp_path: Path, seed: int, format: str, start: str, kills: int
) -> None:
    random = Random(seed)
    uri, place = str(tmp_path / "orders"), tmp_path / "out" / "orders"
    config = tmp_path / "cdfd.yaml"
    sink = {"kind": "files", "path": str(tmp_path / "out"), "format": format}
    config.write_text(json.dumps({"pipeline": "p", "tables": [{"uri": uri, "start": start}], "sink": sink}))
    writer = TableWriter(LocalStorage(uri, sync=False), SCHEMA)

    stop = asyncio.Event()
    async with asyncio.timeout(WITHIN):
        await writer.create()
        await writer.insert(rows(-1, -2))
        writing = asyncio.create_task(commit_until(stop, writer, random))
        await killed_and_killed(config, kills, random, writer)
        stop.set()
        await writing
        await caught_up(config, place, writer.version)
    actual = delivered(place)

    assert [name for name in place.iterdir() if name.suffix == ".tmp"] == []
    first = actual[0]["_commit_version"]
    begun = cdfd.snapshot(uri, first) if start == "snapshot" else cdfd.changes(uri, 0, first)
    expected = [*begun.read_all().to_pylist(), *cdfd.changes(uri, first + 1).read_all().to_pylist()]
    assert list(map(told, actual)) == list(map(told, expected))

    folded: Counter[tuple[int, str]] = Counter()
    for row in actual:
        folded[row["id"], row["v"]] += SIGN[row["_change_type"]]
    live = writer.rows()
    assert {key: count for key, count in folded.items() if count} == Counter(
        zip(live["id"].to_pylist(), live["v"].to_pylist(), strict=True)
    )
