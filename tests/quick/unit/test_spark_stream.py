"""A stream's planning without Spark: offsets, limits and what is between two offsets, over tables in folders."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

pytest.importorskip("pyspark")

import cdfd
from cdfd.delta.commit import Commit
from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.demo.writer import TableWriter
from cdfd.errors import ConfigError, LogError, SchemaChangedError, TableChangedError
from cdfd.log.log import DeltaLog
from cdfd.model.position import Position
from cdfd.plan import refining
from cdfd.plan.row_options import RowOptions
from cdfd.spark.engine.target import Target
from cdfd.spark.source.backlog import PendingBytes
from cdfd.spark.source.offsets import Offset
from cdfd.spark.source.source import CdfdSource
from cdfd.spark.source.stream import StreamReader
from cdfd.storage.local import LocalStorage
from tests.support import lake

Row = tuple[int, int, str, int]


def table(folder: Path, versions: int = 0, **options: Any) -> str:
    async def made() -> None:
        await lake.table(LocalStorage(str(folder)), versions, lake.manual_clock(), **options)

    lake.run(made())
    return str(folder)


def insert(path: str, version: int, *commits: pa.Table) -> None:
    async def made() -> None:
        writer = TableWriter(LocalStorage(path), lake.SCHEMA, clock=lake.manual_clock(), table_id="T")
        writer.version = version
        for rows in commits:
            await writer.insert(rows)

    lake.run(made())


def updated(folder: Path) -> str:
    """A table whose version 1 inserts three rows, which version 2 updates."""

    async def made() -> None:
        writer = await lake.table(LocalStorage(str(folder)), 1, lake.manual_clock())
        await writer.insert(lake.rows(1, 2, 3))
        await writer.update(pc.field("id") > 0, {"v": pc.scalar("b")})

    lake.run(made())
    return str(folder)


@contextmanager
def reading(path: str, **options: object) -> Iterator[StreamReader]:
    source = CdfdSource({"path": path} | {name: str(value) for name, value in options.items()})
    reader = source.streamReader(source.schema())
    try:
        yield reader
    finally:
        reader.stop()


def rows_between(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    """Read by copies, as executors do."""
    rows = []
    elsewhere: StreamReader = pickle.loads(pickle.dumps(reader))
    for partition in reader.partitions(start, end):
        for batch in elsewhere.read(pickle.loads(pickle.dumps(partition))):
            for row in batch.to_pylist():
                rows.append((row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"]))
    return rows


def wanted(path: str, *args: int, read: Callable[..., pa.RecordBatchReader] = cdfd.changes) -> list[Row]:
    rows = read(path, *args).read_all().to_pylist()
    return [(row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"]) for row in rows]


class ReadAllAvailable:
    """PySpark 4.2 has a class of this name."""


def read_commit(path: str, version: int) -> Commit:
    commit: Commit = lake.run(DeltaLog(LocalStorage(path)).entry(version)).commit
    return commit


def time_of(path: str, version: int) -> int:
    timestamp = cdfd.changes(path, version, version).read_all()["_commit_timestamp"][0].as_py()
    return round(timestamp.timestamp() * 1000)


def place(offset: dict[str, Any]) -> tuple[object, ...]:
    return offset["phase"], offset["version"], offset["part"], offset["ordinal"]


def test_from_snapshot_to_changes(tmp_path: Path) -> None:
    path = table(tmp_path, 5)
    with reading(path, maxFilesPerTrigger=3) as reader:
        start = reader.initialOffset()
        assert place(start) == ("snapshot", 4, 0, 0)
        middle = reader.latestOffset()
        assert place(middle) == ("snapshot", 4, 3, 3)
        assert reader.latestOffset() == middle  # until it is planned
        actual = rows_between(reader, start, middle)
        end = reader.latestOffset()
        assert place(end) == ("stream", 5, 0, 0)
        actual += rows_between(reader, middle, end)
        assert sorted(actual) == sorted(wanted(path, 4, read=cdfd.snapshot))
        reader.commit(end)
        assert reader.latestOffset() == end
        assert rows_between(reader, end, end) == []


def file_sizes(path: str, *versions: int) -> int:
    return sum(add.size for version in versions for add in read_commit(path, version).adds)


def test_offset_has_the_backlog_after_it(tmp_path: Path) -> None:
    """It is of the end of a micro-batch, and the same position is the same offset: Spark would begin a micro-batch without rows."""
    path = table(tmp_path, 5)  # versions 0 to 4
    with reading(path, startingVersion=1, maxVersionsPerTrigger=2) as reader:
        start = reader.initialOffset()
        assert "backlog" not in start
        middle = reader.latestOffset()
        assert {name: middle["backlog"][name] for name in ("newest", "bytes")} == {
            "newest": 4,
            "bytes": file_sizes(path, 3, 4),
        }
        assert middle["backlog"]["since_ms"] == time_of(path, 3)
        reader.partitions(start, middle)
        end = reader.latestOffset()
        assert place(end) == ("stream", 5, 0, 0)
        assert "backlog" not in end
    with reading(path, startingVersion=1, maxVersionsPerTrigger=2) as reader:
        assert reader.latestOffset(middle) == end
        assert reader.latestOffset(end) == end
        assert reader.latestOffset(json.loads(json.dumps(start))) == middle


def test_rows_of_a_small_micro_batch_come_with_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, 3)
    with reading(path, startingVersion=1) as reader:
        start, end = reader.initialOffset(), reader.latestOffset()
        wanted_rows = rows_between(reader, start, end)
        reader.partitions(start, end)
        planned = [row for batch in reader.getCache(start, end) for row in batch.column("id").to_pylist()]
        assert len(planned) == len(wanted_rows) == 2
        # Tasks read a larger one, and one whose file is gone: they raise the error.
        for limit in ("stream.PLANNED_BYTES", "reading.PLANNED_ROW_BYTES"):
            with monkeypatch.context() as patched:
                patched.setattr(f"cdfd.spark.source.{limit}", 1)
                reader.partitions(start, end)
                assert reader.getCache(start, end) is None
        reader.partitions(start, end)
        for file in tmp_path.glob("*.parquet"):
            file.unlink()
        assert reader.getCache(start, end) is None


def test_the_backlog_of_a_snapshot(tmp_path: Path) -> None:
    path = table(tmp_path, 5)
    with reading(path, maxFilesPerTrigger=3) as reader:
        middle = reader.latestOffset(reader.initialOffset())
    assert middle["backlog"]["newest"] == 4
    assert middle["backlog"]["bytes"] == file_sizes(path, 4)


def test_a_backlog_is_counted_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each micro-batch counts a number of versions, so that planning does not wait for a long log."""
    monkeypatch.setattr(PendingBytes.between, "__defaults__", (2,))
    path = table(tmp_path, 8)  # versions 0 to 7
    with reading(path, startingVersion=0, maxVersionsPerTrigger=1) as reader:
        at, actual = reader.initialOffset(), []
        for _ in range(4):
            at = reader.latestOffset(at)
            actual.append(at["backlog"].get("bytes"))
    assert actual == [None, None, file_sizes(path, 3, 4, 5, 6, 7), file_sizes(path, 4, 5, 6, 7)]


