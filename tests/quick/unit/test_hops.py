"""How many functions a commit of one small file passes through."""

import pytest

from bench.hops import COMMITS, crossings, profile


# An added file may be joined with others.
@pytest.mark.parametrize(("kind", "functions", "chain"), [("a change data file", 44, 18), ("an added file", 43, 18)])
def test_commit_of_one_file_passes_few_functions(kind: str, functions: int, chain: int) -> None:
    hops = profile(COMMITS[kind])
    assert hops.hops[-1].function == "Feed._note_delivery"
    assert len(hops.hops) <= functions
    assert len(hops.chain) <= chain


@pytest.mark.parametrize("kind", COMMITS)
def test_commit_of_one_file_crosses_threads_twice(kind: str) -> None:
    assert crossings(profile(COMMITS[kind]).hops) == 2
