"""Splits of a version: together they are the version, wherever it is cut and wherever each of them is read."""

import asyncio
import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfd.deliver import splits as deliver_splits
from cdfd.deliver.path_ranges import PathRange, PathRanges
from cdfd.deliver.splits import RangeSplit, measure, range_splits, read_splits
from cdfd.delta.actions import Add, DeletionVectorDescriptor, Metadata, Protocol
from cdfd.delta.commit import Commit
from cdfd.delta.deletion_vector import RowSet, inline
from cdfd.delta.files import FILES, TEXT, PackedFiles, pack
from cdfd.delta.snapshot import first
from cdfd.delta.types.schema import Primitive, StructField, StructType, TableSchema, serialize
from cdfd.errors import DataError, MissingFileError
from cdfd.log.listing import Listing, LiveListing
from cdfd.model.batch import ChangeBatch
from cdfd.model.file_scan import Bucket, ChangeType, FileScan
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import Position
from cdfd.scan.execute import Execution
from cdfd.scan.image_order import ImageCounts
from cdfd.scan.splits import FILE_BYTES, Split, digest, place_splits, plan_splits
from cdfd.scan.table_files import TableFiles
from tests.standard.unit.test_change_images import Lot, blocks, lot, versions
from tests.support.memory_storage import MemoryStorage

SCHEMA = TableSchema(StructType((StructField("n", Primitive("long")),)))
WHOLE = 1 << 40


class Row(NamedTuple):
    ordinal: int
    values: tuple[Any, ...]


def rows(batches: Iterator[ChangeBatch]) -> list[Row]:
    listing = []
    for batch in batches:
        for row in batch.rows.to_pylist():
            listing.append(Row(row.pop("_change_ordinal"), tuple(row.values())))
    return listing


def in_slices(plan: ChangePlan, limit: int, execution: Execution, **options: Any) -> list[Row]:
    """The rows of all splits, each of which is pickled first. Also checks the place that each split states."""
    splits = plan_splits(plan, limit, **options)
    if any(not each.is_placed for each in splits):
        splits = place_splits(plan, splits, [measure(carried(each), execution) for each in splits])
    collected: list[Row] = []
    for each in splits:
        some = rows(read_splits([carried(each)], execution))
        assert each.ordinal is not None
        if each.following is not None:
            assert all(each.ordinal <= row.ordinal < each.following for row in some)
            assert each.rows == len(some)
        collected += some
    return collected


def carried(part: Split) -> Split:
    again: Split = pickle.loads(pickle.dumps(part))
    assert again == part
    return again


def execution_of(storage: MemoryStorage, **options: Any) -> Execution:
    return Execution(TableFiles(storage, lambda root: storage), workers=1, **options)


LIMITS = st.sampled_from([0, 1, FILE_BYTES * 2, FILE_BYTES * 3, WHOLE])


