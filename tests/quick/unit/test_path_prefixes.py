"""Absolute paths in a log that begin with a place that cdfd cannot read, and the place that they stand for."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cdfd
from cdfd.cli import app
from cdfd.config.parser import load
from cdfd.config.settings import Table
from cdfd.deliver.configured import open_table
from cdfd.delta import paths
from cdfd.delta.paths import Location
from cdfd.errors import CdfdError, MissingFileError, PathError
from cdfd.spark.source.options import SourceOptions
from cdfd.storage.local import LocalStorage
from tests.support.lake import entry_path, manual_clock, run, table

PREFIXES = (
    ("dbfs:/mnt/lake", "s3://the-lake/"),
    ("dbfs:/mnt/lake/other", "/disk/a%20b"),
    ("dbfs:/old/", "file:///x%20y"),
)


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("dbfs:/mnt/lake/t/a.parquet", Location("s3://the-lake/", "t/a.parquet")),
        ("dbfs:/mnt/lake/other/a%20b.parquet", Location("/disk/a%20b", "a%20b.parquet")),
        ("dbfs:/mnt/lake//t/./b/../a", Location("s3://the-lake/", "t/a")),
        ("dbfs:/old/a%20b", Location("file:///x%20y", "a%20b")),
        ("a.parquet", Location("s3://table", "a.parquet")),
    ],
)
def test_prefix_is_replaced_before_the_path_is_located(path: str, location: Location) -> None:
    assert paths.resolve("s3://table", path, (), PREFIXES) == location


@pytest.mark.parametrize(
    "path", ["dbfs:/mnt/lakes/a", "dbfs:/mnt/lake/other/../a", "dbfs:/mnt/lake/../a", "dbfs:/mnt/lake", "dbfs:/mnt/a"]
)
def test_what_lies_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(PathError):
        paths.resolve("s3://table", path, (), PREFIXES)


def clone(folder: Path, prefix: str = "dbfs:/mnt/lake") -> tuple[str, str, str]:
    """A shallow clone of a table in `folder / "a b"`, the prefix of its paths, and the place that it stands for."""
    source, copy = folder / "a b", folder / "clone"
    run(table(LocalStorage(source), 3, manual_clock()))
    for version in range(3):
        lines = (source / entry_path(version)).read_text().splitlines()
        actions = [json.loads(line) for line in lines]
        for action in actions:
            if "add" in action:
                action["add"]["path"] = f"{prefix}/{action['add']['path']}"
        (copy / entry_path(version)).parent.mkdir(parents=True, exist_ok=True)
        (copy / entry_path(version)).write_text("\n".join(map(json.dumps, actions)))
    return str(copy), prefix, str(source)


@pytest.mark.parametrize("relative", ["a b", "./a b/", Path("a b"), Path()])
def test_absolute_paths_may_lead_to_a_root_that_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: str | Path
) -> None:
    copy, _, _ = clone(tmp_path, f"{tmp_path}/a%20b")
    monkeypatch.chdir(tmp_path)
    assert sorted(cdfd.snapshot(copy, allowed_roots=[relative]).read_all().column("id").to_pylist()) == [1, 2]
    for other in ("a", ""):
        with pytest.raises(PathError):
            cdfd.snapshot(copy, allowed_roots=[other]).read_all()


def test_clone_is_read_through_every_entry_point(tmp_path: Path) -> None:
    copy, prefix, place = clone(tmp_path)
    with pytest.raises(PathError, match=r"path_prefixes.*dbfs:/mnt/lake"):
        cdfd.snapshot(copy).read_all()
    options = {"path_prefixes": {prefix: place}}
    assert sorted(cdfd.snapshot(copy, **options).read_all().column("id").to_pylist()) == [1, 2]
    assert cdfd.changes(copy, **options).read_all().column("id").to_pylist() == [1, 2]
    option = ["--path-prefix", f"{prefix}={place}"]
    tail = CliRunner().invoke(app, ["tail", copy, "--from", "0", "--until", "now", *option])
    assert len(tail.stdout.splitlines()) == 2
    diff = CliRunner().invoke(app, ["diff", copy, "--from", "0", "--to", "2", *option])
    assert len(diff.stdout.splitlines()) == 2
    spark = SourceOptions.parse({"path": copy, "pathPrefixes": f"{prefix}={place}"})
    assert spark.path_prefixes == ((prefix, place),)
    config = tmp_path / "c.yaml"
    config.write_text(
        json.dumps(
            {
                "pipeline": "p",
                "tables": [{"uri": copy, "path_prefixes": {prefix: "a b"}}],
                "sink": {"kind": "files", "path": str(tmp_path / "out")},
            }
        )
    )
    settings = load(config)
    listed = settings.tables[0]
    assert isinstance(listed, Table)
    assert open_table(settings, listed).files.path_prefixes == ((prefix, place),)


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("s3:/lake", PathError, r"`path_prefixes` maps it to 's3:/lake/"),
        ("{}/elsewhere", MissingFileError, r"the file is gone from .*/elsewhere \("),
    ],
)
def test_wrong_place_of_a_prefix_is_named(tmp_path: Path, place: str, error: type[CdfdError], said: str) -> None:
    copy, prefix, _ = clone(tmp_path)
    with pytest.raises(error, match=said):
        cdfd.snapshot(copy, path_prefixes={prefix: place.format(tmp_path)}).read_all()
