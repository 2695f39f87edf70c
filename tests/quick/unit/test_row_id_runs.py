"""Runs of row ids: the rows that only moved, and those that did not, whatever the runs are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from cdfd.scan.updates import row_id_runs
from cdfd.scan.updates.row_id_runs import RUNS, RepeatedRowId, add_rows, not_moved, runs_of

IDS = st.one_of(st.integers(0, 30), st.integers((1 << 20) - 9, (1 << 20) + 9), st.integers(0, 2**62))
Files = list[tuple[int, list[tuple[int, int]]]]
"""Sources, and the id and the version of each of their rows."""
SIDE = st.dictionaries(IDS, st.integers(0, 2), max_size=40)


def files(side: dict[int, int], draw: st.DrawFn, first: int) -> Files:
    """The ids of a side in files, in some order: each a source, and its rows as id and version."""
    ids = draw(st.one_of(st.just(sorted(side)), st.permutations(sorted(side))))
    cut = draw(st.integers(0, len(ids)))
    return [
        (first + number, [(each, side[each]) for each in some]) for number, some in enumerate((ids[:cut], ids[cut:]))
    ]


@st.composite
def versions(
    draw: st.DrawFn,
) -> tuple[Files, Files]:
    gone = draw(SIDE)
    # Most rows are on both sides.
    come = {**{each: version for each, version in gone.items() if draw(st.integers(0, 9))}, **draw(SIDE)}
    return files(gone, draw, 0), files(come, draw, 2)


def table(some: Files) -> pa.Table:
    batches = []
    for source, rows in some:
        ids, numbers = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
        batches.append(runs_of(source, np.arange(len(rows)), ids, numbers))
    return pa.Table.from_batches(batches, RUNS)


@pytest.mark.parametrize("long", [0, 1 << 40], ids=["intervals", "rows"])
@given(both=versions())
def test_rows_that_did_not_only_move(long: int, both: tuple[Files, Files]) -> None:
    sides = [{each: version for _, rows in some for each, version in rows} for some in both]
    wanted: dict[int, set[int]] = {source: set() for source in range(4)}
    for side, other in ((0, 1), (1, 0)):
        for source, rows in both[side]:
            changed = (sides[other].get(each) != version for each, version in rows)
            wanted[source] |= {number for number, left in enumerate(changed) if left}
    actual = [BitMap64() for _ in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_id_runs, "LONG", long)
        for some in not_moved(table(both[0]), table(both[1]), 1):
            add_rows(actual, some)
    assert {source: set(rows) for source, rows in enumerate(actual)} == wanted


@pytest.mark.parametrize("long", [0, 1 << 40], ids=["intervals", "rows"])
def test_an_id_that_is_there_twice(monkeypatch: pytest.MonkeyPatch, long: int) -> None:
    monkeypatch.setattr(row_id_runs, "LONG", long)
    some = [(0, [(5, 1), (6, 1), (7, 1)]), (1, [(9, 1), (6, 1)])]
    for removed, added in ((some, []), ([], some)):
        with pytest.raises(RepeatedRowId) as caught:
            list(not_moved(table(removed), table(added), 1))
        assert caught.value.row_id == 6


def test_a_run_ends_where_ids_versions_rows_or_blocks_end() -> None:
    edge = 1 << 20
    ids = np.array([3, 4, 9, 10, 11, 12, edge - 1, edge, edge + 1])
    versions_of = np.array([1, 1, 1, 1, 2, 2, 2, 2, 2])
    rows = np.array([0, 1, 2, 3, 4, 6, 7, 8, 9])
    actual = runs_of(7, rows, ids, versions_of).to_pydict()
    assert actual["id"] == [3, 9, 11, 12, edge - 1, edge]
    assert actual["count"] == [2, 2, 1, 1, 1, 2]
    assert set(actual["source"]) == {7}
    assert runs_of(7, rows[:0], ids[:0], versions_of[:0]).num_rows == 0
