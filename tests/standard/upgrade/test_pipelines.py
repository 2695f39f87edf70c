"""The current daemon resumes where a release stopped: every change arrives once, whether the sink or the ledger keeps the position."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.upgrade.copies import GOLDEN
from tests.support.upgrade.pipelines import LAST, PIPELINE, TABLE, changes, resumed, wanted


def test_folder_of_files_goes_on(lake: Path, tmp_path: Path) -> None:
    place = resumed("files", tmp_path)
    files = sorted(place.glob("*.jsonl"))
    assert changes(json.loads(line) for file in files for line in file.read_text().splitlines()) == wanted(lake)
    unchanged = GOLDEN / "pipelines" / "files" / "out" / TABLE
    assert all((place / old.name).read_bytes() == old.read_bytes() for old in unchanged.glob("*.jsonl"))


@pytest.mark.parametrize("name", ["files", "changelog", "mirror"])
def test_the_ledger_of_each_is_that_of_the_sink(name: str, tmp_path: Path) -> None:
    """`LAST` is the last version that the golden daemons delivered, so that the tests above have versions left to deliver."""
    assert DeltaTable(GOLDEN / "pipelines" / name / "ledger").transaction_version(f"cdfd/{PIPELINE}/{TABLE}") == LAST
