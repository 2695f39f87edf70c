"""Properties of files as a sink: crashes, the lock, foreign files, the content of files."""

import asyncio
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.errors import ConfigError, DataError, FencedError, SinkError
from cdfd.model.control import EMPTY
from cdfd.model.position import Position
from cdfd.runtime.registry import FILE_FORMATS
from cdfd.sinks.base import connector
from cdfd.sinks.files.folder import read_position
from cdfd.sinks.files.formats import JsonLines, Parquet, RowsFormat
from cdfd.sinks.files.sink import FilesSink
from cdfd.sinks.files.trevni import Trevni
from cdfd.sinks.lease import Claim
from cdfd.trevni import read_table
from tests.support import sink_crashes
from tests.support.full_disk import largest_file
from tests.support.kafka.delivering import run_loop

LINES = JsonLines(lambda batch: b"".join(b"%d\n" % n for n in batch["n"].to_pylist()))


def at(version: int, part: int = 0, ordinal: int = 0) -> Position:
    return Position("T", version, part, "stream", ordinal)


def rows(*n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(n, pa.int64())})


async def deliver(folder: Path, rows_format: RowsFormat, first: int, *batches: pa.RecordBatch) -> None:
    sink = await FilesSink.open(folder, rows_format, fsync=False)
    try:
        delivery = await sink.begin(at(first))
        for batch in batches:
            await delivery.write(batch)
        await delivery.commit(at(first + 1))
    finally:
        await sink.close()


