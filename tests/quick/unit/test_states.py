"""The table of a table's states: every state and every event."""

from typing import get_args

import pytest

from cdfd.deliver.states import STATES, Event, State, next_state
from cdfd.model.position import Phase

OF_PHASE: dict[Phase | None, State] = {None: "starting", "snapshot": "snapshot", "stream": "catching_up"}
EXPECTED: dict[Event, State | None] = {
    "started": None,
    "pending": None,
    "delivered": None,
    "resumed": None,
    "reached_tip": "at_tip",
    "paused": "paused",
    "retrying": "backing_off",
    "failed": "failed",
    "stopped": "stopped",
}
"""None: the state of the phase."""


def test_every_event_is_in_the_table() -> None:
    assert set(EXPECTED) == set(get_args(Event))


@pytest.mark.parametrize("phase", OF_PHASE)
@pytest.mark.parametrize("event", EXPECTED)
@pytest.mark.parametrize("state", STATES)
def test_the_state_after_an_event(state: State, event: Event, phase: Phase | None) -> None:
    expected = state if event == "delivered" and state in ("failed", "stopped") else EXPECTED[event] or OF_PHASE[phase]
    assert next_state(state, event, phase) == expected
