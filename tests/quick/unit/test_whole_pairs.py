"""Batches that never end between the images of an update."""

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdfd.errors import DataError
from cdfd.model.batch import ChangeBatch
from cdfd.scan.updates.whole_pairs import whole_pairs
from tests.support.change_rows import Row, change_rows, cut_rows

KINDS = ["insert", "delete", "update_preimage", "update_postimage"]


def numbered(kinds: list[str], gaps: set[int]) -> pa.RecordBatch:
    """Rows of these change types. A number is skipped before the rows in `gaps`."""
    rows = change_rows([Row(kind, 1, number, None) for number, kind in enumerate(kinds)])
    numbers = [number + sum(gap <= number for gap in gaps) for number in range(len(kinds))]
    return rows.set_column(5, rows.schema.field(5), pa.array(numbers, pa.int64()))


@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=20), st.sets(st.integers(0, 20)), st.lists(st.integers(1, 20))
)
@example(["insert", "update_preimage", "update_postimage"], {1}, [2])
def test_pairs_stay_together_and_rows_stay_the_same(kinds: list[str], gaps: set[int], cuts: list[int]) -> None:
    rows = numbered(kinds, gaps)
    actual = list(whole_pairs(cut_rows(rows, cuts)))
    assert pa.Table.from_batches([each.rows for each in actual]).equals(pa.Table.from_batches([rows]))
    assert all(each.following == each.rows.column(5)[-1].as_py() + 1 for each in actual)
    for before, after in pairwise(actual):
        images = kinds[before.rows.column(0)[-1].as_py()], kinds[after.rows.column(0)[0].as_py()]
        adjacent = before.following == after.rows.column(5)[0].as_py()
        assert not (adjacent and images == ("update_preimage", "update_postimage"))


def test_error_comes_after_the_rows_before_it() -> None:
    def damaged() -> Iterator[ChangeBatch]:
        yield from cut_rows(numbered(["insert", "update_preimage"], set()), [])
        raise DataError("damaged")

    actual = whole_pairs(damaged())
    assert next(actual).rows.num_rows == 2
    with pytest.raises(DataError, match="damaged"):
        next(actual)


def test_last_image_without_its_pair_is_not_lost() -> None:
    (actual,) = whole_pairs(cut_rows(numbered(["insert", "update_preimage"], set()), []))
    assert actual.rows.num_rows == 2
