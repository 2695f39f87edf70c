"""The states of a table, and the events that lead from one to another. Pure.

Status, metrics, the page and the answers to operators read the state that these events lead to.
"""

from __future__ import annotations

from typing import Literal, get_args

from cdfd.model.position import Phase

State = Literal["starting", "snapshot", "catching_up", "at_tip", "paused", "backing_off", "failed", "stopped"]
Event = Literal["started", "pending", "delivered", "reached_tip", "paused", "resumed", "retrying", "failed", "stopped"]
STATES: tuple[State, ...] = get_args(State)

_STATES: dict[Event, State] = {
    "reached_tip": "at_tip",
    "paused": "paused",
    "retrying": "backing_off",
    "failed": "failed",
    "stopped": "stopped",
}
"""Events that lead to one state from every other. All others lead to the state of the phase that the table is in."""
_PHASES: dict[Phase | None, State] = {None: "starting", "snapshot": "snapshot", "stream": "catching_up"}
_FINAL: tuple[State, ...] = ("failed", "stopped")


def next_state(state: State, event: Event, phase: Phase | None = None) -> State:
    """The state after an event.

    | event | from | to |
    |---|---|---|
    | `started`: the loop delivers from a position on | any | `snapshot` or `catching_up` |
    | `pending`: a version is to be delivered | any | `snapshot` or `catching_up` |
    | `delivered`: a delivery is committed | `failed`, `stopped` | unchanged: the loop has ended meanwhile |
    | | any other | `snapshot` or `catching_up` |
    | `reached_tip`: all readable versions are delivered | any | `at_tip` |
    | `paused`: by an operator | any | `paused` |
    | `resumed`: by an operator | any | `snapshot`, `catching_up`, or `starting` without a position |
    | `retrying`: an error ended the loop, which starts again | any | `backing_off` |
    | `failed`: an error ended the loop for good | any | `failed` |
    | `stopped`: on request | any | `stopped` |

    Args:
        state: before the event.
        event: one of `Event`.
        phase: of the position, or of the pending version; None without a position.
    """
    if event == "delivered" and state in _FINAL:
        return state
    return _STATES.get(event) or _PHASES[phase]
