"""`sink.kind: delta`: a daemon whose target other readers read while it is killed again and again."""

import json
import os
import signal
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import cdfd as package
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.commands import WITHIN, cdfd, one_line, started
from tests.support.lake import SCHEMA, rows, run

KILLS = max(8, int(os.environ.get("CDFD_CHAOS", "0")) // 20)
"""Kills of a daemon; many more in a long run."""


def configure(folder: Path, **sink: object) -> Path:
    path = folder / "cdfd.yaml"
    settings = {
        "pipeline": "shop",
        "tables": [{"uri": str(folder / "lake" / "orders"), "start": "earliest"}],
        "sink": {"kind": "delta", "path": str(folder / "copies")} | sink,
        "poll": {"interval": "50ms", "max_interval": "100ms"},
        "http": {"listen": "127.0.0.1:0"},
    }
    path.write_text(json.dumps(settings))
    return path


async def write(folder: Path, versions: int, random: Random) -> TableWriter:
    # Nothing kills the writer, so it need not wait for the disk.
    writer = TableWriter(LocalStorage(folder / "lake" / "orders", sync=False), SCHEMA)
    await writer.create()
    await writer.insert(rows(*range(400, 800)))
    for number in range(versions):
        match random.randrange(3):
            case 0:
                await writer.update(pc.field("id").isin(range(number, 800, 7)), {"v": pc.scalar(f"u{number}")})
            case 1:
                await writer.delete(pc.field("id").isin(range(number, 800, 11)))
            case _:
                await writer.insert(rows(*range(10 * number, 10 * number + 10)))
    return writer


def change_rows(target: Path) -> list[dict[str, object]]:
    found = DeltaTable(target).to_pyarrow_table()
    ordered = found.sort_by([("_commit_version", "ascending"), ("_change_ordinal", "ascending")])
    result: list[dict[str, object]] = ordered.to_pylist()
    return result


def is_table(target: Path) -> bool:
    """Whether there is a target. Before that, its folder may have data files."""
    return DeltaTable.is_deltatable(str(target))


def wait_for_target(folder: Path) -> None:
    """Wait until the target has the newest version of the source."""
    deadline, target = time.monotonic() + WITHIN, folder / "copies" / "orders"
    newest = DeltaTable(folder / "lake" / "orders").version()
    while not is_table(target) or DeltaTable(target).transaction_version("cdfd/shop/orders") != newest:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def expected(folder: Path) -> list[dict[str, object]]:
    found: pa.Table = package.changes(folder / "lake" / "orders", 0).read_all()
    result: list[dict[str, object]] = found.to_pylist()
    return result


def test_every_change_once_whenever_it_is_killed(tmp_path: Path) -> None:
    random = Random(11)
    writer = run(write(tmp_path, 40, random))
    # Checkpoints and compactions are killed too.
    config = configure(tmp_path, checkpoint_interval=3)
    target = tmp_path / "copies" / "orders"
    for number in range(KILLS):
        with started("run", "-c", config) as daemon:
            daemon.log_line("starting at" if number == 0 else "resuming at")
            time.sleep(random.random() * 0.1)
            run(writer.insert(rows(1000 + number)))
            daemon.end(signal.SIGKILL)
        if is_table(target):
            # A reader never sees a part of a version.
            seen = change_rows(target)
            last = max((int(str(row["_commit_version"])) for row in seen), default=-1)
            assert seen == [row for row in expected(tmp_path) if int(str(row["_commit_version"])) <= last]
    with started("run", "-c", config) as daemon:
        daemon.log_line("resuming at")
        run(writer.add_column(pa.field("extra", pa.int64())))
        run(writer.insert(rows(5000)))
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    assert change_rows(target) == expected(tmp_path)
    assert f"resuming at version {44 + KILLS}, the position in the target" in cdfd("progress", "show", "-c", config).out


@pytest.mark.parametrize("sink", [{"partition_by": ["_change_type"], "compression": "zstd"}, {"file_size": "1KB"}])
def test_layouts(tmp_path: Path, sink: dict[str, object]) -> None:
    run(write(tmp_path, 10, Random(1)))
    config = configure(tmp_path, **sink)
    assert "the target will be created" in cdfd("check", "-c", config).out
    with started("run", "-c", config) as daemon:
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    assert change_rows(tmp_path / "copies" / "orders") == expected(tmp_path)


def test_a_target_among_the_files_of_a_source_is_refused(tmp_path: Path) -> None:
    run(write(tmp_path, 1, Random(1)))
    config = configure(tmp_path, path=str(tmp_path / "lake" / "orders"))
    ended = cdfd("check", "-c", config)
    assert ended.code == 2
    assert "sink.path" in ended.err


def test_a_table_of_change_rows_cannot_be_followed_as_it_is(tmp_path: Path) -> None:
    run(write(tmp_path, 3, Random(1)))
    with started("run", "-c", configure(tmp_path)) as daemon:
        wait_for_target(tmp_path)
        daemon.end(signal.SIGTERM)
    copy = tmp_path / "copies" / "orders"
    error = one_line(cdfd("tail", copy, "--from", "earliest", "--until", "now"), 1)
    assert "has columns with the names of change columns: _change_ordinal, _change_type" in error
    assert "Leave them out with `columns`" in error
    chosen = cdfd("tail", copy, "--from", "earliest", "--until", "now", "--columns", "id,v")
    assert len(chosen.lines()) == len(expected(tmp_path))


def configure_mirror(folder: Path, **sink: object) -> Path:
    path = configure(folder, mode="mirror", **sink)
    settings = json.loads(path.read_text())
    settings["tables"][0] |= {"key": ["id"], "start": "snapshot"}
    path.write_text(json.dumps(settings))
    return path


def live_rows(table: Path, version: int | None = None) -> list[dict[str, object]]:
    found = package.snapshot(table, version).read_all().select(["id", "v"]).sort_by("id")
    result: list[dict[str, object]] = found.to_pylist()
    return result


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


def mapped(source: Path, **names: str) -> None:
    """Commit a version of a source after which it has these columns of strings and integers: names, and those in its files."""
    log = source / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    metadata = next(entry["metaData"] for entry in first if "metaData" in entry)
    known = {field["name"]: field for field in json.loads(metadata["schemaString"])["fields"]}
    fields = []
    for number, (name, stored) in enumerate(names.items(), 1):
        mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored}
        fields.append(known[stored] | {"name": name, "metadata": mapping})
    metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    metadata["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
    actions = [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata}]
    commit(source, *actions)