def test_a_run_without_limits(tmp_path: Path) -> None:
    """Spark 4.2 asks for everything, whatever the options say."""
    path = table(tmp_path, 5)
    with reading(path, startingVersion=1, maxVersionsPerTrigger=2) as reader:
        assert place(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())) == ("stream", 5, 0, 0)


def ends(path: str, **options: object) -> list[tuple[object, ...]]:
    """Where the micro-batches of a stream end."""
    places = []
    with reading(path, **options) as reader:
        at = reader.initialOffset()
        while (end := reader.latestOffset(at)) != at:
            at = end
            places.append(place(at))
    return places


@pytest.mark.parametrize(("most", "wanted"), [(1, [2, 3, 4]), (5, [2, 3, 4]), (6, [3, 4]), (14, [3, 4]), (15, [4])])
def test_a_limit_of_rows(tmp_path: Path, most: int, wanted: list[int]) -> None:
    """Versions 1 to 3 have 1, 5 and 9 rows. A larger file is a micro-batch of its own."""
    path = table(tmp_path)
    insert(path, 0, lake.rows(1), lake.rows(*range(5)), lake.rows(*range(9)))
    actual = ends(path, startingVersion=1, maxRowsPerTrigger=most)
    assert [version for _, version, _, _ in actual] == wanted