async def position(folder: Path) -> Position | None:
    sink = await FilesSink.open(folder, LINES)
    try:
        return await sink.last_position()
    finally:
        await sink.close()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that sinks were killed in; see `sink_crashes`."""
    place = tmp_path_factory.mktemp("killed")
    program = [sys.executable, "-W", "error", sink_crashes.__file__, str(place)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(program, check=True, env=environment, timeout=300)
    return place


class TestCrashes:
    @pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
    def test_nothing_is_lost_or_repeated_wherever_it_is_killed(self, killed: Path, suffix: str) -> None:
        folders = [*sorted((killed / suffix).iterdir()), killed / f"{suffix}-later"]
        assert len(folders) > 40
        for folder in folders:
            seen = read_position(str(folder)) if folder.exists() else None
            assert seen is None or seen.digest == sink_crashes.STEPS[sink_crashes.STEPS.index(seen)].digest, folder
            asyncio.run(sink_crashes.deliver_all(folder, sink_crashes.formats()[suffix]))
            deliveries = sorted(folder.glob(f"*.{suffix}"))
            read = (lambda file: int(file.read_bytes())) if suffix == "jsonl" else self.only_row
            expected = [n for n in range(len(sink_crashes.STEPS) - 1) if n != sink_crashes.EMPTY]
            assert [read(file) for file in deliveries] == expected, folder
            assert names(folder) == sorted([".lock", "_position.json", *(file.name for file in deliveries)])

    @staticmethod
    def only_row(file: Path) -> int:
        return int(pq.ParquetFile(file).read()["n"][0].as_py())


class TestFolder:
    async def test_what_a_user_sees(self, tmp_path: Path) -> None:
        sink = await FilesSink.open(tmp_path / "a/b", LINES)
        delivery = await sink.begin(at(7))
        await delivery.write(rows(1, 2))
        await delivery.commit(at(8))
        delivery = await sink.begin(at(8))
        await delivery.commit(at(9))
        await sink.close()
        assert names(tmp_path / "a/b") == [".lock", "00000000000000000007.jsonl", "_position.json"]
        assert (tmp_path / "a/b/00000000000000000007.jsonl").read_bytes() == b"1\n2\n"
        assert json.loads((tmp_path / "a/b/_position.json").read_bytes()) == {
            "format": 1,
            "table_id": "T",
            "version": 9,
            "part": 0,
            "phase": "stream",
            "ordinal": 0,
            "delivered": True,
        }

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
    def test_who_may_read(self, tmp_path: Path, mode: int) -> None:
        seen = dict[str, int]()

        def modes() -> dict[str, int]:
            return {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "a").rglob("*")}

        async def scenario() -> None:
            sink = await FilesSink.open(tmp_path / "a/b", LINES, mode=mode)
            delivery = await sink.begin(at(7))
            await delivery.write(rows(1, 2))
            seen.update(modes())
            await delivery.commit(at(8))
            await sink.close()

        umask = os.umask(0o002)
        try:
            asyncio.run(scenario())
        finally:
            os.umask(umask)
        folder = {0o600: 0o700, 0o640: 0o750, 0o664: 0o775}[mode]
        on_its_way = next(name for name in seen if name.startswith(".cdfd-"))
        assert seen[on_its_way] == mode
        assert modes() == {"b": folder, ".lock": 0o600, "00000000000000000007.jsonl": mode, "_position.json": mode}
        assert (tmp_path / "a").stat().st_mode & 0o777 == folder

    @pytest.mark.parametrize(("setting", "mode"), [("0600", 0o600), ("0640", 0o640), ("0644", 0o644)])
    async def test_files_have_the_configured_mode_and_claims_are_private(
        self, tmp_path: Path, setting: str, mode: int
    ) -> None:
        sink = f"sink: {{kind: files, path: {tmp_path / 'out'}, mode: '{setting}'}}"
        config = parse(
            f"pipeline: shop\ntables: [{{uri: {tmp_path / 'orders'}}}]\n{sink}\nprogress: {{ledger: source}}\n"
        )
        of = connector(config)
        async with of.open(config.tables[0]) as folder:
            await (await folder.begin(at(7))).commit(at(8))
        async with of.lease(1.0) as lease:
            await lease.write(Claim("a", 1))
        by_name = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*") if path.is_file()}
        assert by_name == {".lock": 0o600, "_position.json": mode, f"{1:020}.json": 0o600}

    @pytest.mark.parametrize("name", [".lock", "_position.json", "_position.next.json"])
    def test_a_link_in_the_place_of_a_file_of_ours(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "precious").write_bytes(b"{}")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / name).symlink_to(tmp_path / ("precious" if name != ".lock" else "made"))
        with pytest.raises(SinkError, match="cannot open the folder"):
            asyncio.run(position(tmp_path / "out"))
        assert names(tmp_path) == ["out", "precious"]
        assert (tmp_path / "precious").read_bytes() == b"{}"

    async def test_deliveries_replace_a_link(self, tmp_path: Path) -> None:
        """Put there after the start."""
        (tmp_path / "precious").write_bytes(b"kept")

        sink = await FilesSink.open(tmp_path / "out", LINES)
        (tmp_path / "out/_position.json").symlink_to(tmp_path / "precious")
        delivery = await sink.begin(at(7))
        await delivery.commit(at(8))
        await sink.close()
        assert (tmp_path / "precious").read_bytes() == b"kept"
        assert read_position(str(tmp_path / "out")) == at(8)

    def test_a_fifo_in_the_place_of_the_position(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "_position.json")
        with pytest.raises(SinkError, match="position of the sink cannot be read"):
            asyncio.run(position(tmp_path))

    def test_a_folder_that_is_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        config = parse(f"pipeline: p\ntables: [{{uri: /lake/link}}]\nsink: {{kind: files, path: {tmp_path}}}\n", {})
        for use in (
            lambda: asyncio.run(position(tmp_path / "link")),
            lambda: read_position(str(tmp_path / "link")),
            lambda: asyncio.run(connector(config).check(config.tables[0])),
        ):
            with pytest.raises(SinkError, match="is a symbolic link") as caught:
                use()
            assert "sink.path" in (caught.value.hint or "")
        assert names(tmp_path / "real") == []

    def test_consumed_files_may_go(self, tmp_path: Path) -> None:
        for version in range(3):
            asyncio.run(deliver(tmp_path, LINES, version, rows(version)))
            (tmp_path / f"{version:020d}.jsonl").unlink()
        assert asyncio.run(position(tmp_path)) == at(3)

    def test_foreign_files_are_left_alone(self, tmp_path: Path) -> None:
        asyncio.run(deliver(tmp_path, LINES, 0, rows(0)))
        foreign = ["notes.txt", "00000000000000000009.jsonl.gz", ".hidden", "_SUCCESS"]
        for name in foreign:
            (tmp_path / name).touch()
        assert asyncio.run(position(tmp_path)) == at(1)
        assert set(foreign) <= set(names(tmp_path))

    def test_the_format_may_change(self, tmp_path: Path) -> None:
        asyncio.run(deliver(tmp_path, LINES, 0, rows(0)))
        asyncio.run(deliver(tmp_path, Parquet(), 1, rows(1)))
        assert asyncio.run(position(tmp_path)) == at(2)
        assert names(tmp_path)[1:3] == ["00000000000000000000.jsonl", "00000000000000000001.parquet"]

    def test_a_delivery_that_does_not_follow(self, tmp_path: Path) -> None:
        asyncio.run(deliver(tmp_path, LINES, 0, rows(0)))
        (tmp_path / "00000000000000000003.jsonl").touch()
        with pytest.raises(SinkError, match="the folder has a later one") as caught:
            asyncio.run(position(tmp_path))
        assert caught.value.path == str(tmp_path / "00000000000000000003.jsonl")

    def test_deliveries_without_a_position(self, tmp_path: Path) -> None:
        asyncio.run(deliver(tmp_path, LINES, 0, rows(0)))
        (tmp_path / "_position.json").unlink()
        with pytest.raises(SinkError, match=r"no _position\.json"):
            asyncio.run(position(tmp_path))

    @pytest.mark.parametrize(
        "told",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b"{}",
            b"\xff",
            b"[" * 100_000,
            b'{"format":2}',
            b'{"format":1,"table_id":"T","version":true,"part":0,"phase":"stream","ordinal":0,"delivered":true}',
            b'{"format":1,"table_id":"T","version":-1,"part":0,"phase":"stream","ordinal":0,"delivered":true}',
            b'{"format":1,"table_id":"T","version":1,"part":0,"phase":"later","ordinal":0,"delivered":true}',
            b'{"format":1,"table_id":"T","version":1,"part":0,"phase":"stream","ordinal":0,"delivered":1}',
            b'{"format":1,"table_id":null,"version":1,"part":0,"phase":"stream","ordinal":0,"delivered":true}',
        ],
    )
    def test_a_position_that_cannot_be_read(self, tmp_path: Path, told: bytes) -> None:
        (tmp_path / "_position.json").write_bytes(told)
        with pytest.raises(SinkError, match="position of the sink cannot be read") as caught:
            asyncio.run(position(tmp_path))
        assert caught.value.path == str(tmp_path / "_position.json")
        (tmp_path / "_position.json").unlink()
        assert asyncio.run(position(tmp_path)) is None  # the lock was let go

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(SinkError, match="cannot open the folder") as caught:
            asyncio.run(position(tmp_path / "file" / "sink"))
        assert "is a file" in (caught.value.hint or "")

    async def test_never_overwrites(self, tmp_path: Path) -> None:
        sink = await FilesSink.open(tmp_path, LINES)
        delivery = await sink.begin(at(0))
        await delivery.write(rows(0))
        (tmp_path / "00000000000000000000.jsonl").write_bytes(b"somebody's\n")
        with pytest.raises(SinkError, match="with the name of the delivery already exists"):
            await delivery.commit(at(1))
        await delivery.abort()
        with pytest.raises(SinkError, match="unknown"):
            await sink.last_position()
        await sink.close()
        assert (tmp_path / "00000000000000000000.jsonl").read_bytes() == b"somebody's\n"


class TestLock:
    async def test_two_sinks_in_one_process(self, tmp_path: Path) -> None:
        first = await FilesSink.open(tmp_path, LINES)
        with pytest.raises(FencedError, match="another daemon") as caught:
            await FilesSink.open(tmp_path, LINES)
        assert caught.value.exit_code == 3
        await first.close()
        second = await FilesSink.open(tmp_path, LINES)
        await first.close()  # closes nothing of the second one's
        with pytest.raises(FencedError):
            await FilesSink.open(tmp_path, LINES)
        await second.close()

    def test_another_process_until_it_dies(self, tmp_path: Path) -> None:
        program = (
            "import asyncio, sys\n"
            "from cdfd.sinks.files.sink import FilesSink\n"
            "from cdfd.sinks.files.formats import Parquet\n"
            "sink = asyncio.run(FilesSink.open(sys.argv[1], Parquet()))\n"
            "print('open', flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"open\n"
            with pytest.raises(FencedError):
                asyncio.run(position(tmp_path))
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        assert asyncio.run(position(tmp_path)) is None

    async def test_the_older_process_delivers_just_before_it_gives_up_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The newer process reads the position after it has the lock."""
        older, loop, lock = await FilesSink.open(tmp_path, LINES), asyncio.get_running_loop(), fcntl.flock

        async def end() -> None:
            delivery = await older.begin(at(0))
            await delivery.write(rows(1))
            await delivery.commit(at(1))
            await older.close()

        def flock(descriptor: int, operation: int) -> None:
            asyncio.run_coroutine_threadsafe(end(), loop).result(30)
            lock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", flock)
        newer = await FilesSink.open(tmp_path, LINES)
        assert await newer.last_position() == at(1)
        await newer.close()


