"""The Python API, over tables in folders."""

import asyncio
import inspect
import os
import pydoc
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import cdfd
from cdfd.demo.writer import TableWriter
from cdfd.errors import (
    CdfdError,
    ConfigError,
    DataError,
    GapError,
    LogError,
    MissingColumnError,
    MissingFileError,
    UnsupportedError,
)
from cdfd.log.bounds import Start
from cdfd.runtime.clock import SystemClock
from cdfd.storage.local import LocalStorage
from tests.support.fold import META, bag, fold
from tests.support.lake import rows, run, table
from tests.support.renamed_column import renamed_table

CHANGE_COLUMNS = [
    pa.field("_change_type", pa.dictionary(pa.int8(), pa.string()), nullable=False),
    pa.field("_commit_version", pa.int64(), nullable=False),
    pa.field("_commit_timestamp", pa.timestamp("ms", "UTC"), nullable=False),
    pa.field("_change_ordinal", pa.int64(), nullable=False),
]


@pytest.fixture(autouse=True)
def no_threads_are_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def writer(tmp_path: Path) -> TableWriter:
    """Versions 0 to 5: created, three inserts, an update of one row (with a change data file), a delete (by a vector)."""

    async def scenario() -> TableWriter:
        writer = await table(LocalStorage(tmp_path / "orders"), 4, SystemClock())
        await writer.update(pc.field("id") == 1, {"v": pc.scalar("b")})
        await writer.delete(pc.field("id") == 2)
        return writer

    return run(scenario())


def uri(writer: TableWriter) -> str:
    return writer.storage.uri


def versions(changes: pa.Table) -> list[int]:
    return sorted(set(changes["_commit_version"].to_pylist()))


