"""`cdfd backfill` where it is refused before anybody is asked."""

import json
from pathlib import Path

import pytest
from commands import cdfd, one_line


def config(folder: Path, uri: str, **sink: object) -> Path:
    path = folder / "cdfd.yaml"
    tables = [{"uri": uri}, {"uri": uri, "name": "invoices", "topic": "other"}]
    settings = {
        "pipeline": "p",
        "tables": tables,
        "sink": sink or {"kind": "kafka", "bootstrap_servers": "127.0.0.1:1"},
    }
    path.write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["orders"], "--from is required without --snapshot"),
        (["customers", "--from", "0"], "The tables are: orders, invoices"),
        (["orders", "--from", "0", "--id", "a/b"], "--id 'a/b' is not a valid name"),
    ],
)
def test_wrong_usage(options: list[str], said: str, orders: str, tmp_path: Path) -> None:
    assert said in one_line(cdfd("backfill", "-c", config(tmp_path, orders), *options), 2)


def test_a_folder_of_files_takes_nothing_twice(orders: str, tmp_path: Path) -> None:
    path = config(tmp_path, orders, kind="files", path=str(tmp_path / "out"))
    error = one_line(cdfd("backfill", "-c", path, "orders", "--from", "0"), 1)
    assert "a sink of kind files does not support backfills" in error
    assert "cdfd tail" in error
    assert not (tmp_path / "out").exists()