class TestChangeDataFiles:
    @settings(deadline=None, max_examples=60)
    @given(versions() | blocks(), LIMITS, st.sampled_from([1, 4]))
    def test_the_rows_of_the_version(self, made: tuple[Lot, set[int]], limit: int, batch_rows: int) -> None:
        lot, _ = made
        execution, plan = execution_of(lot.storage(), batch_rows=batch_rows), lot.plan()
        assert in_slices(plan, limit, execution) == rows(execution.batches([plan]))

    @settings(deadline=None, max_examples=60)
    @given(versions() | blocks(), LIMITS, st.data())
    def test_of_a_part_of_it(self, made: tuple[Lot, set[int]], limit: int, data: st.DataObject) -> None:
        lot, _ = made
        execution, plan = execution_of(lot.storage()), lot.plan()
        first = data.draw(st.integers(0, len(plan.scans)))
        end = data.draw(st.integers(first, len(plan.scans)))
        start = Position("t", plan.version, first, ordinal=7)
        wanted = rows(execution.batches([replace(plan, scans=plan.scans[:end])], start))
        assert in_slices(plan, limit, execution, start=start, end=end) == wanted

    @settings(deadline=None, max_examples=60)
    @given(versions() | blocks(), LIMITS)
    def test_change_data_files_are_read_once_if_order_is_not_needed(
        self, made: tuple[Lot, set[int]], limit: int
    ) -> None:
        """Without ordinals, each file is read once and in its own order."""
        lot, _ = made
        execution, plan = execution_of(lot.storage()), lot.plan()
        splits = plan_splits(plan, limit, ordered=False)
        actual = [row for each in splits for row in rows(read_splits([carried(each)], execution))]
        assert sorted(row.values for row in actual) == sorted(row.values for row in rows(execution.batches([plan])))
        paths = [(scan.path, scan.piece) for each in splits for scan in each.plan.scans]
        assert len(paths) == len(set(paths))

    def test_unplaced_they_find_out_for_themselves_what_is_a_pair(self) -> None:
        swapped = lot("<1>2", ">1<2", partitions=[0, 1])
        splits = plan_splits(swapped.plan(), 0)
        kinds = [
            row.values[-3] for each in splits for row in rows(read_splits([each], execution_of(swapped.storage())))
        ]
        assert kinds == ["update_preimage"] * 2 + ["update_postimage"] * 2

    @pytest.mark.parametrize(
        ("files", "partitions", "start"),
        [(("<1>1<2>2", "<3"), [0, 0], None), (("<1>2", ">1<2", "<3>3"), [0, 1, 0], Position("t", 1, 2, ordinal=7))],
        ids=["a lone image of a file", "updates between partitions before the part"],
    )
    def test_other_files_decide_about_pairs_only_if_rows_may_move(
        self, files: tuple[str, ...], partitions: list[int], start: Position | None
    ) -> None:
        several = lot(*files, partitions=partitions)
        execution, plan = execution_of(several.storage()), several.plan()
        assert in_slices(plan, 0, execution, start=start) == rows(execution.batches([plan], start))

    def test_each_file_is_looked_at_once(self) -> None:
        splits = plan_splits(lot("<1>2", "i3", "d4").plan(), FILE_BYTES * 2)
        assert sorted(scan.path for each in splits for scan in each.looks) == ["f0", "f1", "f2"]


class Made(NamedTuple):
    plan: ChangePlan
    storage: MemoryStorage


@st.composite
def plans(draw: st.DrawFn) -> Made:
    """Data files of several row groups, with and without deletion vectors, as a commit or as a first snapshot."""
    storage = MemoryStorage("memory://t")
    counts = draw(st.lists(st.integers(0, 20), max_size=5))
    snapshot = draw(st.booleans())
    scans = list[FileScan]()
    for number, count in enumerate(counts):
        group = draw(st.integers(1, 8))
        buffer = io.BytesIO()
        pq.write_table(
            pa.table({"n": pa.array(range(100 * number, 100 * number + count), pa.int64())}),
            buffer,
            row_group_size=group,
        )
        asyncio.run(storage.put(f"f{number}", buffer.getvalue()))
        size = draw(st.sampled_from([0, len(buffer.getvalue())]))
        only = None if snapshot else draw(vectors(count))
        kind: ChangeType = "insert" if snapshot else draw(st.sampled_from(["insert", "delete"]))
        scans.append(FileScan(f"f{number}", kind, {}, size, only=only, without=draw(vectors(count))))
    if not snapshot:
        return Made(ChangePlan(3, 9, SCHEMA, tuple(scans), "files"), storage)
    # The log counts all rows of a file, including those that a vector hides.
    noted = [f'{{"numRecords":{count}}}' if draw(st.booleans()) else None for count in counts]
    adds = [Add(scan.path, {}, scan.size, 0, True, text, scan.without) for scan, text in zip(scans, noted, strict=True)]
    files = PackedFiles(Add, pa.Table.from_batches([pack(adds)]))
    return Made(ChangePlan(3, 9, SCHEMA, LiveScans(files), "snapshot"), storage)


def vectors(count: int) -> st.SearchStrategy[DeletionVectorDescriptor | None]:
    chosen = st.sets(st.integers(0, count - 1)) if count else st.just(set[int]())
    return st.none() | chosen.map(lambda rows: inline(RowSet.of(rows)))


class TestDataFiles:
    @settings(deadline=None, max_examples=60)
    @given(plans(), st.sampled_from([100, 300, FILE_BYTES * 2, WHOLE]), st.sampled_from([1, 3, 100]))
    def test_the_rows_of_the_version(self, made: Made, limit: int, batch_rows: int) -> None:
        execution = execution_of(made.storage, batch_rows=batch_rows)
        assert in_slices(made.plan, limit, execution) == rows(execution.batches([made.plan]))

    def test_a_file_without_rows_that_count(self) -> None:
        execution = table({"a": []})
        assert in_slices(of("a"), 1, execution) == []


