from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.model.position import Phase, Position
from cdfd.sinks.cursor import order
from cdfd.sinks.files.names import CHUNK, chunk_name, delivery_name, parse_delivery_name


def at(version: int, part: int = 0, phase: Phase = "stream", ordinal: int = 0) -> Position:
    return Position("T", version, part, phase, ordinal)


@pytest.mark.parametrize("suffix", [".jsonl", ".v2"])
def test_file_with_rows_of_an_incremental_snapshot_is_known_by_its_name(suffix: str) -> None:
    """Otherwise a chunk that was prepared before a crash is neither completed nor made again."""
    assert CHUNK.fullmatch(chunk_name(12, 1 << 40, suffix))


@pytest.mark.parametrize(
    ("first", "following", "name"),
    [
        (at(12), at(13), "00000000000000000012.jsonl"),
        (at(12), at(15), "00000000000000000012.to.00000000000000000015.jsonl"),
        (at(12, 3, ordinal=9), at(13), "00000000000000000012.0000000003.jsonl"),
        (
            at(12),
            at(12, 3, ordinal=4711),
            "00000000000000000012.0000000000.to.00000000000000000012.0000000003.4711.jsonl",
        ),
        (at(12, 0, "snapshot"), at(13), "00000000000000000012-snapshot.0000000000.jsonl"),
        (
            at(12, 2, "snapshot", 20),
            at(12, 4, "snapshot", 40),
            "00000000000000000012-snapshot.0000000002.to.00000000000000000012-snapshot.0000000004.40.jsonl",
        ),
        (at(12), at(20, 0, "snapshot"), "00000000000000000012.to.00000000000000000020-snapshot.jsonl"),
    ],
)
def test_file_name_of_a_delivery_gives_its_positions_back(first: Position, following: Position, name: str) -> None:
    assert delivery_name(first, following, ".jsonl") == name
    parsed = parse_delivery_name(name, "T")
    assert parsed is not None
    # The ordinal of a first position is not in the name.
    assert replace(parsed.first, ordinal=first.ordinal) == first
    assert parsed.following == following


@pytest.mark.parametrize(
    "name",
    [
        "_position.json",
        ".lock",
        "12.jsonl",
        "00000000000000000012.json",
        "00000000000000000012.jsonl.gz",
        "00000000000000000012.jsonl\n",
        "x00000000000000000012.jsonl",
        "00000000000000000012.3.jsonl",
        "00000000000000000012.to.13.jsonl",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠١٢.jsonl",
    ],
)
def test_file_of_another_name_is_no_delivery(name: str) -> None:
    assert parse_delivery_name(name, "T") is None


positions = st.builds(
    at,
    st.integers(0, 5) | st.integers(0, 2**63 - 1),
    st.integers(0, 3) | st.integers(0, 10**10 - 1),
    st.sampled_from(["snapshot", "stream"]),
    st.integers(0, 2**63 - 1),
)


@given(st.lists(positions, min_size=2, max_size=8, unique_by=order))
def test_names_tell_the_following_position_and_sort_in_order(reached: list[Position]) -> None:
    steps = list(pairwise(sorted(reached, key=order)))
    names = [delivery_name(first, following, ".parquet") for first, following in steps]
    assert names == sorted(names)
    for (first, following), name in zip(steps, names, strict=True):
        parsed = parse_delivery_name(name, "T")
        assert parsed is not None
        assert replace(parsed.first, ordinal=first.ordinal) == first
        assert parsed.following == following
        assert len(name) < 255
