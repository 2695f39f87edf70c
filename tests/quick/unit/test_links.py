"""Symbolic links in a table: refused where they lead out of it, whatever file of the table they stand for."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest

import cdfd
from cdfd.config.parser import parse
from cdfd.daemon.assembly import ledgers
from cdfd.errors import PathError
from cdfd.storage.local import LocalStorage
from tests.support import lake


async def _make(folder: Path) -> None:
    store = LocalStorage(folder)
    writer = await lake.table(store, 4, lake.manual_clock())
    await writer.update(pc.field("id") == 1, {"v": pc.scalar("b")})
    await writer.insert(lake.rows(10, 11, 12))
    await writer.delete(pc.field("id") == 11)
    await lake.checkpoint(store, 2)
    await store.put("_delta_log/_last_checkpoint", b'{"version":2,"size":5}')


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lake.run(_make(tmp_path / "table"))
    return tmp_path / "table"


def _only(table: Path, pattern: str) -> Path:
    return sorted(table.glob(pattern))[0]


FILES: dict[str, Callable[[Path], Path]] = {
    "data file": lambda table: _only(table, "part-*.parquet"),
    "change data file": lambda table: _only(table, "_change_data/*"),
    "folder of change data files": lambda table: table / "_change_data",
    "deletion vector": lambda table: _only(table, "deletion_vector*"),
    "log entry": lambda table: table / "_delta_log" / f"{5:020}.json",
    "checkpoint": lambda table: _only(table, "_delta_log/*.checkpoint.parquet"),
    "_last_checkpoint": lambda table: table / "_delta_log/_last_checkpoint",
    "_delta_log": lambda table: table / "_delta_log",
}


def _moved(path: Path, elsewhere: Path) -> None:
    elsewhere.mkdir()
    shutil.move(path, elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)


def _read(table: Path, **options: object) -> list[object]:
    changes = cdfd.changes(str(table), **options).read_all()
    return [changes.num_rows, cdfd.snapshot(str(table), **options).read_all().sort_by("id").to_pylist()]


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_a_link_out_of_the_table(table: Path, tmp_path: Path, file: Callable[[Path], Path]) -> None:
    expected = _read(table)
    path = file(table)
    _moved(path, tmp_path / "elsewhere")
    with pytest.raises(PathError, match="symbolic link leads out of the table") as caught:
        _read(table)
    assert caught.value.table == str(table)
    assert (caught.value.path or "").startswith(str(path.relative_to(table)))
    assert "allowed_roots" in (caught.value.hint or "")
    assert _read(table, allowed_roots=[str(tmp_path / "elsewhere")]) == expected
    assert _read(table, allowed_roots=[(tmp_path / "elsewhere").as_uri()]) == expected


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_a_link_inside_the_table(table: Path, file: Callable[[Path], Path]) -> None:
    expected = _read(table)
    _moved(file(table), table / "_moved")
    assert _read(table) == expected


def test_the_table_itself_may_be_a_link(table: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(table)
    assert _read(tmp_path / "link") == _read(table)


def test_a_ledger_is_for_its_user_alone_and_a_table_for_its_readers(table: Path, tmp_path: Path) -> None:
    async def record(ledger: str) -> None:
        text = f"tables: [{{uri: {table}}}]\nsink: {{kind: files, path: out}}\nprogress: {{ledger: {ledger}}}\n"
        config = parse(f"pipeline: shop\n{text}")
        async with ledgers(config, lake.manual_clock()) as of:
            await of(config.tables[0]).record("cdfd/shop/table", 3, "T")

    umask = os.umask(0o022)
    try:
        lake.run(record(str(tmp_path / "deep/ledger")))
        lake.run(record("source"))
    finally:
        os.umask(umask)
    written = [tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in written if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in written if path.is_file()} == {0o600}
    assert (table / "_delta_log" / f"{7:020}.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("kind", ["source", "table"])
def test_a_ledger_is_not_written_through_a_link(table: Path, tmp_path: Path, kind: str) -> None:
    place = table if kind == "source" else tmp_path / "ledger"
    place.mkdir(exist_ok=True)
    log = place / "_delta_log"
    if log.exists():
        _moved(log, tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere/_delta_log").mkdir(parents=True)
        log.symlink_to(tmp_path / "elsewhere/_delta_log")
    before = sorted(os.listdir(tmp_path / "elsewhere/_delta_log"))
    ledger = "source" if kind == "source" else str(place)
    text = f"tables: [{{uri: {table}}}]\nsink: {{kind: files, path: out}}\nprogress: {{ledger: {ledger}}}\n"
    config = parse(f"pipeline: shop\n{text}")

    async def record() -> None:
        async with ledgers(config, lake.manual_clock()) as of:
            await of(config.tables[0]).record("cdfd/shop/table", 3, "T")

    with pytest.raises(PathError, match="symbolic link"):
        lake.run(record())
    assert sorted(os.listdir(tmp_path / "elsewhere/_delta_log")) == before
