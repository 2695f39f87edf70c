"""The changelog of a source in a Delta table: faults at every step, evolution of its schema, and targets that are refused."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import cdfd
from cdfd import snapshot
from cdfd.config.parser import parse
from cdfd.delta.types.datatypes import map_fields
from cdfd.delta.types.schema import ColumnMappingMode, StructField, StructType, TableSchema, from_arrow
from cdfd.errors import FencedError, SinkError, StorageError, UnsupportedError
from cdfd.log.log import DeltaLog
from cdfd.model.control import EMPTY
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.base import Delivery, connector
from cdfd.sinks.delta import data_files, parts, stored_files
from cdfd.sinks.delta.compactor import Compaction
from cdfd.sinks.delta.conditions import check_conditions
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.jobs import Counts, Job
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.txn_log import TxnLog
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from tests.support.clustered import cluster, clustering
from tests.support.faulty_storage import AtStep, Died, FaultyStorage
from tests.support.in_commit_timestamps import check_entries, enable
from tests.support.sampling import stride

APP = app_id("shop", "orders")
NO_LAYOUT = Layout()


OWNERS = count(1)


async def open_sink(
    storage: Storage, layout: Layout = NO_LAYOUT, file_bytes: int = 1 << 20, owner: int | None = None
) -> DeltaSink:
    """The sink of a process of its own, or of the owner."""
    target = Target(storage, APP, layout, SystemClock(), owner=owner or next(OWNERS))
    return await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=file_bytes))


def at(version: int) -> Position:
    return Position("T", version, digest=f"{version:032x}")


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def by(*rows: list[tuple[str, int | None]] | None) -> pa.Array:
    """A column of maps."""
    return pa.array(rows, pa.map_(pa.string(), pa.int64()))


async def deliver(sink: DeltaSink, version: int, *batches: pa.RecordBatch, following: int | None = None) -> None:
    """Deliver the batches of a version, or of those before the following one."""
    delivery = await sink.begin(at(version))
    for each in batches:
        await delivery.write(each)
    await delivery.commit(at(version + 1 if following is None else following))


def rows_in(folder: Path, *columns: str) -> list[dict[str, Any]]:
    """The rows of a target, as cdfd reads them."""
    rows = snapshot(folder).read_all()
    rows: list[dict[str, Any]] = rows.select(columns).sort_by(columns[0]).to_pylist()  # type: ignore[no-redef]
    return rows


async def test_numbers_of_a_position_without_digest(tmp_path: Path) -> None:
    """Readers of the table know them: they have to stay as they are."""
    sink = await open_sink(LocalStorage(tmp_path))
    delivery = await sink.begin(Position("T", 3))
    await delivery.write(batch(n=[1]))
    await delivery.commit(Position("T", 4))
    table = DeltaTable(tmp_path)
    fields = ("version", "part", "snapshot", "ordinal", "digest0", "digest1")
    assert [table.transaction_version(f"{APP}/next/{field}") for field in fields] == [4, 0, 0, 0, 0, 0]
    assert await (await open_sink(LocalStorage(tmp_path))).last_position() == Position("T", 4)


async def test_batches_of_one_schema_share_a_file(tmp_path: Path) -> None:
    sink = await open_sink(LocalStorage(tmp_path))
    await deliver(sink, 0, batch(n=[1]), batch(n=[2]))
    assert len(list(tmp_path.glob("part-*"))) == 1
    await deliver(sink, 1, batch(n=[3]), batch(n=[4], m=["a"]), batch(n=[5], m=["b"]))
    assert len(list(tmp_path.glob("part-*"))) == 3
    values = {1: None, 2: None, 3: None, 4: "a", 5: "b"}
    assert rows_in(tmp_path, "n", "m") == [{"n": n, "m": m} for n, m in values.items()]


async def test_full_files_are_stored_before_the_commit(tmp_path: Path) -> None:
    sink = await open_sink(LocalStorage(tmp_path))
    delivery = await sink.begin(at(0))
    for number in range(3):
        await delivery.write(batch(n=range(number * 600_000, (number + 1) * 600_000)))
    assert list(tmp_path.glob("part-*"))
    await delivery.commit(at(1))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 1_800_000


def set_properties(folder: Path, properties: dict[str, str]) -> None:
    """Another writer does."""
    log = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for entry in log for line in entry.read_text().splitlines()]
    metadata = [each for each in actions if "metaData" in each][-1]
    metadata["metaData"]["configuration"].update(properties)
    (log[-1].parent / f"{int(log[-1].stem) + 1:020}.json").write_text(json.dumps(metadata))


class TestFaults:
    VERSIONS = 4

    async def deliver_all(self, storage: Storage) -> None:
        """Deliver what has not been delivered. Version n has the row n; version 2 has none."""
        sink = await open_sink(storage)
        position = await sink.last_position()
        for version in range(0 if position is None else position.version, self.VERSIONS):
            await deliver(sink, version, *([] if version == 2 else [batch(n=[version])]))
        await sink.close()

    @pytest.mark.parametrize("error", [StorageError("reset", retriable=True), Died()], ids=["fails", "dies"])
    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_each_row_once_whatever_step_fails(self, tmp_path: Path, when: str, error: Exception) -> None:
        for number in count():
            folder, step = tmp_path / str(number), AtStep(number, error)
            try:
                await self.deliver_all(FaultyStorage(LocalStorage(folder), **{when: step}))
            except (SinkError, Died):
                await self.deliver_all(LocalStorage(folder))
            table = DeltaTable(folder)
            assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [0, 1, 3], number
            assert table.transaction_version(APP) == self.VERSIONS - 1
            if not step.reached:
                break
        assert number >= 20

    async def test_another_writer_between_any_two_steps(self, tmp_path: Path) -> None:
        await self.deliver_all(LocalStorage(tmp_path / "prepared"))
        for number in count():
            folder = shutil.copytree(tmp_path / "prepared", tmp_path / str(number))
            append = partial(asyncio.to_thread, write_deltalake, folder, pa.table({"n": [100]}), mode="append")
            step = AtStep(number, append)
            sink = await open_sink(FaultyStorage(LocalStorage(folder, sync=False), before=step))
            await deliver(sink, 4, batch(n=[4]))
            await deliver(sink, 5, batch(n=[5]))
            table = DeltaTable(folder)
            rows = [0, 1, 3, 4, 5, *([100] if step.reached else [])]
            assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == rows, number
            assert table.transaction_version(APP) == 5
            if not step.reached:
                break
        assert number >= 20

    async def test_other_writers_that_are_first_several_times(self, tmp_path: Path) -> None:
        await self.deliver_all(LocalStorage(tmp_path))
        others = 0

        async def interfere(method: str, path: str) -> None:
            nonlocal others
            if method == "put_if_absent" and others < 6:
                others += 1
                await asyncio.to_thread(write_deltalake, tmp_path, pa.table({"n": [100 + others]}), mode="append")

        storage = FaultyStorage(LocalStorage(tmp_path))
        sink = await open_sink(storage)
        storage.before = interfere
        await deliver(sink, 4, batch(n=[4]))
        rows = DeltaTable(tmp_path).to_pyarrow_table()["n"].to_pylist()
        assert others == 6
        assert sorted(rows) == [0, 1, 3, 4, *range(101, 107)]


async def test_the_newer_process_wins(tmp_path: Path) -> None:
    first = await open_sink(LocalStorage(tmp_path / "t"))
    await deliver(first, 0, batch(n=[0]))
    second = await open_sink(LocalStorage(tmp_path / "t"))
    with pytest.raises(FencedError, match="taken the target over"):
        await deliver(first, 1, batch(n=[1]))
    await deliver(second, 1, batch(n=[1]))
    assert rows_in(tmp_path / "t", "n") == [{"n": 0}, {"n": 1}]


async def test_the_older_process_delivers_between_any_two_steps_of_a_take_over(tmp_path: Path) -> None:
    """The older process is fenced, or the newer one resumes after its delivery."""
    outcomes = set[bool | None]()
    for number in count():
        folder, delivered = tmp_path / str(number), None
        older = await open_sink(LocalStorage(folder, sync=False))
        await deliver(older, 0, batch(n=[0]))

        async def act(older: DeltaSink = older) -> None:
            nonlocal delivered
            try:
                await deliver(older, 1, batch(n=[1]))
                delivered = True
            except FencedError:
                delivered = False

        newer = await open_sink(FaultyStorage(LocalStorage(folder, sync=False), before=AtStep(number, act)))
        assert await newer.last_position() == at(2 if delivered else 1), number
        if not delivered:
            await deliver(newer, 1, batch(n=[1]))
        await deliver(newer, 2, batch(n=[2]))
        assert rows_in(folder, "n") == [{"n": 0}, {"n": 1}, {"n": 2}], number
        outcomes.add(delivered)
        if delivered is None:
            break
    assert outcomes == {True, False, None}


async def test_a_process_that_opens_it_again_writes_nothing(tmp_path: Path) -> None:
    await deliver(await open_sink(LocalStorage(tmp_path / "t"), owner=7), 0, batch(n=[0]))
    before = DeltaTable(tmp_path / "t").version()
    again = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
    assert DeltaTable(tmp_path / "t").version() == before
    await deliver(again, 1, batch(n=[1]))
    assert rows_in(tmp_path / "t", "n") == [{"n": 0}, {"n": 1}]


async def test_delivery_from_another_position_than_the_target_has_is_refused(tmp_path: Path) -> None:
    first = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
    await deliver(first, 0, batch(n=[0]))
    second = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
    await deliver(second, 1, batch(n=[1]))
    # The same delivery again is none.
    await deliver(first, 1, batch(n=[1]))
    await deliver(second, 2, batch(n=[2]))
    with pytest.raises(SinkError, match=r"the target is at .*version=3.* and not at .*version=2"):
        await deliver(first, 2, batch(n=[3]), following=4)
    assert rows_in(tmp_path / "t", "n") == [{"n": 0}, {"n": 1}, {"n": 2}]


async def test_a_commit_whose_outcome_is_unknown_ends_the_sink(tmp_path: Path) -> None:
    storage = FaultyStorage(LocalStorage(tmp_path / "t"))
    sink = await open_sink(storage)
    await deliver(sink, 0, batch(n=[0]))

    storage.after = AtStep(0, Died(), lambda method, _: method == "put_if_absent")
    with pytest.raises(Died):
        await deliver(sink, 1, batch(n=[1]))
    with pytest.raises(SinkError, match="the outcome of the last commit is unknown"):
        await sink.last_position()
    assert await (await open_sink(LocalStorage(tmp_path / "t"))).last_position() == at(2)


async def test_a_backfill_begins_anywhere_and_its_range_is_stored(tmp_path: Path) -> None:
    sink = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
    await deliver(sink, 0, batch(n=[0]), following=4)
    for start in (1, 9):
        sink.move_to(at(start), {"from": start})
        assert await sink.target.range() != {"from": start}
        await deliver(sink, start, batch(n=[start]))
        stored = dict(await sink.target.range())
        assert len(stored.pop("run")) == 32
        assert stored == {"from": start}
    assert [row["n"] for row in rows_in(tmp_path / "t", "n")] == [0, 1, 9]


async def test_a_part_of_the_job_of_another_sink_is_refused(tmp_path: Path) -> None:
    sink = await open_sink(LocalStorage(tmp_path / "t"))

    async def write(_: Delivery) -> Counts:
        raise AssertionError

    with pytest.raises(SinkError, match="the job is that of another sink"):
        await parts.deliver(sink.target, Job("a", 1, "stream", 1, 1, "0f", 0), sink.files, write)


async def test_a_part_that_fails_stores_no_file_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "_HANDOVER_BYTES", 1)
    monkeypatch.setattr(data_files, "GROUP_BYTES", 1)
    storage, begun, stored = FaultyStorage(LocalStorage(tmp_path / "t")), asyncio.Event(), asyncio.Event()
    sink = await open_sink(storage)
    await deliver(sink, 0, batch(n=[0]))
    plan = ChangePlan(1, 0, TableSchema(from_arrow(batch(n=[0]).schema)), (), "files")
    job = await sink.begin_job(Version(plan, "T"), at(1), 1, 1, "0f")

    async def wait(method: str, path: str) -> None:
        if path.endswith(".parquet"):
            begun.set()
            await stored.wait()

    storage.before = wait

    async def write(delivery: Delivery) -> Counts:
        await delivery.write(batch(n=[1]))
        await begun.wait()
        raise StorageError("it cannot be read")

    before = len(list((tmp_path / "t").glob("*.parquet")))
    async with asyncio.timeout(20):
        with pytest.raises(StorageError, match="it cannot be read"):
            await parts.deliver(sink.target, job, partial(DataFiles, compression="snappy", file_bytes=1), write)
    stored.set()
    await asyncio.sleep(0.05)
    assert len(list((tmp_path / "t").glob("*.parquet"))) == before


async def test_a_request_cannot_move_a_target_back(tmp_path: Path) -> None:
    sink = await open_sink(LocalStorage(tmp_path / "t"))
    await deliver(sink, 0, batch(n=[0]), following=4)
    await sink.set_control(EMPTY, at(4))
    await sink.set_control(EMPTY, at(6))
    with pytest.raises(SinkError, match=r"the target is at version 6 of table .* and cannot go back"):
        await sink.set_control(EMPTY, at(5))
    with pytest.raises(SinkError, match="cannot take rows of table other"):
        await sink.set_control(EMPTY, replace(at(7), table_id="other"))
    assert await sink.last_position() == at(6)


async def test_two_processes_that_create_the_target(tmp_path: Path) -> None:
    sinks = [await open_sink(LocalStorage(tmp_path / "t")) for _ in range(2)]
    await deliver(sinks[0], 0, batch(n=[0]))
    with pytest.raises(FencedError):
        await deliver(sinks[1], 0, batch(n=[0]))
    assert rows_in(tmp_path / "t", "n") == [{"n": 0}]


class TestRows:
    async def test_types_and_partitions_as_delta_rs_reads_them(self, tmp_path: Path) -> None:
        rows = batch(
            n=pa.array([1, 2, None], pa.int32()),
            day=pa.array([date(2026, 1, 1), None, date(2026, 1, 1)]),
            name=["a/b=c %", None, "ü"],
            at=pa.array([datetime(2026, 1, 1, 0, 0, 0, 1, UTC)] * 3, pa.timestamp("us", "UTC")),
            price=[Decimal("1.25"), None, Decimal("-1.00")],
            tags=[["a", None], [], None],
            kind=pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["insert", "delete"])),
        )
        sink = await open_sink(LocalStorage(tmp_path / "t"), Layout(("day", "name")))
        await deliver(sink, 0, rows)
        table = DeltaTable(tmp_path / "t")
        assert table.metadata().partition_columns == ["day", "name"]
        expected = rows.to_pylist()
        assert sorted(table.to_pyarrow_table().select(rows.schema.names).to_pylist(), key=str) == sorted(
            expected, key=str
        )
        assert sorted(rows_in(tmp_path / "t", *rows.schema.names), key=str) == sorted(expected, key=str)

    async def test_variants_are_text(self, tmp_path: Path) -> None:
        """As the rows have them: a target of type variant would need a table feature, and other files."""
        kind = pa.json_(pa.string())
        variants = pa.ExtensionArray.from_storage(kind, pa.array(['{"a":1}', None]))
        inside = pa.StructArray.from_arrays([variants], names=["v"])
        items = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), variants)
        sink = await open_sink(LocalStorage(tmp_path))
        for version in range(2):
            await deliver(sink, version, batch(n=[0, 1], v=variants, s=inside, items=items))
        rows = DeltaTable(tmp_path).to_pyarrow_table()
        assert [field.type for field in DeltaTable(tmp_path).schema().fields][1].type == "string"
        assert rows["v"].to_pylist() == ['{"a":1}', None] * 2
        assert rows["s"].to_pylist() == [{"v": '{"a":1}'}, {"v": None}] * 2
        assert rows["items"].to_pylist() == [['{"a":1}'], [None]] * 2

    async def test_a_file_ends_at_its_size(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), file_bytes=1)
        delivery = await sink.begin(at(0))
        for first in range(0, 4_000_000, 1_000_000):
            await delivery.write(batch(n=pa.array(range(first, first + 1_000_000))))
        await delivery.commit(at(1))
        table = DeltaTable(tmp_path / "t")
        assert table.version() == 1
        assert len(table.file_uris()) == 4
        assert (
            table.to_pyarrow_table()["n"].to_pylist() == sorted(range(4_000_000))
            or table.to_pyarrow_table().num_rows == 4_000_000
        )

    async def test_statistics_never_hide_a_row(self, tmp_path: Path) -> None:
        """A reader that skips files by statistics finds what a reader of all rows finds."""
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        far = pa.array([1 << 61], pa.timestamp("us", "UTC"))
        await deliver(sink, 0, batch(f=[float("nan")], s=["z" * 40], t=far, i=[1]))
        await deliver(sink, 1, batch(f=[1.0], s=["a"], t=pa.array([1], pa.timestamp("us", "UTC")), i=[2]))
        stats = [json.loads(each["add"]["stats"]) for each in adds(tmp_path / "t")]
        assert all("f" not in each["maxValues"] for each in stats)
        assert "t" not in stats[0]["maxValues"]
        assert stats[1]["minValues"]["t"] == "1970-01-01T00:00:00.000Z"
        assert stats[1]["maxValues"]["t"] == "1970-01-01T00:00:00.001Z"
        assert stats[0]["maxValues"]["s"] > "z" * 40
        rows = DeltaTable(tmp_path / "t").to_pyarrow_dataset().to_table(filter=pa.compute.field("s") >= "z" * 35)
        assert rows["i"].to_pylist() == [1]


def adds(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            if "add" in (action := json.loads(line)):
                yield action


class TestCompression:
    """A property of the table decides, as for deployed writers, and else the settings of the sink."""

    @staticmethod
    def codecs(folder: Path) -> list[str]:
        """Of the data files, from the oldest to the newest."""
        files = sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        return [pq.read_metadata(path).row_group(0).column(0).compression for path in files]

    async def test_it_may_change_between_any_two_versions(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path), owner=7)
        written = {None: "SNAPPY", "ZSTD": "ZSTD", "gzip": "GZIP", "uncompressed": "UNCOMPRESSED", "lz4raw": "LZ4"}
        for version, codec in enumerate(written):
            if codec is not None:
                set_properties(tmp_path, {"delta.parquet.compression.codec": codec})
            # It counts from the second delivery on: the first one may have begun before.
            for number in (0, 1):
                await deliver(sink, 2 * version + number, batch(n=[2 * version + number]))
        assert self.codecs(tmp_path)[1::2] == list(written.values())
        again = await open_sink(LocalStorage(tmp_path), owner=7)
        await deliver(again, 10, batch(n=[10]))
        assert self.codecs(tmp_path)[-1] == "LZ4"
        assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["n"].to_pylist()) == list(range(11))

    async def test_files_that_are_compacted(self, tmp_path: Path) -> None:
        layout = Layout(checkpoint_interval=10, compaction=Compaction("snappy", 1 << 20))
        sink = await open_sink(LocalStorage(tmp_path), layout, owner=7)
        await deliver(sink, 0, batch(n=[0]))
        set_properties(tmp_path, {"delta.parquet.compression.codec": "zstd"})
        for version in range(1, 9):
            await deliver(sink, version, batch(n=[version]))
        assert DeltaTable(tmp_path).history(1)[0]["operation"] == "OPTIMIZE"
        assert self.codecs(tmp_path)[2:] == ["ZSTD"] * 8

    async def test_a_codec_that_cdfd_does_not_know(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path), owner=7)
        await deliver(sink, 0, batch(n=[0]))
        set_properties(tmp_path, {"delta.parquet.compression.codec": "lzo"})
        with pytest.raises(SinkError, match=r"it has delta\.parquet\.compression\.codec='lzo'") as error:
            await open_sink(LocalStorage(tmp_path), owner=7)
        assert error.value.table == str(tmp_path)


class TestSchema:
    async def test_new_columns_and_missing_ones(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, batch(n=[0], s=[{"a": 1}]))
        await deliver(sink, 1, batch(N=[1], s=[{"a": 1, "b": "x"}], new=["y"]))
        await deliver(sink, 2, batch(new=["z"], n=[2]))
        assert DeltaTable(tmp_path / "t").schema().to_arrow().names == ["n", "s", "new"]
        assert "delta.enableTypeWidening" not in DeltaTable(tmp_path / "t").metadata().configuration
        assert rows_in(tmp_path / "t", "n", "s", "new") == [
            {"n": 0, "s": {"a": 1, "b": None}, "new": None},
            {"n": 1, "s": {"a": 1, "b": "x"}, "new": "y"},
            {"n": 2, "s": None, "new": "z"},
        ]

    async def test_columns_whose_names_differ_in_case(self, tmp_path: Path) -> None:
        """Readers refuse the table. A source may have `_Change_Type`, which is another column than `_change_type` in its rows."""
        for names in (["n"], []):
            sink = await open_sink(LocalStorage(tmp_path / f"t{len(names)}"))
            for version, name in enumerate(names):
                await deliver(sink, version, batch(**{name: [0]}))
            with pytest.raises(SinkError, match="two columns '_change_type', if case does not count"):
                await deliver(sink, len(names), batch(_Change_Type=["x"], _change_type=["insert"]))
        assert not (tmp_path / "t0" / "_delta_log").exists()
        assert rows_in(tmp_path / "t1", "n") == [{"n": 0}]

    async def test_wider_types(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, batch(n=pa.array([0], pa.int8()), many=pa.array([[1]], pa.list_(pa.int16()))))
        await deliver(sink, 1, batch(n=pa.array([1 << 40]), many=pa.array([[1 << 20]], pa.list_(pa.int32()))))
        # A table that was restored has narrower rows again.
        await deliver(sink, 2, batch(n=pa.array([2], pa.int8()), many=pa.array([[2]], pa.list_(pa.int16()))))
        assert [row["n"] for row in rows_in(tmp_path / "t", "n", "many")] == [0, 2, 1 << 40]
        entry = (tmp_path / "t" / "_delta_log" / f"{2:020}.json").read_text()
        (metadata,) = [each["metaData"] for line in entry.splitlines() if "metaData" in (each := json.loads(line))]
        assert metadata["configuration"]["delta.enableTypeWidening"] == "true"
        n, many = json.loads(metadata["schemaString"])["fields"]
        assert n["metadata"] == {"delta.typeChanges": [{"fromType": "byte", "toType": "long"}]}
        assert many["metadata"] == {
            "delta.typeChanges": [{"fromType": "short", "toType": "integer", "fieldPath": "element"}]
        }

    async def test_a_type_that_cannot_hold_the_values_stops_the_table(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, batch(n=[0]))
        with pytest.raises(SinkError, match="column 'n' changes its type from long to string"):
            await deliver(sink, 1, batch(n=["a"]))
        assert rows_in(tmp_path / "t", "n") == [{"n": 0}]

    async def test_values_that_a_target_cannot_hold(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        nanoseconds = pa.timestamp("ns", "UTC")
        await deliver(sink, 0, batch(at=pa.array([1000], nanoseconds)))
        with pytest.raises(SinkError, match="column 'at' has values that the target cannot hold"):
            await deliver(sink, 1, batch(at=pa.array([1001], nanoseconds)))
        assert len(rows_in(tmp_path / "t", "at")) == 1

    async def test_a_missing_column_can_stop_the_table(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), Layout(on_missing_column="stop"))
        await deliver(sink, 0, batch(n=[0], s=["a"]))
        with pytest.raises(SinkError, match="no column 's' any more"):
            await deliver(sink, 1, batch(n=[1]))

    async def test_the_start_may_be_stored_before_the_columns_are_known(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), Layout(("n",)))
        delivery = await sink.begin(at(3))
        await delivery.commit(at(3))
        await deliver(await open_sink(LocalStorage(tmp_path / "t"), Layout(("n",))), 3, batch(n=[0], s=["a"]))
        assert DeltaTable(tmp_path / "t").metadata().partition_columns == ["n"]
        assert rows_in(tmp_path / "t", "n", "s") == [{"n": 0, "s": "a"}]


class TestConditions:
    async def test_a_constraint_holds_for_each_row(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
        await deliver(sink, 0, batch(n=[0], s=["a"]))
        DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "n >= 0 OR s IN ('b')"})
        sink = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
        await deliver(sink, 1, batch(n=[1, -1], s=["a", "b"]))
        for wrong in (batch(n=[2, -2], s=["a", "a"]), batch(n=pa.array([None], pa.int64()), s=["a"]), batch(s=["a"])):
            with pytest.raises(SinkError, match="the CHECK constraint 'positive' of the target is not true of a row"):
                await deliver(await open_sink(LocalStorage(tmp_path / "t"), owner=7), 2, wrong)
        assert rows_in(tmp_path / "t", "n") == [{"n": -1}, {"n": 0}, {"n": 1}]

    @pytest.mark.parametrize(
        ("rows", "path"),
        [
            (batch(n=[1, None], s=[{"a": 1}] * 2), "'n' of the target may not be null"),
            (
                batch(n=[1], s=pa.array([{"a": None}], pa.struct([("a", pa.int64())]))),
                "'s' has values that the target cannot hold",
            ),
            (batch(n=[1], s=[{"a": 1}], many=pa.array([[1, None]])), "'many.element' of the target may not be null"),
            (batch(n=[1], s=[{"a": 1}], by=by([("k", 1), ("l", None)])), "'by.value' of the target may not be null"),
        ],
    )
    async def test_values_that_may_not_be_null(self, tmp_path: Path, rows: pa.RecordBatch, path: str) -> None:
        fields = [
            pa.field("n", pa.int64(), nullable=False),
            pa.field("s", pa.struct([pa.field("a", pa.int64(), nullable=False)])),
            pa.field("many", pa.list_(pa.field("element", pa.int64(), nullable=False))),
            pa.field("by", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        ]
        DeltaTable.create(tmp_path / "t", pa.schema(fields))
        entry = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
        entry.write_text(
            entry.read_text().replace(
                '"configuration":{', f'"configuration":{{"cdfd.changelog":"{APP}","cdfd.changelog.source":"T"'
            )
        )
        sink = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
        await deliver(
            sink,
            0,
            batch(
                n=[0], s=pa.array([None], pa.struct([("a", pa.int64())])), many=pa.array([None], pa.list_(pa.int64()))
            ),
            # Values of other rows than those of a slice do not count.
            batch(n=[7, 8, 9], s=[{"a": 1}] * 3, by=by([("k", None)], None, [("k", 2)])).slice(1),
        )
        with pytest.raises(SinkError, match=f"column {path}"):
            await deliver(sink, 1, rows)
        sink = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
        with pytest.raises(SinkError, match="column 'n' of the target may not be null, and the rows do not have it"):
            await deliver(sink, 1, batch(many=pa.array([[1]])))


class TestRefused:
    async def test_a_table_of_others(self, tmp_path: Path) -> None:
        write_deltalake(tmp_path / "t", pa.table({"n": [1]}))
        with pytest.raises(SinkError, match="has no changelog of cdfd"):
            await open_sink(LocalStorage(tmp_path / "t"))

    async def test_the_changelog_of_another_table(self, tmp_path: Path) -> None:
        await deliver(await open_sink(LocalStorage(tmp_path / "t")), 0, batch(n=[0]))
        target = Target(LocalStorage(tmp_path / "t"), app_id("shop", "items"), NO_LAYOUT, SystemClock())
        with pytest.raises(SinkError, match="has the changelog of 'cdfd/shop/orders'"):
            await target.position()

    async def test_a_rule_that_is_added_to_the_target(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
        await deliver(sink, 0, batch(n=[0]))
        DeltaTable(tmp_path / "t").alter.add_constraint({"small": "n < 10"})
        with pytest.raises(SinkError, match="changed the columns or the rules of the target") as error:
            await deliver(sink, 1, batch(n=[1]))
        assert error.value.retriable
        sink = await open_sink(LocalStorage(tmp_path / "t"), owner=7)
        await deliver(sink, 1, batch(n=[1]))
        DeltaTable(tmp_path / "t").alter.add_constraint({"odd": "abs(n) < 10"})
        with pytest.raises(SinkError, match="the CHECK constraint 'odd' cannot be checked"):
            await deliver(sink, 2, batch(n=[2]))
        with pytest.raises(SinkError, match="the CHECK constraint 'odd' cannot be checked"):
            await open_sink(LocalStorage(tmp_path / "t"), owner=7)
        assert rows_in(tmp_path / "t", "n") == [{"n": 0}, {"n": 1}]

    @pytest.mark.parametrize(
        ("condition", "is_checked"),
        [(r"s <> 'a\\b'", False), (r"s NOT LIKE 'a\\%'", False), (r"s NOT LIKE '\%\_'", True)],
    )
    def test_a_condition_with_an_escape_of_spark(self, condition: str, is_checked: bool) -> None:
        """`where` has no escapes in texts, and those of patterns alone."""
        struct = from_arrow(pa.schema({"s": pa.string()}))
        with nullcontext() if is_checked else pytest.raises(UnsupportedError, match="it has a backslash"):
            check_conditions([("the CHECK constraint 'c'", condition)], struct)

    async def test_a_target_that_is_deleted(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, batch(n=[0]))
        (tmp_path / "t").rename(tmp_path / "gone")
        with pytest.raises(SinkError, match="the target was deleted"):
            await deliver(sink, 1, batch(n=[1]))
        assert not list((tmp_path / "t").glob("_delta_log/*.json"))

    async def test_a_target_that_is_replaced(self, tmp_path: Path) -> None:
        """Another writer's table takes its place, or a target that another process created."""
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, batch(n=[0]))
        (tmp_path / "t").rename(tmp_path / "gone")
        write_deltalake(tmp_path / "t", pa.table({"n": [1]}))
        with pytest.raises(SinkError, match="the Delta table at the target has no changelog of cdfd"):
            await deliver(sink, 1, batch(n=[1]))
        assert DeltaTable(tmp_path / "t").version() == 0
        (tmp_path / "t").rename(tmp_path / "other")
        await deliver(await open_sink(LocalStorage(tmp_path / "t")), 0, batch(n=[0]))
        sink = await open_sink(LocalStorage(tmp_path / "gone"))
        (tmp_path / "gone").rename(tmp_path / "mine")
        (tmp_path / "t").rename(tmp_path / "gone")
        with pytest.raises(FencedError, match="another process has taken the target over"):
            await deliver(sink, 1, batch(n=[1]))
        assert rows_in(tmp_path / "gone", "n") == [{"n": 0}]

    @pytest.mark.parametrize(
        ("protocol", "error"),
        [
            ({"minReaderVersion": 1, "minWriterVersion": 8}, "writer version 8"),
            ({"minReaderVersion": 4, "minWriterVersion": 7}, "reader version 4"),
            ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["future"]}, "the feature future"),
            (
                {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["far"], "writerFeatures": ["far"]},
                "the reader feature far",
            ),
        ],
    )
    async def test_a_protocol_that_is_upgraded(self, tmp_path: Path, protocol: dict[str, Any], error: str) -> None:
        sink = await open_sink(LocalStorage(tmp_path))
        await deliver(sink, 0, batch(n=[0]))
        entry = tmp_path / "_delta_log" / f"{2:020}.json"
        entry.write_text(json.dumps({"protocol": protocol}))
        for again in (sink, None):
            with pytest.raises(SinkError, match=error):
                await deliver(again or await open_sink(LocalStorage(tmp_path)), 1, batch(n=[1]))
        assert not (tmp_path / "_delta_log" / f"{3:020}.json").exists()
        # Nothing is lost once the table can be written again.
        entry.write_text(json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}))
        await deliver(await open_sink(LocalStorage(tmp_path)), 1, batch(n=[1]))
        assert rows_in(tmp_path, "n") == [{"n": 0}, {"n": 1}]

    async def test_columns_that_another_writer_changes(self, tmp_path: Path) -> None:
        """A column of another type is an error that names it; a new one stays, and is null in new rows."""
        sink = await open_sink(LocalStorage(tmp_path))
        await deliver(sink, 0, batch(n=[0], s=["a"]))
        write_deltalake(tmp_path, pa.table({"extra": [1.5]}), mode="append", schema_mode="merge")
        await deliver(sink, 1, batch(n=[1], s=["b"]))
        assert [row["extra"] for row in rows_in(tmp_path, "n", "extra")] == [None, None, 1.5]
        config = {"cdfd.changelog": APP, "cdfd.changelog.source": "T"}
        log = tmp_path / "_delta_log"
        schema = '{"type":"struct","fields":[{"name":"n","type":"string","nullable":true,"metadata":{}}]}'
        metadata = {"id": "x", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
        changed = {"metaData": metadata | {"partitionColumns": [], "configuration": config}}
        newest = DeltaTable(tmp_path).version()
        (log / f"{newest + 1:020}.json").write_text(json.dumps(changed))
        with pytest.raises(SinkError, match="column 'n' changes its type from string to long"):
            await deliver(await open_sink(LocalStorage(tmp_path)), 2, batch(n=[2], s=["c"]))

    async def test_a_partition_column_that_is_not_there(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), Layout(("day",)))
        with pytest.raises(SinkError, match="no column 'day' by which"):
            await deliver(sink, 0, batch(n=[0]))


