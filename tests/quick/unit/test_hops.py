"""How many functions a commit of one small file passes through."""

import pytest

from bench.hops import COMMITS, crossings, profile


@pytest.mark.parametrize("kind", COMMITS)
def test_commit_of_one_file_passes_few_functions(kind: str) -> None:
    hops = profile(COMMITS[kind])
    assert hops.found[-1].function == "Feed._note_delivery"
    assert len(hops.found) <= 43
    assert len(hops.chain) <= 19


@pytest.mark.parametrize("kind", COMMITS)
def test_commit_of_one_file_crosses_threads_twice(kind: str) -> None:
    assert crossings(profile(COMMITS[kind]).found) == 2