def test_a_limit_of_rows_in_a_snapshot(tmp_path: Path) -> None:
    """By the counts in the log, file by file: the files of a snapshot are ordered by path."""
    path = table(tmp_path, 6)
    actual = ends(path, maxRowsPerTrigger=2)
    assert actual == [("snapshot", 5, 2, 2), ("snapshot", 5, 4, 4), ("stream", 6, 0, 0)]


def test_a_limit_of_rows_in_a_refined_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it has its share of the rows that the version removes and adds, here 6 in 3 parts."""
    path = updated(tmp_path)
    size = file_sizes(path, 1) + file_sizes(path, 2)
    monkeypatch.setattr(refining, "BUCKET_BYTES", size // 3 + 1)
    actual = ends(path, startingVersion=2, refine="key", key="id", changes="files", maxRowsPerTrigger=4)
    assert [(version, part) for _, version, part, _ in actual] == [(2, 2), (3, 0)]


def test_a_limit_of_rows_of_change_data_files(tmp_path: Path) -> None:
    """They stay together."""
    path = updated(tmp_path)
    insert(path, 2, lake.rows(4))
    for most, wanted in ((1, [3, 4]), (6, [3, 4]), (7, [4])):
        actual = ends(path, startingVersion=2, maxRowsPerTrigger=most)
        assert [version for _, version, _, _ in actual] == wanted


def test_stream_continues_at_its_offset_after_a_restart(tmp_path: Path) -> None:
    """Spark says where the stream is by asking for what is between the same offset twice."""
    path = table(tmp_path, 9)
    with reading(path, startingVersion=1, maxFilesPerTrigger=2) as reader:
        start = reader.initialOffset()
        middle = reader.latestOffset()
        actual = rows_between(reader, start, middle)
    with reading(path, startingVersion=1, maxFilesPerTrigger=2) as reader:
        assert reader.partitions(middle, middle) == []
        following = reader.latestOffset()
        assert place(following) == ("stream", 5, 0, 0)
        # The batch that was not complete comes again, planned from the log.
        assert rows_between(reader, start, middle) == actual
        actual += rows_between(reader, middle, following)
    assert actual == wanted(path, 1, 4)


@pytest.mark.parametrize(
    ("start", "at"),
    [
        ({"startingVersion": -1}, 2),
        ({"startingVersion": "latest"}, 3),
        ({"startingVersion": 3}, 3),
        ({"startingTimestamp": "1 day ago"}, 0),
    ],
)
def test_stream_begins_where_its_options_say(tmp_path: Path, start: dict[str, Any], at: int) -> None:
    with reading(table(tmp_path, 3), **start) as reader:
        assert place(reader.initialOffset()) == ("stream", at, 0, 0)


@pytest.mark.parametrize("start", [{"startingVersion": 4}, {"startingTimestamp": "2999-01-01"}])
def test_a_start_that_the_table_has_not_come_to(tmp_path: Path, start: dict[str, Any]) -> None:
    with (
        reading(table(tmp_path, 3), **start) as reader,
        pytest.raises(LogError, match=r"(yet|in the future).*; the newest is 2, of 20"),
    ):
        reader.initialOffset()


def test_newer_sparks_say_where_a_batch_begins(tmp_path: Path) -> None:
    path = table(tmp_path, 4)
    with reading(path, startingVersion=1, maxFilesPerTrigger=2) as reader:
        reader.prepareForTriggerAvailableNow()
        insert(path, 3, lake.rows(7))
        actual, at = list[Row](), reader.initialOffset()
        while (end := reader.latestOffset(at, None)) != at:
            actual += rows_between(reader, at, end)
            at = end
        assert actual == wanted(path, 1, 3)
        assert place(at) == ("stream", 4, 0, 0)


def test_partitions_of_a_first_batch_that_began_earlier(tmp_path: Path) -> None:
    path = table(tmp_path, 3)
    with reading(path) as reader:
        reader.initialOffset()
        end = reader.latestOffset()
    insert(path, 2, lake.rows(70))
    with reading(path) as reader:
        later = reader.initialOffset()
        assert place(later) == ("snapshot", 3, 0, 0)
        assert rows_between(reader, later, end) == wanted(path, 2, read=cdfd.snapshot)
        assert rows_between(reader, end, reader.latestOffset()) == wanted(path, 3)


def test_another_table_in_its_place(tmp_path: Path) -> None:
    path = table(tmp_path / "a", 5)
    with reading(path, startingVersion=0) as reader:
        offset = reader.latestOffset()
        reader.partitions(reader.initialOffset(), offset)
    other = table(tmp_path / "b", 7, table_id="U")
    with reading(other, startingVersion=0) as reader:
        reader.partitions(offset, offset)
        with pytest.raises(TableChangedError, match=r"its id was T and is U now.*another checkpoint"):
            reader.latestOffset()
    shorter = table(tmp_path / "c", 2, table_id="U")
    with reading(shorter, startingVersion=0) as reader:
        reader.partitions(offset, offset)
        with pytest.raises(TableChangedError, match="its id was T and is U now"):
            reader.latestOffset()
    copy = table(tmp_path / "d", 2)
    with reading(copy, startingVersion=0) as reader:
        reader.partitions(offset, offset)
        with pytest.raises(TableChangedError, match="the log ends at version 1 now, although version 4 was there"):
            reader.latestOffset()
    fork = table(tmp_path / "e", 7)
    with reading(fork, startingVersion=0) as reader:
        reader.partitions(offset, offset)
        with pytest.raises(TableChangedError, match=r"with the same id.*version 4 is not the one that was read"):
            reader.latestOffset()


def test_a_micro_batch_that_is_run_again_on_a_copy_that_went_another_way(tmp_path: Path) -> None:
    """The copy has the version at which the batch began, and not the one at which it ended."""
    path = table(tmp_path / "a", 3)
    shutil.copytree(path, tmp_path / "b")
    for copy in ("a", "b"):
        insert(str(tmp_path / copy), 2, lake.rows(9))
    with reading(path, startingVersion=1) as reader:
        start, end = reader.initialOffset(), reader.latestOffset()
    with (
        reading(str(tmp_path / "b"), startingVersion=1) as reader,
        pytest.raises(TableChangedError, match="version 3 is not the one that was read"),
    ):
        reader.partitions(start, end)


def test_an_offset_of_a_query_without_refinement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that was begun as deletes and inserts is ended so, also in a batch that is run again."""
    monkeypatch.setattr(refining, "BUCKET_BYTES", 1_000)

    async def made() -> None:
        writer = await lake.table(LocalStorage(str(tmp_path)), 4, lake.manual_clock())
        await writer.update(pc.field("id") > 1, {"v": pc.scalar("b")})

    lake.run(made())
    path = str(tmp_path)
    options: dict[str, object] = {"startingVersion": 4, "maxFilesPerTrigger": 1, "key": "id", "changes": "files"}
    with reading(path, **options, refine="off") as reader:
        start = reader.initialOffset()
        middle = reader.latestOffset()
        first = rows_between(reader, start, middle)
        assert middle["part"] == 1
    with reading(path, **options, refine="auto") as reader:
        assert rows_between(reader, start, middle) == first
        end = reader.latestOffset()
        assert rows_between(reader, middle, end)[0][2] == "delete"
        assert end["part"] == 2