class TestFailures:
    @pytest.mark.parametrize("rows_format", [LINES, Parquet()], ids=["jsonl", "parquet"])
    async def test_a_full_disk(self, tmp_path: Path, rows_format: RowsFormat) -> None:
        sink = await FilesSink.open(tmp_path, rows_format)
        delivery = await sink.begin(at(0))
        with largest_file(10_000), pytest.raises(SinkError, match="File too large"):
            await delivery.write(rows(*range(300_000)))
        # Half of the rows are written: they must not be committed.
        with pytest.raises(SinkError, match="has failed"):
            await delivery.commit(at(1))
        with pytest.raises(SinkError, match="has failed"):
            await delivery.write(rows(1))
        await delivery.abort()
        assert names(tmp_path) == [".lock"]
        delivery = await sink.begin(at(0))
        await delivery.write(rows(5))
        await delivery.commit(at(1))
        assert await sink.last_position() == at(1)
        await sink.close()

    @pytest.mark.parametrize("rows_format", [LINES, Parquet(), Trevni()], ids=["jsonl", "parquet", "trevni"])
    async def test_a_disk_that_is_full_when_it_comes_to_commit(self, tmp_path: Path, rows_format: RowsFormat) -> None:
        sink = await FilesSink.open(tmp_path, rows_format)
        delivery = await sink.begin(at(0))
        await delivery.write(rows(*range(5000)))
        with largest_file(100), pytest.raises(SinkError, match="cannot commit: File too large"):
            await delivery.commit(at(1))
        await delivery.abort()
        assert await sink.last_position() is None
        await sink.close()
        assert names(tmp_path) == [".lock"]
        assert (await position(tmp_path)) is None

    @pytest.mark.parametrize(
        "number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO, errno.ESTALE, errno.ETIMEDOUT]
    )
    @pytest.mark.parametrize("step", ["open", "fsync", "rename", "replace"])
    def test_what_may_pass_is_retried_wherever_it_happens_and_loses_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        async def deliver() -> None:
            sink = await FilesSink.open(tmp_path / "new", LINES)
            try:
                delivery = await sink.begin(at(0))
                await delivery.write(rows(1))
                await delivery.commit(at(1))
            finally:
                await sink.close()

        with monkeypatch.context() as patched:
            patched.setattr(os, step, refuse)
            with pytest.raises(SinkError) as refused:
                asyncio.run(deliver())
        assert refused.value.retriable
        # Where the rows were published, what was refused came after the commit.
        if asyncio.run(position(tmp_path / "new")) is None:
            asyncio.run(deliver())
        assert asyncio.run(position(tmp_path / "new")) == at(1)

    async def test_rows_that_cannot_be_encoded(self, tmp_path: Path) -> None:
        def encode(batch: pa.RecordBatch) -> bytes:
            raise DataError("no such row")

        sink = await FilesSink.open(tmp_path, JsonLines(encode))
        delivery = await sink.begin(at(0))
        with pytest.raises(DataError, match="no such row"):
            await delivery.write(rows(0))
        await sink.close()
        assert names(tmp_path) == [".lock"]


