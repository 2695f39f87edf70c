"""Tables whose commits a catalog decides: each rule of Delta's protocol, section "Catalog-managed tables", for readers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cdfd
from cdfd.catalogs.base import CatalogTable, RatifiedCommit
from cdfd.catalogs.ratified import RatifiedLog
from cdfd.errors import LogError, NotFoundError, StorageError, TableChangedError, UnsupportedError
from cdfd.log.table import Table
from cdfd.log.tailer import Tailer
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.scan.execute import Execution
from tests.support.catalogs.memory import BEGINNING, NAME, ManagedTable, MemoryCatalog
from tests.support.lake import WITHIN, run

FEATURES = ("catalogManaged", "catalogOwned", "catalogOwned-preview")


@pytest.fixture
def table(tmp_path: Path) -> ManagedTable:
    return ManagedTable(tmp_path / "orders", MemoryCatalog())


def ids(table: Table, version: Version) -> list[int]:
    columns = [batch.rows.column("id").to_pylist() for batch in Execution(table.files).batches([version.plan])]
    return [value for batch in columns for value in batch]


@contextmanager
def quick_tailer(table: Table) -> Iterator[Tailer]:
    with table.tailer(interval=0.001, max_interval=0.002) as tailer:
        yield tailer


async def read_now(table: Table, start: int = 1) -> list[int]:
    """The rows of all versions that exist now."""
    last = await table.log.latest_version()
    with quick_tailer(table) as tailer:
        return [row async for version in table.stream().versions(tailer, start, last) for row in ids(table, version)]


async def following(table: Table, start: int = 1) -> AsyncGenerator[tuple[int, list[int]], None]:
    with quick_tailer(table) as tailer:
        async with aclosing(table.stream().versions(tailer, start)) as versions:
            async for version in versions:
                yield version.plan.version, ids(table, version)


class TestWhatIsRead:
    def test_the_example_of_the_protocol(self, table: ManagedTable) -> None:
        """7 ratified and published, 8 ratified and another one rejected, 9 inline, 10 not ratified and a partial file."""
        for version in range(1, 8):
            table.commit()
            table.publish(version, forget=version < 7)
        table.stage(8, 800)
        table.commit(8)
        table.commit(9, inline=True)
        table.stage(10, 1000)
        (table.staged / f"{10:020d}.7a980438-cb67-4b89-82d2-86f73239b6d6.json").write_bytes(b'{"commitInfo"')
        assert run(read_now(table.open())) == list(range(1, 10))

    def test_a_copy_of_the_catalog_wins_over_a_published_one(self, table: ManagedTable) -> None:
        table.commit(1)
        table.entry(1).write_bytes(table.content(1, 100))
        assert run(read_now(table.open())) == [1]

    def test_published_version_above_the_ratified_one_is_ignored(self, table: ManagedTable) -> None:
        table.commit(1)
        table.entry(2).write_bytes(table.content(2, 2))
        reader = table.open()
        assert run(reader.log.latest_version()) == 1
        assert run(read_now(reader)) == [1]

    def test_staged_commit_that_lost_is_never_read(self, table: ManagedTable) -> None:
        table.stage(1, 100)
        table.commit(1)
        table.stage(1, 101)
        assert run(read_now(table.open())) == [1]

    def test_inline_commit_is_read_and_its_published_copy_too(self, table: ManagedTable) -> None:
        table.commit(1, inline=True)
        reader = table.open()
        assert run(read_now(reader)) == [1]
        table.publish(1, forget=True)
        assert run(read_now(reader)) == [1]

    def test_checkpoint_of_published_versions_is_used_and_a_later_one_ignored(self, table: ManagedTable) -> None:
        for version in range(1, 4):
            table.commit()
            table.publish(version, forget=True)
        (table.log / f"{4:020d}.checkpoint.parquet").write_bytes(b"not ratified")
        (table.log / "_last_checkpoint").write_text('{"version":4,"size":1}')
        table.commit(4)
        table.now = replace(table.now, latest=3, commits=())
        assert run(read_now(table.open())) == [1, 2, 3]

    def test_times_are_those_in_the_commits(self, table: ManagedTable) -> None:
        """The file of a published commit is as young as the copy."""
        for _ in range(2):
            table.commit()
        before = [version.plan.timestamp_ms for version in run(planned(table.open(), 1, 2))]
        for version in (1, 2):
            table.publish(version, forget=True)
            os.utime(table.entry(version), (1e9, 1e9))
        after = [version.plan.timestamp_ms for version in run(planned(table.open(), 1, 2))]
        assert before == after == [BEGINNING + 1000, BEGINNING + 2000]

    def test_commit_without_a_time_is_an_error(self, table: ManagedTable) -> None:
        content = table.content(1).replace(b'"inCommitTimestamp"', b'"another"')
        table.ratify(table.stage(1, content=content))
        with pytest.raises(LogError, match="in-commit timestamps are enabled, but the commit has none"):
            run(read_now(table.open()))

    def test_table_without_in_commit_timestamps_is_an_error(self, tmp_path: Path) -> None:
        table = ManagedTable(tmp_path / "orders", MemoryCatalog())
        table.configuration = {}
        table.entry(0).write_bytes(table.first())
        with pytest.raises(LogError, match="in-commit timestamps are not enabled"):
            run(table.open().log.header())

    @pytest.mark.parametrize("feature", FEATURES)
    def test_the_feature_is_read_by_each_of_its_names(self, tmp_path: Path, feature: str) -> None:
        table = ManagedTable(tmp_path / "orders", MemoryCatalog(), feature=feature)
        table.commit(1)
        assert run(read_now(table.open())) == [1]

    @pytest.mark.parametrize("feature", FEATURES)
    def test_the_folder_without_its_catalog_is_refused(self, tmp_path: Path, feature: str) -> None:
        table = ManagedTable(tmp_path / "orders", MemoryCatalog(), feature=feature)
        table.commit(1)
        table.publish(1)
        for read in (cdfd.changes, cdfd.snapshot):
            with pytest.raises(UnsupportedError, match=rf"{feature}\b.*uc://catalog\.schema\.table"):
                read(str(table.folder)).read_all()

    def test_catalog_that_has_no_commits_for_such_a_table_is_refused(self, table: ManagedTable) -> None:
        table.now = CatalogTable(table.table_id, str(table.folder))
        with pytest.raises(UnsupportedError, match="catalogManaged"):
            run(table.open().log.header())

    def test_it_is_not_written(self, table: ManagedTable) -> None:
        storage = table.storage()
        for write in (storage.put_if_absent, storage.put):
            with pytest.raises(UnsupportedError, match="does not write into a table of a catalog"):
                run(write("_delta_log/x.json", b""))
        with pytest.raises(UnsupportedError, match="does not write into a table of a catalog"):
            run(storage.delete("x"))


async def planned(table: Table, first: int, last: int) -> list[Version]:
    with quick_tailer(table) as tailer:
        return [version async for version in table.stream().versions(tailer, first, last)]


class TestPublishing:
    def test_a_published_copy_is_not_a_replaced_table(self, table: ManagedTable) -> None:
        """The entry that was applied is another file after each step. Nothing is read twice, and the history begins once."""

        async def scenario() -> None:
            reader = table.open()
            async with aclosing(following(reader)) as rows:
                for version in range(1, 6):
                    table.commit(inline=version == 3)
                    assert await anext(rows) == (version, [version])
                    table.publish(version, forget=version % 2 == 0, clean=version > 3)
            assert reader.log.history.restarts == 0

        run(scenario())

    def test_position_of_a_staged_commit_is_valid_once_it_is_published(self, table: ManagedTable) -> None:
        table.commit(1)
        digest = run(table.open().log.digest(1))
        assert digest is not None
        table.publish(1, forget=True, clean=True)

        async def scenario() -> bool:
            with quick_tailer(table.open()) as tailer:
                return await tailer.resume(Position("any", 2, digest=digest))

        assert run(scenario())

    def test_staged_file_that_vanishes_once_published(self, table: ManagedTable) -> None:
        """The catalog's answer still names it."""
        for version in (1, 2):
            table.commit()
            table.publish(version, clean=True)
        assert run(read_now(table.open())) == [1, 2]

    def test_staged_file_that_vanishes_before_is_a_transient_error(self, table: ManagedTable) -> None:
        commit = table.commit(1)
        reader = table.open()
        assert run(reader.log.latest_version()) == 1
        assert commit.file_name is not None
        (table.staged / commit.file_name).unlink()
        with pytest.raises(StorageError, match="has no commit 1, which is not published either") as caught:
            run(read_now(reader))
        assert caught.value.retriable
        assert caught.value.table == f"memory://{NAME}"

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_rows_come_once_and_in_order_however_publishing_interleaves(
        self, tmp_path_factory: object, data: st.DataObject
    ) -> None:
        folder = tmp_path_factory.mktemp("lake")  # type: ignore[attr-defined]
        table = ManagedTable(folder / "orders", MemoryCatalog())
        published = 0
        stale: list[CatalogTable] = []
        lags = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=20))

        def answer(now: CatalogTable) -> CatalogTable:
            # Replicas of the catalog lag behind at times.
            stale.append(now)
            return stale[max(0, len(stale) - 1 - lags[len(stale) % len(lags)])]

        table.catalog.answer = answer

        def step() -> None:
            nonlocal published
            latest = table.now.latest or 0
            choices: list[Callable[[], object]] = [
                lambda: table.commit(inline=data.draw(st.booleans())),
                lambda: table.stage(latest + 1, 1000),
            ]
            kept = [each.version for each in table.now.commits]
            if published < latest:
                choices.append(lambda: publish(published + 1))
            if kept and kept[0] <= published and kept[0] < latest:
                choices.append(lambda: forget(kept[0]))
            data.draw(st.sampled_from(choices))()

        def publish(version: int) -> None:
            nonlocal published
            table.publish(version, clean=data.draw(st.booleans()))
            published = version

        def forget(version: int) -> None:
            table.now = replace(table.now, commits=tuple(each for each in table.now.commits if each.version != version))

        async def scenario() -> None:
            read: list[int] = []
            async with aclosing(following(table.open())) as rows:
                for _ in range(data.draw(st.integers(1, 12))):
                    step()
                    if data.draw(st.booleans()) and len(read) < (table.now.latest or 0):
                        version, values = await anext(rows)
                        assert values == [version]
                        read.append(version)
                table.catalog.answer = None
                while len(read) < (table.now.latest or 0):
                    read.append((await anext(rows))[0])
            assert read == list(range(1, (table.now.latest or 0) + 1))

        run(scenario())