async def deliver_from(sink: DeltaSink, first: int) -> None:
    """Deliver the versions up to 11, each with its number as its row."""
    for version in range(first, 12):
        await deliver(sink, version, batch(n=[version]))


class TestCheckpoints:
    async def test_one_at_each_interval(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), Layout(("day",), checkpoint_interval=3))
        for version in range(10):
            await deliver(sink, version, batch(n=[version], day=[f"d=/ {version % 2}"]))
        actual = sorted(path.name for path in (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))
        assert actual == [f"{version:020}.checkpoint.parquet" for version in (3, 6, 9)]
        for version in range(9):
            (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
        table = DeltaTable(tmp_path / "t")
        assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == list(range(10))
        assert table.transaction_version(APP) == 9
        again = await open_sink(LocalStorage(tmp_path / "t"))
        assert await again.last_position() == at(10)

    @pytest.mark.parametrize("protected", [False, True])
    @pytest.mark.parametrize("switched_on", [True, False])
    async def test_old_log_entries_are_removed(self, tmp_path: Path, switched_on: bool, protected: bool) -> None:
        layout = Layout(checkpoint_interval=3, log_cleanup=switched_on)
        sink = await open_sink(LocalStorage(tmp_path), layout, owner=7)
        log = tmp_path / "_delta_log"
        for version in range(8):
            await deliver(sink, version, batch(n=[version]))
        if protected:
            protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["checkpointProtection"]}
            (log / f"{9:020}.json").write_text(json.dumps({"protocol": protocol}))
        # Checkpoints 3 and 6 are older than a month; version 7 is not.
        for path in log.iterdir():
            if path.name[:1] == "0" and int(path.name[:20]) <= 6:
                moment = path.stat().st_mtime - 31 * 86_400
                os.utime(path, (moment, moment))
        (log / f"{2:020}.crc").write_text("{}")
        sink = await open_sink(LocalStorage(tmp_path), layout, owner=7)
        for version in range(8, 11):
            await deliver(sink, version, batch(n=[version]))
        entries = sorted(int(path.name[:20]) for path in log.glob("*.json"))
        removes = switched_on and not protected
        assert entries[0] == (6 if removes else 0)
        assert (log / f"{3:020}.checkpoint.parquet").exists() is not removes
        assert (log / f"{2:020}.crc").exists() is not removes
        assert [row["n"] for row in rows_in(tmp_path, "n")] == list(range(11))
        assert sorted(DeltaTable(tmp_path, version=6).to_pyarrow_table()["n"].to_pylist()) == list(range(6))
        assert await (await open_sink(LocalStorage(tmp_path), layout, owner=7)).last_position() == at(11)

    async def test_a_crash_in_a_clean_up(self, tmp_path: Path) -> None:
        """After a crash at any file, the log is readable and the next delivery succeeds."""
        for number in range(5):
            folder = tmp_path / str(number)
            dies = AtStep(number, Died(), lambda method, path: method == "delete")
            layout = Layout(checkpoint_interval=3)
            sink = await open_sink(LocalStorage(folder), layout, owner=7)
            for version in range(6):
                await deliver(sink, version, batch(n=[version]))
            for path in (folder / "_delta_log").iterdir():
                os.utime(path, (0, 0))
            sink = await open_sink(FaultyStorage(LocalStorage(folder), before=dies), layout, owner=7)
            with pytest.raises(Died):
                await deliver_from(sink, 6)
            sink = await open_sink(LocalStorage(folder), layout, owner=7)
            position = await sink.last_position()
            assert position is not None
            await deliver_from(sink, position.version)
            assert sorted(DeltaTable(folder).to_pyarrow_table()["n"].to_pylist()) == list(range(12))

    async def test_a_hint_never_stays_back(self, tmp_path: Path) -> None:
        """Another writer writes a newer checkpoint between any two steps. A hint that is lost is written again."""
        layout, lost = Layout(checkpoint_interval=3), []

        def overtake(folder: Path) -> None:
            for _ in range(2):
                write_deltalake(folder, pa.table({"n": [100]}), mode="append")
            DeltaTable(folder).create_checkpoint()

        for number in count():
            folder = tmp_path / str(number)
            storage = FaultyStorage(LocalStorage(folder, sync=False))
            sink = await open_sink(storage, layout, owner=7)
            await deliver(sink, 0, batch(n=[0]))
            await deliver(sink, 1, batch(n=[1]))
            storage.before = step = AtStep(number, partial(asyncio.to_thread, overtake, folder))
            await deliver(sink, 2, batch(n=[2]))
            if not step.reached:
                break
            log = DeltaLog(storage.inner)
            newest = await log.listed_checkpoint(0)
            assert newest in (4, 5)
            hint = await log.hint()
            if hint != newest:
                lost.append(step.acted_at)
                assert hint is None
            await deliver(sink, 3, batch(n=[3]))
            assert await log.hint() == (newest if hint else await log.latest_version()), number
        assert lost == [("put", "_delta_log/_last_checkpoint")]

    async def test_v2_where_the_table_says_so(self, tmp_path: Path) -> None:
        layout = Layout(checkpoint_interval=3)
        sink = await open_sink(LocalStorage(tmp_path), layout, owner=7)
        await deliver(sink, 0, batch(n=[0]))
        log = tmp_path / "_delta_log"
        features = ["v2Checkpoint"]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
        entry = (log / f"{0:020}.json").read_text().splitlines()
        metadata = next(each for each in map(json.loads, entry) if "metaData" in each)
        metadata["metaData"]["configuration"]["delta.checkpointPolicy"] = "v2"
        (log / f"{2:020}.json").write_text(f"{json.dumps({'protocol': protocol})}\n{json.dumps(metadata)}\n")
        for version in range(1, 6):
            await deliver(sink, version, batch(n=[version]))
        names = sorted(path.name for path in log.glob("*.checkpoint.*"))
        assert [name[:20] for name in names] == [f"{3:020}", f"{6:020}"]
        assert all(len(name) == len(f"{3:020}.checkpoint..parquet") + 36 for name in names)
        for version in range(6):
            (log / f"{version:020}.json").unlink()
        assert [row["n"] for row in rows_in(tmp_path, "n")] == list(range(6))
        assert await (await open_sink(LocalStorage(tmp_path), layout, owner=7)).last_position() == at(6)

    @pytest.mark.parametrize("policy", ["classic", "v2"])
    async def test_one_says_all_that_the_log_says(self, tmp_path: Path, policy: str) -> None:
        """Also what other writers have added: files that are gone, domains, transaction identifiers, tags. So does the one after it."""
        layout = Layout(("day",), checkpoint_interval=4)
        sink = await open_sink(LocalStorage(tmp_path), layout, owner=7)
        for version in range(3):
            await deliver(sink, version, batch(n=[version], day=["x y"]))
        log = tmp_path / "_delta_log"
        actions = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
        adds = [each["add"] for each in actions if "add" in each]
        metadata = next(
            each["metaData"] for each in actions if "metaData" in each if each["metaData"]["partitionColumns"]
        )
        metadata["configuration"]["delta.checkpointPolicy"] = policy
        names = ["v2Checkpoint", "deletionVectors"]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names}
        now = SystemClock().now_ms()
        entry = [
            {
                "protocol": {
                    **protocol,
                    "writerFeatures": [*names, "domainMetadata", "clustering", "appendOnly", "invariants"],
                }
            },
            {"metaData": metadata},
            {"remove": {"path": adds[0]["path"], "deletionTimestamp": now, "dataChange": True}},
            {"remove": {"path": "expired", "deletionTimestamp": 1, "dataChange": True}},
            {"remove": {"path": adds[1]["path"], "deletionTimestamp": now, "dataChange": False}},
            {"add": {**adds[1], "dataChange": False, "clusteringProvider": "liquid", "tags": {"k": "v"}}},
            {"domainMetadata": {"domain": "delta.clustering", "configuration": "{}", "removed": False}},
            {"txn": {"appId": "theirs", "version": 5, "lastUpdated": 3}},
        ]
        (log / f"{len(list(log.glob('*.json'))):020}.json").write_text("\n".join(map(json.dumps, entry)))
        for version in range(3, 8):
            await deliver(sink, version, batch(n=[version], day=["x y"]))
        written = sorted(log.glob("*.checkpoint*.parquet"))
        assert [int(path.name[:20]) for path in written] == [5, 9]
        written[0].unlink()
        everything = {"with_stats": True, "with_tombstones": True, "all_fields": True}
        from_checkpoint = await DeltaLog(LocalStorage(tmp_path)).snapshot(9, **everything)
        (log / "_last_checkpoint").unlink()
        written[1].unlink()
        state = await DeltaLog(LocalStorage(tmp_path)).snapshot(9, **everything)
        assert from_checkpoint.header == state.header
        assert (from_checkpoint.txns, from_checkpoint.domains) == (state.txns, state.domains)
        assert {"theirs", f"{APP}/owner"} < set(state.txns)
        assert "delta.clustering" in state.domains
        live = {add.path: replace(add, data_change=True) for add in state.live()}
        assert {add.path: replace(add, data_change=True) for add in from_checkpoint.live()} == live
        assert live[adds[1]["path"]].tags == {"k": "v"}
        assert {remove.path for remove in state.tombstones()} == {adds[0]["path"], "expired"}
        assert [(remove.path, remove.deletion_timestamp) for remove in from_checkpoint.tombstones()] == [
            (adds[0]["path"], now)
        ]

    async def test_statistics_as_structs_alone(self, tmp_path: Path) -> None:
        """Each checkpoint keeps the statistics that the one before has as structs, and delta-rs reads them."""
        sink = await open_sink(LocalStorage(tmp_path), Layout(("p",), checkpoint_interval=3), owner=7)
        await deliver(sink, 0, batch(n=[0], p=["2026 a"]))
        names = ("delta.checkpoint.writeStatsAsJson", "delta.checkpoint.writeStatsAsStruct")
        set_properties(tmp_path, dict(zip(names, ("false", "true"), strict=True)))
        for version in range(1, 8):
            day = pa.array(["2026 a" if version % 2 else None], pa.string())
            await deliver(sink, version, batch(n=[version], p=day))
        log = tmp_path / "_delta_log"
        newest = max(log.glob("*.checkpoint.parquet"))
        assert newest.name[:20] == f"{9:020}"
        added = pq.read_table(newest, columns=["add"])["add"].combine_chunks()
        assert added.type.get_field_index("stats") < 0
        rows = [row for row in added.to_pylist() if row is not None and row["path"] is not None]
        found_rows = sorted((row["stats_parsed"]["minValues"]["n"], row["partitionValues_parsed"]["p"]) for row in rows)
        assert found_rows == [(n, "2026 a" if n % 2 or not n else None) for n in range(8)]
        for version in range(9):
            (log / f"{version:020}.json").unlink()
        table = DeltaTable(tmp_path)
        assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == list(range(8))
        assert sorted(table.to_pyarrow_table(filters=[("p", "=", "2026 a")])["n"].to_pylist()) == [0, 1, 3, 5, 7]
        assert sorted(pa.table(table.get_add_actions(flatten=True))["min.n"].to_pylist()) == list(range(8))
        assert [row["n"] for row in rows_in(tmp_path, "n")] == list(range(8))

    async def test_none_if_it_is_switched_off(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), Layout(checkpoint_interval=0))
        for version in range(4):
            await deliver(sink, version, batch(n=[version]))
        assert not list((tmp_path / "t" / "_delta_log").glob("*.parquet"))

    async def test_a_delivery_does_not_fail_with_its_checkpoint(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def full(method: str, path: str) -> None:
            if "checkpoint" in path and method == "put":
                raise StorageError("no space left")

        sink = await open_sink(FaultyStorage(LocalStorage(tmp_path / "t"), before=full), Layout(checkpoint_interval=1))
        await deliver(sink, 0, batch(n=[0]))
        assert await sink.last_position() == at(1)
        assert "cannot write a checkpoint of the target: no space left" in caplog.text

    @pytest.mark.parametrize("step", ["checkpoint", "part-"])
    async def test_a_stop_does_not_wait_for_housekeeping(self, tmp_path: Path, step: str) -> None:
        """A checkpoint or a compaction that hangs is given up. The version is committed, and the next process keeps house."""
        layout = Layout(checkpoint_interval=10, compaction=Compaction("snappy", 1 << 20))

        async def hang(method: str, path: str) -> None:
            due = (tmp_path / "_delta_log" / f"{10:020}.json").exists()
            if method == "put" and step in path and due:
                sink.hasten()
                await asyncio.Event().wait()

        sink = await open_sink(FaultyStorage(LocalStorage(tmp_path), before=hang), layout, owner=1)
        async with asyncio.timeout(60):
            for version in range(10):
                await deliver(sink, version, batch(n=[version]))
        assert await sink.last_position() == at(10)
        assert (tmp_path / "_delta_log" / "_last_checkpoint").exists() == (step == "part-")
        following = await open_sink(LocalStorage(tmp_path), layout, owner=2)
        for version in range(10, 20):
            await deliver(following, version, batch(n=[version]))
        assert (tmp_path / "_delta_log" / "_last_checkpoint").exists()
        assert [row["n"] for row in rows_in(tmp_path, "n")] == list(range(20))

    async def test_a_checkpoint_after_another_one_without_partitions(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), Layout(checkpoint_interval=2))
        for version in range(6):
            await deliver(sink, version, batch(n=[version]))
        assert sorted(DeltaTable(tmp_path / "t").to_pyarrow_table()["n"].to_pylist()) == list(range(6))

    async def test_a_target_that_gets_none_is_not_read_at_each_commit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cdfd.sinks.delta.target.can_checkpoint", lambda _: False)
        sink = await open_sink(LocalStorage(tmp_path / "t"), Layout(checkpoint_interval=1))
        await deliver(sink, 0, batch(n=[0]))
        features = ["inCommitTimestamp-preview"]
        entry = json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}})
        (tmp_path / "t" / "_delta_log" / f"{2:020}.json").write_text(entry)
        storage = FaultyStorage(LocalStorage(tmp_path / "t"))
        sink = await open_sink(storage, Layout(checkpoint_interval=1))
        await deliver(sink, 1, batch(n=[1]))
        storage.steps.clear()
        await deliver(sink, 2, batch(n=[2]))
        log = [step for step in storage.steps if "_delta_log" in step[1]]
        before = [("stat", f"_delta_log/{4:020}.json"), ("read", f"_delta_log/{5:020}.json")]
        assert [step for step in log if step[0] != "list"][:2] == before
        assert len(log) <= 6
        assert rows_in(tmp_path / "t", "n") == [{"n": 0}, {"n": 1}, {"n": 2}]


