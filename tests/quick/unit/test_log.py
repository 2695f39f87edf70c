"""A log in a store: what is read, what is not, and what a broken log says."""

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.delta import last_checkpoint, paths
from cdfd.delta.last_checkpoint import LastCheckpoint
from cdfd.delta.types import schema as schemas
from cdfd.errors import GapError, LogError, NotATableError, NotFoundError, UnsupportedError
from cdfd.log import entry_reader, listing
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import name_before
from cdfd.log.start import start_version
from cdfd.storage.base import Stat
from cdfd.storage.local import LocalStorage
from tests.support import checkpoint_layout as layout
from tests.support.memory_storage import MemoryStorage
from tests.support.threads import observe_threads

Fields = dict[str, Any]

SCHEMA = '{"type":"struct","fields":[]}'
PROTOCOL: Fields = {"minReaderVersion": 1, "minWriterVersion": 2}


def metadata(note: str) -> Fields:
    fields = {"id": "i", "format": {}, "schemaString": SCHEMA, "partitionColumns": []}
    return fields | {"configuration": {"note": note}}


def entry(*actions: Fields) -> bytes:
    return b"".join(orjson.dumps(action) + b"\n" for action in actions)


def add(number: int) -> Fields:
    return {"add": {"path": f"f{number}", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}}


def state(version: int) -> list[Fields]:
    """The actions of a checkpoint of the table that `table` makes."""
    start = [{"protocol": PROTOCOL}, {"metaData": metadata("start")}]
    return [*start, *(add(number) for number in range(1, version + 1))]


def table(last: int, first: int = 0) -> dict[str, bytes]:
    """The log of a table that gets one file per version, `f1` at version 1."""
    files = {paths.commit_name(version): entry({"commitInfo": {}}, add(version)) for version in range(1, last + 1)}
    files[paths.commit_name(0)] = entry({"protocol": PROTOCOL}, {"metaData": metadata("start")})
    return {name: data for name, data in files.items() if name >= paths.commit_name(first)}


class Recording(MemoryStorage):
    """Remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__("memory://t")
        self.asked: list[str] = []

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.asked.append(path.rpartition("/")[2])
        return await super().read(path, start, length)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        self.asked.append(path.rpartition("/")[2])
        return super().open_input_file(path, size)


def stored(files: Mapping[str, bytes]) -> tuple[DeltaLog, Recording]:
    storage = Recording()
    for name, data in files.items():
        asyncio.run(storage.put(f"_delta_log/{name}", data))
    return DeltaLog(storage), storage


def live(files: Mapping[str, bytes], version: int | None = None) -> list[str]:
    log, _ = stored(files)
    return sorted((file.path for file in asyncio.run(log.snapshot(version)).live()), key=lambda path: int(path[1:]))


def named(last: int) -> list[str]:
    return [f"f{number}" for number in range(1, last + 1)]


def note(files: Mapping[str, bytes], version: int | None = None) -> str:
    log, _ = stored(files)
    return asyncio.run(log.header(version)).metadata.configuration["note"]


def hint(version: int) -> dict[str, bytes]:
    return {"_last_checkpoint": last_checkpoint.serialize(LastCheckpoint(version, 1))}


class TestEntry:
    def test_is_a_commit_and_its_time(self) -> None:
        log, storage = stored(table(2))
        actual = asyncio.run(log.entry(2))
        assert [file.path for file in actual.commit.adds] == ["f2"]
        assert actual.commit.version == 2
        assert actual.stat.modified_ms == asyncio.run(storage.stat("_delta_log/00000000000000000002.json")).modified_ms
        assert storage.asked == ["00000000000000000002.json"], "one request, no listing"

    def test_that_is_not_there_yet(self) -> None:
        log, _ = stored(table(2))
        with pytest.raises(NotFoundError) as caught:
            asyncio.run(log.entry(3))
        assert caught.value.version == 3
        with pytest.raises(NotFoundError):
            asyncio.run(log.stat(3))

    @pytest.mark.parametrize(("inline", "chunk"), [(10, 10**6), (10, 20), (0, 1)])
    def test_entry_is_read_alike_inline_in_a_thread_and_in_chunks(
        self, inline: int, chunk: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Inline, in a thread, in chunks: the same."""
        log, _ = stored(table(2))
        expected = asyncio.run(log.entry(2))
        monkeypatch.setattr(entry_reader, "INLINE_BYTES", inline)
        monkeypatch.setattr(entry_reader, "CHUNK_BYTES", chunk)
        assert asyncio.run(log.entry(2)) == expected
        assert asyncio.run(log.header()).metadata.configuration == {"note": "start"}

    def test_that_is_damaged_names_table_version_and_file(self) -> None:
        log, _ = stored(table(1) | {paths.commit_name(1): b'{"add"'})
        with pytest.raises(LogError, match="not valid JSON") as caught:
            asyncio.run(log.entry(1))
        error = caught.value
        assert (error.table, error.version, error.path) == ("memory://t", 1, "_delta_log/00000000000000000001.json")