class TestAnswers:
    def test_answer_that_goes_back_is_stale(self, table: ManagedTable) -> None:
        async def scenario() -> None:
            table.commit()
            before = table.now
            async with aclosing(following(table.open())) as rows:
                assert await anext(rows) == (1, [1])
                table.commit()
                assert await anext(rows) == (2, [2])
                newest, table.now = table.now, before
                waiting = asyncio.ensure_future(anext(rows))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                table.now = newest
                table.commit()
                assert await waiting == (3, [3])

        run(scenario())

    def test_stale_answer_at_a_restart_is_a_transient_error(self, table: ManagedTable) -> None:
        table.commit()
        before = table.now
        table.commit()
        digest = run(table.open().log.digest(2))
        table_id = run(table.open().log.header()).metadata.id
        table.now = before

        async def scenario() -> None:
            with quick_tailer(table.open()) as tailer:
                await tailer.resume(Position(table_id, 3, digest=digest))

        with pytest.raises(StorageError, match="newest version is 1, although version 2 was read") as caught:
            run(scenario())
        assert caught.value.retriable

    def test_wrong_order_of_a_list_does_not_matter(self) -> None:
        commits = [RatifiedCommit(version, f"{version:020d}.{version}.json") for version in (2, 1, 3)]
        with pytest.raises(ValueError, match="two commits have one version"):
            CatalogTable("t", "/t", True, 3, tuple(commits))

    def test_truncated_list_is_filled_by_what_is_known(self) -> None:
        names = {version: RatifiedCommit(version, f"{version:020d}.{version}.json") for version in range(1, 5)}
        log = RatifiedLog.of(CatalogTable("t", "/t", True, 3, (names[1], names[2], names[3])))
        later = log.after(CatalogTable("t", "/t", True, 4, (names[2], names[4])))
        assert dict(later.commits) == names

    def test_catalog_that_says_no_newest_version_and_has_no_commits_has_all_published_ones(self) -> None:
        commit = RatifiedCommit(7, f"{7:020d}.7.json")
        log = RatifiedLog.of(CatalogTable("t", "/t", True, None, (commit,)))
        assert not log.includes(8)
        assert log.after(CatalogTable("t", "/t", True, None, ())).includes(8)

    def test_truncated_list_is_a_transient_error_where_nothing_fills_it(self, table: ManagedTable) -> None:
        for _ in range(3):
            table.commit()
        table.now = replace(table.now, commits=(table.now.commits[0], table.now.commits[2]))
        with pytest.raises(StorageError, match="has no commit 2, which is not published either") as caught:
            run(read_now(table.open()))
        assert caught.value.retriable

    def test_list_without_the_newest_commit_is_a_transient_error(self, table: ManagedTable) -> None:
        table.commit()
        table.commit()
        table.now = replace(table.now, commits=table.now.commits[:1])
        with pytest.raises(StorageError, match="newest version is 2, but has no commit 2") as caught:
            run(table.open().log.latest_version())
        assert caught.value.retriable

    def test_another_commit_for_a_version_is_an_error(self, table: ManagedTable) -> None:
        async def scenario() -> None:
            reader = table.open()
            table.commit()
            assert await read_now(reader) == [1]
            table.now = replace(table.now, latest=2, commits=(table.stage(1, 100), table.stage(2)))
            await reader.log.entry(2)

        with pytest.raises(TableChangedError, match="names another commit for a version"):
            run(scenario())

    @pytest.mark.parametrize(
        "file_name",
        [
            "../00000000000000000001.a.json",
            "00000000000000000001.a.json/../../x",
            "00000000000000000002.a.json",
            "1.a.json",
            "00000000000000000001.json",
            "/etc/passwd",
            "",
        ],
    )
    def test_file_of_another_place_or_version_is_refused(self, file_name: str) -> None:
        with pytest.raises(ValueError, match="staged commit of version 1 is named"):
            RatifiedCommit(1, file_name)


