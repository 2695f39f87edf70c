"""VACUUM: it removes what delta-rs would remove, and nothing that a version in the retention has."""

import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdfd import snapshot
from cdfd.cli.commands.vacuum import run
from cdfd.delta.actions import Add, Metadata, Protocol
from cdfd.delta.commit import Commit
from cdfd.delta.snapshot import first
from cdfd.delta.write.vacuum import NamedFiles, files_named, hides
from cdfd.errors import CdfdError, ConfigError, PathError

HOUR = 3600
DAY = 24 * HOUR


def old(folder: Path, seconds: float, *names: Path) -> None:
    """Make files older."""
    for path in names or (path for path in folder.rglob("*") if path.is_file()):
        moment = path.stat().st_mtime - seconds
        os.utime(path, (moment, moment))


def ages(folder: Path, seconds: int) -> None:
    """Let time pass: files get older, and so do tombstones and commits."""
    old(folder, seconds)
    for path in (folder / "_delta_log").glob("*.json"):
        moment = path.stat().st_mtime
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for action in lines:
            for name, key in (("remove", "deletionTimestamp"), ("commitInfo", "timestamp")):
                if name in action:
                    action[name][key] -= seconds * 1000
        path.write_text("".join(json.dumps(action) + "\n" for action in lines))
        os.utime(path, (moment, moment))


def removable(folder: Path, **options: object) -> list[str]:
    report = json.loads(run(str(folder), as_json=True, **options))  # type: ignore[arg-type]  # by name
    files: list[str] = report["files"]
    return sorted(files)


def test_the_metadata_of_iceberg_is_left_alone() -> None:
    text = '{"type":"struct","fields":[{"name":"_p","type":"string","nullable":true,"metadata":{}}]}'
    iceberg = frozenset({"icebergCompatV2", "columnMapping"})
    for features, is_hidden in ((frozenset({"appendOnly"}), False), (iceberg, True)):
        protocol = Protocol(2, 7, writer_features=features)
        state = first(Commit(0, protocol=protocol, metadata=Metadata("i", text, ("_p",), {})))
        assert hides("metadata", state) == is_hidden
        folders = ("data", "a/metadata", "_p=1", "_q=1", ".x")
        assert [folder for folder in folders if hides(folder, state)] == ["_q=1", ".x"]


def versions(folder: Path) -> list[list[dict[str, object]]]:
    """The rows of each version that can be read."""
    rows = []
    for version in range(DeltaTable(folder).version() + 1):
        try:
            read = snapshot(folder, version=version).read_all().to_pylist()
            rows.append(sorted(read, key=lambda row: json.dumps(row, sort_keys=True, default=str)))
        except CdfdError:
            rows.append([])
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_no_version_in_the_retention_loses_a_file(tmp_path: Path, seed: int) -> None:
    """Random versions at random times: after VACUUM, each version of the last week reads as before, and the others may not."""
    chance = random.Random(seed)
    times: list[int] = []
    for number in range(12):
        rows = pa.table({"n": [number, number + 100], "day": [f"d=/{number % 3}", "x y"]})
        kind = chance.choice(["append", "delete", "overwrite", "optimize"]) if number else "append"
        if kind == "append":
            write_deltalake(tmp_path, rows, mode="append", partition_by=["day"])
        elif kind == "overwrite":
            write_deltalake(tmp_path, rows, mode="overwrite", partition_by=["day"])
        elif kind == "delete":
            DeltaTable(tmp_path).delete(f"n = {chance.randrange(number)}")
        else:
            DeltaTable(tmp_path).optimize.compact()
        (tmp_path / f"orphan-{number}.parquet").write_bytes(b"x")
        passed = chance.choice([HOUR, DAY, 3 * DAY])
        ages(tmp_path, passed)
        times = [each + passed for each in times]
        times += [passed] * (DeltaTable(tmp_path).version() + 1 - len(times))
    before = versions(tmp_path)
    expected = DeltaTable(tmp_path).vacuum(dry_run=True, full=True)
    assert removable(tmp_path) == sorted(expected)
    report = run(str(tmp_path), delete=True)
    assert f"removed {len(expected)} file" in report
    after = versions(tmp_path)
    kept = [version for version, age in enumerate(times) if age < 7 * DAY]
    assert [after[version] for version in kept] == [before[version] for version in kept]
    assert after[-1] == before[-1]
    assert removable(tmp_path) == []
    write_deltalake(tmp_path, pa.table({"n": [1], "day": ["z"]}), mode="append")


