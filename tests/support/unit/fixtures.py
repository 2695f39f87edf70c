"""A table's store in memory and its clock, and a count of files read together, which every test has new."""

from typing import Any

import pytest

from cdfd.scan.parquet.reader import FilesTogether
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
    """How many files are read together, each time that some are."""
    counts: list[int] = []
    begin = FilesTogether.__init__

    def counting(self: FilesTogether, *args: Any) -> None:
        begin(self, *args)
        counts.append(len(self.rows))

    monkeypatch.setattr(FilesTogether, "__init__", counting)
    return counts
