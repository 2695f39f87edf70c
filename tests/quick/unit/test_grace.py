"""Outages that count, and those that do not yet."""

from collections.abc import Iterator

import pytest

from cdfd.deliver.grace import GRACE, STEADY_SECONDS, Outage
from cdfd.errors import CdfdError, ConfigError, DataError, FencedError, InternalError, LogError, SinkError, StorageError
from cdfd.sinks.base import ReopenSinkError


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        (SinkError, 120),
        (ReopenSinkError, 120),
        (StorageError, 120),
        (LogError, 60),
        (FencedError, 0),
        (InternalError, 0),
        (DataError, 0),
        (ConfigError, 0),
    ],
)
def test_only_an_error_that_a_retry_may_help_has_a_grace(kind: type[CdfdError], seconds: float) -> None:
    outage = Outage()
    assert outage.fail(kind("away", retriable=True), 0) == (seconds == 0)
    assert outage.counts(seconds)
    assert not outage.counts(seconds - 1)
    assert outage.fail(kind("away"), 0)


def test_each_class_of_the_table_decides_for_itself() -> None:
    """A class after one that it derives from would never be found."""
    kinds = [kind for kind, _ in GRACE]
    assert not [(a, b) for number, a in enumerate(kinds) for b in kinds[number + 1 :] if issubclass(b, a)]


AWAY = SinkError("away", retriable=True)


def counted(outage: Outage, times: Iterator[float] | range, *, works: bool) -> list[bool]:
    """Whether it counts at each failure."""
    answers = []
    for now in times:
        answers.append(outage.fail(AWAY, now))
        if works:
            outage.work()
    return answers


def test_an_outage_counts_once_it_is_longer_than_the_grace() -> None:
    outage = Outage()
    assert counted(outage, range(0, 150, 30), works=False) == [False, False, False, False, True]
    outage.work()
    assert not outage.counts(1000)
    assert not outage.fail(AWAY, 1000)
    assert outage.counts(1120)


def test_an_error_that_needs_a_person_counts_at_once() -> None:
    assert Outage().fail(SinkError("no right to write"), 0)


def test_failures_between_steady_times_are_outages_of_their_own() -> None:
    assert not any(counted(Outage(), range(0, 1000, int(STEADY_SECONDS) + 1), works=True))


def test_what_fails_and_works_in_turn_counts_in_the_end() -> None:
    assert counted(Outage(), range(0, 150, 10), works=True)[-4:] == [False, True, True, True]