class TestParquet:
    def read(self, folder: Path) -> pa.Table:
        (file,) = folder.glob("*.parquet")
        return pq.ParquetFile(file).read()

    def test_types_are_kept(self, tmp_path: Path) -> None:
        batch = pa.record_batch(
            {
                "n": pa.array([1, None]),
                "amount": pa.array([1, 2], pa.decimal128(38, 10)),
                "at": pa.array([0, 1], pa.timestamp("us", "UTC")),
                "_change_type": pa.array(["insert", "delete"]).dictionary_encode(),
                "_commit_timestamp": pa.array([0, 1], pa.timestamp("ms", "UTC")),
                "nested": pa.array([{"a": [1, 2]}, None]),
            }
        )
        asyncio.run(deliver(tmp_path, Parquet(), 0, batch))
        assert self.read(tmp_path).equals(pa.table(batch))

    def test_dictionaries_of_batches_may_differ(self, tmp_path: Path) -> None:
        batches = [
            pa.record_batch({"t": pa.array([word] * 3).dictionary_encode()}) for word in ("insert", "delete", "insert")
        ]
        asyncio.run(deliver(tmp_path, Parquet(), 0, *batches))
        expected = ["insert"] * 3 + ["delete"] * 3 + ["insert"] * 3
        assert self.read(tmp_path)["t"].to_pylist() == expected

    def test_small_batches_share_a_row_group_and_large_ones_are_split(self, tmp_path: Path) -> None:
        small = [rows(*range(n, n + 10)) for n in range(0, 1000, 10)]
        asyncio.run(deliver(tmp_path / "small", Parquet(), 0, *small))
        asyncio.run(deliver(tmp_path / "large", Parquet(), 0, pa.record_batch({"n": pa.array(range(600_000))})))
        groups = [pq.ParquetFile(next((tmp_path / name).glob("*.parquet"))) for name in ("small", "large")]
        assert [file.num_row_groups for file in groups] == [1, 3]
        assert groups[0].read()["n"].to_pylist() == list(range(1000))

    def test_a_schema_that_changes(self, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match="schema changes") as caught:
            asyncio.run(deliver(tmp_path, Parquet(), 0, rows(1), pa.record_batch({"m": [1]})))
        assert caught.value.hint is not None
        assert names(tmp_path) == [".lock"]

    def test_a_type_that_parquet_lacks(self, tmp_path: Path) -> None:
        batch = pa.record_batch({"s": pa.array([{}], pa.struct([]))})
        with pytest.raises(SinkError, match="the rows"):
            asyncio.run(deliver(tmp_path, Parquet(), 0, batch))
        assert names(tmp_path) == [".lock"]


