"""A table's store in memory and its clock, and a count of joined files, which every test has new."""

import importlib
from collections.abc import Sequence
from typing import Any

import pytest

from cdfd.parquet import joining
from tests.support.lake import Lake, manual_clock
from tests.support.manual_time import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return manual_clock()


@pytest.fixture
def lake(clock: ManualClock) -> Lake:
    return Lake(clock)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the files of each joined file."""
    pytest.importorskip("cdfd.native.parquet_joining", reason="the kernels are not built")
    counts: list[int] = []
    join = joining.joined

    def counting(files: Sequence[Any]) -> joining.Joined | None:
        found = join(files)
        if found is not None:
            counts.append(len(found.rows))
        return found

    monkeypatch.setattr(importlib.import_module("cdfd.changes.joined"), "joined", counting)
    return counts
