"""A ledger that cannot be written, is written by others, or knows something else than Kafka: rows do not wait for it."""

import asyncio
import copy
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from cdfd.demo.writer import TableWriter
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.local import LocalStorage
from tests.support import ledger_writer
from tests.support.kafka.daemon_process import Daemon, until
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.lake import rows

OFTEN = {"interval": "50ms"}


@pytest.fixture
def table(pipeline: Pipeline) -> TableWriter:
    """Three rows at version 1. The daemon records each version in the ledger."""
    pipeline.configure(progress={"ledger": str(pipeline.ledger)} | OFTEN)
    table = pipeline.table()
    do(table.insert(rows(0, 1, 2)))
    return table


def recorded(pipeline: Pipeline, folder: Path | None = None, name: str | None = None) -> int | None:
    """The version that the ledger, or another one in `folder`, knows of a table."""

    async def asked() -> int | None:
        ledger = TableLedger(LocalStorage(folder or pipeline.ledger), SystemClock())
        try:
            position = await ledger.position(name or app_id(pipeline.name, "orders"))
        finally:
            await ledger.close()
        return None if position is None else position.version

    return asyncio.run(asked())


def small_disk(pipeline: Pipeline) -> list[str]:
    """The command that runs a daemon with its ledger, and no other file, on a file system of 256 KiB that ends with it.

    Empty if the system does not allow such a mount.
    """
    pipeline.ledger.mkdir()
    mount = 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"'
    within = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(pipeline.ledger)]
    possible = shutil.which("unshare") and subprocess.run([*within, "true"], stderr=subprocess.DEVNULL).returncode == 0
    return within if possible else []


