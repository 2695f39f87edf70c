"""Errors that said something wrong, or nothing that helps."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cdfd
from cdfd.cli.commands import ctl, inspect, trevni, trevni_convert
from cdfd.config.parser import parse
from cdfd.config.problems import ConfigProblems
from cdfd.config.shapes import mask_of
from cdfd.delta import checkpoint as checkpoints
from cdfd.errors import CdfdError, ConfigError, GapError, LogError, MissingFileError, TableChangedError
from cdfd.log import history
from cdfd.log.log import DeltaLog
from cdfd.storage.local import LocalStorage
from cdfd.storage.s3.storage import open_s3
from tests.support.feeding import MemoryPlace, feed
from tests.support.lake import Lake, checkpoint, entry_path, manual_clock, run, table
from tests.support.manual_time import ManualClock


def problem(text: str) -> str:
    with pytest.raises(ConfigProblems) as caught:
        parse(text, {}, "c.yaml")
    return str(caught.value)


def test_gap_advises_no_later_start(clock: ManualClock, lake: Lake) -> None:
    run(table(lake, 5, clock))
    lake.forget(entry_path(2))
    with pytest.raises(GapError) as caught:
        run(DeltaLog(lake).snapshot())
    assert caught.value.hint == "A log must be contiguous: restore the missing entries from a copy of the table"


def test_missing_file_of_an_old_version_was_removed_by_vacuum(tmp_path: Path) -> None:
    writer = run(table(LocalStorage(tmp_path), 2, manual_clock()))
    before = list(writer._files)
    run(writer.optimize())
    for name in before:
        os.remove(tmp_path / name)
    with pytest.raises(MissingFileError, match="VACUUM removes files of older versions: choose a newer one"):
        cdfd.snapshot(str(tmp_path), 1).read_all()


def test_missing_file_of_the_newest_version_was_not_removed_by_vacuum(tmp_path: Path) -> None:
    """Nor does the Python API have an option `on_missing_file`."""
    writer = run(table(LocalStorage(tmp_path), 2, manual_clock()))
    for name in writer._files:
        os.remove(tmp_path / name)
    with pytest.raises(MissingFileError) as caught:
        cdfd.snapshot(str(tmp_path)).read_all()
    assert "If this is the newest, the table is damaged: restore the file" in str(caught.value)
    with pytest.raises(MissingFileError) as caught:
        cdfd.changes(str(tmp_path)).read_all()
    assert "VACUUM may have removed it" in str(caught.value)
    assert "on_missing_file" not in str(caught.value)


async def test_daemon_names_its_option(clock: ManualClock, lake: Lake) -> None:
    writer = await table(lake, 2, clock)
    lake.forget(*writer._files)
    with pytest.raises(MissingFileError, match="or set `on_missing_file`"):
        await feed(lake, MemoryPlace(), clock, 1, start="earliest")


@pytest.mark.parametrize(("count", "told"), [(1, "1 row"), (1234, "1,234 rows")])
def test_rows_and_columns_of_a_trevni_file_are_counted(tmp_path: Path, count: int, told: str) -> None:
    lines, file = tmp_path / "rows.jsonl", tmp_path / "rows.trv"
    lines.write_text('{"id": 1}\n' * count)
    assert trevni_convert.run(str(lines), str(file)) == f"{told} written to {file}\n"
    assert trevni.stats(str(file), as_json=False).startswith(f"{told}, 1 physical column, codec snappy")


@pytest.mark.parametrize(
    ("mask", "told"),
    [(7, "it is not a mask"), ("truncate:-1", "the length is not a whole number from 0 to 999999999")],
)
def test_masks_that_are_none(mask: object, told: str) -> None:
    with pytest.raises(ConfigError, match=f"mask of column 'ssn': {told}"):
        mask_of("ssn", mask)


def test_checkpoint_without_its_entries(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)

    async def made() -> None:
        await table(storage, 2, manual_clock())
        await checkpoint(storage, 1)

    run(made())
    for version in range(2):
        os.remove(tmp_path / entry_path(version))
    report = inspect.report(str(tmp_path))
    assert "1 (no log entries)" in report
    assert "None" not in report


def test_checkpoint_of_null_type() -> None:
    with pytest.raises(LogError, match="column add has nulls alone, and no type"):
        checkpoints.check_schema(pa.schema([("add", pa.null())]))


@pytest.mark.parametrize("error", [history.deleted_error("T", "t"), history.deleted_error(None, "t")])
def test_folder_that_was_moved(error: TableChangedError) -> None:
    assert "deleted or moved" in str(error)
    assert "move it back" in str(error)


def test_shorter_log_may_be_one_that_is_being_removed() -> None:
    assert "is being removed" in str(history.truncated_error(1, 2, "t"))


def test_tab_is_called_a_tab() -> None:
    actual = problem("pipeline: p\ntables:\n\t- uri: x\n")
    assert "found a tab that cannot start any token" in actual


def test_mirror_without_key_names_the_line() -> None:
    sink = "sink: {kind: delta, path: /y, mode: mirror}"
    actual = problem(f"pipeline: p\ntables:\n  - uri: /x/t\n{sink}\n")
    assert "tables[0].key: required" in actual
    assert "(line 3)" in actual
    actual = problem(f"pipeline: p\ntables:\n  - uri: /x/t\n    key: [id]\n    start: latest\n{sink}\n")
    assert "tables[0].start: expected one of snapshot, earliest" in actual
    assert "(line 5)" in actual


def test_kind_of_sink_has_a_suggestion() -> None:
    assert "did you mean kafka?" in problem("pipeline: p\ntables: [{uri: /x/t}]\nsink: {kind: kafak}\n")


def test_options_that_name_no_daemon() -> None:
    with pytest.raises(ConfigError) as caught:
        ctl.Target.of(None, None, None, None)
    assert str(caught.value).startswith("the options do not say which daemon. Give one of")


def test_bucket_with_too_short_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no valid bucket"):
        open_s3("s3://a/t", {})


@pytest.mark.parametrize("place", ["nowhere", "nowhere/at/all"])
def test_path_that_does_not_exist(tmp_path: Path, place: str) -> None:
    with pytest.raises(LogError, match="not a Delta table: the path does not exist"):
        cdfd.snapshot(str(tmp_path / place))


def test_storage_options_of_a_local_table(tmp_path: Path) -> None:
    run(table(LocalStorage(tmp_path), 2, manual_clock()))
    options: dict[str, Any] = {"acces_key": "secret"}
    for uri in (str(tmp_path), tmp_path.as_uri()):
        with pytest.raises(ConfigError, match="no storage option 'acces_key'") as caught:
            cdfd.snapshot(uri, storage_options=options)
        assert "secret" not in str(caught.value)
    cdfd.snapshot(str(tmp_path), storage_options=options, allowed_roots=["s3://lake/other"])
    cdfd.snapshot(str(tmp_path), storage_options={})


@pytest.mark.parametrize(
    "entry",
    [
        b'{"metaData":{"id":"T","format":{},"schemaString":"{}","partitionColumns":[],"configuration":{}}}',
        b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}',
        b"{}",
        b"",
        b"x",
        b'{"metaData":{"id":"T","schemaString":"{}","partitionColumns":5}}',
    ],
)
@pytest.mark.parametrize("name", [entry_path(0), f"_delta_log/{0:020}.checkpoint.parquet", f"_delta_log/{1:020}.json"])
def test_inspect_names_the_table_in_every_error(tmp_path: Path, entry: bytes, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_bytes(entry)
    with pytest.raises(CdfdError) as caught:
        inspect.report(str(tmp_path))
    assert caught.value.table == str(tmp_path)
