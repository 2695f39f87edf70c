"""Buckets with more text than 32-bit offsets reach."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cdfd
from cdfd.errors import DataError
from cdfd.scan.updates import net, refined, spill
from tests.support.tracked_table import TrackedTable, values

OVERFLOW = pa.ArrowInvalid("offset overflow while concatenating arrays")
"""The error of Arrow for them. A real one takes 7 GB of memory."""


def fail(*_: Any) -> None:
    raise OVERFLOW


@pytest.mark.parametrize("options", [{"refine": "rows"}, {"refine": "key"}, {"refine": "off", "net": True}])
def test_too_much_text_is_an_error_that_says_what_to_do(
    tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TrackedTable(tmp_path / "table")
    chance = random.Random(1)
    table.insert([values(chance, number) for number in range(3)])
    table.change(chance, {row.row_id: {**row.values, "x": 7.5} for row in table.rows}, set(), [])
    for module in (refined, net):
        monkeypatch.setattr(module, "rows_at_once", fail)

    def read() -> None:
        cdfd.changes(str(table.folder), table.version - 1, key="id", **options).read_all()

    with pytest.raises(pa.ArrowInvalid, match="overflow"):  # an error of few rows is a defect, and is shown as it is
        read()
    monkeypatch.setattr(spill, "TEXT_BYTES", 0)
    with pytest.raises(DataError, match=r"more than 2 GiB in one column.*`columns`"):
        read()