async def test_a_standby_reads_on_from_the_version_that_it_has_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes nothing before its election. Then it reads the versions since, and not the whole target."""
    config = parse(f"pipeline: shop\ntables: [{{uri: /lake/orders}}]\nsink: {{kind: delta, path: {tmp_path}}}", {})
    standby, (table,) = config.sink.connector(config), config.listed
    leader = await open_sink(LocalStorage(tmp_path / "orders"))
    await standby.prepare(table)
    for version in range(3):
        await deliver(leader, version, batch(n=[version]))
        before = sorted(tmp_path.rglob("*"))
        await standby.prepare(table)
        assert sorted(tmp_path.rglob("*")) == before
    await deliver(leader, 3, batch(n=[3]))
    monkeypatch.setattr(TxnLog, "_load", None)
    async with standby.open(table) as sink:
        assert await sink.last_position() == at(4)
    with pytest.raises(FencedError):
        await deliver(leader, 4, batch(n=[4]))


class TestInCommitTimestamps:
    """Readers refuse a version without one where the table requires it."""

    async def test_every_commit_of_a_changelog_has_one(self, tmp_path: Path) -> None:
        layout = Layout(checkpoint_interval=10, compaction=Compaction("snappy", 1 << 20))
        await deliver(await open_sink(LocalStorage(tmp_path), layout, owner=7), 0, batch(n=[0]))
        time = enable(tmp_path)
        # A process that takes it over, rows, compacted files, and a new column.
        sink = await open_sink(LocalStorage(tmp_path), layout, owner=8)
        for version in range(1, 12):
            await deliver(sink, version, batch(n=[version], **({"s": ["x"]} if version > 9 else {})))
        assert check_entries(tmp_path, 3, time) == [*["WRITE"] * 8, "OPTIMIZE", *["WRITE"] * 4]
        assert [row["n"] for row in rows_in(tmp_path, "n")] == list(range(12))


class TestFollow:
    """Names that the source drops or changes, in the target."""

    FOLLOW = Layout(("day",), on_missing_column="follow")

    @staticmethod
    def schema_of(fields: dict[str, str], rows: pa.RecordBatch) -> TableSchema:
        """The source's schema of rows, with the physical names of their columns."""

        def mapped(child: StructField) -> StructField:
            return replace(child, metadata={"delta.columnMapping.physicalName": fields[child.name]})

        struct = map_fields(from_arrow(rows.schema), mapped)
        assert isinstance(struct, StructType)
        return TableSchema(struct, (), ColumnMappingMode.NAME)

    async def deliver(
        self,
        folder: Path,
        version: int,
        fields: dict[str, str],
        rows: pa.RecordBatch,
        deletes: tuple[dict[str, str], pa.RecordBatch] | None = None,
    ) -> None:
        """Deliver rows of a version of the source with these columns: names and physical names. Those of its deletes may be other ones."""
        target = Target(LocalStorage(folder), APP, self.FOLLOW, SystemClock(), owner=7)
        files = partial(DataFiles, compression="snappy", file_bytes=1 << 20)
        await self.deliver_to(await DeltaSink.open(target, files), version, fields, rows, deletes)

    async def deliver_to(
        self,
        sink: DeltaSink,
        version: int,
        fields: dict[str, str],
        rows: pa.RecordBatch,
        deletes: tuple[dict[str, str], pa.RecordBatch] | None = None,
    ) -> None:
        schema, scans = self.schema_of(fields, rows), ()
        if deletes is not None:
            scans = (FileScan("a", "delete", {}, 1, schema=self.schema_of(*deletes)),)
        delivery = await sink.begin(at(version))
        await delivery.start_version(Version(ChangePlan(version, 0, schema, scans, "files"), "T"))
        for each in (rows,) if deletes is None else (deletes[1], rows):
            await delivery.write(each)
        await delivery.commit(at(version + 1))

    async def test_deletes_have_the_columns_by_their_names_before_the_version(self, tmp_path: Path) -> None:
        """RESTORE goes back behind a rename after which another column got the name."""
        day = {"day": "p9"}
        await self.deliver(tmp_path, 0, {"n": "p1", "a": "p2", **day}, batch(n=[0], a=["0a"], day=["x"]))
        renamed = {"n": "p1", "c": "p2", "a": "p3", **day}
        row = batch(n=[1], c=["1c"], a=["1a"], day=["x"])
        await self.deliver(tmp_path, 1, renamed, row)
        back = batch(n=[2], a=["2a"], day=["x"])
        await self.deliver(tmp_path, 2, {"n": "p1", "a": "p2", **day}, back, (renamed, row))
        actual = sorted((row["n"], row["a"]) for row in rows_in(tmp_path, "n", "a"))
        assert actual == [(0, "0a"), (1, "1c"), (1, "1c"), (2, "2a")]
        assert "c" not in snapshot(tmp_path).read_all().schema.names

    async def test_renames_and_drops(self, tmp_path: Path) -> None:
        await self.deliver(tmp_path, 0, {"n": "p1", "old": "p2", "day": "p3"}, batch(n=[0], old=["a"], day=["x"]))
        await self.deliver(tmp_path, 1, {"n": "p1", "new": "p2", "tag": "p3"}, batch(n=[1], new=["b"], tag=["y"]))
        # The names of two columns are exchanged.
        await self.deliver(tmp_path, 2, {"new": "p1", "n": "p2", "tag": "p3"}, batch(new=[2], n=["c"], tag=["x"]))
        assert rows_in(tmp_path, "new", "n", "tag") == [
            {"new": 0, "n": "a", "tag": "x"},
            {"new": 1, "n": "b", "tag": "y"},
            {"new": 2, "n": "c", "tag": "x"},
        ]
        await self.deliver(tmp_path, 3, {"new": "p1", "tag": "p3"}, batch(new=[3], tag=["x"]))
        # A new column of the same name has none of the old values.
        await self.deliver(tmp_path, 4, {"new": "p1", "tag": "p3", "n": "p4"}, batch(new=[4], tag=["x"], n=["d"]))
        assert [row["n"] for row in rows_in(tmp_path, "new", "n")] == [None, None, None, None, "d"]
        assert DeltaTable(tmp_path).metadata().partition_columns == ["tag"]

    @pytest.mark.parametrize("nested", [False, True])
    async def test_a_column_that_is_dropped_and_added_again_before_any_rows(self, tmp_path: Path, nested: bool) -> None:
        """The new column has none of the values of the old one, as if a version with rows had been between them."""
        column = {"v": "p2", "a": "p4", "b": "p6"} if nested else {"v": "p2"}
        before: Any = [{"a": 1, "b": 0}] if nested else ["old"]
        await self.deliver(tmp_path, 0, {"n": "p1", "day": "p3", **column}, batch(n=[0], day=["x"], v=before))
        names = {"n": "p1", "day": "p3", **column, "a" if nested else "v": "p5"}
        after: Any = [{"a": "new", "b": 1}] if nested else [7]
        await self.deliver(tmp_path, 1, names, batch(n=[1], day=["x"], v=after))
        missing = {"b": 0, "a": None} if nested else None
        assert rows_in(tmp_path, "n", "v") == [{"n": 0, "v": missing}, {"n": 1, "v": after[0]}]

    @pytest.mark.parametrize("on_missing_column", ["follow", "stop"])
    async def test_backfill_of_versions_without_a_column(self, tmp_path: Path, on_missing_column: Any) -> None:
        """The column was added since then: neither has the source dropped it, nor may its values be lost."""
        layout, files = (
            Layout(on_missing_column=on_missing_column),
            partial(DataFiles, compression="snappy", file_bytes=1),
        )
        names = {name: name for name in ("n", "s", "a", "b", "more")}
        for version, rows in enumerate((batch(n=[0], s=[{"a": 0}]), batch(n=[1], s=[{"a": 1, "b": 1}], more=["x"]))):
            sink = await DeltaSink.open(Target(LocalStorage(tmp_path), APP, layout, SystemClock(), owner=7), files)
            await self.deliver_to(sink, version, names, rows)
        target = Target(LocalStorage(tmp_path), APP, layout, SystemClock(), owner=8, role="backfill")
        sink = await DeltaSink.open(target, files)
        sink.move_to(at(0), {"from": 0})
        await self.deliver_to(sink, 0, names, batch(n=[0], s=[{"a": 0}]))
        old, new = {"n": 0, "s": {"a": 0, "b": None}, "more": None}, {"n": 1, "s": {"a": 1, "b": 1}, "more": "x"}
        assert rows_in(tmp_path, "n", "s", "more") == [old, old, new]

    @pytest.mark.parametrize("later", [False, True])
    async def test_backfill_from_before_a_rename_keeps_the_names(self, tmp_path: Path, later: bool) -> None:
        """The target has the names of the source's newest version, whichever versions a backfill appends. If another column had the
        new name before, the rows need it.
        """
        names = {"n": "p1", "old": "p2", "s": "p3", "a": "p4", "day": "p5"}
        before, after = (
            batch(n=[0], old=["x"], s=[{"a": 0}], day=["x"]),
            batch(n=[1], new=["y"], s=[{"b": 1}], tag=["y"]),
        )
        if later:
            before, names = before.append_column("new", pa.array(["z"])), {**names, "new": "p6"}
        await self.deliver(tmp_path, 0, names, before)
        await self.deliver(tmp_path, 1, {"n": "p1", "new": "p2", "s": "p3", "b": "p4", "tag": "p5"}, after)
        schema = json.loads(DeltaTable(tmp_path).schema().to_json())
        target = Target(LocalStorage(tmp_path), APP, self.FOLLOW, SystemClock(), owner=8, role="backfill")
        sink = await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1))
        sink.move_to(at(0), {"from": 0})
        for version in range(2):
            await self.deliver_to(sink, version, names, before)
        assert (json.loads(DeltaTable(tmp_path).schema().to_json()) == schema) != later
        await self.deliver(tmp_path, 2, {"n": "p1", "new": "p2", "s": "p3", "b": "p4", "tag": "p5"}, after)
        assert DeltaTable(tmp_path).metadata().partition_columns == ["tag"]
        old, new = {"n": 0, "new": "x", "s": {"b": 0}, "tag": "x"}, {"n": 1, "new": "y", "s": {"b": 1}, "tag": "y"}
        assert rows_in(tmp_path, "n", "new", "s", "tag") == [old, old, old, new, new]

    async def test_a_column_that_clusters_the_target_is_dropped(self, tmp_path: Path) -> None:
        """Other writers refuse a table that is clustered by a column that it does not have."""
        names = {"n": "p1", "v": "p2", "day": "p3"}
        await self.deliver(tmp_path, 0, names, batch(n=[0], v=["a"], day=["x"]))
        cluster(tmp_path, "n", "v")
        await self.deliver(tmp_path, 1, {"m": "p1", "v": "p2", "day": "p3"}, batch(m=[1], v=["b"], day=["x"]))
        assert clustering(tmp_path) == ["m", "v"]
        await self.deliver(tmp_path, 2, {"m": "p1", "day": "p3"}, batch(m=[2], day=["x"]))
        assert clustering(tmp_path) == ["m"]
        # Files that are there have no statistics of another column with that name.
        await self.deliver(tmp_path, 3, {"m": "p4", "day": "p3"}, batch(m=[3], day=["x"]))
        assert clustering(tmp_path) == []
        assert rows_in(tmp_path, "m") == [{"m": 3}, *[{"m": None}] * 3]

    @pytest.mark.parametrize("names", [{"n": "n", "day": "p2"}, {"n": "n", "day": "day"}, {"n": "p3", "day": "p4"}])
    async def test_a_source_without_mapping_or_that_is_replaced_keeps_its_columns(
        self, tmp_path: Path, names: dict[str, str]
    ) -> None:
        """CREATE OR REPLACE TABLE gives all columns other physical names."""
        await self.deliver(tmp_path, 0, {"n": "p1", "day": "p2"}, batch(n=[0], day=["x"]))
        await self.deliver(tmp_path, 1, names, batch(n=[1], day=["x"]))
        assert rows_in(tmp_path, "n", "day") == [{"n": 0, "day": "x"}, {"n": 1, "day": "x"}]

    @pytest.mark.parametrize("rows_between", [False, True])
    async def test_mapping_is_switched_off_after_a_column_got_the_name_of_another(
        self, tmp_path: Path, rows_between: bool
    ) -> None:
        """Its files are written again by the names of columns, and the physical name of one column is the name of another."""
        day = {"day": "day"}
        first, inside = batch(n=[0], a=["0b"], day=["x"]), batch(n=[1], b=["1b"], a=["1a"], day=["x"])
        await self.deliver(tmp_path, 0, {"n": "n", "a": "a", **day}, first)
        renamed = {"n": "n", "b": "a", "a": "p3", **day}
        if rows_between:
            await self.deliver(tmp_path, 1, renamed, inside)
        names = {name: name for name in renamed}
        mapped, off = (
            self.schema_of(renamed, inside),
            replace(self.schema_of(names, inside), mapping=ColumnMappingMode.NONE),
        )
        await self.switch_off(tmp_path, 1 + rows_between, mapped, off)
        await self.deliver(tmp_path, 2 + rows_between, names, batch(n=[2], b=["2b"], a=["2a"], day=["x"]))
        old = [{"n": 0, "b": "0b", "a": None}, *[{"n": 1, "b": "1b", "a": "1a"}] * rows_between]
        assert rows_in(tmp_path, "n", "b", "a") == [*old, {"n": 2, "b": "2b", "a": "2a"}]

    async def test_mapping_is_switched_off_after_a_column_was_added_again(self, tmp_path: Path) -> None:
        await self.deliver(tmp_path, 0, {"n": "n", "v": "v", "day": "day"}, batch(n=[0], v=["old"], day=["x"]))
        names, row = {"n": "n", "v": "v", "day": "day"}, batch(n=[1], v=["new"], day=["x"])
        mapped, off = (
            self.schema_of({**names, "v": "p4"}, row),
            replace(self.schema_of(names, row), mapping=ColumnMappingMode.NONE),
        )
        await self.switch_off(tmp_path, 1, mapped, off)
        await self.deliver(tmp_path, 2, names, row)
        assert rows_in(tmp_path, "n", "v") == [{"n": 0, "v": None}, {"n": 1, "v": "new"}]

    async def switch_off(self, folder: Path, version: int, before: TableSchema, after: TableSchema) -> None:
        """Deliver a version of the source that switches its column mapping off."""
        target = Target(LocalStorage(folder), APP, self.FOLLOW, SystemClock(), owner=7)
        sink = await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1 << 20))
        delivery = await sink.begin(at(version))
        await delivery.start_version(Version(ChangePlan(version, 0, after, (), "files"), "T", mapped_before=before))
        await delivery.commit(at(version + 1))

    async def test_a_partition_column_that_is_dropped_and_added_again(self, tmp_path: Path) -> None:
        await self.deliver(tmp_path, 0, {"n": "p1", "day": "p2"}, batch(n=[0], day=["x"]))
        with pytest.raises(SinkError, match="no column 'day' any more, which partitions the target"):
            await self.deliver(tmp_path, 1, {"n": "p1", "day": "p3"}, batch(n=[1], day=["x"]))

    async def test_a_target_without_mapping_gets_one(self, tmp_path: Path) -> None:
        await deliver(await open_sink(LocalStorage(tmp_path), Layout(("day",)), owner=7), 0, batch(n=[0], day=["x"]))
        await self.deliver(tmp_path, 1, {"n": "p1", "day": "p2"}, batch(n=[1], day=["x"]))
        await self.deliver(tmp_path, 2, {"m": "p1", "day": "p2"}, batch(m=[2], day=["y"]))
        assert rows_in(tmp_path, "m", "day") == [
            {"m": 0, "day": "x"},
            {"m": 1, "day": "x"},
            {"m": 2, "day": "y"},
        ]
        again = await open_sink(LocalStorage(tmp_path), Layout(("day",)), owner=7)
        assert await again.last_position() == at(3)

    async def test_a_name_of_another_column_of_the_target(self, tmp_path: Path) -> None:
        await self.deliver(tmp_path, 0, {"n": "p1", "day": "p2"}, batch(n=[0], day=["x"]))
        await deliver(await open_sink(LocalStorage(tmp_path), owner=7), 1, batch(n=[1], day=["x"], extra=[1]))
        with pytest.raises(SinkError, match="the table has another column 'extra'"):
            await self.deliver(tmp_path, 2, {"extra": "p1", "day": "p2"}, batch(extra=[2], day=["x"]))

    async def test_a_column_that_partitions_the_target(self, tmp_path: Path) -> None:
        await self.deliver(tmp_path, 0, {"n": "p1", "day": "p2"}, batch(n=[0], day=["x"]))
        with pytest.raises(SinkError, match="no column 'day' any more, which partitions the target"):
            await self.deliver(tmp_path, 1, {"n": "p1"}, batch(n=[1]))