class TestTrevni:
    def test_types_are_kept_and_dictionaries_decoded(self, tmp_path: Path) -> None:
        batches = [
            pa.record_batch(
                {
                    "n": pa.array([1, None]),
                    "amount": pa.array([1, 2], pa.decimal128(38, 10)),
                    "_change_type": pa.array([word, "delete"]).dictionary_encode(),
                    "_commit_timestamp": pa.array([0, 1], pa.timestamp("ms", "UTC")),
                    "nested": pa.array([{"a": [1, 2]}, None]),
                }
            )
            for word in ("insert", "update_preimage")
        ]
        asyncio.run(deliver(tmp_path, Trevni(), 0, *batches))
        (file,) = tmp_path.glob("*.trv")
        expected = pa.Table.from_batches(batches)
        expected = expected.set_column(2, "_change_type", expected["_change_type"].cast(pa.string()))
        assert read_table(file).equals(expected)

    def test_a_schema_that_changes(self, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match="schema changes"):
            asyncio.run(deliver(tmp_path, Trevni(), 0, rows(1), pa.record_batch({"m": [1]})))
        assert names(tmp_path) == [".lock"]

    def test_a_type_that_trevni_lacks(self, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match="duration"):
            asyncio.run(deliver(tmp_path, Trevni(), 0, pa.record_batch({"s": pa.array([1], pa.duration("s"))})))
        assert names(tmp_path) == [".lock"]


