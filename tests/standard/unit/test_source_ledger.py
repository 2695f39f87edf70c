"""Progress in the source table itself: the ledger does no harm to another owner's table."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdfd.delta.commit import parse, serialize
from cdfd.demo.writer import Action, TableWriter
from cdfd.errors import LogError, NotATableError, TableChangedError, UnsupportedError
from cdfd.log.log import DeltaLog
from cdfd.runtime.clock import Clock
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.sinks.ledger.txn_state import is_ours
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from tests.support.faulty_storage import FaultyStorage, nothing
from tests.support.lake import BEGINNING, SCHEMA, Lake, checkpoint, entry_path, manual_clock, rows, run, table
from tests.support.manual_time import ManualClock

ORDERS, COPY = app_id("shop", "orders"), app_id("copy", "orders")


def open_ledger(storage: Storage, clock: Clock | None = None, jitter: float = 0.0) -> SourceLedger:
    return SourceLedger(storage, clock or manual_clock(), jitter=lambda: jitter)


async def newest(storage: Storage) -> int:
    return await DeltaLog(storage).latest_version()


async def known(storage: Storage, app: str = ORDERS) -> int | None:
    position = await open_ledger(storage).position(app)
    return None if position is None else position.version


def actions(lake: Lake, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lake.bytes_of(entry_path(version)).splitlines()]


def entry(*written: Action) -> bytes:
    return serialize(written)


class TestVersions:
    async def test_one_without_rows(self, lake: Lake) -> None:
        await table(lake, 4, manual_clock())
        await open_ledger(lake).record(ORDERS, 3, "T")
        info, txn = actions(lake, 4)
        assert txn == {"txn": {"appId": ORDERS, "version": 3, "lastUpdated": BEGINNING}}
        assert info["commitInfo"]["engineInfo"].startswith("cdfd/")
        assert info["commitInfo"]["isBlindAppend"] is True
        assert "inCommitTimestamp" not in info["commitInfo"]
        assert await known(lake) == 3

    async def test_the_hash_of_an_entry_is_nothing_but_progress(self, lake: Lake) -> None:
        await table(lake, 4, manual_clock())
        digest = await DeltaLog(lake).digest(3)
        await open_ledger(lake).record(ORDERS, 3, "T", digest)
        assert await newest(lake) == 4
        assert is_ours(parse(4, lake.bytes_of(entry_path(4))).only_txns)
        actual = await open_ledger(lake).position(ORDERS)
        assert actual is not None
        assert (actual.version, actual.digest) == (3, digest)
        # The version that has it is not answered.
        await open_ledger(lake).record(ORDERS, 4, "T", await DeltaLog(lake).digest(4))
        assert await newest(lake) == 4

    async def test_a_checkpoint_of_another_writer_keeps_the_hash(self, tmp_path: Path) -> None:
        write_deltalake(tmp_path, pa.table({"n": [1, 2]}))

        storage = LocalStorage(tmp_path, sync=False)
        digest = await DeltaLog(storage).digest(0)
        await open_ledger(storage).record(ORDERS, 0, str(DeltaTable(tmp_path).metadata().id), digest)
        write_deltalake(tmp_path, pa.table({"n": [3]}), mode="append")
        DeltaTable(tmp_path).create_checkpoint()
        for version in range(3):
            (tmp_path / entry_path(version)).unlink()
        actual = await open_ledger(storage).position(ORDERS)
        assert actual is not None
        assert (actual.version, actual.digest) == (0, digest)

    async def test_a_large_entry_of_another_writer_is_not_progress(self, lake: Lake) -> None:
        await table(lake, 4, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 3, "T")
        await lake.put(entry_path(5), b'{"commitInfo":{"note":"%s"}}' % (b"x" * (100 << 10)))
        await ledger.record(ORDERS, 5, "T")
        assert (await newest(lake), await known(lake)) == (6, 5)

    @pytest.mark.parametrize("hint", [0, 3, 4, 10**18])
    async def test_a_hint_at_a_checkpoint_that_is_not_there(self, hint: int, lake: Lake) -> None:
        """Is no reason to write versions that count for nothing."""

        await table(lake, 4, manual_clock())
        await lake.put("_delta_log/_last_checkpoint", b'{"version":%d,"size":1}' % hint)
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 3, "T")
        await ledger.record(COPY, 3, "T")
        assert await newest(lake) == 5
        assert await known(lake) == await known(lake, COPY) == 3

    async def test_it_neither_checkpoints_nor_cleans(self, lake: Lake) -> None:
        writer = await table(lake, 2, manual_clock())
        ledger = open_ledger(lake)
        for version in range(1, 60, 2):
            await ledger.record(ORDERS, version, "T")
            writer.version += 1
            await writer.insert(rows(version))
        actual = [stat.path async for stat in lake.list("_delta_log/")]
        assert actual == [entry_path(version) for version in range(62)]

    async def test_a_checkpoint_of_the_newest_version(self, lake: Lake) -> None:
        await table(lake, 3, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 2, "T")
        await checkpoint(lake, 3)
        # This checkpoint's writer left our entry out; that of the version itself is still there.
        assert await known(lake) == 2

    async def test_another_table_with_a_checkpoint_alone_is_not_taken_for_the_one_before(self, lake: Lake) -> None:
        async def without_entries(table_id: str) -> None:
            lake.forget("_delta_log/")
            await table(lake, 3, manual_clock(), table_id)
            await checkpoint(lake, 2)
            lake.forget(*map(entry_path, range(3)))

        await without_entries("T")
        ledger = open_ledger(lake)
        assert await ledger.position(ORDERS) is None
        await without_entries("U")
        with pytest.raises(TableChangedError):
            await ledger.record(ORDERS, 2, "T")

    async def test_other_writers_go_on(self, tmp_path: Path) -> None:
        write_deltalake(tmp_path, pa.table({"n": [1, 2]}))
        storage = LocalStorage(tmp_path, sync=False)
        actual = DeltaTable(tmp_path)

        ledger = open_ledger(storage)
        table_id = str(actual.metadata().id)
        for version in range(0, 24, 2):
            await ledger.record(ORDERS, version, table_id)
            write_deltalake(tmp_path, pa.table({"n": [version]}), mode="append")
            if version == 14:
                DeltaTable(tmp_path).create_checkpoint()
        assert await known(storage) == 22
        actual.update_incremental()
        assert (actual.version(), actual.transaction_version(ORDERS)) == (24, 22)
        assert actual.to_pyarrow_table().num_rows == 14


class TestSlowWriters:
    async def test_an_entry_that_is_only_just_created_is_not_built_upon(self, clock: ManualClock, lake: Lake) -> None:
        """A version of cdfd after it would make it look complete: readers would take it for one without actions."""

        writer = await table(lake, 2, clock)
        await writer.insert(rows(2))
        whole = lake.bytes_of(entry_path(2))
        lake.replace(entry_path(2), b"")
        ledger = open_ledger(lake, clock, jitter=1.0)
        recording = asyncio.create_task(ledger.record(ORDERS, 1, "T"))
        for _ in range(3):
            await clock.wait_for_sleepers()
            clock.advance(1)
        assert await newest(lake) == 1
        lake.replace(entry_path(2), whole)
        while not recording.done():
            await asyncio.sleep(0)
            clock.advance(1)
        await recording
        assert [*actions(lake, 3)[1]] == ["txn"]

    async def test_empty_entry_with_a_successor_is_a_version_without_actions(self, lake: Lake) -> None:
        writer = await table(lake, 2, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 1, "T")
        await lake.put(entry_path(3), b"")
        writer.version = 3
        await writer.insert(rows(4))
        await ledger.record(ORDERS, 4, "T")
        assert (await newest(lake), await known(lake)) == (5, 4)


class TestItsOwn:
    async def test_is_never_answered(self, lake: Lake) -> None:
        writer = await table(lake, 3, manual_clock())
        ledger = open_ledger(lake)
        for _ in range(5):
            await ledger.record(ORDERS, await newest(lake), "T")
            await open_ledger(lake).record(ORDERS, await newest(lake), "T")
        assert await newest(lake) == 3
        writer.version = 3
        await writer.insert(rows(9))
        await ledger.record(ORDERS, 4, "T")
        assert await newest(lake) == 5
        assert await known(lake) == 4

    async def test_nor_is_that_of_another_pipeline(self, lake: Lake) -> None:
        writer = await table(lake, 3, manual_clock())
        ledgers = {ORDERS: open_ledger(lake), COPY: open_ledger(lake)}
        for inserted in range(1, 4):
            for _ in range(10):
                for app, ledger in ledgers.items():
                    await ledger.record(app, await newest(lake), "T")
            # Each ledger records once after a version of another writer.
            assert await newest(lake) == 2 + 3 * inserted - 1
            writer.version = await newest(lake)
            await writer.insert(rows(10 + inserted))

    async def test_of_a_table_of_one_version_is_not_answered_either(self, lake: Lake) -> None:
        await table(lake, 1, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 0, "T")
        await ledger.record(ORDERS, 1, "T")
        assert (await newest(lake), await known(lake)) == (1, 0)

    async def test_an_entry_that_was_removed_is_not_taken_for_progress(self, lake: Lake) -> None:
        await table(lake, 3, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 2, "T")
        await open_ledger(lake).record(COPY, 2, "T")
        await ledger.position(ORDERS)
        await checkpoint(lake, 4)
        lake.forget(entry_path(3))
        await ledger.record(ORDERS, 4, "T")
        assert (await newest(lake), await known(lake)) == (5, 4)

    async def test_a_hash_that_comes_later_is_recorded(self, lake: Lake) -> None:
        await table(lake, 3, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 2, "T")
        await ledger.record(ORDERS, 2, "T", "ab" * 16)
        position = await open_ledger(lake).position(ORDERS)
        assert position is not None
        assert (position.version, position.digest) == (2, "ab" * 16)

    async def test_what_is_behind_it_is_recorded(self, lake: Lake) -> None:
        writer = await table(lake, 3, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 2, "T")
        writer.version = 3
        await writer.insert(rows(9))
        await open_ledger(lake).record(COPY, 4, "T")
        # Versions 3 and 5 are progress, 4 is not.
        await ledger.record(ORDERS, 5, "T")
        assert await known(lake) == 5

    @pytest.mark.parametrize(
        ("written", "ours"),
        [
            ([("txn", {"appId": ORDERS, "version": 1})], True),
            ([("commitInfo", {}), ("txn", {"appId": ORDERS, "version": 1})], True),
            ([("txn", {"appId": ORDERS, "version": 1}), ("txn", {"appId": COPY, "version": 1})], True),
            ([("txn", {"appId": ORDERS, "version": 1}), ("txn", {"appId": "theirs", "version": 1})], False),
            ([("txn", {"appId": "theirs", "version": 1})], False),
            ([("txn", {"appId": "cdfdx/shop/orders", "version": 1})], False),
            ([("commitInfo", {"engineInfo": "cdfd/0.1.0", "operation": "RECORD PROGRESS"})], False),
            ([("commitInfo", {})], False),
            ([], False),
            ([("txn", {"appId": ORDERS, "version": 1}), ("add", {"path": "x", "dataChange": True})], False),
            ([("txn", {"appId": ORDERS, "version": 1}), ("remove", {"path": "x"})], False),
            ([("txn", {"appId": ORDERS, "version": 1}), ("cdc", {"path": "x"})], False),
            (
                [
                    ("txn", {"appId": ORDERS, "version": 1}),
                    ("metaData", {"id": "T", "format": {}, "partitionColumns": [], "configuration": {}}),
                ],
                False,
            ),
            (
                [
                    ("txn", {"appId": ORDERS, "version": 1}),
                    ("protocol", {"minReaderVersion": 1, "minWriterVersion": 2}),
                ],
                False,
            ),
            ([("txn", {"appId": ORDERS, "version": 1}), ("domainMetadata", {"domain": "x"})], False),
        ],
    )
    def test_how_it_is_told(self, written: Sequence[Action], ours: bool) -> None:
        assert is_ours(parse(7, serialize(written)).only_txns) is ours

    async def test_every_version_that_is_written_is_told(self, lake: Lake) -> None:
        await table(lake, 3, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 2, "T")
        await ledger.forget(ORDERS)
        flags = [is_ours(parse(version, lake.bytes_of(entry_path(version))).only_txns) for version in range(5)]
        assert flags == [False, False, False, True, True]
        assert await known(lake) is None


async def upgraded(lake: Lake, features: Sequence[str], **properties: str) -> None:
    """A table of three versions with writer features and properties."""
    writer = TableWriter(lake, SCHEMA, clock=manual_clock(), table_id="T")
    await writer.create()
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(features)}
    metadata = dict(actions(lake, 0)[2]["metaData"])
    metadata["configuration"] = {f"delta.{name}": value for name, value in properties.items()}
    info = {"inCommitTimestamp": BEGINNING, "timestamp": BEGINNING}
    await lake.put(entry_path(1), entry(("commitInfo", info), ("protocol", protocol), ("metaData", metadata)))


class TestFeatures:
    async def test_those_that_concern_rows_are_no_obstacle(self, lake: Lake) -> None:
        await upgraded(lake, ["appendOnly", "checkConstraints", "rowTracking", "domainMetadata", "clustering"])
        await open_ledger(lake).record(ORDERS, 1, "T")
        assert await known(lake) == 1

    async def test_one_that_is_not_known_is_refused(self, lake: Lake) -> None:
        await upgraded(lake, ["appendOnly", "sorcery"])
        ledger = open_ledger(lake)
        for call in (ledger.position(ORDERS), ledger.record(ORDERS, 1, "T")):
            with pytest.raises(UnsupportedError, match="the writer feature sorcery") as caught:
                await call
            assert caught.value.table == "memory://orders"
            assert "progress.ledger" in (caught.value.hint or "")
        assert await newest(lake) == 1

    async def test_one_that_comes_later_is_refused_then(self, lake: Lake) -> None:
        await table(lake, 3, manual_clock())
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 2, "T")
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["sorcery"]}
        await lake.put(entry_path(4), entry(("protocol", protocol)))
        with pytest.raises(UnsupportedError, match="sorcery"):
            await ledger.record(ORDERS, 4, "T")
        assert await newest(lake) == 4


class TestInCommitTimestamps:
    async def _recorded(self, clock_ms: int, *versions: int, **info: int) -> list[int]:
        lake = Lake(manual_clock())
        await upgraded(lake, ["inCommitTimestamp"], enableInCommitTimestamps="true")
        if info:
            await lake.put(entry_path(2), entry(("commitInfo", info), ("txn", {"appId": "theirs", "version": 1})))
        clock = manual_clock()
        clock.advance((clock_ms - BEGINNING) / 1000)
        ledger = open_ledger(lake, clock)
        for version in versions:
            await ledger.record(ORDERS, version, "T")
        written = [actions(lake, version) for version in range(3 if info else 2, await newest(lake) + 1)]
        for first, *_ in written:
            assert next(iter(first)) == "commitInfo"
            assert next(iter(first["commitInfo"])) == "inCommitTimestamp"
        return [written_entry[0]["commitInfo"]["inCommitTimestamp"] for written_entry in written]

    def test_now_where_that_is_later(self) -> None:
        assert run(self._recorded(BEGINNING + 60_000, 1)) == [BEGINNING + 60_000]

    def test_always_increasing(self) -> None:
        assert run(self._recorded(BEGINNING - 60_000, 1000, 2000, 3000)) == [BEGINNING + step for step in (1, 2, 3)]
        assert run(self._recorded(BEGINNING, 1000, 2000)) == [BEGINNING + 1, BEGINNING + 2]

    def test_after_what_somebody_else_wrote_last(self) -> None:
        assert run(self._recorded(BEGINNING, 1000, inCommitTimestamp=BEGINNING + 9999)) == [BEGINNING + 10_000]

    def test_a_version_that_should_have_one(self) -> None:
        with pytest.raises(LogError, match="the newest commit has none") as caught:
            run(self._recorded(BEGINNING, 1000, timestamp=BEGINNING))
        assert caught.value.version == 2

    async def test_not_where_they_are_only_possible(self, lake: Lake) -> None:
        await upgraded(lake, ["inCommitTimestamp"], enableInCommitTimestamps="false")
        await open_ledger(lake).record(ORDERS, 1, "T")
        assert "inCommitTimestamp" not in actions(lake, 2)[0]["commitInfo"]

    async def test_of_a_checkpoint_s_version(self, lake: Lake) -> None:
        await upgraded(lake, ["inCommitTimestamp"], enableInCommitTimestamps="true")
        await checkpoint(lake, 1)
        await open_ledger(lake).record(ORDERS, 1, "T")
        assert actions(lake, 2)[0]["commitInfo"]["inCommitTimestamp"] == BEGINNING + 1
        lake.forget(entry_path(1), entry_path(2))
        with pytest.raises(LogError, match="the newest commit has none"):
            await open_ledger(lake).record(ORDERS, 1, "T")


class TestTablesThatGo:
    async def test_a_table_that_is_not_there(self, lake: Lake) -> None:
        assert await open_ledger(lake).position(ORDERS) is None
        await open_ledger(lake).forget(ORDERS)
        with pytest.raises(NotATableError):
            await open_ledger(lake).record(ORDERS, 1, "T")
        assert [stat.path async for stat in lake.list("_delta_log/")] == []

    async def test_one_that_was_deleted_is_not_brought_back(self, tmp_path: Path) -> None:
        storage = LocalStorage(tmp_path / "orders", sync=False)
        await table(storage, 4, manual_clock())
        ledger = open_ledger(storage)
        await ledger.record(ORDERS, 3, "T")
        shutil.rmtree(tmp_path / "orders")
        with pytest.raises(NotATableError, match="the table no longer exists"):
            await ledger.record(ORDERS, 9, "T")
        assert not (tmp_path / "orders").exists()

    @pytest.mark.parametrize("versions", [2, 5, 8])
    async def test_one_that_was_created_anew_is_left_alone(self, versions: int, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 4, clock)
        ledger = open_ledger(lake)
        await ledger.record(ORDERS, 3, "T")
        lake.forget("")
        clock.advance(60)
        await table(lake, versions, clock, table_id="U", first_id=1000)
        assert await ledger.position(ORDERS) is None
        with pytest.raises(TableChangedError, match="its id was T and is U now"):
            await ledger.record(ORDERS, 9, "T")
        assert await newest(lake) == versions - 1

    async def test_one_that_is_replaced_while_a_commit_is_on_its_way(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 4, clock)
        storage = FaultyStorage(lake)

        async def replaced(method: str, path: str) -> None:
            if method == "put_if_absent" and path == entry_path(4):
                storage.before = nothing
                lake.forget("")
                clock.advance(60)
                await table(lake, 9, clock, table_id="U")

        storage.before = replaced
        with pytest.raises(TableChangedError):
            await open_ledger(storage).record(ORDERS, 3, "T")
        assert await newest(lake) == 8