class TestTheTable:
    """A name may stand for another table, or for none."""

    def test_dropped_and_created_again(self, table: ManagedTable, tmp_path: Path) -> None:
        async def scenario() -> None:
            table.commit()
            async with aclosing(following(table.open())) as rows:
                await anext(rows)
                other = ManagedTable(tmp_path / "other", table.catalog)
                other.commit()
                other.commit()
                await anext(rows)

        with pytest.raises(TableChangedError, match="has another table of that name now") as caught:
            run(scenario())
        assert caught.value.table == f"memory://{NAME}"

    def test_dropped_or_renamed(self, table: ManagedTable) -> None:
        async def scenario() -> None:
            table.commit()
            async with aclosing(following(table.open())) as rows:
                await anext(rows)
                table.catalog.known["main.sales.other"] = table.catalog.known.pop(NAME)
                await anext(rows)

        with pytest.raises(TableChangedError, match=r"no longer has the table of the id .* under this name"):
            run(scenario())

    def test_exchanged_by_rename_while_no_daemon_runs(self, table: ManagedTable, tmp_path: Path) -> None:
        """The other table has as many versions."""
        other = ManagedTable(tmp_path / "other", table.catalog, "main.sales.other")
        table.commit()
        other.commit()
        digest = run(table.open().log.digest(1))
        table_id = run(table.open().log.header()).metadata.id
        known = table.catalog.known
        known[NAME], known["main.sales.other"] = known["main.sales.other"], known[NAME]

        async def scenario() -> None:
            with quick_tailer(table.open()) as tailer:
                await tailer.resume(Position(table_id, 2, digest=digest))

        with pytest.raises(TableChangedError, match="deleted and created again, or replaced"):
            run(scenario())

    def test_moved_location_changes_nothing(self, table: ManagedTable, tmp_path: Path) -> None:
        async def scenario() -> None:
            reader = table.open()
            table.commit()
            async with aclosing(following(reader)) as rows:
                assert await anext(rows) == (1, [1])
                os.rename(table.folder, tmp_path / "moved")
                moved = ManagedTable.__new__(ManagedTable)
                moved.__dict__ |= table.__dict__ | {"folder": tmp_path / "moved"}
                moved.log = moved.folder / "_delta_log"
                moved.staged = moved.log / "_staged_commits"
                moved.now = replace(moved.now, location=str(moved.folder))
                moved.commit()
                assert await anext(rows) == (2, [2])

        run(scenario())

    def test_feature_that_is_dropped_is_a_transient_error_and_then_a_plain_log(self, table: ManagedTable) -> None:
        table.commit()
        table.publish(1)
        reader = table.open()
        assert run(read_now(reader)) == [1]
        table.now = CatalogTable(table.table_id, str(table.folder))
        with pytest.raises(StorageError, match="no longer decides the commits") as caught:
            run(reader.log.entry(2))
        assert caught.value.retriable
        first = table.entry(0).read_bytes()
        table.entry(0).write_bytes(first.replace(b'"catalogManaged"', b'"vacuumProtocolCheck"'))
        assert run(read_now(table.open())) == [1]

    def test_waits_for_a_table_that_the_catalog_does_not_have_yet(self, table: ManagedTable) -> None:
        async def scenario() -> None:
            now = table.catalog.known.pop(NAME)
            with quick_tailer(table.open()) as tailer:
                waiting = asyncio.ensure_future(tailer.wait_for_table())
                async with asyncio.timeout(WITHIN):
                    while table.catalog.loads < 2:  # the first one has failed
                        await asyncio.sleep(0.001)
                assert not waiting.done()
                table.now = now
                assert await waiting

        run(scenario())

    def test_log_clean_up_is_no_truncated_list(self, table: ManagedTable) -> None:
        for version in range(1, 5):
            table.commit()
            table.publish(version, forget=True)
        write_checkpoint(table, 3)
        for version in range(3):
            table.entry(version).unlink()
        reader = table.open()
        assert run(reader.log.earliest_version()) == 3
        assert run(read_now(reader, 4)) == [4]
        assert run(reader.log.digest(1)) is None


