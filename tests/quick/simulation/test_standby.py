"""A slice of the seeds with several processes of a pipeline; and bugs that are planted, to see that seeds find bugs."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cdfd.daemon.election.candidate import Candidate
from cdfd.daemon.election.election import Election
from cdfd.sinks.lease import Claim
from tests.support.simulation.__main__ import shown
from tests.support.simulation.sink import TransactionalSink
from tests.support.simulation.standby import simulate_standby

SEEDS = 15
MOST_SEEDS = 300
"""Seeds within which a planted bug is found."""


def test_no_seed_violates_a_promise() -> None:
    for seed in range(SEEDS):
        outcome = simulate_standby(seed)
        assert not outcome.violations, shown(outcome)


async def _deliver_once(election: Election, lead: Any, over: asyncio.Event) -> None:
    await lead(over)


def _impatient(candidate: Candidate, read: Claim | None, now: float) -> tuple[Candidate, Claim | None]:
    return _after(replace(candidate, takeover_after=0.0), read, now)


def _staying(candidate: Candidate, read: Claim | None, now: float) -> tuple[Candidate, Claim | None]:
    succeeded = candidate.leads and read is not None and read.owner != candidate.owner
    return _after(candidate, None if succeeded else read, now)


async def _not_released(election: Election) -> None:
    election.candidate = replace(election.candidate, claim=None)


def _unfenced(_: object) -> None:
    """Replaces the check of the epoch."""


_after = Candidate.after
PLANTED: dict[str, tuple[object, str, Callable[..., Any], str]] = {
    "a leader does not step down": (Candidate, "after", _staying, "processes lead"),
    "a standby does not wait": (Candidate, "after", _impatient, "leader changes"),
    "the lease is not released": (Election, "_release", _not_released, "no process leads soon"),
    "a process that is fenced ends": (Election, "_deliver", _deliver_once, "FencedError"),
    "the sink does not fence": (TransactionalSink, "require_latest", _unfenced, "a delivery begins at"),
}
"""For each planted bug: the object and the attribute that are replaced, the replacement, and a part of the expected violation."""


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, name, planted, said = PLANTED[bug]
    monkeypatch.setattr(target, name, planted)
    actual = next((outcome for outcome in map(simulate_standby, range(MOST_SEEDS)) if outcome.violations), None)
    assert actual is not None
    assert any(said in violation for violation in actual.violations), actual.violations
