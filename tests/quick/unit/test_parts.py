"""A version in several deliveries: whole scans, and the same cut after every restart."""

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles, pack
from cdfd.delta.types.datatypes import Primitive
from cdfd.delta.types.schema import StructField, StructType, TableSchema
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.scan import splits
from cdfd.scan.splits import ranges, ranges_of_one_schema

SCHEMA = TableSchema(StructType(()))


def plan(*sizes: int) -> ChangePlan:
    return ChangePlan(1, 1, SCHEMA, tuple(FileScan("a", "insert", {}, size) for size in sizes), "files")


def plan_splits(sizes: list[int], limit: int, first: int = 0) -> list[tuple[int, int]]:
    return list(ranges(plan(*sizes), first, limit))


def test_scans_are_cut_at_the_limit_and_never_inside() -> None:
    assert plan_splits([1, 2, 3], 10) == [(0, 3)]
    assert plan_splits([5, 5, 5], 10) == [(0, 2), (2, 3)]
    assert plan_splits([50, 1, 50], 10) == [(0, 1), (1, 2), (2, 3)], "a scan is never cut"
    assert plan_splits([1, 50], 10) == [(0, 1), (1, 2)]
    assert plan_splits([0, 0, 0], 0) == [(0, 3)]


def test_many_rows_of_few_bytes_are_cut_too() -> None:
    """A transaction of 20 million such rows has taken longer than the broker allows."""
    scans = tuple(FileScan("a", "insert", {}, 10, num_records=2_000_000) for _ in range(10))
    cut = list(ranges(ChangePlan(1, 1, SCHEMA, scans, "files"), 0, 128 << 20))
    assert cut == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]


def test_a_version_without_scans_is_delivered_too() -> None:
    assert plan_splits([], 10) == [(0, 0)]


def test_a_version_of_which_all_is_delivered() -> None:
    assert plan_splits([1, 2], 10, first=2) == [(2, 2)]


def test_rows_of_an_earlier_schema_are_a_range_of_their_own() -> None:
    earlier = TableSchema(StructType((StructField("a", Primitive("long"), True, {}),)))
    deleted = FileScan("a", "delete", {}, 1, schema=earlier)
    version = ChangePlan(1, 1, SCHEMA, (deleted, deleted, deleted, *plan(1, 1).scans), "files")
    assert list(ranges_of_one_schema(version, 0, 10)) == [(0, 3), (3, 5)]
    assert list(ranges_of_one_schema(version, 0, 2)) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert list(ranges_of_one_schema(version, 3, 10)) == [(3, 5)]


def test_of_a_first_snapshot() -> None:
    adds = pack([Add(name, {}, 6, 1, True) for name in "abc"])
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([adds])))
    assert list(ranges(ChangePlan(1, 1, SCHEMA, scans, "snapshot"), 1, 10)) == [(1, 2), (2, 3)]


def one_by_one(plan: ChangePlan, first: int, limit: int) -> Iterator[tuple[int, int]]:
    start, size = first, 0
    for index, scan in enumerate(plan.scans[first:], first):
        weight = max(scan.share, splits.ROW_BYTES * (scan.num_records or 0))
        if index > start and size + weight > limit:
            yield start, index
            start, size = index, 0
        size += weight
    yield start, len(plan.scans)


SIZES = st.one_of(st.integers(0, 20), st.sampled_from([0, 150, 1 << 30, 1 << 41, (1 << 63) - 1]))


@given(
    st.lists(st.tuples(SIZES, st.one_of(st.none(), st.integers(0, 3), st.just(1 << 40))), max_size=30),
    st.one_of(st.integers(0, 40), st.sampled_from([200, 1 << 31])),
    st.integers(0, 5),
    st.integers(1, 8),
)
def test_the_same_as_scan_by_scan(
    files: list[tuple[int, int | None]], limit: int, first: int, scans_at_once: int
) -> None:
    """Whether the scans are values or columns, and however many are weighed at once."""
    adds = [
        Add(f"{number:02}", {}, size, 1, True, None if count is None else f'{{"numRecords":{count}}}')
        for number, (size, count) in enumerate(files)
    ]
    half = len(adds) // 2
    live = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack(adds[:half]), pack(adds[half:])])))
    first = min(first, len(files))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "_SCANS_AT_ONCE", scans_at_once)
        for scans in (tuple(live), live):
            version = ChangePlan(1, 1, SCHEMA, scans, "snapshot")
            assert list(ranges(version, first, limit)) == list(one_by_one(version, first, limit))


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(0, 40))
def test_all_of_it_once_within_the_limit_and_the_same_after_a_restart(sizes: list[int], limit: int) -> None:
    ranges = plan_splits(sizes, limit)
    assert [index for start, end in ranges for index in range(start, end)] == list(range(len(sizes)))
    for start, end in ranges:
        assert end - start <= 1 or sum(sizes[start:end]) <= limit
        assert plan_splits(sizes, limit, start) == ranges[ranges.index((start, end)) :]
    for (start, end), (_, then) in itertools.pairwise(ranges):
        assert sum(sizes[start : end + 1]) > limit, (start, end, then, "as few deliveries as there can be")
