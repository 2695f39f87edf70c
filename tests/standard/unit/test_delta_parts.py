"""Versions that are delivered into a Delta table in parts: the rows of the embedded engine, in one version of the target."""

import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cdfd
from cdfd.daemon.engines import EmbeddedEngine, engine_of
from cdfd.deliver.admission import Admission
from cdfd.deliver.assignment import Assignment
from cdfd.delta.actions import Metadata
from cdfd.delta.write.writing import metadata_fields
from cdfd.demo.writer import Action, TableWriter
from cdfd.errors import ConfigError, FencedError, SinkError
from cdfd.log.table import Table
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.scan.splits import plan_splits
from cdfd.sinks.base import Delivery, connector
from cdfd.sinks.jobs import Counts, Delivered
from cdfd.storage.local import LocalStorage
from tests.support.delta_copies import Copy, Dying, Twice
from tests.support.faulty_storage import Died
from tests.support.lake import SCHEMA, rows
from tests.support.oracle.workload import Workload

NEWEST = 2


def engine() -> EmbeddedEngine:
    return EmbeddedEngine(Admission(1))


async def written(folder: Path) -> TableWriter:
    """A table of four files and 3001 rows at version `NEWEST`."""
    table = TableWriter(LocalStorage(folder, sync=False), SCHEMA)
    await table.create()
    files = [await table._add(rows(*range(1000 * part, 1000 * part + 1000))) for part in range(3)]
    await table.commit("WRITE", files)
    await table.insert(rows(5000))
    return table


async def source(folder: Path) -> Path:
    await written(folder / "rows")
    return folder / "rows"