def table(files: dict[str, Sequence[int]], group: int = 2, **options: Any) -> Execution:
    storage = MemoryStorage("memory://t")
    for path, numbers in files.items():
        buffer = io.BytesIO()
        pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), buffer, row_group_size=group)
        asyncio.run(storage.put(path, buffer.getvalue()))
    return execution_of(storage, **options)


def of(*paths: str, size: int = 1000) -> ChangePlan:
    return ChangePlan(3, 9, SCHEMA, tuple(FileScan(path, "insert", {}, size) for path in paths), "files")


class TestCut:
    def shares(self, *sizes: int, limit: int) -> list[list[str]]:
        scans = tuple(FileScan(str(number), "insert", {}, size) for number, size in enumerate(sizes))
        splits = plan_splits(ChangePlan(3, 9, SCHEMA, scans, "files"), limit)
        return [
            [scan.path + (f"/{scan.piece[0]}of{scan.piece[1]}" if scan.piece else "") for scan in each.plan.scans]
            for each in splits
        ]

    def test_scans_are_cut_by_their_size(self) -> None:
        mib = 1 << 20
        assert self.shares(mib, mib, mib, limit=3 * mib) == [["0", "1"], ["2"]]
        assert self.shares(mib, 5 * mib, mib, limit=3 * mib) == [["0"], ["1/0of2"], ["1/1of2"], ["2"]]
        assert self.shares(mib, mib, limit=WHOLE) == [["0", "1"]]
        assert self.shares(mib, mib, limit=2 * (mib + FILE_BYTES)) == [["0", "1"]]
        assert self.shares(mib, mib, limit=2 * (mib + FILE_BYTES) - 1) == [["0"], ["1"]]
        assert self.shares(limit=mib) == []

    def test_a_part_of_a_version_has_slices_of_its_scans_alone(self) -> None:
        plan = of("a", "b", "c", "d", "e")
        splits = plan_splits(plan, FILE_BYTES, start=Position("T", 3, 1, ordinal=7), end=3)
        assert [[scan.path for scan in each.plan.scans] for each in splits] == [["b"], ["c"]]
        assert [(each.part, each.ordinal) for each in splits] == [(1, 7), (2, None)]
        assert [each.part for each in plan_splits(plan, FILE_BYTES, start=Position("T", 3, 3), end=9)] == [3, 4]

    def test_first_slice_of_a_part_alone_looks_at_the_files_that_decide_about_pairs(self) -> None:
        scans = tuple(FileScan(path, None, {}, 1000) for path in ("a", "b", "c", "d"))
        plan = replace(of(), scans=scans, origin="cdc", cross_partition=scans)
        first, second = plan_splits(plan, 1, start=Position("T", 3, 2))
        assert [scan.path for scan in first.looks] == ["c", "a", "b", "d"]
        assert second.looks == ()
        assert [[scan.path for scan in each.looks] for each in plan_splits(plan, 1)] == [["a"], ["b"], ["c"], ["d"]]

    def test_each_bucket_of_a_refined_version_is_a_slice(self) -> None:
        scans = tuple(FileScan("a", None, {}, 0, bucket=Bucket(number, 4, 100 * number)) for number in range(4))
        actual = [(each.part, each.ordinal, each.looks) for each in plan_splits(replace(of(), scans=scans), FILE_BYTES)]
        assert actual == [(0, 0, ()), (1, 100, ()), (2, 200, ()), (3, 300, ())]
        several = plan_splits(replace(of(), scans=scans), 2 * FILE_BYTES)
        assert [(each.part, each.ordinal) for each in several] == [(0, 0), (2, 200)]
        later = plan_splits(replace(of(), scans=scans), FILE_BYTES, start=Position("T", 3, 1, ordinal=150))
        assert [(each.part, each.ordinal) for each in later] == [(1, 150), (2, 200), (3, 300)]

    def test_digest_of_a_cut_stays_the_same(self) -> None:
        """Jobs store it, so that jobs of an earlier release can resume."""
        assert digest(plan_splits(of("a", "b", "c"), FILE_BYTES)) == "dc9fb805dddfc42c"
        files = PathRange(Listing(3, (), False, False), "a", None, (), PackedFiles(Add, FILES.empty_table()), 2)
        ranges = [RangeSplit(of(), 0, 0, 5, files=files, bytes=2000)]
        assert deliver_splits.digest(ranges) == "paths-f4e79e5477b23976"
        assert deliver_splits.digest(plan_splits(of("a", "b", "c"), FILE_BYTES)) == "dc9fb805dddfc42c"

    @pytest.mark.parametrize(
        ("counts", "expected"),
        [
            (None, [(0, 2, 100, None, None), (2, 3, 300, None, None)]),
            ([10, 0, 5], [(0, 2, 100, 0, 10), (2, 3, 300, 10, 15)]),
        ],
    )
    def test_ranges_of_paths_follow_each_other(
        self, counts: list[int] | None, expected: list[tuple[int | None, ...]]
    ) -> None:
        state = first(Commit(0, protocol=Protocol(1, 2), metadata=Metadata("T", serialize(SCHEMA.struct), (), {})))
        live = LiveListing(Listing(0, (), False, False), pa.array([], TEXT), state)
        files, sizes = np.array([2, 0, 3]), np.array([100, 0, 300])
        counted = None if counts is None else np.array(counts)
        ranges = PathRanges(live, FILES.empty_table(), pa.array(["b", "c"]), files, sizes, counted)
        splits = range_splits(ranges, of(), FILE_BYTES)
        assert [(each.part, each.count, each.bytes, each.ordinal, each.following) for each in splits] == expected

    def test_files_of_unknown_size_weigh_something(self) -> None:
        assert self.shares(0, 0, 0, limit=2 * FILE_BYTES) == [["0", "1"], ["2"]]

    def test_several_versions_are_read_one_after_the_other(self) -> None:
        execution = table({"a": range(5), "b": range(3)}, group=1)
        first, second = of("a", "b", "a"), replace(of("b", "a"), version=4)
        splits = [*plan_splits(first, 1), *plan_splits(second, WHOLE)]
        sized = [measure(each, execution) for each in splits]
        splits = [*place_splits(first, splits[:-1], sized[:-1]), splits[-1]]
        assert rows(read_splits(splits, execution)) == rows(execution.batches([first, second]))

    def test_splits_that_begin_within_a_version_keep_their_ordinals(self) -> None:
        execution = table({"a": [1], "b": [2, 3], "e": []})
        first, second, third = (replace(of(*paths), version=n) for n, paths in enumerate(["ab", "ab", "eb"], 3))
        splits = {}
        for plan in (first, second, third):
            parts = plan_splits(plan, FILE_BYTES)
            splits[plan.version] = place_splits(plan, parts, [measure(each, execution) for each in parts])
        (_, first_b), (_, second_b), third_parts = splits.values()
        for several in ([first_b, second_b], [first_b, *splits[4]], [first_b, *third_parts], [second_b, *third_parts]):
            alone = [row for each in several for row in rows(read_splits([each], execution))]
            assert rows(read_splits(several, execution)) == alone
        assert [row.ordinal for row in rows(read_splits([first_b, *splits[4]], execution))] == [1, 2, 0, 1, 2]

    def test_shares_of_pieces_add_up(self) -> None:
        (scan,) = of("a", size=1001).scans
        assert sum(replace(scan, piece=(number, 3)).share for number in range(3)) == 1001

    def test_a_file_in_pieces_by_row_groups(self) -> None:
        execution = table({"a": range(10)}, group=3)
        splits = plan_splits(of("a"), 250)
        assert [len(rows(read_splits([each], execution))) for each in splits] == [3, 3, 3, 1]
        assert [each.part for each in splits] == [0, 0, 0, 0]

    def test_sizes_that_no_file_has(self) -> None:
        """They come from the log: they do not make a billion splits, nor sums that wrap around."""
        assert len(self.shares(2**62, 2**62, 2**62, 1, limit=1)) < 10_000

    def test_one_slice_needs_no_measuring(self) -> None:
        (one,) = plan_splits(of("a", "b"), WHOLE)
        assert one.is_placed
        assert not any(each.is_placed for each in plan_splits(of("a", "b", "c"), 1)[1:])

    def test_digest_tells_cuts_with_other_files_at_either_end_apart(self) -> None:
        cuts = [of("a", "b", "c"), of("x", "b", "c"), of("a", "b", "x"), of("a", "b", "c", "d")]
        assert len({digest(plan_splits(plan, WHOLE)) for plan in cuts}) == 4

    def test_a_slice_of_many_files_is_small(self) -> None:
        adds = [Add(f"part-{number:05}", {}, 1 << 20, 0, True) for number in range(5000)]
        files = PackedFiles(Add, pa.Table.from_batches([pack(adds)]))
        splits = plan_splits(ChangePlan(3, 9, SCHEMA, LiveScans(files), "snapshot"), 64 << 20)
        assert sum(len(each.plan.scans) for each in splits) == 5000
        assert max(len(pickle.dumps(each)) for each in splits) < 20_000


