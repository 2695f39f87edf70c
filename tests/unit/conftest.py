"""A table's store in memory and its clock, which every test has new."""

import pytest
from lake import Lake, manual_clock
from manual_time import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return manual_clock()


@pytest.fixture
def lake(clock: ManualClock) -> Lake:
    return Lake(clock)
