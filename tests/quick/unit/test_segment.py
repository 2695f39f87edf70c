"""Which files give a version: against a listing that says everything, and against every version of random logs."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta import paths
from cdfd.errors import GapError, LogError
from cdfd.log.segment import Checkpoint, Segment, SegmentBuilder
from cdfd.storage.base import Stat
from tests.support.checkpoint_layout import part_name, v2_name

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"
COMMIT, SINGLE = paths.commit_name, paths.checkpoint_name


def stat(name: str) -> Stat:
    return Stat(f"_delta_log/{name}", 1, 2)


def fold(names: Iterable[str], wanted: int | None = None) -> SegmentBuilder:
    """As the log folds them: ascending, and what is no name of a log left out."""
    builder = SegmentBuilder(wanted)
    for name in sorted(names):
        parsed = paths.parse_name(name)
        if parsed is not None:
            builder.take(parsed, stat(name))
    return builder


def segment(names: Iterable[str], wanted: int | None = None) -> Segment:
    return fold(names, wanted).finish()


def commits(first: int, last: int) -> list[str]:
    return [COMMIT(version) for version in range(first, last + 1)]


def stats(names: Iterable[str]) -> tuple[Stat, ...]:
    return tuple(map(stat, names))


class TestFromTheBeginning:
    def test_segment_without_a_checkpoint_has_all_commits(self) -> None:
        assert segment(commits(0, 12)) == Segment(12, None, stats(commits(0, 12)))
        assert segment(commits(0, 12)).first_version == 0

    def test_up_to_a_version(self) -> None:
        assert segment(commits(0, 12), 5) == Segment(5, None, stats(commits(0, 5)))

    def test_other_files_do_not_matter(self) -> None:
        others = [
            ".tmp",
            "_last_checkpoint",
            "x",
            "00000000000000000001.crc",
            "00000000000000000000.00000000000000000001.compacted.json",
            f"._{COMMIT(1)}",
            f"{COMMIT(2)}.tmp",
            COMMIT(3)[:-1],
        ]
        assert segment([*commits(0, 1), *others]) == segment(commits(0, 1))


class TestCheckpoints:
    def test_segment_begins_after_the_newest_checkpoint(self) -> None:
        actual = segment([*commits(0, 12), SINGLE(5), SINGLE(10)])
        assert actual == Segment(12, Checkpoint(10, stats([SINGLE(10)])), stats(commits(11, 12)))
        assert actual.first_version == 11

    def test_not_after_the_wanted_version(self) -> None:
        actual = segment([*commits(0, 12), SINGLE(5), SINGLE(10)], 9)
        assert actual == Segment(9, Checkpoint(5, stats([SINGLE(5)])), stats(commits(6, 9)))

    @pytest.mark.parametrize("wanted", [None, 10])
    def test_of_the_version_itself(self, wanted: int | None) -> None:
        actual = segment([*commits(3, 10), SINGLE(10)], wanted)
        assert actual == Segment(10, Checkpoint(10, stats([SINGLE(10)])), ())

    def test_checkpoint_without_commits_is_a_segment(self) -> None:
        assert segment([SINGLE(10)]) == Segment(10, Checkpoint(10, stats([SINGLE(10)])), ())

    def test_missing_commits_before_the_checkpoint_do_not_matter(self) -> None:
        for older in (commits(8, 9), [COMMIT(0), COMMIT(4)], []):
            actual = segment([*older, SINGLE(10), *commits(10, 12)])
            assert (actual.version, actual.commits) == (12, stats(commits(11, 12)))

    @pytest.mark.parametrize("kind", ["json", "parquet"])
    def test_v2_checkpoint_begins_a_segment(self, kind: str) -> None:
        name = v2_name(10, UUID, kind)
        assert segment([*commits(0, 11), name]).checkpoint == Checkpoint(10, stats([name]))

    def test_checkpoint_in_parts_begins_a_segment(self) -> None:
        names = [part_name(10, part, 3) for part in (1, 2, 3)]
        assert segment([*commits(0, 11), *names]).checkpoint == Checkpoint(10, stats(names))

    @pytest.mark.parametrize("missing", [1, 2, 3])
    def test_incomplete_ones_are_ignored(self, missing: int) -> None:
        """Specification, "Checkpoints": readers must only use a complete one."""
        names = [part_name(10, part, 3) for part in (1, 2, 3) if part != missing]
        actual = segment([*commits(0, 11), SINGLE(4), *names])
        assert actual == Segment(11, Checkpoint(4, stats([SINGLE(4)])), stats(commits(5, 11)))

    def test_parts_of_different_attempts_do_not_make_one(self) -> None:
        """Two of three and one of two are three parts, and no checkpoint."""
        names = [part_name(10, 1, 3), part_name(10, 2, 3), part_name(10, 1, 2)]
        assert segment([*commits(0, 11), *names]).checkpoint is None
        names = [*names, part_name(10, 2, 2)]
        actual = segment([*commits(0, 11), *names]).checkpoint
        assert actual == Checkpoint(10, stats([part_name(10, 1, 2), part_name(10, 2, 2)]))

    def test_parts_that_no_listing_could_hold(self) -> None:
        assert segment([*commits(0, 1), part_name(1, 1, 10**10 - 1)]).checkpoint is None


class TestHoles:
    @pytest.mark.parametrize(
        ("names", "message", "version"),
        [
            ([*commits(0, 3), *commits(5, 7)], "version 4 is missing: the log goes from 3 to 5", 4),
            ([*commits(0, 3), *commits(7, 7)], "versions 4 to 6 are missing: the log goes from 3 to 7", 4),
            ([SINGLE(3), *commits(6, 7)], "versions 4 to 5 are missing: the log goes from 3 to 6", 4),
            (commits(3, 7), "begins at version 3 and has no complete checkpoint up to version 7", 7),
            ([*commits(3, 7), part_name(5, 1, 2)], "begins at version 3 and has no complete checkpoint", 7),
        ],
    )
    def test_missing_version_is_named(self, names: list[str], message: str, version: int) -> None:
        with pytest.raises(GapError, match=message) as caught:
            segment(names)
        assert caught.value.version == version
        assert caught.value.hint

    def test_behind_the_wanted_version_do_not_matter(self) -> None:
        assert segment([*commits(0, 3), *commits(5, 7)], 2).version == 2

    def test_at_the_wanted_version(self) -> None:
        with pytest.raises(GapError, match="version 4 is missing: the log continues to 7 without it"):
            segment([*commits(0, 3), *commits(5, 7)], 4)

    def test_before_the_log_begins(self) -> None:
        with pytest.raises(GapError, match="version 4 is no longer in the log; the oldest that can be read is 10"):
            segment([SINGLE(10), *commits(10, 12)], 4)

    def test_version_after_the_newest_is_refused(self) -> None:
        with pytest.raises(LogError, match="version 13 is not in the log; the newest is 12") as caught:
            segment(commits(0, 12), 13)
        assert not isinstance(caught.value, GapError)
        assert caught.value.hint == "Give a version up to 12, or -1 for the newest"

    def test_version_after_a_checkpoint_without_commits_is_refused(self) -> None:
        with pytest.raises(LogError, match="version 13 is not in the log; the newest is 10"):
            segment([SINGLE(10)], 13)

    def test_negative_version_is_refused(self) -> None:
        with pytest.raises(LogError, match="version -1 is not in the log"):
            segment(commits(0, 12), -1)

    def test_the_newest_entries_that_are_empty_are_left_out(self) -> None:
        """Their writers may have only just created the files."""
        builder = fold(commits(0, 2))
        for version in (3, 4):
            name = paths.parse_name(COMMIT(version))
            assert name is not None
            builder.take(name, Stat(COMMIT(version), 0, 2))
        builder.leave_unfinished()
        assert builder.latest == 2
        assert builder.finish() == segment(commits(0, 2))


@given(
    last=st.integers(0, 12),
    gone=st.sets(st.integers(0, 12), max_size=6),
    singles=st.sets(st.integers(0, 12), max_size=3),
    parts=st.sets(st.tuples(st.integers(0, 12), st.integers(1, 2)), max_size=4),
    wanted=st.integers(-1, 13),
)
def test_a_segment_is_what_it_takes_or_there_is_none(
    last: int, gone: set[int], singles: set[int], parts: set[tuple[int, int]], wanted: int
) -> None:
    """Against the definition: the newest complete checkpoint not after the version, and every commit after it."""
    there = set(range(last + 1)) - gone
    names = [COMMIT(version) for version in there] + [SINGLE(version) for version in singles]
    names += [part_name(version, part, 2) for version, part in parts]
    whole = singles | {version for version, _ in parts if {(version, 1), (version, 2)} <= parts}
    base = max((version for version in whole if version <= wanted), default=-1)
    needed = range(base + 1, wanted + 1)
    try:
        actual = segment(names, wanted)
    except LogError:
        assert wanted < 0 or not set(needed) <= there
    else:
        assert wanted >= 0
        assert set(needed) <= there
        assert actual.version == wanted
        assert (-1 if actual.checkpoint is None else actual.checkpoint.version) == base
        assert actual.commits == stats(map(COMMIT, needed))