def noted(*counts: int) -> ChangePlan:
    """A first snapshot of which the log says how many rows each file has."""
    adds = [
        Add(f"f{place}", {}, 1000, 0, True, f'{{"numRecords":{count}}}', inline(RowSet.of({0})))
        for place, count in enumerate(counts)
    ]
    files = PackedFiles(Add, pa.Table.from_batches([pack(adds)]))
    return ChangePlan(3, 9, SCHEMA, LiveScans(files), "snapshot")


class TestNotedRows:
    def test_files_are_not_looked_into(self) -> None:
        gone = table({})
        splits = plan_splits(noted(4, 3), FILE_BYTES)
        assert [measure(each, gone).rows for each in splits] == [3, 2]

    def test_a_file_of_other_rows_than_noted_is_refused(self) -> None:
        execution = table({"f0": range(4), "f1": range(3)})
        plan = noted(4, 5)
        splits = plan_splits(plan, FILE_BYTES)
        first, second = place_splits(plan, splits, [measure(each, execution) for each in splits])
        assert len(rows(read_splits([first], execution))) == 3
        with pytest.raises(DataError, match="the file has 3 rows, and the log says 5") as caught:
            rows(read_splits([second], execution))
        assert (caught.value.table, caught.value.version) == ("memory://t", 3)

    def test_a_file_of_other_rows_than_measured_is_refused(self) -> None:
        plan = of("f0", "f1")
        splits = plan_splits(plan, FILE_BYTES)
        measured = [measure(each, table({"f0": range(4), "f1": range(5)})) for each in splits]
        _, second = place_splits(plan, splits, measured)
        with pytest.raises(DataError, match=r"rows up to number 7 were read, but .* promise 9") as caught:
            rows(read_splits([second], table({"f0": range(4), "f1": range(3)})))
        assert (caught.value.table, caught.value.version) == ("memory://t", 3)


