"""The state of admin commands, as position stores keep it."""

from typing import Any

import pytest

from cdfd.model.control import EMPTY, Control, Pause
from cdfd.model.position import LATEST_MS

SNAPSHOT = {"id": "s", "where": "", "version": 3, "next": 1, "ordinal": 2, "rows": 4, "ahead_of": -1, "ahead": 0}


def test_a_state_is_read_as_it_was_written() -> None:
    state = Control(Pause("p", 7), recent=("a", "b")).begin("s", "id > 1")
    assert Control.parse(state.document()) == state
    assert Control.parse(EMPTY.document()) == Control.parse(None) == EMPTY
    assert Control.parse({"snapshot": SNAPSHOT, "later": 1}).document() == {"snapshot": SNAPSHOT}


def test_the_newest_requests_are_remembered() -> None:
    state = EMPTY
    for number in range(20):
        state = state.remember(str(number))
    assert state.recent == tuple(map(str, range(4, 20)))
    assert Control.parse(state.document()) == state


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ([], "control is not an object"),
        ({"paused": 1}, "paused is not an object"),
        ({"snapshot": "s"}, "snapshot is not an object"),
        ({"recent": "a"}, "control has invalid ids"),
        ({"recent": ["a", 1]}, "control has invalid ids"),
        ({"snapshots": -1}, "control has an invalid number of snapshots"),
        ({"snapshots": True}, "control has an invalid number of snapshots"),
        ({"paused": {"id": 1, "at_ms": 1}}, "id is not a text"),
        ({"paused": {"id": "p" * 100_000, "at_ms": 1}}, "id is not a text"),
        ({"paused": {"id": "p", "at_ms": "1"}}, "at_ms is not a number"),
        ({"paused": {"id": "p", "at_ms": True}}, "at_ms is not a number"),
        ({"paused": {"id": "p"}}, "at_ms is not a number"),
        # Python has no time after the year 9999: `/status` would be an error for all tables.
        ({"paused": {"id": "p", "at_ms": LATEST_MS + 1}}, "at_ms is not a number"),
        ({"snapshots": 1 << 63}, "control has an invalid number of snapshots"),
        ({"snapshot": SNAPSHOT | {"ordinal": 1 << 63}}, "ordinal is not a number"),
        ({"snapshot": SNAPSHOT | {"version": -2}}, "version is not a number"),
    ],
)
def test_a_damaged_state_is_refused(document: Any, what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what}$"):
        Control.parse(document)
