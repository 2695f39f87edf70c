"""Tables, disks and clocks that fail under a living daemon. A healthy table of the same daemon loses no row and gets none twice."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.chaos.faults import share, while_writing
from tests.support.kafka.daemon_process import Daemon, until
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import SCHEMA, rows

REPLACED, SPARSE, FULL, JUMPS, PAIRS = share(6, 3), share(3, 3), share(2, 2), share(3, 6), share(3, 2)
MEMORY = 700 << 20
"""Bytes that a daemon of two tables may take at most, whatever one of them holds."""


def created(place: Path, number: int, versions: int) -> None:
    """A table whose rows say which table and which version they are of."""

    async def create() -> None:
        writer = TableWriter(LocalStorage(place, sync=False), SCHEMA, table_id=f"table-{number}")
        await writer.create()
        for version in range(1, versions):
            await writer.insert(rows(number * 1000 + version, v=f"{number}:{version}"))

    asyncio.run(create())


def test_tables_that_are_replaced(broker: SharedBroker, pipeline: Pipeline, tmp_path: Path) -> None:
    """Each is noticed, whatever number of versions the new one has, and none of its rows comes as the old one's."""
    victim = tmp_path / "victim"
    created(victim, 0, 3)
    pipeline.configure(beside=[{"uri": str(victim), "start": "snapshot"}])
    # A snapshot whose files vanish is retried after a minute, which is six seconds of this clock.
    fast = [sys.executable, "-m", "tests.support.chaos.clock", str(tmp_path / "offset"), "10"]
    with while_writing("tables replaced", REPLACED, pipeline) as random:
        for number in range(1, REPLACED + 1):
            with pipeline.daemon(within=fast) as daemon:
                daemon.wait_for(lambda line: "at version" in line["message"] and line.get("table") == str(victim))
                time.sleep(random.uniform(0, 0.5))
                shutil.rmtree(victim)
                time.sleep(random.choice([0, 0, random.uniform(0, 0.3)]))
                created(victim, number, random.randint(1, 8))
                daemon.wait_for(lambda line: line.get("family") == "table_changed")
                assert daemon.running, daemon.log()
                daemon.stop()
            reset = [sys.executable, "-m", "cdfd", "progress", "reset", "-c", str(pipeline.config), "victim"]
            subprocess.run(reset, check=True, capture_output=True, timeout=60)
    for record in read_topic(broker.bootstrap_servers, f"{pipeline.name}.victim"):
        row = json.loads(record.value or b"{}")
        if row:
            number, version = map(int, row["v"].split(":"))
            assert row["id"] == number * 1000 + version
            assert row["_commit_version"] >= version


def test_files_of_ten_terabytes(pipeline: Pipeline, tmp_path: Path) -> None:
    """Sparse files without blocks: the daemon holds none of their bytes in memory, and delivers the other table."""
    victim = tmp_path / "victim"
    created(victim, 0, 3)
    pipeline.configure(beside=[{"uri": str(victim), "start": "snapshot"}])
    with while_writing("sparse files in a log", SPARSE, pipeline) as random, pipeline.daemon() as daemon:
        daemon.wait_for(lambda line: "at version" in line["message"] and line.get("table") == str(victim))
        for number in range(SPARSE):
            name = ["00000000000000000003.json", "_last_checkpoint", "00000000000000000003.crc"][number % 3]
            place = victim / "_delta_log" / name
            with place.open("wb") as file:
                file.truncate(10 << 40)
            time.sleep(random.uniform(0.5, 2.0))
            place.unlink()
            assert daemon.running, daemon.log()
            assert peak(daemon) < MEMORY
        daemon.stop()


def peak(daemon: Daemon) -> int:
    """Bytes of memory that a process had at most."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "cdfd", str(place)]).returncode:
        pytest.skip("only root may mount a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def filled(disk: Path) -> Path:  # type: ignore[return]
    """A file that leaves no room on a disk."""
    place = disk / "filler"
    with place.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            return place


def test_full_disks(pipeline: Pipeline, small_disk: Path) -> None:
    """The ledger is on a disk that fills up, again and again: delivery continues, and the ledger follows once the disk has space."""
    pipeline.configure(progress={"ledger": str(small_disk / "ledger"), "interval": "50ms"})
    with while_writing("full disks under the ledger", FULL, pipeline) as random, pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        for _ in range(FULL):
            before = len(daemon.lines)
            filler = filled(small_disk)
            daemon.wait_for("ledger", after=before)
            time.sleep(random.uniform(0, 1))
            filler.unlink()
            assert daemon.running, daemon.log()
        daemon.stop()


@pytest.mark.parametrize("times", ["LogAppendTime", "CreateTime"])
def test_clocks_that_jump(pipeline: Pipeline, tmp_path: Path, times: str) -> None:
    """The daemon's wall clock jumps, and so do the times of log entries. With CreateTime, the broker refuses records of a year ahead."""
    offset = tmp_path / "offset"
    other = [sys.executable, "-m", "tests.support.chaos.clock", str(offset), "1"]
    if times == "CreateTime":  # the broker deletes records of long ago, a while after they arrive
        kept = {"message.timestamp.type": times, "retention.ms": "-1"}
        pipeline.configure(sink={"topics": {"prefix": f"{pipeline.name}.", "config": kept}})
    with (
        while_writing(f"clocks that jumped, {times}", JUMPS, pipeline) as random,
        pipeline.daemon(within=other) as daemon,
    ):
        daemon.wait_for("at version")
        for number in range(JUMPS):
            time.sleep(random.uniform(0.1, 0.7))
            match number % 3:
                case 0:
                    offset.write_text(str(random.randint(-(10**10), 50 * 60_000)))
                case 1:
                    jump(Path(pipeline.uri), random)
                case _:
                    before = len(daemon.lines)
                    offset.write_text(str(3 * 10**10))
                    if times == "CreateTime":
                        daemon.wait_for("this machine's clock", after=before)
                        offset.write_text("0")
            assert daemon.running, daemon.log()
        daemon.stop()


def jump(table: Path, random: Random) -> None:
    """Give the newest entries of a log another time."""
    for entry in sorted((table / "_delta_log").glob("*.json"))[-3:]:
        moment = time.time() + random.uniform(-3600, 3600)
        os.utime(entry, (moment, moment))


def test_two_daemons_that_are_both_restarted(pipeline: Pipeline) -> None:
    """Their orchestrators start them again whenever they end: they fence each other, and deliver all the same."""
    with (
        while_writing("daemons restarted against each other", PAIRS, pipeline),
        kept_running(pipeline.daemon) as one,
        kept_running(pipeline.daemon) as other,
    ):
        until(lambda: one() + other() >= 2 * PAIRS, 60 + 30 * PAIRS)


@contextmanager
def kept_running(start: Callable[[], Daemon]) -> Iterator[Callable[[], int]]:
    """A daemon that is started again when it ends; how often it was fenced."""
    stop, fenced = threading.Event(), 0

    def keep() -> None:
        nonlocal fenced
        while not stop.is_set():
            with start() as daemon:
                while daemon.running and not stop.wait(0.1):
                    pass
                fenced += daemon.running is False and daemon.ended() == 3

    thread = threading.Thread(target=keep, name="orchestrator")
    thread.start()
    try:
        yield lambda: fenced
    finally:
        stop.set()
        thread.join(60)
