"""Which files of a log clean-up removes: none that a version in the retention needs."""

from itertools import accumulate

import pytest

from cdfd.delta.actions import Metadata, Protocol
from cdfd.delta.paths import LogName, checkpoint_name, commit_name, parse_name
from cdfd.sinks.delta.housekeeping import removable
from tests.support.checkpoint_layout import v2_name

DAY = 24 * 3600 * 1000
NOW = 100 * DAY
PROTOCOL = Protocol(1, 2)


def settings(**more: str) -> Metadata:
    return Metadata("T", "{}", (), {f"delta.{name}": value for name, value in more.items()})


def name(text: str) -> LogName:
    parsed = parse_name(text)
    assert parsed is not None
    return parsed


def log(*names: str, first_day: int = 0) -> list[tuple[LogName, int]]:
    """Files that were written one a day."""
    return [(name(text), (first_day + day) * DAY) for day, text in enumerate(names)]


FILES = log(*map(commit_name, range(12)), checkpoint_name(4), checkpoint_name(8), checkpoint_name(11), first_day=50)


def removed(files: list[tuple[LogName, int]], protocol: Protocol = PROTOCOL, **more: str) -> list[LogName]:
    return removable(files, protocol, settings(**more), NOW)


class TestRetention:
    def test_files_before_the_newest_checkpoint_that_is_older_go_in_order(self) -> None:
        """Checkpoint 8 is 37 days old, and 11 is 36."""
        expected = [*map(commit_name, range(4)), checkpoint_name(4), *map(commit_name, range(4, 8))]
        actual = removed(FILES, logRetentionDuration="interval 36 days")
        assert actual == [name(text) for text in expected]
        assert removed(FILES[::-1], logRetentionDuration="interval 36 days") == actual

    @pytest.mark.parametrize(("days", "first"), [(35, 11), (36, 8), (37, 4), (38, 0), (90, 0)])
    def test_checkpoint_must_be_older_than_the_retention(self, days: int, first: int) -> None:
        actual = removed(FILES, logRetentionDuration=f"interval {days} days")
        assert sorted({each.version for each in actual}) == list(range(first))

    def test_v2_checkpoint_counts(self) -> None:
        uuid = "80a083e8-7026-4e79-81be-64bd76c43a11"
        files = log(*map(commit_name, range(3)), v2_name(2, uuid, "json"))
        assert [each.version for each in removed(files)] == [0, 1]

    def test_log_without_a_checkpoint_stays(self) -> None:
        assert removed(log(*map(commit_name, range(5)))) == []

    def test_files_of_no_version_stay(self) -> None:
        hint = name("_last_checkpoint")
        actual = removed([*FILES, (hint, 0)], logRetentionDuration="interval 0 days")
        assert hint not in actual
        assert actual

    def test_nothing_goes_if_clean_up_is_off_or_checkpoints_are_protected(self) -> None:
        protected = Protocol(3, 7, frozenset(), frozenset({"checkpointProtection"}))
        assert removed(FILES, enableExpiredLogCleanup="false") == []
        assert removed(FILES, protected) == []
        assert removed(FILES) != []


def test_interrupted_clean_up_leaves_a_contiguous_log() -> None:
    order = removed(FILES)
    assert order
    everything = {each for each, _ in FILES}
    for gone in accumulate(([each] for each in order), lambda before, each: [*before, *each]):
        left = everything - set(gone)
        versions = sorted(each.version for each in left if each.kind == "commit")
        assert versions == list(range(versions[0], 12))
        assert not any(each.kind == "checkpoint" and each.version < versions[0] for each in left)