class TestChanges:
    def test_the_schema_of_its_batches(self, writer: TableWriter) -> None:
        reader = cdfd.changes(uri(writer))
        assert reader.schema == pa.schema([*writer.schema, *CHANGE_COLUMNS])
        for batch in reader:
            assert batch.schema == reader.schema
            assert batch.num_rows

    def test_what_it_gives_folds_to_the_table(self, writer: TableWriter) -> None:
        assert fold(cdfd.changes(uri(writer))) == bag(writer.rows().to_batches())

    def test_rows_come_in_the_order_of_commits(self, writer: TableWriter) -> None:
        actual = cdfd.changes(uri(writer)).read_all().to_pylist()
        assert [
            (row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"], row["v"]) for row in actual
        ] == [
            (1, 0, "insert", 1, "a"),
            (2, 0, "insert", 2, "a"),
            (3, 0, "insert", 3, "a"),
            (4, 0, "update_preimage", 1, "a"),
            (4, 1, "update_postimage", 1, "b"),
            (5, 0, "delete", 2, "a"),
        ]

    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (0, None, [1, 2, 3, 4, 5]),
            (2, 3, [2, 3]),
            ("earliest", "now", [1, 2, 3, 4, 5]),
            ("5", 5, [5]),
            (5, None, [5]),
            (6, None, []),
            ("latest", None, []),
            (3, 2, []),
            (datetime(2000, 1, 1, tzinfo=UTC), None, [1, 2, 3, 4, 5]),
            (0, "2000-01-01", []),
            ("1 hour ago", None, [1, 2, 3, 4, 5]),
            (0, "1 hour ago", []),
            (date(2000, 1, 1), datetime(2999, 1, 1, tzinfo=UTC), [1, 2, 3, 4, 5]),
            (-2, None, [4, 5]),
            ("-3", -2, [3, 4]),
            (np.int64(4), np.int64(-1), [4, 5]),
            (1_000_000_000_000, None, [1, 2, 3, 4, 5]),
        ],
    )
    def test_range_of_versions_includes_both_ends(
        self, writer: TableWriter, start: Start, end: Start | None, expected: list[int]
    ) -> None:
        reader = cdfd.changes(uri(writer), start, end)
        assert reader.schema == pa.schema([*writer.schema, *CHANGE_COLUMNS])
        assert versions(reader.read_all()) == expected

    @pytest.mark.parametrize(
        ("start", "end", "error", "told"),
        [
            (0, 6, LogError, r"there is no version 6 yet; the newest is 5, of 20\d\d-.*Z"),
            (4, 2, ConfigError, "from version 4 to 2 goes backwards"),
            (8, None, LogError, r"there is no version 8 yet; the newest is 5, of 20\d\d-.*Z"),
            ("2999-01-01", None, LogError, r"2999-.* is in the future; the newest is 5, of 20\d\d-.*Z"),
            (-7, None, LogError, "there is no version -7"),
            (0, -7, LogError, "there is no version -7"),
            ("soon", None, ConfigError, "neither a version, nor a timestamp"),
            (True, None, ConfigError, "True is neither a version"),
            (0, 1.0, ConfigError, r"1\.0 is neither a version"),
        ],
    )
    def test_ranges_that_are_none(
        self, writer: TableWriter, start: Start, end: Start | None, error: type[CdfdError], told: str
    ) -> None:
        with pytest.raises(error, match=told):
            cdfd.changes(uri(writer), start, end)

    def test_columns_in_the_order_asked_for(self, writer: TableWriter) -> None:
        reader = cdfd.changes(uri(writer), columns=["v"])
        assert reader.schema.names == ["v", *(field.name for field in CHANGE_COLUMNS)]
        assert reader.read_all()["v"].to_pylist() == ["a", "a", "a", "a", "b", "a"]
        assert cdfd.changes(uri(writer), columns=["v", "ID"]).schema.names[:2] == ["v", "id"]

    @pytest.mark.parametrize("columns", [["id", "nope"], ["id", "id"], []])
    def test_columns_that_are_none(self, writer: TableWriter, columns: list[str]) -> None:
        for call in (cdfd.changes, cdfd.snapshot):
            with pytest.raises(ConfigError, match="column"):
                call(uri(writer), columns=columns)

    def test_the_name_of_one_column(self, writer: TableWriter) -> None:
        assert cdfd.changes(uri(writer), columns="v").schema.names[0] == "v"
        assert cdfd.snapshot(uri(writer), columns="v").schema.names[0] == "v"

    @pytest.mark.parametrize(
        "options",
        [
            *[{"uri": 7}, {"uri": b"orders"}, {"uri": None}, {"columns": 7}, {"columns": [1]}],
            *[{"changes": "all"}, {"changes": None}, {"allowed_roots": [7]}, {"storage_options": 7}],
            *[
                {"allowed_roots": 7},
                {"max_log_line": "7"},
                {"max_log_line": 0},
                {"mask": {7: "nullify"}},
                {"exclude_change_types": 7},
                {"path_prefixes": {"a": 5}},
            ],
        ],
    )
    def test_arguments_of_another_type(self, writer: TableWriter, options: dict[str, Any]) -> None:
        async def followed() -> None:
            async with aclosing(cdfd.follow(**arguments)) as batches:
                await anext(batches)

        arguments = {"uri": uri(writer)} | options
        with pytest.raises(ConfigError):
            cdfd.changes(**arguments)
        with pytest.raises(ConfigError):
            run(followed())
        if "changes" not in options:
            with pytest.raises(ConfigError):
                cdfd.snapshot(**arguments)

    @pytest.mark.parametrize("name", ["drop_unchanged", "net", "string_views", "key", "path_prefixes"])
    def test_the_argument_of_another_type_is_named(self, writer: TableWriter, name: str) -> None:
        value = {"key": 5, "path_prefixes": {"a": 5}}.get(name, "false")
        with pytest.raises(ConfigError, match=rf"^{name} (for 'a' )?is ('false'|5)") as caught:
            cdfd.changes(uri(writer), **{name: value})  # type: ignore[arg-type]
        assert "Give " in str(caught.value.hint)

    def test_a_constant_is_that_of_versions_without_the_column_too(self, writer: TableWriter) -> None:
        async def grow() -> None:
            await writer.add_column(pa.field("n", pa.int32()))
            await writer.delete(pc.field("id") == 3)

        run(grow())
        masked: Any = {"mask": {"n": "constant:7"}}
        rows = cdfd.changes(uri(writer), **masked).read_all()
        assert set(rows["n"].to_pylist()) == {7}
        net = cdfd.changes(uri(writer), key="id", net=True, **masked).read_all()
        live = cdfd.snapshot(uri(writer), **masked).read_all()
        assert fold(net.to_batches()) == fold(rows.to_batches()) == bag(live.to_batches(), META)

    def test_where_changes_come_from(self, writer: TableWriter) -> None:
        update = {
            mode: cdfd.changes(uri(writer), 4, 4, changes=mode).read_all().to_pylist()
            for mode in ("auto", "cdf", "files")
        }
        kinds = {mode: [row["_change_type"] for row in changed] for mode, changed in update.items()}
        assert kinds["auto"] == kinds["cdf"] == ["update_preimage", "update_postimage"]
        assert sorted(kinds["files"]) == ["delete", "insert"]

    @pytest.mark.parametrize("name", ["_cdfd_pair", "row_id", "_row_id"])
    async def test_a_key_may_have_any_name(self, tmp_path: Path, name: str) -> None:
        schema = pa.schema([("id", pa.int64()), (name, pa.string())])
        writer = TableWriter(LocalStorage(tmp_path / "named"), schema)
        await writer.create()
        await writer.insert(pa.table({"id": [1, 2], name: ["a", "b"]}, schema))
        await writer.update(pc.field("id") == 2, {name: pc.scalar("c")})
        actual = cdfd.changes(uri(writer), 2, key=["id", name]).read_all()
        assert actual[name].to_pylist() == ["b", "c"]
        assert actual["_change_type"].to_pylist() == ["delete", "insert"]

    def test_a_feed_that_is_not_recorded(self, tmp_path: Path) -> None:
        async def scenario() -> TableWriter:
            writer = TableWriter(LocalStorage(tmp_path / "plain"), pa.schema([("id", pa.int64())]), feed=False)
            await writer.create()
            await writer.insert(pa.table({"id": [1]}))
            return writer

        writer = run(scenario())
        assert cdfd.changes(uri(writer)).read_all()["id"].to_pylist() == [1]
        with pytest.raises(UnsupportedError, match="does not record a change data feed"):
            cdfd.changes(uri(writer), changes="cdf").read_all()

    async def test_versions_with_an_older_schema_come_in_that_of_the_end(self, writer: TableWriter) -> None:
        await writer.add_column(pa.field("n", pa.int32()))
        await writer.insert(pa.table({"id": [9], "v": ["z"], "n": pa.array([7], pa.int32())}))
        actual = cdfd.changes(uri(writer)).read_all()
        assert actual.schema.names[:3] == ["id", "v", "n"]
        assert actual["n"].to_pylist() == [None] * 6 + [7]
        assert cdfd.changes(uri(writer), 0, 5).schema.names[:3] == ["id", "v", "_change_type"]

    async def test_inside_a_running_loop(self, writer: TableWriter) -> None:
        await asyncio.sleep(0)
        assert (cdfd.changes(uri(writer)).read_all().num_rows + cdfd.snapshot(uri(writer)).read_all().num_rows) == 6 + 2

    def test_readers_of_one_table_do_not_disturb_one_another(self, writer: TableWriter) -> None:
        readers = [cdfd.changes(uri(writer)) for _ in range(5)]
        firsts = [reader.read_next_batch() for reader in readers]
        assert len({batch.num_rows for batch in firsts}) == 1
        assert [reader.read_all().num_rows for reader in readers] == [5] * 5

    @pytest.mark.parametrize("read", [0, 1, 3])
    def test_one_that_is_not_read_to_its_end_leaves_nothing(self, writer: TableWriter, read: int) -> None:
        reader = cdfd.changes(uri(writer))
        for _ in range(read):
            reader.read_next_batch()
        del reader  # what is left of it, the fixture sees

    def test_a_path_a_uri_and_a_relative_path(self, writer: TableWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(Path(uri(writer)).parent)
        for place in (uri(writer), f"file://{uri(writer)}", "orders", "./orders/", Path("orders"), Path(uri(writer))):
            assert cdfd.changes(place).read_all().num_rows == 6


class TestSnapshot:
    def test_the_live_rows_as_inserts(self, writer: TableWriter) -> None:
        reader = cdfd.snapshot(uri(writer))
        assert reader.schema == pa.schema([*writer.schema, *CHANGE_COLUMNS])
        actual = reader.read_all()
        assert fold(actual.to_batches()) == bag(writer.rows().to_batches())
        assert set(actual["_change_type"].to_pylist()) == {"insert"}
        assert versions(actual) == [5]
        assert actual["_change_ordinal"].to_pylist() == [0, 1]

    @pytest.mark.parametrize(
        ("version", "ids"),
        [(0, []), (2, [1, 2]), ("4", [1, 2, 3]), ("now", [1, 3]), (None, [1, 3]), (-1, [1, 3]), (-3, [1, 2, 3])],
    )
    def test_snapshot_has_the_rows_of_its_version(
        self, writer: TableWriter, version: int | str | None, ids: list[int]
    ) -> None:
        assert sorted(cdfd.snapshot(uri(writer), version).read_all()["id"].to_pylist()) == ids

    def test_snapshot_and_the_changes_after_it_are_the_table(self, writer: TableWriter) -> None:
        for version in range(6):
            both = [*cdfd.snapshot(uri(writer), version), *cdfd.changes(uri(writer), version + 1)]
            assert fold(both) == bag(writer.rows().to_batches())

    def test_chosen_columns_come_with_the_change_columns(self, writer: TableWriter) -> None:
        assert cdfd.snapshot(uri(writer), columns=["v"]).schema.names == [
            "v",
            *(field.name for field in CHANGE_COLUMNS),
        ]

    @pytest.mark.parametrize("version", [6, 99])
    def test_one_that_is_not_there(self, writer: TableWriter, version: int) -> None:
        with pytest.raises(LogError, match=f"version {version} is not in the log; the newest is 5"):
            cdfd.snapshot(uri(writer), version)

    @pytest.mark.parametrize("read", [cdfd.changes, cdfd.snapshot])
    def test_a_column_that_is_not_there(self, writer: TableWriter, read: Callable[..., pa.RecordBatchReader]) -> None:
        with pytest.raises(ConfigError, match="there is no column 'nope'") as caught:
            read(uri(writer), columns=["nope"])
        assert caught.value.table == uri(writer)

    @pytest.mark.parametrize("version", ["2020-01-01", date(2020, 1, 1), 1_577_836_800_000, "2000 days ago"])
    def test_one_older_than_the_table(self, writer: TableWriter, version: Start) -> None:
        with pytest.raises(LogError, match=r"no version from .* or before; the oldest is 0, of 20\d\d-.*Z") as caught:
            cdfd.snapshot(uri(writer), version)
        assert caught.value.table == uri(writer)


class TestErrors:
    """They name table, version and file."""

    def test_a_file_that_is_gone(self, writer: TableWriter) -> None:
        gone = next(path for path in Path(uri(writer)).glob("part-*") if path.name not in writer._files)
        gone.unlink()
        with pytest.raises(MissingFileError) as caught:
            cdfd.changes(uri(writer)).read_all()
        assert (caught.value.table, caught.value.version, caught.value.path) == (uri(writer), 1, gone.name)

    def test_a_file_that_is_damaged(self, writer: TableWriter) -> None:
        path = sorted(writer._files)[0]
        damaged = Path(uri(writer)) / path
        damaged.write_bytes(damaged.read_bytes()[:-9])
        with pytest.raises(DataError) as caught:
            cdfd.snapshot(uri(writer)).read_all()
        assert (caught.value.table, caught.value.version, caught.value.path) == (uri(writer), 5, path)
        assert caught.value.hint

    def test_what_comes_before_it_is_given_first(self, writer: TableWriter) -> None:
        change_data = next(Path(uri(writer)).glob("_change_data/*"))
        change_data.write_bytes(b"PAR1")
        reader = cdfd.changes(uri(writer))
        assert [reader.read_next_batch()["_commit_version"][0].as_py() for _ in range(3)] == [1, 2, 3]
        with pytest.raises(DataError) as caught:
            reader.read_next_batch()
        assert (caught.value.version, caught.value.path) == (4, f"_change_data/{change_data.name}")

    def test_an_entry_that_is_damaged(self, writer: TableWriter) -> None:
        entry = Path(uri(writer)) / "_delta_log" / f"{3:020d}.json"
        entry.write_text('{"add":{"path":"pa')
        long_ago = entry.stat().st_mtime - 60
        os.utime(entry, (long_ago, long_ago))
        with pytest.raises(LogError) as caught:
            cdfd.changes(uri(writer)).read_all()
        assert (caught.value.table, caught.value.version, caught.value.path) == (
            uri(writer),
            3,
            f"_delta_log/{entry.name}",
        )

    def test_missing_version_is_named(self, writer: TableWriter) -> None:
        (Path(uri(writer)) / "_delta_log" / f"{3:020d}.json").unlink()
        with pytest.raises(GapError, match="version 3 is missing"):
            cdfd.changes(uri(writer)).read_all()

    def test_folder_without_a_table_is_named(self, tmp_path: Path) -> None:
        for call in (cdfd.changes, cdfd.snapshot):
            for place in (tmp_path, tmp_path / "nowhere"):
                with pytest.raises(LogError, match="not a Delta table") as caught:
                    call(str(place))
                assert caught.value.table == str(place)

    def test_a_scheme_that_is_not_known(self) -> None:
        for call in (cdfd.changes, cdfd.snapshot):
            with pytest.raises(UnsupportedError, match="no storage for gopher://"):
                call("gopher://lake/orders")


class TestFollow:
    async def test_rows_as_they_are_committed(self, writer: TableWriter) -> None:
        async with aclosing(cdfd.follow(uri(writer), poll_interval=1e6)) as batches:
            coming = asyncio.ensure_future(anext(batches))
            # Whatever is committed from the moment on that it looks; until then there is nothing to be woken by.
            await asyncio.sleep(0.2)
            await writer.insert(rows(7))
            first = await coming
            assert first["id"].to_pylist() == [7]
            assert first.schema == pa.schema([*writer.schema, *CHANGE_COLUMNS])
            for number in (8, 9):
                coming = asyncio.ensure_future(anext(batches))
                await writer.insert(rows(number))
                assert (await coming)["id"].to_pylist() == [number]

    @pytest.mark.parametrize("interval", [None, "1", 0, -1, float("nan"), float("inf")])
    async def test_an_interval_is_a_number_above_0(self, writer: TableWriter, interval: object) -> None:
        async with aclosing(cdfd.follow(uri(writer), poll_interval=interval)) as batches:  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="poll_interval is"):
                await anext(batches)

    async def test_from_the_beginning_of_a_table_that_is_not_there_yet(self, tmp_path: Path) -> None:
        place = tmp_path / "late" / "orders"
        async with aclosing(cdfd.follow(str(place), poll_interval=1e6)) as batches:
            coming = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            await table(LocalStorage(place), 3, SystemClock())
            assert (await coming)["id"].to_pylist() == [1]
            assert (await anext(batches))["id"].to_pylist() == [2]

    def test_the_schema_is_that_of_each_version(self, writer: TableWriter) -> None:
        async def scenario() -> list[list[str]]:
            await writer.add_column(pa.field("n", pa.int32()))
            await writer.insert(pa.table({"id": [9], "v": ["z"], "n": pa.array([7], pa.int32())}))
            async with aclosing(cdfd.follow(uri(writer), 5, columns=["n", "id"])) as batches:
                return [(await anext(batches)).schema.names[:2] for _ in range(2)]

        assert run(scenario()) == [["id", "_change_type"], ["n", "id"]]

    @pytest.mark.parametrize("read", [0, 1, 2])
    async def test_stream_can_be_closed_after_any_batch(self, writer: TableWriter, read: int) -> None:
        async with aclosing(cdfd.follow(uri(writer), 0)) as batches:
            for _ in range(read):
                await anext(batches)

    async def test_cancelling_it_while_it_waits(self, writer: TableWriter) -> None:
        seen = asyncio.Event()

        async def consume() -> None:
            async for _ in cdfd.follow(uri(writer), 5):
                seen.set()

        consumer = asyncio.create_task(consume())
        await seen.wait()
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer

    def test_a_mask_needs_the_name_that_a_column_has_at_the_start(self, tmp_path: Path) -> None:
        async def masked(start: int, *names: str) -> list[dict[str, Any]]:
            async with aclosing(cdfd.follow(str(tmp_path), start, mask=dict.fromkeys(names, "nullify"))) as batches:
                return [row for _ in range(2) for row in (await anext(batches)).to_pylist()]

        run(renamed_table(LocalStorage(tmp_path), SystemClock()))
        with pytest.raises(MissingColumnError, match="column 'tax_id' has the name 'ssn'"):
            run(masked(0, "tax_id"))
        with pytest.raises(MissingColumnError, match="'ssn' is gone"):
            run(masked(0, "ssn"))
        assert [row.get("ssn", row.get("tax_id")) for row in run(masked(0, "ssn", "tax_id"))] == [None, None]

    def test_errors_of_a_range_are_raised_while_following(self, writer: TableWriter) -> None:
        async def first(start: int | str, **options: object) -> None:
            async with aclosing(cdfd.follow(uri(writer), start, **options)) as batches:
                await anext(batches)

        with pytest.raises(ConfigError, match="there is no column 'nope'") as refused:
            run(first(0, columns=["id", "nope"]))
        assert refused.value.table == uri(writer)
        with pytest.raises(ConfigError, match="neither a version"):
            run(first("soon"))
        gone = next(path for path in Path(uri(writer)).glob("part-*") if path.name not in writer._files)
        gone.unlink()
        with pytest.raises(MissingFileError) as caught:
            run(first(0))
        assert (caught.value.table, caught.value.version, caught.value.path) == (uri(writer), 1, gone.name)


