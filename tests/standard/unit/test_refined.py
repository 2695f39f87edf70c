"""Refined versions: what truly changed, whatever the files; in an order that folds right; the same in parts and in buckets."""

import asyncio
import logging
import pickle
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.config.parser import parse
from cdfd.daemon import assembly
from cdfd.daemon.supervision.supervisor import Supervisor
from cdfd.deliver.deliverer import Limits
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.splits import read_splits
from cdfd.delta.types.schema import from_arrow, serialize
from cdfd.errors import ConfigError, DataError, LogError
from cdfd.log.table import Table
from cdfd.model.columns import change_schema
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.refinement import Refine
from cdfd.plan import refining
from cdfd.plan.row_options import RowOptions
from cdfd.runtime.clock import SystemClock
from cdfd.scan import file_reader
from cdfd.scan.execute import Execution
from cdfd.scan.read import ScanReader
from cdfd.scan.splits import Split, plan_splits
from cdfd.scan.updates import row_id_runs, spill
from tests.support.fold import META, bag, fold, row_of
from tests.support.fold import Row as Bag
from tests.support.sampling import sample
from tests.support.tracked_table import ROW_ID, SCHEMA, Row, TrackedTable, values

SEEDS = sample(range(10), 2)


@pytest.fixture(params=[(None, 0), (9_000, 0), (9_000, 1 << 20)], ids=["one bucket", "buckets", "buckets of rows"])
def bucket_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    size, long = request.param
    if size is not None:
        monkeypatch.setattr(refining, "BUCKET_BYTES", size)
        monkeypatch.setattr(row_id_runs, "BLOCK_BITS", 1)
    monkeypatch.setattr(row_id_runs, "LONG", long)
    return size


def life(folder: Path, seed: int, *, tracked: bool = True) -> TrackedTable:
    """A table of a few random versions; its keys are unique, and move."""
    chance = random.Random(seed)
    table = TrackedTable(folder / "table", tracked)
    table.insert([values(chance, number) for number in range(12)])
    table.insert([values(chance, number) for number in range(12, 20)])
    for _ in range(5):
        live = {row.row_id: row for row in table.rows}
        chosen = chance.sample(sorted(live), chance.randint(0, min(8, len(live))))
        deletes = set(chosen[: chance.randint(0, 3)])
        moved = [row for row in chosen if row not in deletes]
        ids = [live[row].values["id"] for row in moved]
        chance.shuffle(ids)
        updates = {row: values(chance, number) for row, number in zip(moved, ids, strict=True)}
        fresh = [values(chance, 100 * table.version + number) for number in range(chance.randint(0, 3))]
        table.change(chance, updates, deletes, fresh, vectors=chance.random() < 0.4)
    return table


def listed(rows: pa.Table) -> str:
    """Rows in order, comparable although they have NaN."""
    return repr(rows.to_pylist())


def changes(table: TrackedTable, refine: Refine, **more: Any) -> pa.Table:
    return cdfd.changes(str(table.folder), refine=refine, **more).read_all()


def by_version(rows: pa.Table) -> dict[int, pa.Table]:
    versions = rows["_commit_version"].to_pylist()
    return {version: rows.filter(pa.array([each == version for each in versions])) for version in set(versions)}


def typed(rows: pa.Table) -> Counter[Bag]:
    return bag(rows.to_batches(), ("_commit_version", "_commit_timestamp", "_change_ordinal"))


def folded_by_key(rows: pa.Table) -> Counter[Bag]:
    """The rows that a consumer has that keeps the last change of each key."""
    kept: dict[Any, dict[str, Any]] = {}
    for row in rows.to_pylist():
        if row["_change_type"] in ("delete", "update_preimage"):
            kept.pop(row["id"], None)
        else:
            kept[row["id"]] = row
    return Counter(row_of(row, META) for row in kept.values())


def assert_ordered(rows: pa.Table) -> None:
    """Ordinals ascend; a post-image with the next ordinal after a pre-image is of the same row id or key."""
    for some in by_version(rows).values():
        ordinals = some["_change_ordinal"].to_pylist()
        assert ordinals == sorted(set(ordinals))


@pytest.mark.parametrize("seed", SEEDS)
def test_row_ids_give_the_changes_as_they_were_meant(tmp_path: Path, seed: int, bucket_bytes: int | None) -> None:
    table = life(tmp_path, seed)
    rows = changes(table, "rows")
    actual = {version: typed(some) for version, some in by_version(rows).items()}
    assert actual == {version: truth for version, truth in enumerate(table.truth) if truth}
    assert fold(rows.to_batches()) == table.contents() == fold(changes(table, "off").to_batches())
    assert_ordered(rows)