def test_an_offset_that_the_plan_does_not_have(tmp_path: Path) -> None:
    path = table(tmp_path, 3)
    with reading(path, startingVersion=1) as reader:
        end = reader.latestOffset()
        with pytest.raises(ConfigError, match="after 7 parts of this version, but it has 1"):
            reader.partitions(end | {"version": 1, "part": 7}, end)


async def replace(writer: TableWriter, table_id: str, rows: pa.Table) -> None:
    """`CREATE OR REPLACE TABLE ... AS SELECT`: the same log, another id, and no file of before."""
    writer.table_id, writer.schema = table_id, rows.schema
    removes = [writer._remove(file) for file in list(writer._files.values())]
    await writer.commit("CREATE OR REPLACE TABLE AS SELECT", [writer._metadata(), *removes, await writer._add(rows)])


def replaced_table(folder: Path, new: pa.Table) -> str:
    """Rows 1 and 2, then a replacement (version 3) with other rows, and a row after it."""

    async def made() -> None:
        writer = await lake.table(LocalStorage(str(folder)), 3, lake.manual_clock())
        await replace(writer, "U", new)
        await writer.insert(new.slice(0, 1))

    lake.run(made())
    return str(folder)


REPLACED = [(1, "insert", 1), (2, "insert", 2), (3, "delete", 1), (3, "delete", 2), (3, "insert", 8)]