class Numbers(JsonLines):
    """A format of another package."""

    suffix = ".txt"

    def __init__(self) -> None:
        super().__init__(lambda batch: b"%d\n" % batch.num_rows)


async def test_a_format_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILE_FORMATS._loaded, "numbers", Numbers)
    text = f"pipeline: p\ntables: [{{uri: /lake/t}}]\nsink: {{kind: files, path: {tmp_path}, format: numbers}}\n"
    config = parse(text, {})

    async with connector(config).open(config.tables[0]) as sink:
        delivery = await sink.begin(at(4))
        await delivery.write(rows(1, 2))
        await delivery.commit(at(5))
    # As a crash after the commit leaves it: only the file's name tells the position.
    left = tmp_path / "t" / "_position.json"
    left.write_text(json.dumps(json.loads(left.read_text()) | {"version": 4, "delivered": False}))
    assert (await connector(config).position(config.tables[0])) == at(5)
    assert (tmp_path / "t" / "00000000000000000004.txt").read_bytes() == b"2\n"
    with pytest.raises(ConfigError, match="expected jsonl, parquet, trevni or numbers, found"):
        parse(text.replace("numbers", "nombers"), {})


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert read_position(str(folder)) is None
    asyncio.run(deliver(folder, LINES, 0, rows(1)))
    asyncio.run(deliver(folder, LINES, 1, rows(2)))
    # As a crash between the two steps of a commit leaves it.
    (folder / "_position.json").write_text(
        json.dumps(json.loads((folder / "_position.json").read_text()) | {"version": 1, "delivered": False})
    )
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert read_position(str(folder)) == at(2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert asyncio.run(position(folder)) == at(2)


def test_what_was_prepared_for_another_delivery_says_nothing(tmp_path: Path) -> None:
    """One that failed before it counted, and another one of other versions that did."""
    asyncio.run(deliver(tmp_path, LINES, 0, rows(1)))
    after_one = json.loads((tmp_path / "_position.json").read_text())
    asyncio.run(deliver(tmp_path, LINES, 1, rows(2)))
    for prepared, digest in ((3, None), (2, "of 1")):
        (tmp_path / "_position.json").write_text(json.dumps(after_one))
        (tmp_path / "_position.next.json").write_text(json.dumps(after_one | {"version": prepared, "digest": "of 1"}))
        for position_read in (read_position(str(tmp_path)), asyncio.run(position(tmp_path))):
            assert position_read == at(2)
            assert position_read.digest == digest
        assert "_position.next.json" not in names(tmp_path)


def test_a_look_at_what_has_only_begun(tmp_path: Path) -> None:
    (tmp_path / "_position.json").write_text(
        json.dumps(
            {
                "format": 1,
                "table_id": "T",
                "version": 0,
                "part": 0,
                "phase": "stream",
                "ordinal": 0,
                "delivered": False,
            }
        )
    )
    assert read_position(str(tmp_path)) is None
    assert asyncio.run(position(tmp_path)) is None
    (tmp_path / "_position.json").unlink()
    (tmp_path / "00000000000000000000.jsonl").write_bytes(b"1\n")
    with pytest.raises(SinkError, match=r"no _position.json"):
        read_position(str(tmp_path))


@pytest.mark.parametrize("refused", [None, "orders", ".lock"])
async def test_the_check_asks_whether_the_folder_can_be_written_and_the_sinks_own_files_read_too(
    tmp_path: Path, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that runs as root may do everything, so the system's answer is another one here."""
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / ".lock").touch()
    wanted = {"orders": os.W_OK | os.X_OK, ".lock": os.W_OK | os.R_OK}
    asked = dict[str, int]()

    def access(path: str, mode: int, **_: Any) -> bool:
        asked[Path(path).name] = mode
        return Path(path).name != refused

    monkeypatch.setattr(os, "access", access)
    config = parse(f"pipeline: p\nsink: {{kind: files, path: {tmp_path}}}\ntables: [{{uri: /lake/orders}}]", {})
    check = connector(config).check(config.tables[0])
    if refused is None:
        assert await check == "ok"
        assert asked == wanted
    else:
        with pytest.raises(SinkError, match="the folder cannot be written to") as caught:
            await check
        assert Path(str(caught.value.path)).name == refused


async def test_a_request_cannot_move_a_folder_back(tmp_path: Path) -> None:
    sink = await FilesSink.open(tmp_path / "orders", LINES, fsync=False)
    delivery = await sink.begin(at(0))
    await delivery.write(rows(1))
    await delivery.commit(at(4))
    await sink.set_control(EMPTY, at(4))
    await sink.set_control(EMPTY, at(6))
    with pytest.raises(SinkError, match=r"the folder is at version 6 of table .* and cannot go back"):
        await sink.set_control(EMPTY, at(5))
    with pytest.raises(SinkError, match="cannot take rows of table other"):
        await sink.set_control(EMPTY, replace(at(7), table_id="other"))
    assert await sink.last_position() == at(6)
    await sink.close()
    with pytest.raises(SinkError, match="is closed"):
        await sink.set_control(EMPTY)


async def test_a_row_group_ends_at_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdfd.sinks.files.formats._GROUP_BYTES", rows(1, 2).nbytes)
    await deliver(tmp_path, Parquet(), 0, rows(1), rows(2), rows(3), rows(4, 5), rows(6))
    (file,) = tmp_path.glob("*.parquet")
    metadata = pq.ParquetFile(file).metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2, 3, 1]