class TestFolders:
    def test_hidden_files_and_folders_stay(self, tmp_path: Path) -> None:
        write_deltalake(tmp_path, pa.table({"n": [1], "_p": ["a"]}), partition_by=["_p"])
        names = ["_own/x", ".own/x", "a/_x", "a/.x", "_delta_log/_x", "_delta_log/y", "nested/_delta_log/0", "nested/z"]
        gone = ["a/x", "_change_data/c", "_p=b/x", "x"]
        for name in (*names, *gone):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"1")
        old(tmp_path, 8 * DAY)
        assert removable(tmp_path) == sorted(gone)
        run(str(tmp_path), delete=True)
        assert all((tmp_path / name).exists() for name in names)
        assert not any((tmp_path / name).exists() for name in gone)

    def test_file_newer_than_the_retention_stays(self, tmp_path: Path) -> None:
        write_deltalake(tmp_path, pa.table({"n": [1]}))
        (tmp_path / "unfinished.parquet").write_bytes(b"1")
        assert removable(tmp_path) == []
        assert removable(tmp_path, retention="0s", unsafe=True) == ["unfinished.parquet"]


ROOT = "/lake/table"


def named_by(root: str, *names: str) -> NamedFiles:
    return files_named(Commit(3, adds=tuple(Add(name, {}, 1, 1, True) for name in names)), root)


class TestNames:
    def test_absolute_names_are_inside_or_outside_of_the_root(self) -> None:
        files = named_by(ROOT, "a", f"{ROOT}/b", "./c", "/elsewhere/d", f"{ROOT}x/e")
        assert files.inside.to_pylist() == ["a", "b", "c"]
        assert files.outside == {"/elsewhere/d": 3, f"{ROOT}x/e": 3}

    def test_object_outside_of_the_prefix_has_no_other_name(self) -> None:
        files = named_by("s3://lake/table", "s3://lake/table/a", "s3://lake/other/b")
        assert (files.inside.to_pylist(), files.outside) == (["a"], {})

    @pytest.mark.parametrize("name", ["s3://lake/table/a", "//host/a", "../../../a", ""])
    def test_name_of_no_certain_file_says_that_nothing_was_removed(self, name: str) -> None:
        with pytest.raises(PathError) as caught:
            named_by(ROOT, name)
        assert (caught.value.table, caught.value.version) == (ROOT, 3)
        assert str(caught.value.hint).startswith("Nothing was removed")


class TestRetention:
    def test_a_short_one_is_refused(self, tmp_path: Path) -> None:
        write_deltalake(tmp_path, pa.table({"n": [1]}))
        write_deltalake(tmp_path, pa.table({"n": [2]}), mode="overwrite")
        ages(tmp_path, DAY)
        with pytest.raises(ConfigError, match="a retention of 12 hours is shorter than that of the table, 168 hours"):
            run(str(tmp_path), retention="12h", delete=True)
        assert len(removable(tmp_path, retention="12h", unsafe=True)) == 1

    def test_that_of_the_table(self, tmp_path: Path) -> None:
        write_deltalake(
            tmp_path,
            pa.table({"n": [1]}),
            configuration={"delta.deletedFileRetentionDuration": "interval 1 hours"},
        )
        write_deltalake(tmp_path, pa.table({"n": [2]}), mode="overwrite")
        ages(tmp_path, DAY)
        assert len(removable(tmp_path)) == 1

    def test_a_longer_one_than_checkpoints_know(self, tmp_path: Path) -> None:
        write_deltalake(
            tmp_path,
            pa.table({"n": [1]}),
            configuration={"delta.deletedFileRetentionDuration": "interval 1 hours"},
        )
        write_deltalake(tmp_path, pa.table({"n": [2]}), mode="overwrite")
        ages(tmp_path, DAY)
        DeltaTable(tmp_path).create_checkpoint()
        assert len(removable(tmp_path)) == 1
        assert removable(tmp_path, retention="2d") == []
        assert len(removable(tmp_path, retention="3h")) == 1

    @pytest.mark.parametrize(("count", "told"), [(1, "1 file of 1,000 bytes"), (2, "2 files of 2,000 bytes")])
    def test_summary(self, tmp_path: Path, count: int, told: str) -> None:
        write_deltalake(tmp_path, pa.table({"n": [1]}))
        for number in range(count):
            (tmp_path / f"orphan-{number}.parquet").write_bytes(bytes(1000))
        ages(tmp_path, 1)
        summary = run(str(tmp_path), retention="0s", unsafe=True).splitlines()[-1]
        them = "it" if count == 1 else "them"
        assert summary == f"{told}: no version of the last 0 hours needs {them}. To remove {them}, use --delete"

    @pytest.mark.parametrize("text", ["7", "-1d", "soon"])
    def test_retention_that_is_no_duration_is_refused(self, tmp_path: Path, text: str) -> None:
        write_deltalake(tmp_path, pa.table({"n": [1]}))
        with pytest.raises(ConfigError, match=r"--retention .* is not a duration. Write one such as 7d or 12h"):
            run(str(tmp_path), retention=text)