def commit(source: Path, *actions: dict[str, object]) -> None:
    """Commit a version of a source."""
    log = source / "_delta_log"
    newest = max(int(path.stem) for path in log.glob("*.json"))
    (log / f"{newest + 1:020}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def test_a_mirror_follows_renames_and_drops(tmp_path: Path) -> None:
    source, target = tmp_path / "lake" / "orders", tmp_path / "copies" / "orders"
    write_deltalake(source, pa.table({"id": [1, 2], "old": ["a", "b"], "gone": [1, 2]}))
    removed = next((source).glob("*.parquet")).name
    with started("run", "-c", configure_mirror(tmp_path, on_missing_column="follow")) as daemon:
        daemon.log_line("snapshot of version 0 completed")
        write_deltalake(source, pa.table({"id": [3], "old": ["c"], "gone": [3]}), mode="append")
        mapped(source, id="id", v="old")
        # Row 1 is updated, row 2 deleted.
        pq.write_table(pa.table({"id": [1], "old": ["d"]}), source / "rewritten.parquet")
        size = (source / "rewritten.parquet").stat().st_size
        file = {"partitionValues": {}, "modificationTime": 0, "dataChange": True}
        commit(
            source,
            {"remove": {"path": removed, "deletionTimestamp": 0, "dataChange": True}},
            {"add": file | {"path": "rewritten.parquet", "size": size}},
        )
        wait_for_target(tmp_path)
        ended = daemon.end(signal.SIGTERM)
        assert ended.code == 0
        assert "from a snapshot" not in ended.err
    assert package.snapshot(target).schema.names[:3] == ["id", "v", "_change_type"]
    assert live_rows(target) == live_rows(source) == [{"id": 1, "v": "d"}, {"id": 3, "v": "c"}]


def test_a_mirror_is_paused_and_takes_no_rows_again(tmp_path: Path) -> None:
    source, target = tmp_path / "lake" / "orders", tmp_path / "copies" / "orders"
    writer = run(write(tmp_path, 0, Random(1)))
    config = configure_mirror(tmp_path)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"controls": {"socket": str(tmp_path / "ctl.sock")}}))
    with started("run", "-c", config) as daemon:
        daemon.log_line("snapshot of version 1 completed")
        refused = cdfd("ctl", "snapshot", "orders", "-c", config)
        assert refused.code == 1
        assert "REFUSED: a mirror has each row once already, so it takes no re-snapshot" in refused.out + refused.err
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


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"key": []}, "name the columns that identify a row"),
        ({"start": "latest"}, "tables[0].start"),
        ({"exclude_change_types": ["delete"]}, "tables[0].exclude_change_types"),
        ({"on_missing_file": "skip"}, "tables[0].on_missing_file"),
    ],
)
def test_a_mirror_that_would_lack_rows_is_refused(tmp_path: Path, change: dict[str, object], told: str) -> None:
    run(write(tmp_path, 1, Random(1)))
    path = configure_mirror(tmp_path)
    settings = json.loads(path.read_text())
    settings["tables"][0] |= change
    path.write_text(json.dumps(settings))
    ended = cdfd("run", "-c", path)
    assert ended.code == 2
    assert told in ended.err
    assert not (tmp_path / "copies").exists()