def without_ordinals(rows: list[Row]) -> list[tuple[int, str, int]]:
    """The order of files depends on their names."""
    return sorted((version, change, key) for version, _, change, key in rows)


@pytest.mark.parametrize("versions", [1, 2, 9])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_replacement_in_the_stream(tmp_path: Path, versions: int, start: int) -> None:
    """Every micro-batch is also run again, by a query that is started in between."""
    path = replaced_table(tmp_path, lake.rows(8))
    options: dict[str, object] = {"startingVersion": start, "maxVersionsPerTrigger": versions, "onReplace": "continue"}
    with reading(path, **options) as reader:
        actual, at = list[Row](), reader.initialOffset()
        while (end := reader.latestOffset()) != at:
            actual += (rows := rows_between(reader, at, end))
            with reading(path, **options) as again:
                assert rows_between(again, at, end) == rows
                assert again.partitions(end, end) == []
            at = end
    assert actual == wanted(path, start)
    assert without_ordinals(actual) == [row for row in [*REPLACED, (4, "insert", 8)] if row[0] >= start]
    assert at["table_id"] == "U"
    with reading(
        path, startingVersion=start
    ) as reader:  # the id is that of the new table, so `stop` has nothing to say
        assert reader.partitions(at, at) == []
        assert reader.latestOffset() == at


def test_a_replacement_with_other_columns(tmp_path: Path) -> None:
    """The query ends before it, as at any change of the schema. The next one reads it with the new columns."""
    new = pa.table({"id": pa.array([8], pa.int64()), "w": ["x"]})
    path = str(tmp_path)

    async def begun() -> TableWriter:
        return await lake.table(LocalStorage(path), 3, lake.manual_clock())

    writer = lake.run(begun())
    options: dict[str, object] = {"startingVersion": 0, "onReplace": "continue"}
    with reading(path, **options) as reader:
        at = reader.latestOffset()
        actual = rows_between(reader, reader.initialOffset(), at)
        lake.run(replace(writer, "U", new))
        with pytest.raises(SchemaChangedError, match="Restart the query"):
            reader.latestOffset()
    with reading(path, **options) as reader:
        assert reader.partitions(at, at) == []
        actual += rows_between(reader, at, reader.latestOffset())
    assert without_ordinals(actual) == REPLACED


def renamed_in_case(writer: TableWriter) -> None:
    """The next version renames `id` to `ID`, and the one after it has a row."""

    async def made() -> None:
        writer.schema = pa.schema([("ID", pa.int64()), ("v", pa.string())])
        await writer.commit("REPLACE COLUMNS", [writer._metadata()])
        await writer.insert(pa.table({"ID": [3], "v": ["b"]}))

    lake.run(made())


KEYED = {"startingVersion": 0, "key": "id", "keepKeyNames": "true"}


@pytest.mark.parametrize("limited", [False, True])
def test_a_key_column_renamed_only_in_case(tmp_path: Path, *, limited: bool) -> None:
    """Records would have the key `{"ID":3}` instead of `{"id":3}`, also if the query has fallen behind before it ends."""
    path = str(tmp_path)
    options = KEYED | ({"maxVersionsPerTrigger": 1} if limited else {})

    async def begun() -> TableWriter:
        return await lake.table(LocalStorage(path), 3, lake.manual_clock())

    writer = lake.run(begun())
    with reading(path, **options) as reader:
        at = reader.latestOffset()
        reader.partitions(reader.initialOffset(), at)
        renamed_in_case(writer)
        if not limited:
            with pytest.raises(SchemaChangedError, match="renamed id to ID"):
                reader.latestOffset()
    expected = "the key column 'id' is 'ID' now, so all records would have other keys"
    with reading(path, **options) as reader, pytest.raises(SchemaChangedError, match=expected):
        reader.partitions(at, at)
    with reading(path, **options) as reader, pytest.raises(SchemaChangedError, match=expected):
        reader.latestOffset(at)
    for accepted in ({"columns": "id as id,v"}, {"keepKeyNames": "false"}):
        with reading(path, **options | accepted) as reader:
            assert reader.partitions(at, at) == []
            assert reader.latestOffset() != at