class TestCompaction:
    COMPACTION = Compaction("snappy", 1 << 20)
    LAYOUT = Layout(("day",), checkpoint_interval=10, compaction=COMPACTION)

    async def deliver_all(self, storage: Storage, layout: Layout = LAYOUT, versions: int = 25) -> None:
        sink = await open_sink(storage, layout, owner=7)
        position = await sink.last_position()
        for version in range(0 if position is None else position.version, versions):
            rows = batch(n=[version, version + 100], day=["d=/ %", None], s=[{"a": version}] * 2)
            await deliver(sink, version, rows)
        await sink.close()

    def check(self, folder: Path, versions: int = 25) -> None:
        """All rows are there once, as cdfd and delta-rs read them, and none is a change."""
        expected = sorted([*range(versions), *range(100, 100 + versions)])
        table = DeltaTable(folder)
        assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == expected
        assert sorted(row["n"] for row in rows_in(folder, "n", "s")) == expected
        assert table.transaction_version(APP) == versions - 1
        inserted = [row["n"] for row in cdfd.changes(folder).read_all().to_pylist()]
        assert sorted(inserted) == expected

    async def test_small_files_become_one(self, tmp_path: Path) -> None:
        await self.deliver_all(LocalStorage(tmp_path))
        self.check(tmp_path)
        assert len(DeltaTable(tmp_path).file_uris()) < 25
        optimized = [each for each in DeltaTable(tmp_path).history() if each["operation"] == "OPTIMIZE"]
        assert len(optimized) == 2

    async def test_partition_columns_are_written_although_old_files_lack_them(self, tmp_path: Path) -> None:
        await self.deliver_all(LocalStorage(tmp_path), Layout(("day",), checkpoint_interval=0), 9)
        features = ["appendOnly", "invariants", "materializePartitionColumns"]
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
        entry = tmp_path / "_delta_log" / f"{DeltaTable(tmp_path).version() + 1:020}.json"
        entry.write_text(json.dumps({"protocol": protocol}))
        await self.deliver_all(
            LocalStorage(tmp_path), Layout(("day",), checkpoint_interval=1, compaction=self.COMPACTION), 10
        )
        assert DeltaTable(tmp_path).history(1)[0]["operation"] == "OPTIMIZE"
        stored = [pq.ParquetFile(uri).read(["day", "n"]).to_pydict() for uri in DeltaTable(tmp_path).file_uris()]
        assert {(*set(each["day"]), len(each["n"])) for each in stored} == {("d=/ %", 10), (None, 10)}
        self.check(tmp_path, 10)

    async def test_files_whose_columns_have_ids_stay(self, tmp_path: Path) -> None:
        follow = Layout(("day",), "follow", checkpoint_interval=0)
        await self.deliver_all(LocalStorage(tmp_path), follow, 5)
        for entry in (tmp_path / "_delta_log").glob("*.json"):
            text = entry.read_text()
            entry.write_text(text.replace('"delta.columnMapping.mode":"name"', '"delta.columnMapping.mode":"id"'))
        await self.deliver_all(
            LocalStorage(tmp_path), replace(follow, checkpoint_interval=10, compaction=self.COMPACTION)
        )
        rows = snapshot(tmp_path)
        assert len({*rows.read_all()["n"].to_pylist()}) == 50
        operations = [each["operation"] for each in DeltaTable(tmp_path).history()]
        assert "OPTIMIZE" not in operations

    @pytest.mark.parametrize(
        ("when", "error"), [("before", Died()), ("after", StorageError("reset", retriable=True))], ids=["dies", "fails"]
    )
    async def test_a_crash_at_every_step(self, tmp_path: Path, when: str, error: Exception) -> None:
        await self.deliver_all(LocalStorage(tmp_path / "0"), Layout(checkpoint_interval=0), 8)
        layout = Layout(checkpoint_interval=9, compaction=self.COMPACTION)
        for number in count(step=stride(7)):
            folder = shutil.copytree(tmp_path / "0", tmp_path / f"step {number}")
            step = AtStep(number, error, lambda method, path: path.startswith("part-") or "_delta_log/" in path)
            try:
                await self.deliver_all(FaultyStorage(LocalStorage(folder), **{when: step}), layout, 9)
            except (SinkError, Died):
                await self.deliver_all(LocalStorage(folder), layout, 9)
            assert sorted(row["n"] for row in rows_in(folder, "n")) == [*range(9), *range(100, 109)]
            if not step.reached:
                break
        assert number >= 20
        self.check(folder, 9)

    async def test_another_writer_is_first(self, tmp_path: Path) -> None:
        deleted = False

        async def interfere(method: str, path: str) -> None:
            nonlocal deleted
            begun = method == "put" and path.startswith("part-") and (tmp_path / "_delta_log/_last_checkpoint").exists()
            if begun and not deleted:
                deleted = True
                await asyncio.to_thread(DeltaTable(tmp_path).delete, "n = 3")

        await self.deliver_all(FaultyStorage(LocalStorage(tmp_path), before=interfere), versions=12)
        assert deleted
        rows = sorted(DeltaTable(tmp_path).to_pyarrow_table()["n"].to_pylist())
        assert rows == sorted({*range(12), *range(100, 112)} - {3})

    def extend(self, folder: Path, features: list[str], *actions: dict[str, Any]) -> None:
        """Another writer commits a version, with features that the table has from then on."""
        names = ["appendOnly", "invariants", *features]
        protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": names}}
        newest = max((folder / "_delta_log").glob("*.json"))
        text = "\n".join(map(json.dumps, [protocol, *actions]))
        (folder / "_delta_log" / f"{int(newest.stem) + 1:020d}.json").write_text(text)

    async def test_files_of_a_table_with_variants_stay(self, tmp_path: Path) -> None:
        """cdfd reads a variant as text, and would write it as such. Checkpoints are written."""
        await self.deliver_all(LocalStorage(tmp_path), Layout(checkpoint_interval=0), 10)
        entries = sorted((tmp_path / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for path in entries for line in path.read_text().splitlines()]
        metadata = [each["metaData"] for each in actions if "metaData" in each][-1]
        schema = json.loads(metadata["schemaString"])
        schema["fields"].append({"name": "v", "type": "variant", "nullable": True, "metadata": {}})
        self.extend(tmp_path, ["variantType"], {"metaData": {**metadata, "schemaString": json.dumps(schema)}})
        await self.deliver_all(LocalStorage(tmp_path), Layout(checkpoint_interval=1, compaction=self.COMPACTION), 11)
        assert len((await DeltaLog(LocalStorage(tmp_path)).snapshot()).live()) == 11
        assert list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
        assert sorted(row["n"] for row in rows_in(tmp_path, "n")) == sorted([*range(11), *range(100, 111)])

    async def test_clustered_files_stay(self, tmp_path: Path) -> None:
        await self.deliver_all(LocalStorage(tmp_path), Layout(checkpoint_interval=0), 10)
        entries = sorted((tmp_path / "_delta_log").glob("*.json"))
        log = [line for path in entries for line in path.read_text().splitlines()]
        adds = [each["add"] for each in map(json.loads, log) if "add" in each][:2]
        removes = [{"path": add["path"], "deletionTimestamp": 0, "dataChange": False} for add in adds]
        clustered = [{**add, "dataChange": False, "clusteringProvider": "liquid"} for add in adds]
        actions = [*({"remove": each} for each in removes), *({"add": each} for each in clustered)]
        self.extend(tmp_path, ["clustering", "domainMetadata"], *actions)
        await self.deliver_all(LocalStorage(tmp_path), Layout(checkpoint_interval=1, compaction=self.COMPACTION), 11)
        live = {add.path: add for add in (await DeltaLog(LocalStorage(tmp_path)).snapshot()).live()}
        assert len(live) == 3
        assert live.keys() > {add["path"] for add in adds}
        assert sorted(row["n"] for row in rows_in(tmp_path, "n")) == sorted([*range(11), *range(100, 111)])

    @pytest.mark.parametrize("enabled", [False, True])
    async def test_row_ids_that_no_column_is_named_for(
        self, tmp_path: Path, enabled: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If row tracking is only supported, copied rows get other ids. If it is enabled, they stay where they are."""
        await self.deliver_all(LocalStorage(tmp_path), Layout(checkpoint_interval=0), 1)
        log = map(json.loads, (tmp_path / "_delta_log" / f"{0:020}.json").read_text().splitlines())
        (metadata,) = (each["metaData"] for each in log if "metaData" in each)
        changed = {**metadata["configuration"], "delta.enableRowTracking": str(enabled).lower()}
        self.extend(tmp_path, ["rowTracking", "domainMetadata"], {"metaData": {**metadata, "configuration": changed}})
        await self.deliver_all(LocalStorage(tmp_path), Layout(checkpoint_interval=1, compaction=self.COMPACTION), 12)
        state = await DeltaLog(LocalStorage(tmp_path)).snapshot(with_stats=True, all_fields=True)
        assert sorted(row["n"] for row in rows_in(tmp_path, "n")) == sorted([*range(12), *range(100, 112)])
        assert (len(list(state.live())) == 12) is enabled
        assert ("no names for columns of row ids" in caplog.text) is enabled
        numbers = [
            add.base_row_id + place
            for add in state.live()
            if add.base_row_id is not None
            for place in range(json.loads(add.stats or "{}")["numRecords"])
        ]
        assert len(set(numbers)) == len(numbers)
        mark = json.loads(state.domains["delta.rowTracking"].configuration)["rowIdHighWaterMark"]
        assert max(numbers) <= mark

    @pytest.mark.parametrize("enabled", [False, True])
    async def test_compaction_says_that_row_ids_are_kept_if_they_are(self, tmp_path: Path, enabled: bool) -> None:
        await self.deliver_all(LocalStorage(tmp_path), Layout(checkpoint_interval=0), 1)
        paths = sorted((tmp_path / "_delta_log").glob("*.json"))
        log = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        (metadata,) = (each["metaData"] for each in log if "metaData" in each)
        adds = [each["add"] for each in log if "add" in each]
        with_ids = [
            {"add": {**add, "dataChange": False, "baseRowId": 10 * place, "defaultRowCommitVersion": 0}}
            for place, add in enumerate(adds)
        ]
        domain = {"domain": "delta.rowTracking", "configuration": '{"rowIdHighWaterMark":99}', "removed": False}
        changed = metadata["configuration"] | {
            "delta.enableRowTracking": str(enabled).lower(),
            "delta.rowTracking.materializedRowIdColumnName": "_id",
            "delta.rowTracking.materializedRowCommitVersionColumnName": "_version",
        }
        self.extend(
            tmp_path,
            ["rowTracking", "domainMetadata"],
            {"metaData": {**metadata, "configuration": changed}},
            {"domainMetadata": domain},
            *with_ids,
        )
        await self.deliver_all(LocalStorage(tmp_path), Layout(checkpoint_interval=1, compaction=self.COMPACTION), 12)
        entries = sorted((tmp_path / "_delta_log").glob("*.json"))
        commits = [json.loads(line) for path in entries for line in path.read_text().splitlines()]
        compactions = [
            each["commitInfo"] for each in commits if each.get("commitInfo", {}).get("operation") == "OPTIMIZE"
        ]
        assert compactions
        kept = {"delta.rowTracking.preserved": "true"} if enabled else None
        assert [each.get("tags") for each in compactions] == [kept] * len(compactions)
        later = [path for path in entries if path > paths[-1]][1:]
        for path in later:
            written = [json.loads(line) for line in path.read_text().splitlines()]
            versions = {each["add"]["defaultRowCommitVersion"] for each in written if "add" in each}
            assert versions <= {int(path.stem)}

    async def test_columns_that_came_later_and_wider_types(self, tmp_path: Path) -> None:
        layout = Layout(checkpoint_interval=10, compaction=self.COMPACTION)
        sink = await open_sink(LocalStorage(tmp_path), layout, owner=7)
        for version in range(6):
            await deliver(sink, version, batch(n=pa.array([version], pa.int8()), s=[{"a": 1}]))
        for version in range(6, 14):
            await deliver(sink, version, batch(n=[version << 40], s=[{"a": 1, "b": "x"}], new=["y"]))
        rows = rows_in(tmp_path, "n", "s", "new")
        assert rows[0] == {"n": 0, "s": {"a": 1, "b": None}, "new": None}
        assert rows[-1] == {"n": 13 << 40, "s": {"a": 1, "b": "x"}, "new": "y"}
        names = [
            line for line in (tmp_path / "_delta_log" / f"{11:020}.json").read_text().splitlines() if "remove" in line
        ]
        assert len(names) == 10


async def test_a_mirror_takes_no_backfill_and_skips_no_version(tmp_path: Path) -> None:
    text = (
        f"pipeline: p\nsink: {{kind: delta, path: {tmp_path}, mode: mirror}}\ntables: [{{uri: /lake/orders, key: [n]}}]"
    )
    config = parse(text, {})
    mirror, orders = connector(config), config.tables[0]
    mirror.preflight()
    assert await mirror.check(orders) == "ok, the target will be created"
    with pytest.raises(UnsupportedError, match="it takes no backfill"):
        await mirror.backfill(orders, "backfill")
    async with mirror.open(orders) as sink:
        delivery = await sink.begin(at(0))
        await delivery.commit(at(1))
        plan = ChangePlan(1, 1, TableSchema(StructType(())), (), "files")
        with pytest.raises(UnsupportedError, match="stores no requests"):
            await sink.begin_chunk(at(1), Version(plan, "T"))
        await sink.set_control(EMPTY)
    assert await mirror.check(orders) == "ok"
    with pytest.raises(SinkError, match="a mirror cannot skip versions of its source"):
        await mirror.move(orders, at(5))
