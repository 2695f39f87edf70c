"""Matching of removed and added rows: set algebra against Python's own multisets, over every kind of column."""

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfd.scan.updates.equality import codes, hashes, same
from cdfd.scan.updates.matching import by_key, match
from tests.support.fold import freeze
from tests.support.sampling import stride

NAN = float("nan")
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])),
    "double": (pa.float64(), st.sampled_from([0.0, 1.5, NAN, float("inf")])),
    "float": (pa.float32(), st.sampled_from([0.0, 1.5, NAN])),
    "text": (pa.string(), st.sampled_from(["", "a", "b", "ä\0"])),
    "bytes": (pa.binary(), st.sampled_from([b"", b"\0", b"\0\0"])),
    "flag": (pa.bool_(), st.booleans()),
    "money": (pa.decimal128(38, 2), st.sampled_from([Decimal("1.00"), Decimal("-99999999999999999999.99")])),
    "day": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us", "UTC"), st.sampled_from([0, 1, -1])),
    "list": (pa.list_(pa.int64()), st.lists(st.sampled_from([None, 0, 1]), max_size=3)),
    "texts": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.sampled_from(["", "a", None])), max_size=2)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))]),
        st.fixed_dictionaries({"a": st.sampled_from([None, 1]), "b": st.sampled_from([None, [], [NAN], [0.5, 1.0]])}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), st.sampled_from([[], [("a", 1)], [("a", None)], [("a", 1), ("b", 1)]])),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100 // stride(4))
@given(data=st.data())
def test_codes_are_equal_where_values_are(kind: str, data: st.DataObject) -> None:
    arrow, values = KINDS[kind]
    given_values = data.draw(st.lists(st.none() | values, max_size=12))
    array = pa.array(given_values, arrow)
    start = data.draw(st.integers(0, len(array)))
    array = array.slice(start)
    plain = [freeze(value) for value in array.to_pylist()]
    expected = [[one == other for other in plain] for one in plain]
    actual = codes([array], len(array))
    assert (actual[:, None] == actual[None, :]).tolist() == expected
    assert not len(actual) or actual.min() >= 0
    by_hash = hashes([array], len(array))
    assert all(by_hash[one] == by_hash[other] for one, other in np.argwhere(np.array(expected, ndmin=2)))
    for other in range(len(array)):
        rolled = pa.concat_arrays([array.slice(other), array.slice(0, other)])
        pairs = zip(plain, [freeze(value) for value in rolled.to_pylist()], strict=True)
        assert same(array, rolled).tolist() == [one == two for one, two in pairs]


@pytest.mark.parametrize("kind", [pa.float64(), pa.int64(), pa.string()])
def test_null_of_one_side_equals_no_value(kind: pa.DataType) -> None:
    values, nulls = pa.array(["0", "1"]).cast(kind), pa.array([None, None], kind)
    assert not same(values, nulls).any()
    assert not same(nulls, values).any()
    assert same(nulls, nulls).all()


def test_zeros_are_equal_in_keys_only() -> None:
    zeros = pa.array([0.0, -0.0])
    assert np.ptp(codes([zeros], 2, key=True)) == 0
    assert np.ptp(codes([zeros], 2)) == 1
    assert np.ptp(hashes([zeros], 2)) == 0
    assert not same(zeros.slice(0, 1), zeros.slice(1)).any()


def test_variants_are_compared_as_their_text() -> None:
    texts = pa.array(['{"a":1}', '{"a":2}', None, '{"a":1}'])
    variants = pa.ExtensionArray.from_storage(pa.json_(), texts)
    actual = codes([variants], 4)
    assert actual[0] == actual[3]
    assert len(set(actual.tolist())) == 3
    assert same(variants, variants).all()


def test_hashes_of_texts_spread() -> None:
    texts = pa.array([f"user-{number:09}" for number in range(10_000)])
    buckets = np.bincount((hashes([texts], 10_000) % np.uint64(16)).astype(np.int64), minlength=16)
    assert buckets.min() > 500
    sliced = texts.slice(9_000, 10)
    assert hashes([sliced], 10).tolist() == hashes([texts], 10_000)[9_000:9_010].tolist()


@given(st.lists(st.integers(0, 4)), st.lists(st.integers(0, 4)))
def test_the_nth_goes_with_the_nth(left: list[int], right: list[int]) -> None:
    mine, theirs = match(np.array(left, np.int64), np.array(right, np.int64))
    actual = {
        (left[one], left[:one].count(left[one])): right[:two].count(right[two])
        for one, two in zip(mine, theirs, strict=True)
    }
    assert all(rank == other for (_, rank), other in actual.items())
    assert Counter(left[one] for one in mine) == Counter(left) & Counter(right)
    assert Counter(right[two] for two in theirs) == Counter(left) & Counter(right)


ROWS = st.lists(
    st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from(["a", "b", None]), st.lists(st.booleans(), max_size=1))
)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.list_(pa.bool_()))])


def rows(values: list[Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in values], SCHEMA)


def plain(values: list[Any]) -> list[Any]:
    return [freeze(list(row)) for row in values]


@pytest.mark.parametrize("key", [(), ("id",), ("id", "v")])
@given(before=ROWS, after=ROWS)
def test_matched_rows_are_the_difference_of_multisets(
    key: tuple[str, ...], before: list[Any], after: list[Any]
) -> None:
    actual = by_key(rows(before), rows(after), key)
    old, new = plain(before), plain(after)
    gone = Counter(old[row] for row in [*actual.deleted, *actual.before])
    come = Counter(new[row] for row in [*actual.inserted, *actual.after])
    assert gone == Counter(old) - Counter(new)
    assert come == Counter(new) - Counter(old)
    keys = [SCHEMA.get_field_index(name) for name in key]
    for one, two in zip(actual.before, actual.after, strict=True):
        assert [before[one][place] for place in keys] == [after[two][place] for place in keys]
        assert old[one] != new[two]
    left = {tuple(before[row][place] for place in keys) for row in actual.deleted}
    assert not key or not left & {tuple(after[row][place] for place in keys) for row in actual.inserted}
    assert len(actual.before) == 0 or key


@pytest.mark.parametrize("key", [("id",), ("id", "v")])
@given(before=ROWS, after=ROWS)
def test_matching_is_idempotent(key: tuple[str, ...], before: list[Any], after: list[Any]) -> None:
    """The changes of the changes are the changes."""
    removed, added = rows(before), rows(after)
    once = by_key(removed, added, key)
    gone = removed.take(pa.array(np.sort(np.concatenate([once.deleted, once.before]))))
    come = added.take(pa.array(np.sort(np.concatenate([once.inserted, once.after]))))
    twice = by_key(gone, come, key)
    for actual, images in ((once, (removed, added)), (twice, (gone, come))):
        assert len(actual.before) == len(actual.after)
        assert len(actual.deleted) + len(actual.before) == gone.num_rows, images
        assert len(actual.inserted) + len(actual.after) == come.num_rows
    assert (len(once.deleted), len(once.inserted)) == (len(twice.deleted), len(twice.inserted))