def entries(copy: Copy) -> list[list[dict[str, Any]]]:
    paths = sorted((copy.target / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


@pytest.mark.parametrize(
    ("seed", "sink"),
    [(2, {"partition_by": ["_change_type"]}), (6, {"compression": "zstd"})],
)
async def test_the_rows_and_ordinals_of_the_embedded_engine(tmp_path: Path, seed: int, sink: dict[str, Any]) -> None:
    newest = [step.version for step in Workload(tmp_path / "rows", seed).steps(6)][-1]
    embedded = Copy(tmp_path / "rows", tmp_path / "a", sink=sink)
    in_parts = Copy(tmp_path / "rows", tmp_path / "b", sink=sink)
    counts = (await embedded.deliver(newest)).rows
    assert (await in_parts.deliver(newest, Twice(engine()))).rows == counts
    assert counts.total() > 50
    # As text, in which NaN equals itself.
    assert repr(in_parts.rows()) == repr(embedded.rows())
    assert await in_parts.position() == await embedded.position() == (newest + 1, "stream")


async def test_a_first_load_is_one_version(tmp_path: Path) -> None:
    copy = Copy(await source(tmp_path), tmp_path / "a", {"start": "snapshot"})
    await copy.deliver(NEWEST, engine(), part_size=150_000)
    with_files = [entry for entry in entries(copy) if any("add" in action for action in entry)]
    assert len(with_files) == 1
    assert sum("add" in action for action in with_files[0]) == 4
    assert any(action.get("txn", {}).get("appId") == "cdfd/copies/rows" for action in with_files[0])
    assert sorted(copy.ids()) == [*range(3000), 5000]
    assert [row["_change_ordinal"] for row in copy.rows()] == list(range(3001))


@pytest.mark.parametrize("mode", ["changelog", "mirror"])
async def test_a_process_that_dies_between_the_files_and_the_commit(tmp_path: Path, mode: str) -> None:
    copy = Copy(await source(tmp_path), tmp_path / "a", {"start": "snapshot", "key": ["id"]}, {"mode": mode})
    dying = Dying(engine())
    with pytest.raises(Died):
        await copy.deliver(NEWEST, dying, part_size=150_000)
    assert dying.parts == len(list(copy.target.glob("part-*"))) == 4
    await copy.deliver(NEWEST, engine(), part_size=150_000)
    assert sorted(copy.ids()) == [*range(3000), 5000]
    assert await copy.position() == (NEWEST + 1, "stream")
    assert len(list(copy.target.glob("part-*"))) == 8


def mapped(**columns: str) -> Action:
    """The metadata of a table with column mapping: for each column, the name that files have for it."""
    fields = [
        {
            "name": name,
            "type": "long" if name == "id" else "string",
            "nullable": True,
            "metadata": {"delta.columnMapping.physicalName": stored, "delta.columnMapping.id": int(stored[1])},
        }
        for name, stored in columns.items()
    ]
    properties = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
    schema = json.dumps({"type": "struct", "fields": fields})
    return "metaData", metadata_fields(Metadata("T", schema, (), properties))


MAPPED = "protocol", {"minReaderVersion": 2, "minWriterVersion": 5}


async def added(table: TableWriter, path: str, **values: int | str) -> Action:
    size = await table._write(path, pa.table({name: [value] for name, value in values.items()}))
    return "add", {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}


def removed(path: str) -> Action:
    return "remove", {"path": path, "deletionTimestamp": 1, "dataChange": True, "partitionValues": {}}


@pytest.mark.parametrize("mode", ["keep", "follow"])
@pytest.mark.parametrize("replaced", ["dropped", "renamed"])
async def test_deletes_of_an_overwrite_have_columns_that_are_gone(tmp_path: Path, mode: str, replaced: str) -> None:
    """The first version of the target is that overwrite, or one after it. A renamed column is one column if the target follows names."""
    after = "p1" if replaced == "renamed" else "p2"
    table = TableWriter(LocalStorage(tmp_path / "rows", sync=False), SCHEMA)
    await table.commit("CREATE", [MAPPED, mapped(id="p0", b="p1")])
    await table.commit("WRITE", [await added(table, "a.parquet", p0=1, p1="value 1")])
    file = await added(table, "b.parquet", **{"p0": 2, after: "value 2"})
    await table.commit("OVERWRITE", [mapped(id="p0", c=after), removed("a.parquet"), file])
    await table.commit("WRITE", [await added(table, "c.parquet", **{"p0": 3, after: "value 3"})])
    for start in (1, 2):
        copy = Copy(tmp_path / "rows", tmp_path / str(start), {"start": str(start)}, {"on_missing_column": mode})
        await copy.deliver(2, engine())
        rows = [(row["_change_type"], row["id"], row.get("b"), row["c"]) for row in copy.rows() if row["id"] < 3]
        deleted = (None, "value 1") if (mode, replaced) == ("follow", "renamed") else ("value 1", None)
        assert rows[-2:] == [("delete", 1, *deleted), ("insert", 2, None, "value 2")]
        await copy.deliver(3, engine())
        assert ("b" in copy.rows()[0]) == (mode == "keep")
        assert [row["c"] for row in copy.rows()[-2:]] == ["value 2", "value 3"]


@pytest.mark.parametrize("renamed", [{"b": "p1", "a": "p2"}, {"b": "p1", "c": "p2"}, {"c": "p1", "b": "p2"}])
async def test_deletes_of_a_restore_follow_renamed_columns(tmp_path: Path, renamed: dict[str, str]) -> None:
    table = TableWriter(LocalStorage(tmp_path / "rows", sync=False), SCHEMA)
    await table.commit("CREATE", [MAPPED, mapped(id="p0", a="p1", b="p2")])
    await table.commit("RENAME COLUMN", [mapped(id="p0", **renamed)])
    await table.commit("WRITE", [await added(table, "a.parquet", p0=1, p1="first", p2="second")])
    file = await added(table, "b.parquet", p0=2, p1="first", p2="second")
    await table.commit("RESTORE", [mapped(id="p0", a="p1", b="p2"), removed("a.parquet"), file])
    for start in (0, 3):
        copy = Copy(tmp_path / "rows", tmp_path / str(start), {"start": str(start)}, {"on_missing_column": "follow"})
        await copy.deliver(3, engine())
        assert [(row["id"], row["a"], row["b"]) for row in copy.rows()] == [
            *([(1, "first", "second")] if start == 0 else []),
            (1, "first", "second"),
            (2, "first", "second"),
        ]


async def test_a_mirror_takes_its_first_load_in_parts_and_later_versions_whole(tmp_path: Path) -> None:
    table = await written(tmp_path / "rows")
    copy = Copy(
        tmp_path / "rows", tmp_path / "a", {"start": "snapshot", "key": ["id"]}, {"mode": "mirror", "change_feed": True}
    )
    await copy.deliver(NEWEST, engine(), part_size=150_000)
    assert len(list(copy.target.glob("part-*"))) == 4
    await table.insert(rows(7000))
    dying = Dying(engine())
    await copy.deliver(NEWEST + 1, dying)
    assert dying.parts == 0
    assert copy.ids() == [*range(3000), 5000, 7000]


async def assigned(copy: Copy) -> tuple[Version, Position]:
    version = await Table.open(str(copy.uri)).stream().snapshot(NEWEST)
    return version, Position(version.table_id, NEWEST, phase="snapshot")


async def test_a_job_ends_when_another_process_takes_over(tmp_path: Path) -> None:
    copy = Copy(await source(tmp_path), tmp_path / "a")
    config = copy.settings("auto")
    version, position = await assigned(copy)
    async with connector(config).open(config.tables[0]) as sink:
        delivery = await sink.begin(position)
        await delivery.commit(position)
        job = await sink.begin_job(version, position, 1, 1000, "0f")
        await sink.claim_job(position, job)
        log = copy.target / "_delta_log"
        newest = max(log.glob("*.json"))
        taken = {"txn": {"appId": "cdfd/copies/rows/owner", "version": 1, "lastUpdated": 0}}
        (log / f"{int(newest.stem) + 1:020d}.json").write_text(json.dumps(taken))
        with pytest.raises(FencedError, match="taken the target over"):
            await sink.claim_job(position, job)
        with pytest.raises(FencedError, match="taken the target over"):
            await sink.finish_job(version, position, job, [])


async def test_files_that_this_machine_does_not_see_are_not_committed(tmp_path: Path) -> None:
    copy = Copy(await source(tmp_path), tmp_path / "a")
    config = copy.settings("auto")
    version, position = await assigned(copy)
    receipt = zlib.compress(json.dumps([["part-elsewhere.parquet", [], 10, "{}", 1]]).encode())
    async with connector(config).open(config.tables[0]) as sink:
        job = await sink.begin_job(version, position, 1, 1000, "0f")
        with pytest.raises(SinkError, match=r"is not in the target.*share"):
            await sink.finish_job(version, position, job, [Delivered({"insert": 1}, receipt)])
        assert not (copy.target / "_delta_log").exists()


async def test_rows_with_other_columns_than_the_job_are_refused(tmp_path: Path) -> None:
    copy = Copy(await source(tmp_path), tmp_path / "a")
    narrow = Copy(copy.uri, copy.path, {"columns": ["id"]})
    version, position = await assigned(copy)
    config = narrow.settings("auto")
    async with connector(config).open(config.tables[0]) as sink:
        job = await sink.begin_job(version, position, 1, 1 << 30, "0f")
    settings = copy.settings("auto")
    assignment = Assignment(settings, "rows", version, position, job)
    with pytest.raises(SinkError, match="other columns than the job"):
        await assignment.deliver(0, plan_splits(version.plan, 1 << 30)[0], 1)


async def test_batches_with_the_same_columns_are_in_one_file(tmp_path: Path) -> None:
    copy = Copy(await source(tmp_path), tmp_path / "a")
    version, position = await assigned(copy)
    settings = copy.settings("auto")
    sinks, table = connector(settings), settings.tables[0]
    async with sinks.open(table) as sink:
        job = await sink.begin_job(version, position, 1, 1 << 30, "0f")
    batch = cdfd.changes(str(copy.uri), start="earliest").read_all().to_batches()[0]

    async def write(delivery: Delivery) -> Counts:
        for _ in range(3):
            await delivery.write(batch)
        return {}

    await sinks.deliver_part(table, 0, job, position, write)
    assert len(list(copy.target.glob("part-*"))) == 1


async def test_a_backfill_takes_parts_beside_the_daemon(tmp_path: Path) -> None:
    copy = Copy(await source(tmp_path), tmp_path / "a", {"start": "snapshot"})
    await copy.deliver(NEWEST)
    config = copy.settings("auto")
    version, position = await assigned(copy)
    sinks, table = connector(config), config.tables[0]
    assert sinks.takes_backfills
    async with sinks.open_for_backfill(table, "backfill") as sink:
        sink.move_to(position, {"from": NEWEST})
        job = await sink.begin_job(version, position, 1, 1 << 30, "0f")
        assignment = Assignment(config, "rows", version, position, job, "backfill")
        parts = await assignment.deliver(0, plan_splits(version.plan, 1 << 30)[0], 1)
        await sink.finish_job(version, position, job, parts)
    stored = await sinks.backfill(table, "backfill")
    assert stored is not None
    assert stored.position == Position(version.table_id, NEWEST + 1)
    assert sorted(copy.ids()) == sorted([*range(3000), 5000] * 2)
    assert await copy.position() == (NEWEST + 1, "stream")


def test_queries_of_spark_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    engine_of(Copy(tmp_path / "rows", tmp_path / "a").settings("auto")).check()
    config = Copy(tmp_path / "rows", tmp_path / "a").settings()
    spark = config.model_copy(update={"engine": config.engine.model_copy(update={"kind": "spark"})})
    with pytest.raises(ConfigError, match="needs a Kafka sink"):
        engine_of(spark).check()