def test_an_empty_range_has_the_columns_of_its_end(tmp_path: Path) -> None:
    run(renamed_table(LocalStorage(tmp_path), SystemClock()))
    names = [cdfd.changes(tmp_path, first, first - 1).schema.names[1] for first in (4, 3, 2, 1)]
    assert names == ["tax_id", "tax_id", "ssn", "ssn"]
    before = cdfd.changes(tmp_path, 0, datetime(2000, 1, 1, tzinfo=UTC))
    assert (before.schema.names[1], before.read_all().num_rows) == ("ssn", 0)


def test_the_module_shows_its_functions() -> None:
    import cdfd.model.plan

    assert "versions `start` to `end`, both included" in pydoc.render_doc(cdfd.changes)
    assert list(inspect.signature(cdfd.changes).parameters)[:3] == ["uri", "start", "end"]
    assert [name for name in dir(cdfd) if not name.startswith("__")] == ["changes", "follow", "snapshot"]
    assert cdfd.errors.NotATableError.family == "log"


def test_strings_as_views(writer: TableWriter) -> None:
    for read in (cdfd.changes, cdfd.snapshot):
        plain, views = read(uri(writer)).read_all(), read(uri(writer), string_views=True).read_all()
        assert (plain.schema.field("v").type, views.schema.field("v").type) == (pa.string(), pa.string_view())
        assert views.to_pylist() == plain.to_pylist()