class TestHint:
    def segment(self, files: Mapping[str, bytes], version: int | None = None) -> tuple[int | None, list[str]]:
        log, storage = stored(files)
        segment = asyncio.run(log.segment(version))
        return None if segment.checkpoint is None else segment.checkpoint.version, storage.asked

    def test_checkpoint_of_the_hint_is_read(self, caplog: pytest.LogCaptureFixture) -> None:
        files = table(12) | layout.single(4, state(4)) | layout.single(10, state(10)) | hint(10)
        assert self.segment(files)[0] == 10
        assert live(files) == named(12)
        assert not caplog.records

    def test_that_is_behind_finds_the_newer_checkpoint(self) -> None:
        files = table(12) | layout.single(4, state(4)) | layout.single(10, state(10)) | hint(4)
        assert self.segment(files)[0] == 10

    def test_that_is_after_the_wanted_version(self, caplog: pytest.LogCaptureFixture) -> None:
        files = table(12) | layout.single(4, state(4)) | layout.single(10, state(10)) | hint(10)
        assert self.segment(files, 7)[0] == 4
        assert live(files, 7) == named(7)
        assert not caplog.records

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b'{"version":10}',
            b'{"version":"10","size":1}',
            b'{"version":10,"version":4,"size":1}',
            b'{"version":10,"size":1,"checksum":"0"}',
            b'{"version":-1,"size":1}',
            b"[" * 100_000,
            b"\xff",
        ],
    )
    def test_that_is_corrupt_is_ignored_with_a_warning(self, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
        files = table(12) | layout.single(10, state(10)) | {"_last_checkpoint": content}
        with caplog.at_level(logging.WARNING):
            assert self.segment(files)[0] == 10
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "_last_checkpoint cannot be used" in caplog.text
        assert live(files) == named(12)

    @pytest.mark.parametrize("wrong", [5, 11, 12, 13, 10**15])
    def test_that_names_what_is_not_there_is_too(self, wrong: int, caplog: pytest.LogCaptureFixture) -> None:
        files = table(12) | layout.single(4, state(4)) | hint(wrong)
        with caplog.at_level(logging.WARNING):
            assert self.segment(files)[0] == 4
        assert "_last_checkpoint names a missing or incomplete checkpoint" in caplog.text
        assert live(files) == named(12)

    def test_of_an_incomplete_checkpoint(self, caplog: pytest.LogCaptureFixture) -> None:
        parts = layout.multi_part(10, state(10), 3)
        parts.popitem()
        files = table(12) | layout.single(4, state(4)) | parts | hint(10)
        assert self.segment(files)[0] == 4
        assert "missing or incomplete" in caplog.text
        assert live(files) == named(12)


class TestHeader:
    def test_the_newest_of_each(self) -> None:
        files = table(5) | {paths.commit_name(3): entry({"metaData": metadata("later")}, add(3))}
        assert note(files) == "later"
        assert note(files, 2) == "start"

    def test_stops_at_what_it_has_found(self) -> None:
        both = entry({"metaData": metadata("later")}, {"protocol": PROTOCOL})
        log, storage = stored(table(5) | {paths.commit_name(3): both})
        asyncio.run(log.header())
        assert storage.asked == ["_last_checkpoint", *(paths.commit_name(version) for version in (5, 4, 3))]

    def test_header_of_a_short_log_is_in_its_checkpoint(self) -> None:
        assert note(table(12, first=9) | layout.single(10, state(10))) == "start"
        assert note(table(12, first=9) | layout.v2(10, state(10), 2, "json")) == "start"

    def test_half_from_a_commit_and_half_from_a_checkpoint(self) -> None:
        later = {paths.commit_name(11): entry({"metaData": metadata("later")})}
        log, _ = stored(table(12, first=10) | layout.single(10, state(10)) | later)
        actual = asyncio.run(log.header())
        assert actual.metadata.configuration == {"note": "later"}
        assert actual.protocol.min_writer_version == 2

    def test_reads_no_sidecar(self) -> None:
        """Nor would it matter if they were gone."""
        files = {name: data for name, data in layout.v2(10, state(10), 2, "parquet").items() if "/" not in name}
        log, storage = stored(table(10, first=10) | files)
        assert asyncio.run(log.header()).version == 10
        assert not any("sidecar" in name for name in storage.asked)
        with pytest.raises(LogError, match="a file of the checkpoint is missing") as caught:
            asyncio.run(log.snapshot())
        assert caught.value.table == "memory://t"
        assert caught.value.version == 10
        assert caught.value.path is not None
        assert caught.value.path.startswith("_delta_log/_sidecars/")

    def test_reads_no_file_rows(self) -> None:
        (name, content), *_ = layout.single(10, state(10)).items()
        data = bytearray(content)
        footer = pq.ParquetFile(pa.BufferReader(content)).metadata
        for column in range(footer.num_columns):
            chunk = footer.row_group(0).column(column)
            if chunk.path_in_schema.startswith(("add.", "remove.")):
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        files = table(12, first=10) | {name: bytes(data)}
        assert note(files) == "start"
        with pytest.raises(LogError, match="the checkpoint cannot be read"):
            live(files)

    @pytest.mark.parametrize(
        "files",
        [
            table(12),
            table(12, first=10) | layout.single(10, state(10)),
            table(10, first=10) | layout.v2(10, state(10), 2, "json"),
        ],
        ids=["entries", "checkpoint", "manifest"],
    )
    def test_a_schema_is_parsed_once_in_the_thread_that_reads_it(
        self, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(entry_reader, "INLINE_BYTES", 0)
        schemas._schema_of.cache_clear()
        threads = observe_threads(monkeypatch, schemas, "parse")
        log, storage = stored(files)
        for read in (log.header, log.snapshot, DeltaLog(storage).header, partial(log.entry, 10)):
            asyncio.run(read())
        assert threads == [True]

    def test_paths_of_later_commits_are_collected_in_a_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        threads = observe_threads(monkeypatch, listing, "array_of")
        log, _ = stored(table(12, first=10) | layout.single(10, state(10)))
        live = asyncio.run(listing.list_live(log))
        assert live is not None
        assert threads == [True]

    def test_a_log_without_protocol_or_metadata(self) -> None:
        with pytest.raises(LogError, match="no protocol action") as caught:
            note({paths.commit_name(0): entry({"metaData": metadata("x")})})
        assert caught.value.table == "memory://t"

    def test_a_protocol_of_tomorrow(self) -> None:
        """Is refused by `header`, and can be looked at all the same."""
        tomorrow = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["tomorrow"], "writerFeatures": []}
        log, _ = stored(table(3) | {paths.commit_name(2): entry({"protocol": tomorrow})})
        with pytest.raises(UnsupportedError, match="tomorrow") as caught:
            asyncio.run(log.header())
        assert caught.value.table == "memory://t"
        with pytest.raises(UnsupportedError, match="tomorrow"):
            asyncio.run(log.snapshot())
        actual = asyncio.run(log.partial_header())
        assert actual.protocol is not None
        assert actual.protocol.reader_features == {"tomorrow"}
        assert asyncio.run(log.header(1)).version == 1


class TestSnapshot:
    @pytest.mark.parametrize("version", [None, 0, 1, 6, 12])
    def test_snapshot_has_the_files_of_its_version(self, version: int | None) -> None:
        assert live(table(12), version) == named(12 if version is None else version)
        assert live(table(12) | layout.single(0, state(0)), version) == named(12 if version is None else version)

    def test_statistics_where_they_are_wanted(self) -> None:
        """From every kind of file that may hold them."""
        stats, count = '{"numRecords":1,"nullCount":{"x":0}}', '{"numRecords":1}'

        def counted(number: int) -> Fields:
            return {"add": add(number)["add"] | {"stats": stats}}

        actions = [{"protocol": PROTOCOL}, {"metaData": metadata("x")}, counted(1)]
        for checkpoint in (
            layout.single(1, actions),
            layout.v2(1, actions, 0, "json"),
            layout.v2(1, actions, 1, "json"),
        ):
            entries = {paths.commit_name(number): entry(counted(number)) for number in (2, 3, 4)}
            log, _ = stored(checkpoint | entries)
            actual = asyncio.run(log.snapshot(with_stats=True))
            assert [file.stats for file in actual.live()] == [stats] * 4
            assert [file.stats for file in asyncio.run(log.snapshot(with_counts=True)).live()] == [count] * 4
            assert {file.stats for file in asyncio.run(log.snapshot()).live()} <= {None, count}


class TestLog:
    def test_log_without_entries_is_no_table(self) -> None:
        for files in ({}, {"x": b""}, {"00000000000000000001.crc": b""}):
            log, _ = stored(files)
            for asked in (log.segment(), log.earliest_version(), log.latest_version(), log.header(), log.snapshot()):
                with pytest.raises(NotATableError) as caught:
                    asyncio.run(asked)
                assert caught.value.table == "memory://t"

    def test_states_of_a_local_log_keep_no_bytes_of_its_entries(self, tmp_path: Path) -> None:
        (tmp_path / "_delta_log").mkdir()
        log, commits = DeltaLog(LocalStorage(str(tmp_path))), 10
        tracemalloc.start()
        try:
            for version in range(commits):
                own = [{"protocol": PROTOCOL}, {"metaData": metadata("x")}] if not version else []
                name = tmp_path / "_delta_log" / paths.commit_name(version)
                name.write_bytes(entry({"commitInfo": {"note": "x" * (1 << 20)}}, *own))
                asyncio.run(log.snapshot())
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < commits << 19

    def test_oldest_and_newest(self) -> None:
        log, _ = stored(table(12, first=5) | layout.single(6, state(6)))
        assert asyncio.run(log.earliest_version()) == 5
        assert asyncio.run(log.latest_version()) == 12

    @pytest.mark.parametrize(
        ("files", "version", "family"),
        [
            (table(12, first=5), None, GapError),
            (table(12, first=5) | layout.single(6, state(6)), 5, GapError),
            (table(12, first=5) | layout.single(6, state(6)), 2, GapError),
            ({name: data for name, data in table(12).items() if "07" not in name}, None, GapError),
            (table(12), 13, LogError),
            (table(12), -1, LogError),
        ],
    )
    def test_versions_that_are_not_there(
        self, files: Mapping[str, bytes], version: int | None, family: type[LogError]
    ) -> None:
        log, _ = stored(files)
        for asked in (log.segment(version), log.snapshot(version), log.header(version)):
            with pytest.raises(family) as caught:
                asyncio.run(asked)
            assert caught.value.table == "memory://t"
            assert caught.value.version is not None

    def test_names_after_a_name(self) -> None:
        log, _ = stored(table(3) | {"x.tmp": b"", "_last_checkpoint": b"{}"} | layout.single(2, state(2)))

        async def names(after: str) -> list[tuple[str, int]]:
            return [(name.kind, name.version) async for name, _ in log.list_names(after)]

        assert asyncio.run(names(name_before(2))) == [
            ("checkpoint", 2),
            ("commit", 2),
            ("commit", 3),
            ("last_checkpoint", -1),
        ]
        assert len(asyncio.run(names(""))) == 6


class Counting(MemoryStorage):
    """Counts the listings that are not closed yet."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        self.open += 1
        try:
            async for stat in super().list(prefix, start_after):
                yield stat
        finally:
            self.open -= 1


@pytest.mark.parametrize(
    "look",
    [
        lambda log: log.earliest_version(),
        lambda log: log.segment(1),
        lambda log: start_version(log, "earliest"),
        lambda log: anext(log.stats_before(3, 2)),
    ],
)
async def test_a_listing_that_is_not_read_to_its_end_is_closed(look: Callable[[DeltaLog], Awaitable[object]]) -> None:
    """Otherwise the garbage collector would close the listing at an unknown time, perhaps after the store was closed."""

    storage = Counting()
    storage.remote = True
    for name, data in table(4).items():
        await storage.put(f"_delta_log/{name}", data)
    await look(DeltaLog(storage))
    assert storage.open == 0


class TestKeptStates:
    """The states that a standby keeps of a log, for the one with which it leads."""

    def kept(self, files: Mapping[str, bytes], most_bytes: int = 1 << 20) -> tuple[DeltaLog, Recording]:
        """A log that reads on from the state of `files`."""
        before, storage = stored(files)
        asyncio.run(before.keep(most_bytes))
        return DeltaLog(storage, kept=before.kept), storage

    def commit(self, storage: Recording, files: Mapping[str, bytes], first: int) -> None:
        for name, data in files.items():
            if name >= paths.commit_name(first):
                asyncio.run(storage.put(f"_delta_log/{name}", data))
        storage.asked.clear()

    def test_header_is_read_on_from_the_kept_one(self) -> None:
        log, storage = self.kept(table(30))
        self.commit(storage, table(33), 31)
        assert asyncio.run(log.header()).version == 33
        assert paths.commit_name(0) not in storage.asked, "which has the protocol"

    def test_newer_metadata_wins(self) -> None:
        log, storage = self.kept(table(5))
        self.commit(storage, {paths.commit_name(6): entry({"metaData": metadata("new")}), **table(7)}, 6)
        asyncio.run(storage.put(f"_delta_log/{paths.commit_name(6)}", entry({"metaData": metadata("new")})))
        assert asyncio.run(log.header()).metadata.configuration["note"] == "new"

    def test_last_but_one_state_serves_an_older_position(self) -> None:
        before, storage = stored(table(30))
        asyncio.run(before.keep(0))
        self.commit(storage, table(40), 31)
        asyncio.run(before.keep(0))
        storage.asked.clear()
        log = DeltaLog(storage, kept=before.kept)
        assert asyncio.run(log.header(35)).version == 35
        assert paths.commit_name(0) not in storage.asked

    def test_state_of_another_log_is_not_used(self) -> None:
        log, storage = self.kept(table(5))
        other = {paths.commit_name(0): entry({"protocol": PROTOCOL}, {"metaData": metadata("other")})}
        self.commit(storage, {**table(5), **other, paths.commit_name(5): entry({"commitInfo": {"a": 1}}, add(5))}, 0)
        for name, data in other.items():
            asyncio.run(storage.put(f"_delta_log/{name}", data))
        assert asyncio.run(log.header()).metadata.configuration["note"] == "other"
        assert not log.kept

    @pytest.mark.parametrize("most_bytes", [0, 1 << 20])
    def test_files_are_kept_of_tables_with_deletion_vectors_up_to_a_size(self, most_bytes: int) -> None:
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
        files = table(3) | {paths.commit_name(0): entry(protocol, {"metaData": metadata("start")})}
        checkpoint = layout.single(3, [protocol, *state(3)[1:]])
        log, storage = self.kept({**files, **checkpoint}, most_bytes)
        self.commit(storage, table(5), 4)
        assert sorted(file.path for file in asyncio.run(log.snapshot()).live()) == named(5)
        read_checkpoint = any("checkpoint.parquet" in name for name in storage.asked)
        assert read_checkpoint == (most_bytes == 0)
