"""A daemon that mirrors a table is killed, paused, taken over, and loads its target again."""

import json
import os
import signal
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

import cdfd as package
from tests.support.cli.delta_target import (
    configure_mirror,
    is_table,
    live_rows,
    wait_for_target,
    write,
)
from tests.support.commands import WITHIN, cdfd, one_line, started
from tests.support.lake import rows, run

KILLS = max(8, int(os.environ.get("CDFD_CHAOS", "0")) // 20)
"""Kills of a daemon; many more in a long run."""


def test_a_mirror_is_the_source_at_a_version_whenever_it_is_killed(tmp_path: Path) -> None:
    random = Random(12)
    writer = run(write(tmp_path, 3, random))
    config = configure_mirror(tmp_path, change_feed=True)
    source, target = tmp_path / "lake" / "orders", tmp_path / "copies" / "orders"
    assert "the target will be created" in cdfd("check", "-c", config).out
    for number in range(KILLS):
        with started("run", "-c", config) as daemon:
            daemon.log_line("ing at version")
            for step in range(2):
                run(writer.insert(rows(1000 + 10 * number + step)))
                some = pc.field("id").isin([999 + 10 * number + step, 1000 + 10 * number, 500 + number])
                run(writer.update(some, {"v": pc.scalar(f"k{number}{step}")}))
                time.sleep(random.random() * 0.1)
            run(writer.delete(pc.field("id") == 400 + 9 * number))
            if number % 8 == 7:
                # The writer looks through all files for an update. It changes no row, so the mirror has nothing to do.
                run(writer.optimize())
            daemon.end(signal.SIGKILL)
        if is_table(target) and (version := DeltaTable(target).transaction_version("cdfd/shop/orders")) is not None:
            assert live_rows(target) == live_rows(source, version)
    with started("run", "-c", config) as daemon:
        daemon.log_line("ing at version")
        run(writer.add_column(pa.field("extra", pa.int64())))
        run(writer.insert(rows(5000)))
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    assert live_rows(target) == live_rows(source)
    assert "ok" in cdfd("check", "-c", config).out
    # The copy can be followed like any table.
    lines = [json.loads(line) for line in cdfd("tail", target, "--from", "earliest", "--until", "now").lines()]
    assert {line["_change_type"] for line in lines} >= {"insert", "update_preimage", "update_postimage", "delete"}


def test_a_mirror_is_loaded_again_if_the_source_drops_a_column(tmp_path: Path) -> None:
    source, target = tmp_path / "lake" / "orders", tmp_path / "copies" / "orders"
    write_deltalake(source, pa.table({"id": [1, 2], "v": ["a", "b"], "w": [1, 2]}))
    with started("run", "-c", configure_mirror(tmp_path)) as daemon:
        daemon.log_line("snapshot of version 0 completed")
        write_deltalake(source, pa.table({"id": [2, 3], "v": [5, 6]}), mode="overwrite", schema_mode="overwrite")
        assert "starting again from a snapshot" in daemon.log_line("the schema changes: dropped w; changed v")
        wait_for_target(tmp_path)
        write_deltalake(source, pa.table({"id": [4], "v": [7]}), mode="append")
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    assert package.snapshot(target).schema.names[:3] == ["id", "v", "_change_type"]
    assert live_rows(target) == live_rows(source) == [{"id": 2, "v": 5}, {"id": 3, "v": 6}, {"id": 4, "v": 7}]


def test_a_mirror_is_paused_and_takes_no_rows_again(tmp_path: Path) -> None:
    source, target = tmp_path / "lake" / "orders", tmp_path / "copies" / "orders"
    writer = run(write(tmp_path, 0, Random(1)))
    config = configure_mirror(tmp_path)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"controls": {"socket": str(tmp_path / "ctl.sock")}}))
    with started("run", "-c", config) as daemon:
        daemon.log_line("snapshot of version 1 completed")
        refused = cdfd("ctl", "snapshot", "orders", "-c", config)
        assert refused.code == 1
        assert (
            "REFUSED: a mirror has each row once already, so it takes no incremental snapshot"
            in refused.out + refused.err
        )
        assert "PAUSED: orders is paused before version 2" in cdfd("ctl", "pause", "orders", "-c", config).out
        run(writer.delete(pc.field("id") < 450))
        daemon.end(signal.SIGKILL)
    with started("run", "-c", config) as daemon:
        daemon.log_line("paused by a request")
        assert len(live_rows(target)) == 400
        assert "RESUMED" in cdfd("ctl", "resume", "orders", "-c", config).out
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    assert live_rows(target) == live_rows(source)
    ended = cdfd("backfill", "orders", "--from", "0", "--until", "1", "-c", config)
    assert "a mirror has the rows of its source, so it takes no backfill" in one_line(ended, ended.code)
    assert ended.code != 0


def test_a_second_daemon_of_the_same_name_takes_a_mirror_over(tmp_path: Path) -> None:
    source, target = tmp_path / "lake" / "orders", tmp_path / "copies" / "orders"
    writer = run(write(tmp_path, 0, Random(1)))
    config = configure_mirror(tmp_path)
    with started("run", "-c", config) as older:
        older.log_line("snapshot of version 1 completed")
        run(writer.delete(pc.field("id") < 450))
        wait_for_target(tmp_path)
        with started("run", "-c", config) as newer:
            newer.log_line("resuming at")
            run(writer.delete(pc.field("id") < 500))
            older.process.wait(timeout=WITHIN)
            assert older.process.returncode == 3
            older.log_line("another process has taken the target over")
            wait_for_target(tmp_path)
            run(writer.update(pc.field("id") < 510, {"v": pc.scalar("b")}))
            wait_for_target(tmp_path)
            assert newer.end(signal.SIGTERM).code == 0
    assert live_rows(target) == live_rows(source)
