"""Properties of ledgers as Delta tables: their log, other writers in it, and failures."""

import asyncio
import errno
import gc
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import weakref
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdfd.cli.commands.inspect import report
from cdfd.config.parser import parse as parse_settings
from cdfd.daemon.assembly import ledgers
from cdfd.delta import last_checkpoint, paths
from cdfd.delta.commit import parse, serialize
from cdfd.delta.last_checkpoint import LastCheckpoint
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.write.checkpoint_writing import checkpoint
from cdfd.errors import (
    ConfigError,
    GapError,
    LogError,
    NotATableError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from cdfd.log.log import DeltaLog
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.ledger import table_ledger, txn_log
from cdfd.sinks.ledger.ledger import LedgerEntry, app_id
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.sinks.ledger.txn_state import Action, txn
from cdfd.storage import durable
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from tests.support import ledger_writer
from tests.support.faulty_storage import AtStep, Died, FaultyStorage, nothing, since
from tests.support.lake import BEGINNING, Lake, entry_path, manual_clock, run, table
from tests.support.manual_time import ManualClock
from tests.support.memory_storage import MemoryStorage
from tests.support.sampling import stride

ORDERS, ITEMS = app_id("shop", "orders"), app_id("shop", "items")
HINT = "_delta_log/_last_checkpoint"
DIGEST = "00112233445566778899aabbccddeeff"
HALVES = (0x0011223344556677, 0x8899AABBCCDDEEFF - (1 << 64))
"""The same as two signed numbers."""


def open_ledger(storage: Storage) -> TableLedger:
    # No delay between attempts: a manual clock would have to be advanced.
    return TableLedger(storage, manual_clock(), jitter=lambda: 0.0)


def local(folder: Path) -> LocalStorage:
    return LocalStorage(folder, sync=False)


async def record(ledger: TableLedger, versions: range, app: str = ORDERS) -> None:
    for version in versions:
        await ledger.record(app, version, "T")


async def until_it_dies(ledger: TableLedger, versions: range) -> tuple[int, bool]:
    """The last version that was acknowledged, and whether all were."""
    acknowledged = versions.start - 1
    try:
        for version in versions:
            await ledger.record(ORDERS, version, "T")
            acknowledged = version
    except Died:
        return acknowledged, False
    return acknowledged, True


async def version_of(storage: Storage, app: str = ORDERS) -> int | None:
    position = await open_ledger(storage).position(app)
    return None if position is None else position.version


async def names(storage: Storage) -> list[str]:
    return [stat.path.removeprefix("_delta_log/") async for stat in storage.list("_delta_log/")]


async def commits(storage: Storage) -> list[int]:
    """Versions whose log entries are there."""
    return [name.version async for name, _ in DeltaLog(storage).list_names() if name.kind == "commit"]


class TestTable:
    async def test_reading_creates_nothing(self) -> None:
        storage = MemoryStorage()
        ledger = open_ledger(storage)
        assert await ledger.position(ORDERS) is None
        await ledger.forget(ORDERS)
        assert await names(storage) == []

    async def test_its_first_versions(self, lake: Lake) -> None:
        await record(open_ledger(lake), range(7, 9))
        entries = [[json.loads(line) for line in lake.bytes_of(entry_path(v)).splitlines()] for v in range(3)]
        first, second, third = entries
        assert [list(action) for action in first] == [["commitInfo"], ["protocol"], ["metaData"]]
        assert first[1]["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
        assert [list(action) for action in second] == [["commitInfo"], ["txn"], ["metaData"]]
        assert second[2]["metaData"]["configuration"] == {"cdfd.ledger": "1", "cdfd.table.shop/orders": "T"}
        assert [list(action) for action in third] == [["commitInfo"], ["txn"]]
        assert third[1]["txn"] == {"appId": "cdfd/shop/orders", "version": 8, "lastUpdated": BEGINNING}
        assert third[0]["commitInfo"]["engineInfo"].startswith("cdfd/")

    async def test_what_is_known_is_not_written_again(self) -> None:
        storage = MemoryStorage()
        ledger = open_ledger(storage)
        for _ in range(3):
            await ledger.record(ORDERS, 5, "T")
        assert await commits(storage) == [0, 1]

    async def test_a_table_that_was_created_anew(self) -> None:
        storage = MemoryStorage()
        ledger = open_ledger(storage)
        await ledger.record(ORDERS, 5, "T")
        await ledger.record(ORDERS, 5, "U")
        assert await open_ledger(storage).position(ORDERS) == LedgerEntry(ORDERS, 5, "U", BEGINNING)

    async def test_what_is_recorded_at_once_is_one_version(self, tmp_path: Path) -> None:
        storage = local(tmp_path)
        ledger = open_ledger(storage)
        await asyncio.gather(*(ledger.record(app_id("shop", f"t{n}"), n, f"id {n}") for n in range(300)))
        assert len(await commits(storage)) == 3  # created; the first; all that came while it was on its way
        again = open_ledger(storage)
        for n in range(300):
            actual = await again.position(app_id("shop", f"t{n}"))
            assert actual is not None
            assert (actual.version, actual.table_id) == (n, f"id {n}")

    @pytest.mark.parametrize("last", ["record", "renew", "forget"])
    async def test_calls_for_one_position_make_one_txn_of_each_app_id(self, tmp_path: Path, last: str) -> None:
        """Readers refuse an entry with two, cdfd too: then no pipeline could use the ledger any more."""
        storage = local(tmp_path)
        ledger = open_ledger(storage)
        await ledger.record(ORDERS, 1, "T", DIGEST)

        async def call(kind: str, version: int) -> None:
            if kind == "record":
                await ledger.record(ORDERS, version, "T", DIGEST)
            else:
                await (ledger.renew(ORDERS) if kind == "renew" else ledger.forget(ORDERS))

        # They come while the first is on its way, so that one version has them all.
        kinds = ["record", "renew", "forget", "record", "renew", last]
        await asyncio.gather(ledger.record(ITEMS, 1, "I"), *(call(kind, 5 + n) for n, kind in enumerate(kinds)))
        assert await commits(storage) == [0, 1, 2, 3]
        assert await version_of(storage) == {"record": 10, "renew": 8, "forget": None}[last]
        lines = map(json.loads, (tmp_path / entry_path(3)).read_text().splitlines())
        apps = [line["txn"]["appId"] for line in lines if "txn" in line]
        assert sorted(apps) == [ORDERS, f"{ORDERS}/digest/0", f"{ORDERS}/digest/1"]

    async def test_a_renewal_beside_the_record_of_the_same_position_moves_its_time(self, tmp_path: Path) -> None:
        clock = manual_clock()
        ledger = TableLedger(local(tmp_path), clock, jitter=lambda: 0.0)
        await ledger.record(ORDERS, 5, "T", DIGEST)
        clock.advance(60)
        calls = (ledger.record(ORDERS, 5, "T", DIGEST), ledger.renew(ORDERS))
        await asyncio.gather(ledger.record(ITEMS, 1, "I"), *calls)
        expected = LedgerEntry(ORDERS, 5, "T", BEGINNING + 60_000, DIGEST)
        assert await open_ledger(local(tmp_path)).position(ORDERS) == expected

    async def test_one_that_fails_does_not_take_others_along(self) -> None:
        storage = FaultyStorage(MemoryStorage())
        ledger = open_ledger(storage)
        await ledger.record(ORDERS, 0, "T")
        failing = [2]

        async def fail(method: str, path: str) -> None:
            if method == "put_if_absent" and failing[0]:
                failing[0] -= 1
                raise StorageError("unreachable", retriable=True)

        storage.before = fail
        apps = [app_id("shop", f"t{n}") for n in range(5)]
        results = await asyncio.gather(*(ledger.record(app, 9, "T") for app in apps), return_exceptions=True)
        assert [type(result) for result in results] == [StorageError, StorageError] + [type(None)] * 3
        known = [await version_of(storage.inner, app) for app in apps]
        assert known == [None, None, 9, 9, 9]

    async def test_another_table_is_left_alone(self, tmp_path: Path) -> None:
        write_deltalake(tmp_path, pa.table({"n": [1]}))
        before = sorted(os.listdir(tmp_path / "_delta_log"))

        ledger = open_ledger(local(tmp_path))
        for call in (ledger.position(ORDERS), ledger.record(ORDERS, 1, "T")):
            with pytest.raises(ConfigError, match="is not a ledger") as caught:
                await call
            assert caught.value.table == str(tmp_path)
            assert "`source`" in (caught.value.hint or "")
        assert sorted(os.listdir(tmp_path / "_delta_log")) == before

    async def test_a_ledger_of_another_format(self, lake: Lake) -> None:
        await open_ledger(lake).record(ORDERS, 1, "T")
        lake.replace(entry_path(1), lake.bytes_of(entry_path(1)).replace(b'"cdfd.ledger":"1"', b'"cdfd.ledger":"2"'))
        for call in (open_ledger(lake).position(ORDERS), open_ledger(lake).record(ORDERS, 2, "T")):
            with pytest.raises(UnsupportedError, match="format '2', not '1'") as caught:
                await call
            assert caught.value.hint == "A newer cdfd may read it"
        assert await commits(lake) == [0, 1]

    async def test_a_ledger_that_is_gone_is_made_anew(self, lake: Lake) -> None:
        ledger = open_ledger(lake)
        await record(ledger, range(15))
        lake.forget("_delta_log/")
        assert await ledger.position(ORDERS) is None
        await ledger.record(ORDERS, 20, "T")
        assert await commits(lake) == [0, 1]
        assert await version_of(lake) == 20

    async def test_a_damaged_log_is_an_error(self, lake: Lake) -> None:
        await record(open_ledger(lake), range(3))
        await open_ledger(lake).record(ORDERS, 3, "T")
        lake.replace(entry_path(2), b'{"txn":')
        for call in (open_ledger(lake).position(ORDERS), open_ledger(lake).record(ORDERS, 9, "T")):
            with pytest.raises(LogError, match="not valid JSON") as caught:
                await call
            assert caught.value.version == 2
        lake.forget(entry_path(2))
        with pytest.raises(GapError, match="version 2 is missing"):
            await open_ledger(lake).position(ORDERS)


class TestEntries:
    """An entry that readers refuse would be the last one of its table, so it is not written."""

    CONTRADICTIONS = (
        [txn(ORDERS, 1, BEGINNING), txn(ORDERS, 2, BEGINNING)],
        [("add", {"path": "a", "size": 1}), ("add", {"path": "a", "size": 2})],
        [("domainMetadata", {"domain": "d", "configuration": text}) for text in "ab"],
    )

    @pytest.mark.parametrize("actions", CONTRADICTIONS)
    async def test_actions_that_contradict_each_other_are_not_written(self, lake: Lake, actions: list[Action]) -> None:
        await record(open_ledger(lake), range(3))
        log = txn_log.TxnLog(lake, manual_clock())
        with pytest.raises(LogError, match="two ") as caught:
            await log.append(lambda _: actions)
        assert (caught.value.table, caught.value.version) == ("memory://orders", 4)
        assert await commits(lake) == [0, 1, 2, 3]
        await record(open_ledger(lake), range(3, 5))
        assert await version_of(lake) == 4

    async def test_nor_is_a_first_version_without_metadata(self, lake: Lake) -> None:
        with pytest.raises(LogError, match="no metaData") as caught:
            await txn_log.TxnLog(lake, manual_clock()).create([txn(ORDERS, 1, BEGINNING)])
        assert caught.value.version == 0
        assert await commits(lake) == []

    async def test_a_log_whose_entries_go_while_they_are_read_is_read_again(self, lake: Lake) -> None:
        await record(open_ledger(lake), range(3))

        def missing(times: int) -> Storage:
            attempts = count()

            async def gone(method: str, path: str) -> None:
                if path == entry_path(1) and next(attempts) < times:
                    raise NotFoundError("the object does not exist", path=path)

            return FaultyStorage(lake, before=gone)

        assert await version_of(missing(txn_log.LOADS - 1)) == 2
        with pytest.raises(LogError, match="the log changes faster than it can be read") as caught:
            await version_of(missing(txn_log.LOADS))
        assert (caught.value.path, caught.value.retriable) == (entry_path(1), True)


@pytest.mark.parametrize(
    ("version", "checkpoint", "due"),
    [
        (0, -1, False),
        (9, -1, False),
        (10, -1, True),
        (10, 9, True),
        (10, 10, False),
        (11, 10, False),
        (20, 10, True),
        (24, 5, False),
        (25, 5, True),
        (5, 10, False),
    ],
)
def test_every_tenth_version_is_cleaned_up(version: int, checkpoint: int, due: bool) -> None:
    assert table_ledger.is_cleanup_due(version, checkpoint) == due


class TestHashes:
    """Of the log entry of the version that is recorded: two more transaction identifiers."""

    async def test_what_is_written(self, lake: Lake) -> None:
        await open_ledger(lake).record(ORDERS, 5, "T", DIGEST)
        actual = [json.loads(line) for line in lake.bytes_of(entry_path(1)).splitlines()]
        assert [action["txn"] for action in actual if "txn" in action] == [
            {"appId": "cdfd/shop/orders", "version": 5, "lastUpdated": BEGINNING},
            {"appId": "cdfd/shop/orders/digest/0", "version": HALVES[0], "lastUpdated": BEGINNING},
            {"appId": "cdfd/shop/orders/digest/1", "version": HALVES[1], "lastUpdated": BEGINNING},
        ]
        assert await open_ledger(lake).position(ORDERS) == LedgerEntry(ORDERS, 5, "T", BEGINNING, DIGEST)

    async def test_an_earlier_cdfd_that_records_another_version_leaves_it_behind(self, lake: Lake) -> None:
        await open_ledger(lake).record(ORDERS, 5, "T", DIGEST)
        fields = {"appId": ORDERS, "version": 6, "lastUpdated": BEGINNING + 1}
        await lake.put_if_absent(entry_path(2), serialize([("txn", fields)]))
        assert await open_ledger(lake).position(ORDERS) == LedgerEntry(ORDERS, 6, "T", BEGINNING + 1, None)
        await open_ledger(lake).record(ORDERS, 7, "T", DIGEST)
        assert await open_ledger(lake).position(ORDERS) == LedgerEntry(ORDERS, 7, "T", BEGINNING, DIGEST)

    async def test_without_a_time_nothing_says_that_it_belongs_to_the_version(self, lake: Lake) -> None:
        await open_ledger(lake).record(ORDERS, 5, "T")
        names = (ORDERS, f"{ORDERS}/digest/0", f"{ORDERS}/digest/1")
        fields = [{"appId": name, "version": version} for name, version in zip(names, (5, *HALVES), strict=True)]
        await lake.put_if_absent(entry_path(2), serialize([("txn", each) for each in fields]))
        assert await open_ledger(lake).position(ORDERS) == LedgerEntry(ORDERS, 5, "T", None, None)

    async def test_that_of_another_table_is_not_kept(self, lake: Lake) -> None:
        await open_ledger(lake).record(ORDERS, 5, "T", DIGEST)
        await open_ledger(lake).record(ORDERS, 5, "U")
        actual = await open_ledger(lake).position(ORDERS)
        assert actual is not None
        assert (actual.version, actual.table_id, actual.digest) == (5, "U", None)

    async def test_what_is_known_is_not_written_again(self, lake: Lake) -> None:
        for _ in range(3):
            await open_ledger(lake).record(ORDERS, 5, "T", DIGEST)
            await open_ledger(lake).record(ORDERS, 5, "T")
        assert await commits(lake) == [0, 1]

    async def test_a_checkpoint_of_another_writer_keeps_it(self, tmp_path: Path) -> None:
        storage = local(tmp_path)
        await open_ledger(storage).record(ORDERS, 5, "T", DIGEST)
        DeltaTable(tmp_path).create_checkpoint()
        assert DeltaTable(tmp_path).transaction_version(f"{ORDERS}/digest/0") == HALVES[0]
        (tmp_path / entry_path(0)).unlink()
        (tmp_path / entry_path(1)).unlink()
        assert await open_ledger(storage).position(ORDERS) == LedgerEntry(ORDERS, 5, "T", BEGINNING, DIGEST)

    def test_it_is_no_position_of_its_own(self, tmp_path: Path) -> None:
        run(open_ledger(local(tmp_path)).record(ORDERS, 5, "T", DIGEST))
        assert json.loads(report(str(tmp_path), as_json=True))["transactions"] == {ORDERS: 5}


class TestUpkeep:
    def test_when_it_is_due(self) -> None:
        assert [version for version in range(45) if table_ledger.is_cleanup_due(version, -1)] == [10, *range(20, 45)]
        assert [version for version in range(49) if table_ledger.is_cleanup_due(version, 26)] == [30, 40, 46, 47, 48]

    async def test_no_record_waits_for_it(self) -> None:
        storage, removes, may_remove = FaultyStorage(MemoryStorage()), asyncio.Event(), asyncio.Event()

        async def wait(method: str, path: str) -> None:
            if method == "delete" and not may_remove.is_set():
                assert not removes.is_set(), "a second clean-up has begun"
                removes.set()
                await may_remove.wait()

        storage.before = wait
        ledger = open_ledger(storage)
        await record(ledger, range(19))
        cleaning = asyncio.create_task(ledger.record(ORDERS, 19, "T"))
        await removes.wait()
        await record(ledger, range(12), ITEMS)
        assert not cleaning.done()
        assert (await version_of(storage.inner), await version_of(storage.inner, ITEMS)) == (19, 11)
        may_remove.set()
        await cleaning
        assert (await commits(storage))[0] == 10

    async def test_what_stays(self) -> None:
        storage = MemoryStorage()
        ledger = open_ledger(storage)
        for version in range(1, 61):
            await ledger.record(ORDERS, version, "T")
            assert await version_of(storage) == version
            there = await commits(storage)
            newest = max(version // 10 * 10, 0)
            assert there == list(range(max(newest - 10, 0), version + 1))
            if newest:
                assert last_checkpoint.parse(await storage.read(HINT)).version == newest
        assert [name for name in await names(storage) if "checkpoint" in name] == [
            "00000000000000000050.checkpoint.parquet",
            "00000000000000000060.checkpoint.parquet",
            "_last_checkpoint",
        ]

    async def test_the_loop_does_not_wait_while_a_checkpoint_is_built(self, monkeypatch: pytest.MonkeyPatch) -> None:
        threads = list[threading.Thread]()

        def build(state: Snapshot) -> tuple[bytes, LastCheckpoint]:
            threads.append(threading.current_thread())
            return checkpoint(state)

        monkeypatch.setattr(table_ledger, "checkpoint", build)
        await record(open_ledger(MemoryStorage()), range(21))
        assert len(threads) == 2
        assert threading.current_thread() not in threads

    async def test_many_entries_survive(self) -> None:
        storage = MemoryStorage()
        ledger = open_ledger(storage)
        apps = [app_id("shop", f"t{n}") for n in range(120)]
        for number, app in enumerate(apps):
            await ledger.record(app, number, f"id {number}")
        await ledger.forget(apps[7])
        for version in range(35):
            await ledger.record(ORDERS, version, "T")
        again = open_ledger(storage)
        for number, app in enumerate(apps):
            actual = await again.position(app)
            expected = None if number == 7 else LedgerEntry(app, number, f"id {number}", BEGINNING)
            assert actual == expected

    async def test_a_hint_that_is_damaged_or_gone_is_written_again(self, lake: Lake) -> None:
        ledger = open_ledger(lake)
        await record(ledger, range(12))
        lake.replace(HINT, b"{}")
        await record(ledger, range(12, 22))
        assert last_checkpoint.parse(lake.bytes_of(HINT)).version == 20
        lake.forget(HINT)
        await record(ledger, range(22, 32))
        assert last_checkpoint.parse(lake.bytes_of(HINT)).version == 30
        assert await version_of(lake) == 31

    async def test_a_hint_that_is_too_far_is_written_again(self, lake: Lake) -> None:
        ledger = open_ledger(lake)
        await record(ledger, range(12))
        lake.replace(HINT, b'{"version":1000000,"size":1}')
        await record(ledger, range(12, 22))
        assert last_checkpoint.parse(lake.bytes_of(HINT)).version == 20
        assert await version_of(lake) == 21

    async def test_a_hint_never_stays_back(self) -> None:
        """Another process writes newer checkpoints between any two steps. A hint that is lost is written again."""
        lost = []
        for number in count():
            storage = FaultyStorage(MemoryStorage())
            slow, other = open_ledger(storage), open_ledger(storage.inner)
            await record(slow, range(9))
            storage.before = step = AtStep(
                number, partial(record, other, range(12), ITEMS), since("checkpoint.parquet")
            )
            await slow.record(ORDERS, 9, "T")
            assert await version_of(storage.inner) == 9
            if not step.reached:
                break
            assert await version_of(storage.inner, ITEMS) == 11
            log = DeltaLog(storage.inner)
            hint = await log.hint()
            if hint != 20:
                lost.append(step.acted_at)
                assert hint is None
            await record(other, range(12, 13), ITEMS)
            assert await log.hint() == (hint or await log.latest_version()), number
        assert lost == [("put", HINT)]

    async def test_one_that_is_overtaken_leaves_it_to_the_others(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "cdfd.progress"):
            storage = FaultyStorage(MemoryStorage())
            slow, other = open_ledger(storage), open_ledger(storage.inner)
            await record(slow, range(9))

            async def overtake(method: str, path: str) -> None:
                if method == "read" and path == entry_path(0):
                    await record(other, range(30), ITEMS)

            storage.before = overtake
            await slow.record(ORDERS, 9, "T")
            assert await version_of(storage.inner) == 9
            assert await version_of(storage.inner, ITEMS) == 29
        assert caplog.text == ""

    async def test_writer_of_a_newer_checkpoint_cleans_up(self) -> None:
        storage = FaultyStorage(MemoryStorage())
        ledger = open_ledger(storage)
        await record(ledger, range(39))
        assert (await commits(storage))[0] == 20

        async def checkpoint_before(method: str, path: str) -> None:
            if method == "put" and path.endswith(paths.checkpoint_name(40)):
                await storage.inner.put(path.replace(paths.checkpoint_name(40), paths.checkpoint_name(50)), b"")

        storage.before = checkpoint_before
        await record(ledger, range(39, 40))
        assert await commits(storage) == list(range(20, 41))

    async def test_a_checkpoint_that_fails_is_no_failure(self, caplog: pytest.LogCaptureFixture) -> None:
        async def fail(method: str, path: str) -> None:
            if method == "put":
                raise StorageError("no space", path=path)

        with caplog.at_level(logging.WARNING, "cdfd.progress"):
            storage = FaultyStorage(MemoryStorage(), before=fail)
            ledger = open_ledger(storage)
            await record(ledger, range(25))
            assert await commits(storage) == list(range(26))
            storage.before = nothing
            await record(ledger, range(25, 27))
            assert await version_of(storage) == 26
            # Made up for at once, and not only at version 30.
            assert last_checkpoint.parse(await storage.read(HINT)).version == 26
            # No other checkpoint is old enough for entries before it to go.
            await record(ledger, range(27, 31))
            assert await commits(storage) == list(range(32))
        assert "cannot clean up the ledger's log: no space" in caplog.text

    def test_rows_of_others_are_not_lost(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        storage = local(tmp_path)
        run(record(open_ledger(storage), range(8)))
        write_deltalake(tmp_path, pa.table({"unused": ["a row"]}), mode="append")
        with caplog.at_level(logging.WARNING, "cdfd.progress"):
            run(record(open_ledger(storage), range(8, 30)))
        assert "not cleaned up" in caplog.text
        actual = DeltaTable(tmp_path)
        assert actual.to_pyarrow_table().to_pylist() == [{"unused": "a row"}]
        assert actual.transaction_version(ORDERS) == 29
        assert run(commits(storage)) == list(range(actual.version() + 1))

    def test_files_that_another_writer_has_removed_are_not_forgotten(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also where only its checkpoint names them: VACUUM needs them."""
        storage = local(tmp_path)
        run(record(open_ledger(storage), range(8)))
        write_deltalake(tmp_path, pa.table({"unused": ["a row"]}), mode="append")
        actual = DeltaTable(tmp_path)
        actual.delete()
        actual.create_checkpoint()
        with caplog.at_level(logging.WARNING, "cdfd.progress"):
            run(record(open_ledger(storage), range(8, 30)))
        assert "not cleaned up" in caplog.text
        assert [int(name[:20]) for name in run(names(storage)) if "checkpoint.parquet" in name] == [actual.version()]

    @pytest.mark.parametrize(
        "action",
        [
            ("remove", {"path": "theirs", "deletionTimestamp": BEGINNING, "dataChange": True}),
            ("domainMetadata", {"domain": "theirs", "configuration": "{}", "removed": False}),
            ("protocol", {"minReaderVersion": 1, "minWriterVersion": 3}),
        ],
    )
    async def test_a_log_with_actions_of_another_writer_is_kept(
        self, action: Action, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A checkpoint of the ledger would lose what they mean, and the clean-up the entries that say it."""
        storage = MemoryStorage()
        ledger = open_ledger(storage)
        await record(ledger, range(8))
        await storage.put(entry_path(9), serialize([action]))
        with caplog.at_level(logging.WARNING, "cdfd.progress"):
            await record(ledger, range(8, 30))
        assert "not cleaned up" in caplog.text
        assert [name for name in await names(storage) if "checkpoint" in name] == []
        assert await commits(storage) == list(range(32))

    async def test_a_log_with_as_many_files_as_removed_ones_is_kept(self) -> None:
        storage = MemoryStorage()
        ledger = open_ledger(storage)
        await record(ledger, range(8))
        there = {"path": "a", "partitionValues": {}, "size": 1, "modificationTime": BEGINNING, "dataChange": True}
        gone = {"path": "b", "deletionTimestamp": BEGINNING, "dataChange": True}
        await storage.put(entry_path(9), serialize([("add", there), ("remove", gone)]))
        await record(ledger, range(8, 30))
        assert await commits(storage) == list(range(32))


async def test_position_that_is_recorded_with_deleted_ones_creates_the_table() -> None:
    storage = FaultyStorage(MemoryStorage(), before=lambda _method, _path: asyncio.sleep(0))
    ledger = open_ledger(storage)
    await asyncio.gather(ledger.forget(ITEMS), ledger.forget(app_id("shop", "a")), ledger.record(ORDERS, 3, "T"))
    assert await version_of(storage) == 3


async def test_table_that_gets_a_feature_which_cdfd_does_not_have_is_refused() -> None:
    storage = MemoryStorage()
    ledger = open_ledger(storage)
    await record(ledger, range(3))
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}
    await storage.put(entry_path(4), serialize([("protocol", protocol)]))
    with pytest.raises(UnsupportedError, match="new"):
        await ledger.position(ORDERS)


class TestOthers:
    """delta-rs reads and writes the same table."""

    async def test_it_opens_the_ledger_at_every_version(self, tmp_path: Path) -> None:
        ledger = open_ledger(local(tmp_path))
        for version in range(33):
            await ledger.record(ORDERS, version, "T")
            await ledger.record(ITEMS, version * 2, "U")
            if version % 4 == 0 or version > 28:
                actual = DeltaTable(tmp_path)
                assert actual.transaction_version(ORDERS) == version
                assert actual.transaction_version(ITEMS) == version * 2
                assert actual.transaction_version("cdfd/shop/other") is None
                assert actual.to_pyarrow_table().num_rows == 0
        assert actual.protocol() == (1, 2, None, None)
        assert actual.metadata().configuration["cdfd.table.shop/items"] == "U"
        assert [column.name for column in actual.schema().fields] == ["unused"]

    async def test_its_commits_and_checkpoints_are_read(self, tmp_path: Path) -> None:
        ledger = open_ledger(local(tmp_path))
        await record(ledger, range(12))
        properties = CommitProperties(app_transactions=[Transaction(ITEMS, 70), Transaction("theirs", 1)])
        write_deltalake(tmp_path, pa.table({"unused": ["x"]}).slice(0, 0), mode="append", commit_properties=properties)
        DeltaTable(tmp_path).create_checkpoint()
        for each in (ledger, open_ledger(local(tmp_path))):
            actual = await each.position(ITEMS)
            assert actual is not None
            assert (actual.version, actual.table_id) == (70, None)
        await ledger.record(ORDERS, 12, "T")
        assert DeltaTable(tmp_path).transaction_version(ORDERS) == 12
        assert DeltaTable(tmp_path).transaction_version("theirs") == 1

    async def test_the_checkpoint_alone_is_enough_for_it(self, tmp_path: Path) -> None:
        await record(open_ledger(local(tmp_path)), range(1, 21))
        for path in (tmp_path / "_delta_log").glob("*.json"):
            if path.name != "00000000000000000020.json":
                path.unlink()
        actual = DeltaTable(tmp_path)
        assert (actual.version(), actual.transaction_version(ORDERS)) == (20, 20)
        assert (await version_of(local(tmp_path))) == 20


class TestContention:
    async def test_another_writer_is_first(self) -> None:
        storage = FaultyStorage(MemoryStorage())
        ledger, other = open_ledger(storage), open_ledger(storage.inner)
        await ledger.record(ORDERS, 0, "T")
        others = iter(range(5))

        async def interfere(method: str, path: str) -> None:
            if method == "put_if_absent" and (version := next(others, None)) is not None:
                await other.record(ITEMS, version, f"id {version}")

        storage.before = interfere
        await ledger.record(ORDERS, 1, "U")
        again = open_ledger(storage.inner)
        assert await again.position(ORDERS) == LedgerEntry(ORDERS, 1, "U", BEGINNING)
        assert await again.position(ITEMS) == LedgerEntry(ITEMS, 4, "id 4", BEGINNING)

    async def test_two_create_it(self) -> None:
        storage = MemoryStorage()
        await asyncio.gather(*(open_ledger(storage).record(app_id("p", f"t{n}"), n, "T") for n in range(8)))
        assert await commits(storage) == list(range(9))
        assert [await version_of(storage, app_id("p", f"t{n}")) for n in range(8)] == list(range(8))

    async def test_it_gives_up(self) -> None:
        delays: list[float] = []

        class Noting(ManualClock):
            async def sleep(self, seconds: float) -> None:
                delays.append(seconds)

        storage = FaultyStorage(MemoryStorage())
        ledger = TableLedger(storage, Noting(), jitter=lambda: 0.5)
        await ledger.record(ORDERS, 0, "T")

        async def always_first(method: str, path: str) -> None:
            if method == "put_if_absent":
                await storage.inner.put_if_absent(path, b'{"commitInfo":{}}\n')

        storage.before = always_first
        with pytest.raises(StorageError, match="other writers were first") as caught:
            await ledger.record(ORDERS, 1, "T")
        assert caught.value.retriable
        assert await version_of(storage.inner) == 0
        assert len(delays) == txn_log.ATTEMPTS - 1
        assert delays == sorted(delays)
        assert (delays[0], delays[-1]) == (txn_log.FIRST_DELAY / 2, txn_log.MAX_DELAY / 2)

    async def test_a_protocol_that_came_meanwhile_is_heeded(self) -> None:
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["sorcery"]}

        storage = FaultyStorage(MemoryStorage())
        ledger = open_ledger(storage)
        await ledger.record(ORDERS, 0, "T")

        async def upgrade(method: str, path: str) -> None:
            if method == "put_if_absent" and path == entry_path(2):
                await storage.inner.put_if_absent(path, serialize([("protocol", protocol)]))

        storage.before = upgrade
        with pytest.raises(UnsupportedError, match="the writer feature sorcery") as caught:
            await ledger.record(ORDERS, 1, "T")
        assert caught.value.table == "memory://"
        assert await commits(storage) == [0, 1, 2]

    @pytest.mark.parametrize("others", [5, 30])
    async def test_a_writer_that_sleeps_between_looking_and_writing(self, others: int) -> None:
        """With 30 the name of its next version is free again: it was written, read, and removed."""

        storage = FaultyStorage(MemoryStorage())
        sleeper, other = open_ledger(storage), open_ledger(storage.inner)
        await record(sleeper, range(3))
        sleeping = [True]

        async def sleep(method: str, path: str) -> None:
            if method == "put_if_absent" and sleeping.pop():
                sleeping.append(False)
                await record(other, range(others), ITEMS)

        storage.before = sleep
        await sleeper.record(ORDERS, 3, "T")
        assert await version_of(storage.inner) == 3
        assert await version_of(storage.inner, ITEMS) == others - 1
        await record(other, range(others, others + 25), ITEMS)
        assert await version_of(storage.inner) == 3
        there = await commits(storage)
        assert there == list(range(there[0], there[-1] + 1))

    async def test_a_version_that_another_writer_checkpoints_at_once_is_valid(self) -> None:
        storage = FaultyStorage(MemoryStorage())
        appending, log = txn_log.TxnLog(storage, manual_clock(), jitter=lambda: 0.0), DeltaLog(storage.inner)
        await open_ledger(storage.inner).record(ORDERS, 0, "T")

        async def checkpoint(method: str, path: str) -> None:
            if method == "put_if_absent":
                await table_ledger.clean_up(log, 2)

        storage.after = checkpoint
        assert await appending.append(lambda state: [txn(ORDERS, 1, BEGINNING)]) == 2
        assert await commits(storage) == [0, 1, 2]
        assert await log.newest_checkpoint(2) == 2

    async def test_a_version_that_is_gone_at_once_is_not_recorded(self) -> None:
        storage = FaultyStorage(MemoryStorage())
        log = txn_log.TxnLog(storage, manual_clock(), jitter=lambda: 0.0)
        await open_ledger(storage.inner).record(ORDERS, 0, "T")

        async def delete_table(method: str, path: str) -> None:
            if method == "put_if_absent":
                for stat in [stat async for stat in storage.inner.list("_delta_log/")]:
                    await storage.inner.delete(stat.path)

        storage.after = delete_table
        with pytest.raises(NotATableError, match="no longer exists"):
            await log.append(lambda state: [txn(ORDERS, 1, BEGINNING)])
        assert await names(storage.inner) == []

    async def test_a_record_whose_outcome_was_unknown_is_not_repeated(self) -> None:
        storage = FaultyStorage(MemoryStorage())
        ledger = open_ledger(storage)
        await ledger.record(ORDERS, 0, "T")

        async def time_out(method: str, path: str) -> None:
            if method == "put_if_absent":
                raise StorageError("timed out", retriable=True)

        storage.after = time_out
        with pytest.raises(StorageError, match="timed out"):
            await ledger.record(ORDERS, 1, "T")
        await ledger.record(ORDERS, 1, "T")
        assert await commits(storage) == [0, 1, 2]
        assert await version_of(storage) == 1

    def test_processes_share_a_ledger(self, tmp_path: Path) -> None:
        folder, versions = tmp_path / "ledger", 60
        apps = [app_id(f"p{n}", "orders") for n in range(2)]
        writers = [
            subprocess.Popen([sys.executable, ledger_writer.__file__, str(folder), app, str(versions)]) for app in apps
        ]
        try:
            assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
        finally:
            for writer in writers:
                writer.kill()
        actual = DeltaTable(folder)
        ledger = open_ledger(local(folder))
        for app in apps:
            entry = run(ledger.position(app))
            assert entry is not None
            assert (entry.version, entry.table_id) == (versions - 1, f"id of {app}")
            assert actual.transaction_version(app) == versions - 1
        # One version for each record and one that created the table: nothing was lost, nothing written twice.
        assert actual.version() == 2 * versions
        there = run(commits(local(folder)))
        assert there == list(range(there[0], 2 * versions + 1))
        assert len(there) < 45


class TestFailures:
    @pytest.mark.parametrize(("known", "last", "least"), [(0, 2, 10), (18, 21, 40)], ids=["first use", "upkeep"])
    def test_dying_at_any_step(self, known: int, last: int, least: int) -> None:
        """After a crash the ledger is readable and writable, and has the acknowledged version or the one in flight.

        A crash after a step leaves the same state as a crash before the next one.
        """
        prepared = Lake(manual_clock())
        run(record(open_ledger(prepared), range(known)))
        died = 0
        while True:
            lake = Lake(manual_clock())
            lake.copy_from(prepared)
            storage = FaultyStorage(lake, AtStep(died, Died()))
            acknowledged, ended = run(until_it_dies(open_ledger(storage), range(known, last)))
            run(self._after_the_death(lake, acknowledged))
            if ended:
                break
            died += stride(7)
        assert died > least

    async def _after_the_death(self, lake: Lake, acknowledged: int) -> None:
        ledger = open_ledger(lake)
        actual = await ledger.position(ORDERS)
        known = -1 if actual is None else actual.version
        assert known in (acknowledged, acknowledged + 1)
        assert actual is None or actual.table_id == "T"
        await record(ledger, range(50, 53))
        there = await commits(lake)
        assert there == list(range(there[0], there[-1] + 1))
        seen = [txn.version for each in there for txn in parse(each, lake.bytes_of(entry_path(each))).txns]
        assert seen == sorted(seen)
        assert await version_of(lake) == 52

    @pytest.mark.parametrize("side", ["before", "after"])
    def test_a_store_that_fails_at_any_step(self, side: str) -> None:
        """The same ledger stays usable. A version whose record raised may be recorded or not; all others are."""
        prepared = Lake(manual_clock())
        run(record(open_ledger(prepared), range(18)))

        async def scenario(step: int) -> bool:
            lake = Lake(manual_clock())
            lake.copy_from(prepared)
            storage = FaultyStorage(lake)
            setattr(storage, side, AtStep(step, StorageError("unreachable", retriable=True)))
            ledger = open_ledger(storage)
            for version in range(18, 21):
                try:
                    await ledger.record(ORDERS, version, "T")
                except StorageError:
                    assert await version_of(lake) in (version, version - 1)
            reached = len(storage.steps) > step
            storage.before = storage.after = nothing
            await ledger.record(ORDERS, 21, "T")
            assert await version_of(lake) == 21
            return reached

        step = 0
        while run(scenario(step)):
            step += stride(7)
        assert step > 40

    def test_readers_after_a_death(self, tmp_path: Path) -> None:
        """delta-rs reads what is left by a process that died while it wrote a checkpoint or cleaned up."""
        prepared = tmp_path / "prepared"
        run(record(open_ledger(local(prepared)), range(29)))
        died = 0
        while True:
            folder = tmp_path / str(died)
            shutil.copytree(prepared, folder)
            storage = FaultyStorage(local(folder), AtStep(died, Died()))
            acknowledged, ended = run(until_it_dies(open_ledger(storage), range(29, 30)))
            actual = DeltaTable(folder).transaction_version(ORDERS)
            assert actual == run(version_of(local(folder)))
            assert actual in (max(28, acknowledged), 29)
            if ended:
                break
            died += stride(7)
        assert died > 20

    async def test_a_full_disk(self, tmp_path: Path, full_disk: list[bool]) -> None:
        storage = local(tmp_path)
        ledger = open_ledger(storage)
        await record(ledger, range(9))
        before = await names(storage)
        full_disk[0] = True
        for version in (9, 10):
            with pytest.raises(StorageError, match="No space left on device") as caught:
                await ledger.record(ORDERS, version, "T")
            assert "Free some space" in (caught.value.hint or "")
        assert await names(storage) == before
        assert await version_of(storage) == 8
        full_disk[0] = False
        await record(ledger, range(9, 25))
        assert await version_of(storage) == 24
        assert sorted(os.listdir(tmp_path / "_delta_log")) == (await names(local(tmp_path)))

    def test_a_disk_that_is_full_before_the_ledger_is_there(self, tmp_path: Path, full_disk: list[bool]) -> None:
        full_disk[0] = True
        with pytest.raises(StorageError, match="No space left"):
            run(open_ledger(local(tmp_path / "ledger")).record(ORDERS, 1, "T"))
        assert run(version_of(local(tmp_path / "ledger"))) is None


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The disk is full while the first item is true: there is room for names, none for bytes."""
    full = [False]
    sound = durable._write_temporary

    def write(folder: int, data: bytes, *, mode: int, sync: bool) -> str:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return sound(folder, data, mode=mode, sync=sync)

    monkeypatch.setattr(durable, "_write_temporary", write)
    return full


async def test_system_time_is_what_is_recorded(clock: ManualClock) -> None:
    storage = MemoryStorage()
    ledger = TableLedger(storage, clock)
    await ledger.record(ORDERS, 1, "T")
    clock.advance(5)
    await ledger.record(ORDERS, 2, "T")
    actual = await TableLedger(storage, SystemClock()).position(ORDERS)
    assert actual == LedgerEntry(ORDERS, 2, "T", BEGINNING + 5000)


async def test_a_source_ledger_lives_as_long_as_its_loop(tmp_path: Path) -> None:
    await table(local(tmp_path / "orders"), 2, manual_clock())
    text = f"tables: [{{uri: {tmp_path}/orders}}]\nsink: {{kind: files, path: out}}\nprogress: {{ledger: source}}\n"
    config = parse_settings(f"pipeline: shop\n{text}")
    async with ledgers(config, manual_clock()) as ledger_of:
        ledger = ledger_of(config.listed[0])
        await ledger.record(ORDERS, 1, "T")
        ended = weakref.ref(ledger)
        ledger = ledger_of(config.listed[0])
        gc.collect()
        assert ended() is None
    with pytest.raises(StorageError, match="closed"):
        await ledger.record(ORDERS, 1, "T")


@pytest.mark.parametrize(("count", "prepared_in"), [(3, "MainThread"), (2_000, "asyncio")])
async def test_a_thread_prepares_a_commit_of_many_actions(
    count: int, prepared_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tables would wait for the event loop meanwhile."""
    await TableLedger(storage := MemoryStorage(), manual_clock()).record(ORDERS, 1, "T")
    log, threads = txn_log.TxnLog(storage, manual_clock()), list[str]()

    def noted(actions: list[Action]) -> bytes:
        threads.append(threading.current_thread().name)
        return serialize(actions)

    monkeypatch.setattr("cdfd.delta.commit.serialize", noted)
    await log.append(lambda _: [txn(f"app {number}", 1, BEGINNING) for number in range(count)])
    assert [name.partition("_")[0] for name in threads] == [prepared_in]
    state = await log.state()
    assert state is not None
    assert len(state.txns) == count + 1