def write_checkpoint(table: ManagedTable, version: int) -> None:
    """A classic checkpoint, as another writer makes it."""
    actions = [json.loads(line) for at in range(version + 1) for line in table.entry(at).read_text().splitlines()]
    rows = [each for each in actions if "commitInfo" not in each]
    for each in rows:
        if "metaData" in each:
            each["metaData"]["configuration"] = list(each["metaData"]["configuration"].items())
            each["metaData"]["format"].pop("options")
        if "add" in each:
            each["add"]["partitionValues"] = []
    text = pa.string()
    schema = pa.schema(
        [
            (
                "protocol",
                pa.struct(
                    [
                        ("minReaderVersion", pa.int32()),
                        ("minWriterVersion", pa.int32()),
                        ("readerFeatures", pa.list_(text)),
                        ("writerFeatures", pa.list_(text)),
                    ]
                ),
            ),
            (
                "metaData",
                pa.struct(
                    [
                        ("id", text),
                        ("format", pa.struct([("provider", text)])),
                        ("schemaString", text),
                        ("partitionColumns", pa.list_(text)),
                        ("configuration", pa.map_(text, text)),
                    ]
                ),
            ),
            (
                "add",
                pa.struct(
                    [
                        ("path", text),
                        ("partitionValues", pa.map_(text, text)),
                        ("size", pa.int64()),
                        ("modificationTime", pa.int64()),
                        ("dataChange", pa.bool_()),
                    ]
                ),
            ),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), table.log / f"{version:020d}.checkpoint.parquet")