@pytest.mark.parametrize("refine", ["rows", "key", "auto"])
@pytest.mark.parametrize("seed", SEEDS)
def test_folding_by_key_is_right(tmp_path: Path, seed: int, refine: Refine, bucket_bytes: int | None) -> None:
    table = life(tmp_path, seed)
    rows = changes(table, refine, key="id")
    assert folded_by_key(rows) == table.contents()
    assert_ordered(rows)
    for one, two in zip(rows.to_pylist(), rows.to_pylist()[1:], strict=False):
        adjacent = two["_change_ordinal"] == one["_change_ordinal"] + 1
        if adjacent and (one["_change_type"], two["_change_type"]) == ("update_preimage", "update_postimage"):
            assert one["id"] == two["id"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_key_gives_the_difference_of_snapshots(tmp_path: Path, seed: int, bucket_bytes: int | None) -> None:
    table = life(tmp_path, seed, tracked=False)
    rows = by_version(changes(table, "key", key=["id"]))
    for version in range(1, table.version):
        before, after = (
            {row["id"]: row_of(row, META) for row in cdfd.snapshot(str(table.folder), at).read_all().to_pylist()}
            for at in (version - 1, version)
        )
        expected = Counter[tuple[str, Bag]]()
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if old != new and old is not None:
                expected["delete" if new is None else "update_preimage", old] += 1
            if old != new and new is not None:
                expected["insert" if old is None else "update_postimage", new] += 1
        actual = rows[version].to_pylist() if version in rows else []
        assert Counter((row["_change_type"], row_of(row, META)) for row in actual) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_that_repeat_are_multisets(tmp_path: Path, seed: int, bucket_bytes: int | None) -> None:
    table = life(tmp_path, seed, tracked=False)
    rows = changes(table, "key", key="v")
    assert fold(rows.to_batches()) == table.contents()
    for some in by_version(rows).values():
        removed = Counter(
            row_of(row, META) for row in some.to_pylist() if row["_change_type"] in ("delete", "update_preimage")
        )
        added = Counter(
            row_of(row, META) for row in some.to_pylist() if row["_change_type"] in ("insert", "update_postimage")
        )
        assert not removed & added


def test_a_rewrite_gives_no_rows_and_the_position_moves_on(tmp_path: Path) -> None:
    chance = random.Random(1)
    table = TrackedTable(tmp_path / "table")
    table.insert([values(chance, number) for number in range(5)])
    every = {row.row_id for row in table.rows}
    table.change(chance, {}, set(), [])
    table.commit([], [])
    while table.files[0].version == 1:
        table.change(chance, {}, set(), [])
    last = table.version
    table.insert([values(chance, 77)])
    assert {row.row_id for row in table.rows} >= every
    for refine in ("rows", "key"):
        rows = cdfd.changes(str(table.folder), 2, refine=refine, key="id").read_all()
        assert rows["_commit_version"].to_pylist() == [last]
    assert cdfd.changes(str(table.folder), 2).read_all()["_commit_version"].to_pylist() == [last]
    assert cdfd.changes(str(table.folder), 2, refine="off").read_all().num_rows > 1


def test_columns_may_leave_the_key_out(tmp_path: Path) -> None:
    table = life(tmp_path, 3)
    rows = changes(table, "rows", key="id", columns=["v", "x"])
    assert rows.column_names[:2] == ["v", "x"]
    assert rows.column_names[2] == "_change_type"
    expected = Counter(row_of({"v": row.values["v"], "x": row.values["x"]}) for row in table.rows)
    assert fold(rows.to_batches()) == expected
    assert fold(changes(table, "key", key="id", columns="v").to_batches()).total() == len(table.rows)


@pytest.mark.parametrize("tracked", [True, False])
def test_columns_may_be_added_after_updates(tmp_path: Path, bucket_bytes: int | None, tracked: bool) -> None:
    """Updates of versions that have none of the columns yet are rows of nulls."""
    table = life(tmp_path, 3, tracked=tracked)
    wider = SCHEMA.append(pa.field("later", pa.string()))
    table.commit([{"metaData": table.metadata() | {"schemaString": serialize(from_arrow(wider))}}], [])
    refine: Refine = "rows" if tracked else "key"
    rows = changes(table, refine, key="id", columns=["later"])
    assert rows["later"].null_count == rows.num_rows
    assert rows.drop_columns("later") == changes(table, refine, key="id", columns=["id", "later"]).select(META)
    assert {"update_preimage", "delete"} & set(rows["_change_type"].to_pylist())


@pytest.mark.parametrize("refine", ["rows", "key"])
def test_batches_of_large_rows_are_bounded(tmp_path: Path, refine: Refine) -> None:
    table = TrackedTable(tmp_path / "table", refine == "rows")
    table.insert([{**values(random.Random(1), number), "v": "x" * 100_000} for number in range(200)])
    table.change(random.Random(1), {row.row_id: {**row.values, "x": 7.5} for row in table.rows}, set(), [])
    source = Table.open(table.folder)
    last = [plan for plan in plans(source, refine) if plan.refinement is not None]
    batches = [batch.rows for batch in Execution(source.files).batches(last)]
    assert sum(batch.num_rows for batch in batches) == 400
    assert max(batch.nbytes for batch in batches) <= file_reader.BATCH_BYTES


class TestParts:
    """A version may be delivered in parts, from any of them on: the same rows with the same ordinals."""

    @pytest.mark.parametrize("refine", ["rows", "key"])
    @pytest.mark.parametrize("seed", sample(range(4), 2))
    def test_any_part_gives_the_rows_that_it_has_in_the_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, refine: Refine
    ) -> None:
        monkeypatch.setattr(refining, "BUCKET_BYTES", 9_000)
        monkeypatch.setattr(row_id_runs, "BLOCK_BITS", 1)
        table = Table.open(life(tmp_path, seed).folder)
        matched = [plan for plan in plans(table, refine) if plan.refinement is not None]
        assert matched
        for plan in matched:
            whole = rows_of(table, [plan])
            parts = plan_splits(plan, 1)
            assert len(parts) == len(plan.scans) > 1
            assert all(part.is_placed for part in parts)
            shuffled = random.Random(seed).sample(parts, len(parts))
            pieces = {
                part.part: [each.rows for each in read_splits([pickled(part)], Execution(table.files))]
                for part in shuffled
            }
            actual = pa.Table.from_batches([each for part in parts for each in pieces[part.part]], whole.schema)
            assert listed(actual) == listed(whole)
            for part in parts[1:]:
                before = rows_of(table, [replace(plan, scans=plan.scans[: part.part])])
                following = before["_change_ordinal"][-1].as_py() + 1 if before.num_rows else 0
                others = rows_of(table, [plan], Position("", plan.version, part.part, ordinal=following))
                assert listed(pa.concat_tables([before, others])) == listed(whole)

    def test_the_delivered_rows_of_a_key_are_in_one_part(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(refining, "BUCKET_BYTES", 9_000)
        table = Table.open(life(tmp_path, 5, tracked=False).folder)
        for plan in plans(table, "key"):
            if plan.refinement is not None:
                keys = [set(rows_of(table, [replace(plan, scans=[scan])])["id"].to_pylist()) for scan in plan.scans]
                assert sum(map(len, keys)) == len(set().union(*keys))


def plans(table: Table, refine: Refine) -> list[ChangePlan]:
    async def read() -> list[ChangePlan]:
        with table.tailer() as tailer:
            last = await table.log.latest_version()
            return [
                version.plan
                async for version in table.stream(RowOptions(refine=refine, key=("id",))).versions(tailer, 0, last)
            ]

    return asyncio.run(read())


def rows_of(table: Table, some: list[ChangePlan], start: Position | None = None) -> pa.Table:
    batches = [batch.rows for batch in Execution(table.files).batches(some, start)]
    return pa.Table.from_batches(batches, change_schema(some[0].schema.arrow))


def pickled(part: Split) -> Split:
    copy: Split = pickle.loads(pickle.dumps(part))
    return copy


class TestSpilling:
    def test_rows_on_disk_give_the_same_changes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = life(tmp_path, 2)
        expected = [listed(changes(table, refine, key="id")) for refine in ("rows", "key")]
        monkeypatch.setattr(spill.Buckets.__init__, "__defaults__", (0,))
        assert [listed(changes(table, refine, key="id")) for refine in ("rows", "key")] == expected
        assert spill.spill_space().used == 0


class TestBadInput:
    def test_row_ids_that_are_there_twice(self, tmp_path: Path) -> None:
        table = life(tmp_path, 1)
        old, new = table.files[0], [Row(7, 1, row.values) for row in table.files[0].live] * 2
        version = table.version
        table.commit([table.remove(old), table.write(new)], [])
        with pytest.raises(DataError, match=rf"row id 7 is there twice .*version {version}, file part-.*refine: key"):
            cdfd.changes(str(table.folder), version, refine="rows").read_all()
        assert cdfd.changes(str(table.folder), version, refine="key", key="id").read_all().num_rows

    def test_ids_of_files_that_overlap(self, tmp_path: Path) -> None:
        table = life(tmp_path, 1)
        actions = [table.remove(table.files[0])]
        for _ in range(2):
            actions.append(table.write([Row(-1, table.version, values(random.Random(1), 1))]))
            actions[-1]["add"]["baseRowId"] = 500
        table.commit(actions, [])
        with pytest.raises(DataError, match="row id 500 is there twice"):
            cdfd.changes(str(table.folder), table.version - 1, refine="rows").read_all()

    def test_files_without_ids_although_the_table_promises_them(self, tmp_path: Path) -> None:
        table = life(tmp_path, 1)
        actions = [table.remove(table.files[0]), table.write([Row(-1, table.version, values(random.Random(1), 1))])]
        del actions[1]["add"]["baseRowId"]
        table.commit(actions, [])
        with pytest.raises(LogError, match=r"a file without row ids, although .*version \d+, file part-.*refine: key"):
            cdfd.changes(str(table.folder), table.version - 1, refine="rows").read_all()

    @pytest.mark.parametrize("number", [-1, -(2**63)])
    def test_ids_that_no_row_has(self, tmp_path: Path, number: int) -> None:
        table = life(tmp_path, 1)
        actions = [table.remove(table.files[0]), table.write([Row(-1, table.version, values(random.Random(1), 1))])]
        actions[1]["add"]["baseRowId"] = number
        table.commit(actions, [])
        with pytest.raises(LogError, match=rf"a file with the row id {number}"):
            cdfd.changes(str(table.folder), table.version - 1, refine="rows").read_all()

    def test_stored_ids_of_another_type(self, tmp_path: Path) -> None:
        table = life(tmp_path, 1)
        version, old = table.version, table.files[0]
        actions = [table.remove(old), table.write([replace(row, version=1) for row in old.live])]
        path = table.folder / table.files[-1].path
        wrong = pq.read_table(path)
        place = wrong.schema.get_field_index(ROW_ID)
        pq.write_table(wrong.set_column(place, ROW_ID, wrong[ROW_ID].cast(pa.string())), path)
        table.commit(actions, [])
        with pytest.raises(
            DataError, match=rf"has row ids of type string instead of int64 .*version {version}, file part"
        ):
            cdfd.changes(str(table.folder), version, refine="rows").read_all()

    def test_a_key_that_the_table_does_not_have(self, tmp_path: Path) -> None:
        table = life(tmp_path, 1)
        with pytest.raises(ConfigError, match=r"there is no column 'idd'.*Did you mean 'id'"):
            cdfd.changes(str(table.folder), refine="key", key="idd")
        with pytest.raises(ConfigError, match="there is no key"):
            cdfd.changes(str(table.folder), refine="key")


class TestFallingBack:
    """Versions that cannot be refined have the rows of their files, and a log line says why, once."""

    def test_ids_that_the_writer_did_not_preserve(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        table = life(tmp_path, 1)
        version, chance = table.version, random.Random(3)
        tags = {"delta.rowTracking.preserved": "false"}
        for _ in range(2):
            table.change(chance, {table.rows[0].row_id: values(chance, 5)}, set(), tags=tags)
        with caplog.at_level(logging.WARNING, "cdfd.changes"):
            raw = cdfd.changes(str(table.folder), version, refine="rows").read_all()
        assert listed(raw) == listed(cdfd.changes(str(table.folder), version, refine="off").read_all())
        assert [record.getMessage() for record in caplog.records] == [
            f"version {version} is not refined: its writer did not preserve row ids"
        ]
        # With a key, `auto` has another way.
        assert cdfd.changes(str(table.folder), version, refine="auto", key="id").read_all().num_rows < raw.num_rows

    def test_files_without_ids_by_default(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """`rows` refuses them. The default must read what was readable without it."""
        table = life(tmp_path, 1)
        version = table.version
        actions = [table.remove(table.files[0]), table.write([Row(-1, version, values(random.Random(1), 1))])]
        del actions[1]["add"]["baseRowId"]
        table.commit(actions, [])
        with pytest.raises(LogError, match="without row ids"):
            cdfd.changes(str(table.folder), version, version, refine="rows").read_all()
        raw = cdfd.changes(str(table.folder), version, version, refine="off").read_all()
        with caplog.at_level(logging.WARNING, "cdfd.changes"):
            assert listed(cdfd.changes(str(table.folder), version, version).read_all()) == listed(raw)
        assert f"version {version} is not refined: a file without row ids" in caplog.text
        by_key = cdfd.changes(str(table.folder), version, version, key="id").read_all()
        assert listed(by_key) == listed(
            cdfd.changes(str(table.folder), version, version, refine="key", key="id").read_all()
        )

    def test_a_remove_without_ids(self, tmp_path: Path) -> None:
        table = life(tmp_path, 1)
        version = table.version
        actions = [table.remove(table.files[0]), table.write([Row(-1, version, values(random.Random(1), 1))])]
        del actions[0]["remove"]["baseRowId"]
        table.commit(actions, [])
        raw = cdfd.changes(str(table.folder), version, refine="off").read_all()
        assert listed(cdfd.changes(str(table.folder), version, refine="rows").read_all()) == listed(raw)

    def test_tables_without_row_tracking(self, tmp_path: Path) -> None:
        table = life(tmp_path, 1, tracked=False)
        raw = listed(changes(table, "off"))
        assert listed(changes(table, "rows")) == raw
        assert listed(changes(table, "auto")) == raw
        assert listed(changes(table, "auto", key="id")) == listed(changes(table, "key", key="id")) != raw


def test_two_parts_of_a_version_share_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery in parts reads the files once, and lets go of the rows after the last part."""
    monkeypatch.setattr(refining, "BUCKET_BYTES", 9_000)
    table = Table.open(life(tmp_path, 3, tracked=False).folder)
    plan = next(plan for plan in plans(table, "key") if len(plan.scans) > 1)
    execution, reads = Execution(table.files, workers=1), list[str]()
    whole = ScanReader.read

    def counted(reader: ScanReader, plan: ChangePlan, scan: FileScan) -> Any:
        reads.append(scan.path)
        return whole(reader, plan, scan)

    monkeypatch.setattr(ScanReader, "read", counted)
    assert plan.refinement is not None
    for part in range(len(plan.scans)):
        list(execution.batches([replace(plan, scans=plan.scans[: part + 1])], Position("", plan.version, part)))
    assert sorted(reads) == sorted(scan.path for scan in plan.refinement.sources)
    list(execution.batches([plan]))
    assert len(reads) == 2 * len(plan.refinement.sources)


class _Parts(Monitor):
    def __init__(self, begun: asyncio.Event, stop: asyncio.Event) -> None:
        self.begun, self.stop = begun, stop

    def committed(self, following: Position, versions: Any, rows: Any, bytes_read: int) -> None:
        if following.part:
            self.begun.set()
            self.stop.set()


async def test_table_that_leaves_within_a_version_keeps_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refining, "BUCKET_BYTES", 9_000)
    monkeypatch.setattr(spill, "MEMORY_BYTES", 1_000)
    monkeypatch.setattr(assembly, "limits", lambda *_: Limits(1, max_bytes=0, one_schema=True))
    table = TrackedTable(tmp_path / "table", tracked=False)
    table.insert([values(random.Random(1), number) for number in range(100)])
    table.change(random.Random(1), {row.row_id: {**row.values, "x": 7.5} for row in table.rows}, set(), [])
    tables = f"tables: [{{uri: {table.folder}, key: [id], refine: key, start: 2}}]"
    config = parse(f"pipeline: p\n{tables}\nsink: {{kind: files, path: {tmp_path / 'out'}}}", {})
    space, begun = spill.spill_space(config.spill.path, config.spill.max_bytes), asyncio.Event()
    before = space.used
    async with assembly.shared(config, SystemClock()) as shared:
        supervisor = Supervisor(asyncio.Event(), SystemClock(), awaits_tables=lambda: True)
        supervisor.add("t", lambda stop: assembly.feed(shared, config.listed[0], stop, _Parts(begun, stop)), Monitor())
        running = asyncio.create_task(supervisor.run())
        await begun.wait()
        assert space.used > before
        await supervisor.remove("t")
        assert space.used == before
        running.cancel()
