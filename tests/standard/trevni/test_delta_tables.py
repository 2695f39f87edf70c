"""Tables whose `format.provider` is Trevni and the same tables in Parquet: every reader finds the same rows."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import cdfd
import cdfd.trevni as trevni
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.commands import cdfd as command
from tests.support.commands import started
from tests.support.trevni.lake import TrevniTableWriter

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("tags", pa.list_(pa.string()))])


def rows(*ids: int) -> pa.Table:
    columns = [pa.array(ids, pa.int64()), [f"v{n}" for n in ids], [["a", None][: n % 3] for n in ids]]
    return pa.table(columns, schema=SCHEMA)


async def write(writer: TableWriter) -> None:
    await writer.create()
    await writer.insert(rows(*range(100)))
    await writer.update(pc.field("id") < 5, {"v": pc.scalar("updated")})
    await writer.delete(pc.field("id") > 90)
    await writer.merge(rows(3, 500), "id")
    await writer.optimize()
    await writer.add_column(pa.field("extra", pa.decimal128(10, 2)))
    await writer.insert(rows(600))


def written(kind: type[TableWriter], folder: Path, feed: bool) -> str:
    folder.mkdir()
    asyncio.run(write(kind(LocalStorage(folder), SCHEMA, feed=feed)))
    return str(folder)


class Unnamed(TrevniTableWriter):
    ending = ".c000"


@pytest.fixture(params=[(True, TrevniTableWriter), (False, TrevniTableWriter), (True, Unnamed)])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    feed, kind = request.param
    return written(TableWriter, tmp_path / "parquet", feed), written(kind, tmp_path / "trevni", feed)


def comparable(reader: pa.RecordBatchReader) -> list[dict[str, object]]:
    # The order of the files is that of their names, which are random.
    rows = reader.read_all().drop_columns(["_commit_timestamp", "_change_ordinal"]).to_pylist()
    return sorted(rows, key=lambda row: (row["_commit_version"], row["id"], row["_change_type"]))


def test_changes_and_snapshots_are_those_of_the_parquet_table(tables: tuple[str, str]) -> None:
    parquet, trevni_table = tables
    expected = comparable(cdfd.changes(parquet))
    assert len(expected) > 120
    assert comparable(cdfd.changes(trevni_table)) == expected
    assert comparable(cdfd.snapshot(trevni_table)) == comparable(cdfd.snapshot(parquet))
    assert comparable(cdfd.changes(trevni_table, columns=["id", "tags"], start=3)) == comparable(
        cdfd.changes(parquet, columns=["id", "tags"], start=3)
    )


def tail(table: str, *options: str | Path, code: int = 0) -> str:
    ended = command("tail", table, *options)
    assert ended.code == code, ended.err
    return ended.err if code else ended.out


def test_tail(tables: tuple[str, str]) -> None:
    lines = [json.loads(line) for line in tail(tables[1], "--until", "now").splitlines()]
    assert len(lines) == cdfd.changes(tables[1]).read_all().num_rows


def test_tail_writes_trevni(tmp_path: Path) -> None:
    table = written(TrevniTableWriter, tmp_path / "t", True)
    out = tmp_path / "rows.trv"
    tail(table, "--from", "1", "--until", "4", "--format", "trevni", "-o", out)
    expected = cdfd.changes(table, 1, 4).read_all()
    actual = trevni.read_table(out)
    assert actual["_change_type"].to_pylist() == expected["_change_type"].to_pylist()
    assert actual.drop_columns(["_change_type"]).equals(expected.drop_columns(["_change_type"]))
    assert "--append" in tail(table, "--until", "now", "--format", "trevni", "-o", out, "--append", code=2)
    before = out.read_bytes()
    assert "has one" in tail(table, "--until", "now", "--format", "trevni", "-o", out, "--overwrite", code=1)
    assert out.read_bytes() == before
    tail(table, "--from", "5", "--until", "5", "--format", "trevni", "-o", out, "--overwrite")
    assert trevni.read_table(out).num_rows == 0
    assert "_change_type" in trevni.read_schema(out).names


INTERRUPT = """
import os, signal, sys
from pathlib import Path
from cdfd.cli.commands.tail import Request, run
from cdfd.cli.commands.tail_trevni import TrevniOutput
write = TrevniOutput.write
def write_and_interrupt(output, rows):
    write(output, rows)
    os.kill(os.getpid(), signal.SIGINT)
TrevniOutput.write = write_and_interrupt
run(Request(sys.argv[1], start="7", format="trevni", output=Path(sys.argv[2])))
"""


def test_an_interrupted_tail_has_written_its_rows(tmp_path: Path) -> None:
    table, out = written(TrevniTableWriter, tmp_path / "t", True), tmp_path / "rows.trv"
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPT, table, str(out)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "KeyboardInterrupt" in ended.stderr
    assert trevni.read_table(out, columns=["id"]).to_pylist() == [{"id": 600}]


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    table = written(TrevniTableWriter, tmp_path / "t", False)
    for path in Path(table).glob("*.trv"):
        data = bytearray(path.read_bytes())
        data[-10] ^= 1
        path.write_bytes(data)
    with pytest.raises(trevni.TrevniError, match=r"version 1, file part-.*\.trv, column .*, block 0, byte"):
        cdfd.changes(table).read_all()


def test_the_daemon_delivers_a_trevni_table_into_trevni_files(tmp_path: Path) -> None:
    table = written(TrevniTableWriter, tmp_path / "t", True)
    config = tmp_path / "cdfd.yaml"
    config.write_text(
        f"pipeline: p\ntables: [{{uri: {table}, topic: t, start: earliest}}]\n"
        f"sink: {{kind: files, path: {tmp_path}/out, format: trevni}}\nprogress: {{ledger: none}}\n"
    )
    with started("run", "-c", config) as daemon:
        asyncio.run(_until(tmp_path / "out" / "t" / "00000000000000000007.trv"))
        assert daemon.end(signal.SIGTERM).code == 0
    files = sorted((tmp_path / "out" / "t").glob("*.trv"))
    actual = [row for file in files for row in trevni.read_table(file, columns=["id", "_change_type"]).to_pylist()]
    expected = cdfd.changes(table).read_all().select(["id", "_change_type"]).to_pylist()
    assert actual == expected


async def _until(path: Path) -> None:
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.05)