class TestRequests:
    def test_a_poll_is_one_request_to_the_catalog_and_none_to_the_store(self, table: ManagedTable) -> None:
        async def scenario() -> None:
            table.commit()
            reader = table.open()
            await reader.log.entry(1)
            os.rename(table.folder, table.folder.with_name("away"))
            for polls in range(1, 4):
                before = table.catalog.loads
                with pytest.raises(NotFoundError, match="has not ratified this version"):
                    await reader.log.entry(2)
                # The last entry is looked at again while none comes.
                assert (await reader.log.stat(1)).identity
                assert table.catalog.loads == before + 1, polls

        run(scenario())

    def test_ratified_versions_are_read_while_the_catalog_is_down(
        self, table: ManagedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cdfd.catalogs.storage.SHARED_SECONDS", 1e-9)

        async def scenario() -> Sequence[int]:
            for _ in range(100):
                table.commit()
            reader = table.open()

            def down(now: CatalogTable) -> CatalogTable:
                raise StorageError("the catalog cannot be reached", retriable=True)

            read: list[int] = []

            async def read_all() -> None:
                async for _, rows in following(reader):
                    read.extend(rows)
                    table.catalog.answer = down

            with pytest.raises(StorageError, match="cannot be reached") as caught:
                await read_all()
            assert caught.value.retriable
            assert caught.value.table == f"memory://{NAME}"
            return read

        assert run(scenario()) == list(range(1, 101))