def seen_by(daemon: Daemon, folder: Path) -> Path:
    """A folder as a process sees it, which may have another file system mounted there."""
    return Path(f"/proc/{daemon.pid}/root{folder}")


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill a small disk while the block runs."""
    filling = folder / "filling"
    with filling.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    yield
    filling.unlink()


@contextmanager
def nothing_may_grow(daemon: Daemon) -> Iterator[None]:
    """Forbid the daemon to write a byte to any file while the block runs. This needs no privilege and no extra disk."""
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, hard))
    yield
    if daemon.running:
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (soft, hard))


def the_ledger_complains(daemon: Daemon) -> None:
    line = daemon.wait_for("cannot record version")
    assert line["level"] == "warning"
    assert "retrying in" in line["message"]


class TestCannotBeWritten:
    @pytest.mark.parametrize("small", [True, False], ids=["no space left", "no file may grow"])
    def test_disk_full(self, pipeline: Pipeline, table: TableWriter, small: bool) -> None:
        within = small_disk(pipeline) if small else []
        with pipeline.daemon(within=within) as daemon:
            assert pipeline.check() == 3
            folder = seen_by(daemon, pipeline.ledger)
            until(lambda: recorded(pipeline, folder) == 1)
            with full(folder) if within else nothing_may_grow(daemon):
                do(table.insert(rows(3)))
                assert pipeline.check() == 4
                the_ledger_complains(daemon)
                do(table.insert(rows(4)))
                assert pipeline.check() == 5
                assert recorded(pipeline, folder) == 1
            # By itself: no further version is needed.
            until(lambda: recorded(pipeline, folder) == 3)
            daemon.stop()
        assert pipeline.check() == 5

    def test_full_at_the_end(self, pipeline: Pipeline, table: TableWriter) -> None:
        with pipeline.daemon() as daemon:
            assert pipeline.check() == 3
            until(lambda: recorded(pipeline) == 1)
            with nothing_may_grow(daemon):
                do(table.insert(rows(3)))
                assert pipeline.check() == 4
                daemon.stop()
        assert recorded(pipeline) == 1
        with pipeline.daemon() as daemon:
            assert "lags at version 1" in daemon.wait_for("resuming at version 3")["message"]
            until(lambda: recorded(pipeline) == 2)
            daemon.stop()
        assert pipeline.check() == 4

    def test_something_else_in_its_place(self, pipeline: Pipeline, table: TableWriter) -> None:
        pipeline.ledger.write_text("not a folder")
        with pipeline.daemon() as daemon:
            assert pipeline.check() == 3
            the_ledger_complains(daemon)
            assert str(pipeline.ledger) in daemon.wait_for("cannot record version")["message"]
            pipeline.ledger.unlink()
            until(lambda: recorded(pipeline) == 1)
            daemon.stop()

    def test_damaged(self, pipeline: Pipeline, table: TableWriter) -> None:
        assert pipeline.finish() == 3
        newest = max((pipeline.ledger / "_delta_log").glob("*.json"))
        whole = newest.read_bytes()
        newest.write_bytes(whole[: whole.index(b"\n") // 2])  # half of the entry may be whole lines
        do(table.insert(rows(3)))
        with pipeline.daemon() as daemon:
            line = daemon.wait_for("the ledger cannot be read")
            assert line["level"] == "warning"
            assert str(pipeline.ledger) in line["message"]
            assert pipeline.check() == 4
            the_ledger_complains(daemon)
            newest.write_bytes(whole)
            until(lambda: recorded(pipeline) == 2)
            daemon.stop()


class TestOthers:
    def test_who_write_into_it_all_the_time(self, pipeline: Pipeline, table: TableWriter) -> None:
        many = 300
        other = subprocess.Popen([*ledger_writer_command(), str(pipeline.ledger), "somebody", str(many)])
        try:
            with pipeline.daemon() as daemon:
                for number in range(20):
                    do(table.insert(rows(3 + number)))
                assert pipeline.check() == 23
                assert other.wait(60) == 0
                daemon.stop()
        finally:
            other.kill()
            other.wait()
        assert pipeline.check() == 23
        assert recorded(pipeline) == 21
        assert recorded(pipeline, name="somebody") == many - 1

    def test_two_daemons_of_different_pipelines(self, pipeline: Pipeline, table: TableWriter) -> None:
        second = Pipeline(pipeline.folder, f"{pipeline.name}-2", pipeline.servers, pipeline.direct)
        with pipeline.daemon() as daemon, second.daemon() as other:
            for number in range(10):
                do(table.insert(rows(3 + number)))
            assert pipeline.check() == second.check() == 13
            daemon.stop()
            other.stop()
        assert recorded(pipeline) == recorded(second) == 11


class TestDisagreement:
    """Rows and position are in Kafka together. The ledger is written after them, and may lag, or be lost."""

    def test_kafka_committed_and_the_ledger_did_not(self, pipeline: Pipeline, table: TableWriter) -> None:
        pipeline.configure(progress={"ledger": str(pipeline.ledger), "interval": "1h"})
        with pipeline.daemon() as daemon:
            assert pipeline.check() == 3
            until(lambda: recorded(pipeline) is not None)
            do(table.insert(rows(3)))
            assert pipeline.check() == 4
            daemon.kill()
        before = recorded(pipeline)
        assert before is not None
        assert before < 2
        with pipeline.daemon() as daemon:
            assert f"lags at version {before}" in daemon.wait_for("resuming at version 3")["message"]
            until(lambda: recorded(pipeline) == 2)
            daemon.stop()
        assert pipeline.check() == 4

    def test_ledger_lost(self, pipeline: Pipeline, table: TableWriter) -> None:
        assert pipeline.finish() == 3
        shutil.rmtree(pipeline.ledger)
        do(table.insert(rows(3)))
        with pipeline.daemon() as daemon:
            assert "has nothing yet" in daemon.wait_for("resuming at version 2")["message"]
            assert pipeline.check() == 4
            daemon.stop()
        assert recorded(pipeline) == 2

    def test_kafka_lost(self, pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient) -> None:
        assert pipeline.finish() == 3
        progress = f"_cdfd_progress.{pipeline.name}"
        admin.delete_topics([progress])
        do(table.insert(rows(3)))
        for _ in range(2):
            with pipeline.daemon() as daemon:
                assert daemon.ended() == 1, daemon.log()
            for what in ("--recover-from-ledger", str(pipeline.ledger), progress, "version 1"):
                assert what in daemon.error
        with pipeline.daemon("--recover-from-ledger") as daemon:
            assert str(pipeline.ledger) in daemon.wait_for("resuming at version 2")["message"]
            assert pipeline.check() == 4
            daemon.stop()
        # The flag has done its work, and does no harm where it is left.
        do(table.insert(rows(4)))
        with pipeline.daemon("--recover-from-ledger") as daemon:
            assert pipeline.check() == 5
            daemon.stop()

    def test_both_lost(self, pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient) -> None:
        """The daemon starts at the configured start again."""
        assert pipeline.finish() == 3
        admin.delete_topics([f"_cdfd_progress.{pipeline.name}", pipeline.topic])
        shutil.rmtree(pipeline.ledger)
        assert pipeline.finish() == 3


class TestABackup:
    """The table is put back as it was, with the same id, and goes another way: the position is the ledger's, and of the old one."""

    def test_where_the_ledger_is_the_only_position(self, pipeline: Pipeline, table: TableWriter) -> None:
        pipeline.configure(progress={"ledger": str(pipeline.ledger)} | OFTEN, sink={"delivery": "at_least_once"})
        self.check(pipeline, table)

    def test_where_the_position_in_kafka_is_lost(
        self, pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient
    ) -> None:
        self.check(pipeline, table, "--recover-from-ledger", lose=admin)

    def check(
        self, pipeline: Pipeline, table: TableWriter, *options: str, lose: KafkaAdminClient | None = None
    ) -> None:
        place, backup, current = Path(pipeline.uri), pipeline.folder / "backup", pipeline.folder / "current"
        shutil.copytree(place, backup)
        other = copy.deepcopy(table)
        do(table.insert(rows(3)))
        assert pipeline.finish() == 4
        if lose is not None:
            lose.delete_topics([f"_cdfd_progress.{pipeline.name}"])
        place.rename(current)
        backup.rename(place)
        for number in (30, 31):
            do(other.insert(rows(number)))
        for _ in range(2):
            with pipeline.daemon(*options) as daemon:
                assert daemon.ended() == 1, daemon.log()
            assert "version 2 is not the one that was read" in daemon.error
        shutil.rmtree(place)
        current.rename(place)
        do(table.insert(rows(4)))
        with pipeline.daemon(*options) as daemon:
            assert pipeline.check() == 5
            daemon.stop()


def ledger_writer_command() -> list[str]:
    import sys

    return [sys.executable, os.fspath(ledger_writer.__file__)]
