"""A slice of the seeds with two sinks in one daemon; and a bug that is planted, to see that seeds find it."""

import re

import pytest

from cdfd.log.watch import SharedWatch
from tests.support.simulation.__main__ import shown
from tests.support.simulation.sinks import simulate_sinks

SEEDS = 15
MOST_SEEDS = 50
"""Seeds within which the planted bug is found."""


def test_no_seed_violates_a_promise() -> None:
    for seed in range(SEEDS):
        outcome = simulate_sinks(seed)
        assert not outcome.violations, shown(outcome)


def _tell_nobody(_: SharedWatch) -> None:
    """Replaces the news for the other readers."""


def test_seeds_find_a_sink_that_polls_and_does_not_tell_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedWatch, "_tell_others", _tell_nobody)
    outcome = next((outcome for outcome in map(simulate_sinks, range(MOST_SEEDS)) if outcome.violations), None)
    assert outcome is not None
    assert re.search("at the tip after|long after the last fault", outcome.violations[0]), outcome.violations
