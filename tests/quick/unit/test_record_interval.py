"""The times at which the ledger records a version."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cdfd.deliver.recorder import RecordInterval


def due(pace: RecordInterval, now: float) -> int | None:
    return pace.pending if pace.wait(now) == 0 else None


def test_nothing_delivered_is_nothing_due() -> None:
    pace = RecordInterval(10)
    assert (due(pace, 0), pace.wait(0), pace.pending) == (None, None, None)


def test_the_first_is_due_at_once_the_next_later() -> None:
    pace = RecordInterval(10).delivered(7)
    assert (due(pace, 100), pace.wait(100)) == (7, 0)
    pace = pace.tried(100).recorded(7).delivered(8).delivered(9)
    assert (due(pace, 100), pace.wait(100)) == (None, 10)
    assert (due(pace, 109.9), due(pace, 110), pace.wait(111)) == (None, 9, 0)
    assert pace.pending == 9  # what a clean stop records
    assert pace.tried(110).recorded(9).pending is None


def test_what_comes_while_another_is_recorded_is_not_lost() -> None:
    pace = RecordInterval(10).delivered(7).tried(0).delivered(8).recorded(7)
    assert (pace.pending, due(pace, 5), due(pace, 10)) == (8, None, 8)


def test_what_fails_is_tried_again_later() -> None:
    pace = RecordInterval(10).delivered(7).tried(0)
    assert (due(pace, 9), due(pace, 10), pace.pending) == (None, 7, 7)


def test_own_versions_are_not_due_for_their_own_sake() -> None:
    pace = RecordInterval(10).delivered(7, ours=True)
    assert (due(pace, 0), pace.pending, pace.wait(0)) == (None, None, None)
    # After a version of another writer, the newest is recorded.
    pace = pace.delivered(8).delivered(9, ours=True)
    assert due(pace, 0) == 9
    assert pace.tried(0).recorded(9).delivered(10, ours=True).pending is None


def test_without_an_interval_every_version_is_due() -> None:
    pace = RecordInterval(0).delivered(1).tried(5).recorded(1).delivered(2)
    assert due(pace, 5) == 2


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.booleans()), max_size=60), st.floats(0.1, 20))
def test_never_more_often_and_never_out_of_order(events: list[tuple[float, bool, bool]], seconds: float) -> None:
    pace, now = RecordInterval(seconds), 0.0
    attempts: list[float] = []
    recorded: list[int] = []
    newest = -1
    for version, (passed, ours, fails) in enumerate(events):
        now += passed
        pace = pace.delivered(version, ours=ours)
        newest = newest if ours and pace.pending is None else version
        version_due = due(pace, now)
        assert (version_due is not None) == (pace.wait(now) == 0)
        if version_due is not None:
            attempts.append(now)
            pace = pace.tried(now)
            if not fails:
                recorded.append(version_due)
                pace = pace.recorded(version_due)
    assert all(later - earlier >= seconds * 0.999 for earlier, later in itertools.pairwise(attempts))
    assert recorded == sorted(set(recorded))
    assert (pace.pending if pace.pending is not None else recorded[-1] if recorded else -1) == newest