@pytest.mark.parametrize("file_format", ["parquet", "trevni"])
async def test_a_version_that_replaces_the_schema_has_a_file_for_each(tmp_path: Path, file_format: str) -> None:
    """A file has one schema. The deleted rows have that of the version before."""
    table, folder = tmp_path / "table", tmp_path / "out" / "rows"
    write_deltalake(table, pa.table({"id": [1, 2], "a": ["x", "y"]}))
    write_deltalake(table, pa.table({"id": ["q"], "b": [0.5]}), mode="overwrite", schema_mode="overwrite")
    config = Settings.model_validate(
        {
            "pipeline": "p",
            "tables": [{"uri": str(table), "topic": "rows", "start": "earliest"}],
            "sink": {"kind": "files", "path": str(tmp_path / "out"), "format": file_format},
            "progress": {"ledger": "none"},
            "http": {"listen": None},
        }
    )
    await run_loop(config, 1)
    read = pq.read_table if file_format == "parquet" else read_table
    tables = [read(path) for path in sorted(folder.glob("0*"))]
    assert [(each["_change_type"].to_pylist(), each["id"].to_pylist(), each.column_names[1]) for each in tables] == [
        (["insert", "insert"], [1, 2], "a"),
        (["delete", "delete"], [1, 2], "a"),
        (["insert"], ["q"], "b"),
    ]
    assert tables[2]["_change_ordinal"].to_pylist() == [2]