class TestErrors:
    def test_a_file_that_is_gone_is_named(self) -> None:
        for work in (measure, lambda split, execution: list(read_splits([split], execution))):
            with pytest.raises(MissingFileError) as caught:
                work(plan_splits(of("gone"), WHOLE)[0], table({}))
            error = caught.value
            assert (error.table, error.version, error.path) == ("memory://t", 3, "gone")

    def test_a_file_that_is_gone_is_left_out_if_that_is_allowed(self) -> None:
        told: list[MissingFileError] = []
        execution = table({"a": [1], "b": [2, 3]}, on_missing=told.append)
        actual = in_slices(of("a", "gone", "b"), 1, execution)
        assert [row.ordinal for row in actual] == [0, 1, 2]
        assert {error.path for error in told} == {"gone"}

    def test_change_data_file_that_is_gone_has_no_images(self) -> None:
        told: list[MissingFileError] = []
        plan = replace(of(), scans=(FileScan("gone", None, {}, 1000),), origin="cdc")
        measured = measure(plan_splits(plan, WHOLE)[0], table({}, on_missing=told.append))
        assert measured.images == {"gone": ImageCounts(0, 0, 0, moved=0)}
        assert (measured.rows, len(told)) == (0, 1)

    def test_damaged_file_is_named(self) -> None:
        execution = table({})
        asyncio.run(execution.files.storage.put("a", b"PAR1"))
        with pytest.raises(DataError) as caught:
            measure(plan_splits(of("a"), 1)[0], execution)
        error = caught.value
        assert (error.table, error.version, error.path) == ("memory://t", 3, "a")