def test_a_backlog_with_a_renamed_key_column_has_its_newest_name(tmp_path: Path) -> None:
    """A query without a checkpoint has published no other name, and can be restarted at any version."""
    path = str(tmp_path)

    async def begun() -> TableWriter:
        return await lake.table(LocalStorage(path), 3, lake.manual_clock())

    renamed_in_case(lake.run(begun()))
    options = KEYED | {"maxVersionsPerTrigger": 2}
    with reading(path, **options) as reader:
        at = reader.latestOffset()
        assert at["version"] < 3
        reader.partitions(reader.initialOffset(), at)
    with reading(path, **options) as reader:
        assert reader.partitions(at, at) == []
        assert reader.latestOffset()["version"] > at["version"]


@pytest.mark.parametrize("option", ["key", "Key"])
def test_fields_of_a_key_keep_their_names_too(option: str) -> None:
    fields = pa.struct([("x", pa.int64()), ("all", pa.list_(pa.struct([("y", pa.int64())])))])
    schema = TableSchema(from_arrow(pa.schema([("key", fields), ("v", pa.string())])), ())
    target = Target.of(schema, 0, rows=RowOptions(key=(option,)))
    assert target.key_paths == ("key", "key.x", "key.all", "key.all.element", "key.all.element.y")
    offset = Offset(Position("T", 3), 3, "stream", target.key_paths)
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))).renamed_key(["KEY", "key.X"]) == ("key", "KEY")
    assert offset.renamed_key(["key", "key.X"]) == ("key.x", "key.X")
    assert offset.renamed_key(["key"]) is None


def test_a_replacement_ends_a_stream_by_default(tmp_path: Path) -> None:
    path = replaced_table(tmp_path, lake.rows(8))
    with reading(path, startingVersion=3) as reader, pytest.raises(TableChangedError, match="`onReplace` = `continue`"):
        reader.latestOffset()


def test_another_table_is_no_replacement(tmp_path: Path) -> None:
    """Also where replacements are read, another log is an error."""
    path = table(tmp_path / "a", 5)
    with reading(path, startingVersion=0, onReplace="continue") as reader:
        offset = reader.latestOffset()
    other = table(tmp_path / "b", 7, table_id="U")
    with reading(other, startingVersion=0, onReplace="continue") as reader:
        reader.partitions(offset, offset)
        with pytest.raises(TableChangedError, match="its id was T and is U now"):
            reader.latestOffset()


def test_columns_with_the_names_of_change_columns_are_left_out(tmp_path: Path) -> None:
    """They change nothing about the stream, whether the table has them at its start or later."""
    path = str(tmp_path)
    rows = pa.table({"id": [1, 2], "_change_type": ["a", "b"]})
    write_deltalake(path, rows)
    with reading(path, startingVersion=0, columns="id") as reader:
        start, middle = reader.initialOffset(), reader.latestOffset()
        actual = rows_between(reader, start, middle)
        write_deltalake(path, rows, mode="append")
        write_deltalake(path, rows.append_column("_commit_version", rows["id"]), mode="append", schema_mode="merge")
        end = reader.latestOffset()
        assert end["version"] == 3
        actual += rows_between(reader, middle, end)
    read = cdfd.changes(path, columns=["id"]).read_all().to_pylist()
    assert actual == [(row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"]) for row in read]
    assert len(actual) == 6


def test_a_stream_of_change_columns_alone_has_newer_versions(tmp_path: Path) -> None:
    path = table(tmp_path, 2)
    with reading(path, startingVersion=0, columns="_commit_version") as reader:
        middle = reader.latestOffset()
        reader.partitions(reader.initialOffset(), middle)
        insert(path, 1, lake.rows(7))
        end = reader.latestOffset()
        (partition,) = reader.partitions(middle, end)
        assert [batch.to_pylist() for batch in reader.read(partition)] == [[{"_commit_version": 2}]]
