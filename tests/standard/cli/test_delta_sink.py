"""`sink.kind: delta`: a daemon whose target other readers read while it is killed, and what it refuses."""

import json
import os
import signal
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import cdfd as package
from tests.support.cli.delta_target import (
    change_rows,
    configure,
    configure_mirror,
    expected,
    is_table,
    live_rows,
    wait_for_target,
    write,
)
from tests.support.commands import cdfd, one_line, started
from tests.support.lake import rows, run
from tests.support.sampling import ALL, sample

KILLS = max(8 if ALL else 3, int(os.environ.get("CDFD_CHAOS", "0")) // 20)
"""Kills of a daemon; many more in a long run."""


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
def test_target_of_each_layout_has_every_change_once(tmp_path: Path, sink: dict[str, object]) -> None:
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


@pytest.mark.parametrize("mode", ["changelog", "mirror"])
def test_a_target_follows_columns_whose_mapping_is_switched_off(tmp_path: Path, mode: str) -> None:
    """The physical name of a renamed column is the name of another one, and no row tells the target of that before."""
    source, target = tmp_path / "lake" / "orders", tmp_path / "copies" / "orders"
    write_deltalake(source, pa.table({"id": [1, 2], "a": ["old", "old"]}))
    removed = next(source.glob("*.parquet")).name
    configured = configure_mirror if mode == "mirror" else configure
    entries = [json.loads(line) for line in (source / "_delta_log" / f"{0:020}.json").read_text().splitlines()]
    first = next(entry["metaData"] for entry in entries if "metaData" in entry)

    def alter(mode: str, **stored: str) -> dict[str, object]:
        fields = []
        for number, (name, physical) in enumerate(stored.items(), 1):
            notes = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
            kind = "long" if name == "id" else "string"
            fields.append({"name": name, "type": kind, "nullable": True, "metadata": {} if mode == "none" else notes})
        schema = json.dumps({"type": "struct", "fields": fields})
        return {"metaData": first | {"schemaString": schema, "configuration": {"delta.columnMapping.mode": mode}}}

    def add(rows: dict[str, object], *, data_change: bool) -> dict[str, object]:
        path = f"{len(list(source.glob('*.parquet')))}.parquet"
        pq.write_table(pa.table(rows), source / path)
        file = {"partitionValues": {}, "modificationTime": 0, "dataChange": data_change}
        return {"add": file | {"path": path, "size": (source / path).stat().st_size}}

    config = configured(tmp_path, on_missing_column="follow")
    with started("run", "-c", config) as daemon:
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    commit(source, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, alter("name", id="id", a="a"))
    commit(source, alter("name", id="id", b="a"))
    commit(source, alter("name", id="id", b="a", a="p3"))
    rewritten = add({"id": [1, 2], "b": ["old", "old"], "a": [None, None]}, data_change=False)
    gone = {"path": removed, "deletionTimestamp": 0, "dataChange": False}
    commit(source, alter("none", id="id", b="b", a="a"), {"remove": gone}, rewritten)
    with started("run", "-c", config) as daemon:
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    commit(source, add({"id": [3], "b": ["new b"], "a": ["new a"]}, data_change=True))
    with started("run", "-c", config) as daemon:
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    names = ["id", "b", "a"]
    rows = package.snapshot(target, columns=names).read_all().select(names).sort_by("id").to_pylist()
    assert rows == [*({"id": id, "b": "old", "a": None} for id in (1, 2)), {"id": 3, "b": "new b", "a": "new a"}]


@pytest.mark.parametrize(
    ("change", "told"),
    sample(
        [
            ({"key": []}, "name the columns that identify a row"),
            ({"start": "latest"}, "tables[0].start"),
            ({"exclude_change_types": ["delete"]}, "tables[0].exclude_change_types"),
            ({"on_missing_file": "skip"}, "tables[0].on_missing_file"),
        ],
        1,
    ),
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


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        ({"where": "v > 'a'"}, {"where": "v > 'b'"}, [(3, "d"), (4, "e")]),
        ({"where": "v > 'b'"}, {}, [(1, "a"), (2, "b"), (3, "d"), (4, "e")]),
        ({"columns": ["id"]}, {"columns": ["id", "v"]}, [(1, "a"), (2, "b"), (3, "d"), (4, "e")]),
        ({}, {"mask": {"v": {"method": "nullify"}}}, [(1, None), (2, None), (3, None), (4, None)]),
    ],
    ids=["fewer rows", "more rows", "more columns", "mask"],
)
def test_a_mirror_with_other_rows_is_loaded_again(
    tmp_path: Path, before: dict[str, object], after: dict[str, object], rows: list[tuple[int, str | None]]
) -> None:
    source = tmp_path / "lake" / "orders"
    write_deltalake(source, pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
    config = configure_mirror(tmp_path)
    settings = json.loads(config.read_text())
    for number, change in enumerate((before, after)):
        (listed,) = settings["tables"]
        config.write_text(json.dumps(settings | {"tables": [listed | change]}))
        told = "the mirror will be loaded again" if number else "the target will be created"
        assert told in cdfd("check", "-c", config).out
        with started("run", "-c", config) as daemon:
            daemon.log_line("snapshot of version 0 completed")  # the source has no new version
            if number:
                DeltaTable(source).update(predicate="id = 3", updates={"v": "'d'"})
                write_deltalake(source, pa.table({"id": [4], "v": ["e"]}), mode="append")
            wait_for_target(tmp_path)
            assert daemon.end(signal.SIGTERM).code == 0
    assert live_rows(tmp_path / "copies" / "orders") == [{"id": id, "v": v} for id, v in rows]
    assert "loaded again" not in cdfd("check", "-c", config).out


def test_a_mirror_of_an_empty_table_starts_again(tmp_path: Path) -> None:
    """There is no target before the first row, so the ledger must not say that a version was delivered."""
    source = tmp_path / "lake" / "orders"
    DeltaTable.create(source, pa.schema([("id", pa.int64()), ("v", pa.string())]))
    config = configure_mirror(tmp_path)
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"progress": {"ledger": str(tmp_path / "ledger")}}))
    for _ in range(2):
        with started("run", "-c", config) as daemon:
            daemon.log_line("snapshot of version 0 completed")
            assert daemon.end(signal.SIGTERM).code == 0
    with started("run", "-c", config) as daemon:
        write_deltalake(source, pa.table({"id": [1], "v": ["a"]}), mode="append")
        wait_for_target(tmp_path)
        assert daemon.end(signal.SIGTERM).code == 0
    assert live_rows(tmp_path / "copies" / "orders") == [{"id": 1, "v": "a"}]
