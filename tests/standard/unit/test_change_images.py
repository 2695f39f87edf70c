"""The order of images: a consumer that keeps the last change of each key has the table's rows, in whichever files the images are."""

import asyncio
import io
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfd.deliver.splits import measure, read_splits
from cdfd.delta import commit as commits
from cdfd.delta.actions import Metadata, Protocol
from cdfd.delta.header import PartialHeader
from cdfd.delta.roaring import RowSet
from cdfd.errors import DataError, MissingFileError
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.plan.planner import plan
from cdfd.plan.refining import with_images_paired
from cdfd.plan.row_options import RowOptions
from cdfd.plan.shape.shape import Shape
from cdfd.scan import execute
from cdfd.scan import image_order as ordering
from cdfd.scan.execute import Execution
from cdfd.scan.image_order import ImageOrder, MemoryBudget, ReorderBuffer, codes_of
from cdfd.scan.splits import place_splits, plan_splits
from cdfd.scan.table_files import TableFiles
from tests.support.memory_storage import MemoryStorage
from tests.support.sampling import stride

KINDS = {"i": "insert", "<": "update_preimage", ">": "update_postimage", "d": "delete"}


class Image(NamedTuple):
    kind: str
    id: int
    """Of the row, which is its key."""


class Numbered(NamedTuple):
    ordinal: int
    kind: str
    id: int


def column(text: str) -> pa.Array:
    return pa.array([KINDS[letter] for letter in text], pa.string())


def image_order(text: str, *cuts: int, **options: Any) -> ImageOrder:
    pieces = [column(text[start:stop]) for start, stop in itertools.pairwise([0, *cuts, len(text)])]
    return ImageOrder.of(lambda: codes_of(pieces), **options)


class TestImageOrder:
    @pytest.mark.parametrize(
        ("text", "late", "in_order", "starts_with_post"),
        [
            ("", [], True, False),
            ("<><>", [], True, False),
            ("d<>d", [], True, False),
            ("<>dii", [3, 4], True, False),
            ("i<>di", [0, 4], False, False),
            (">><<", [0, 1], False, True),
            ("<<>>", [2, 3], True, True),
            # Two lone images are next to each other; that one is by itself says so.
            ("<>><", [1, 2], False, True),
            ("<<>", [2], True, True),
            ("i>", [0, 1], True, False),
        ],
    )
    def test_examples(self, text: str, late: list[int], in_order: bool, starts_with_post: bool) -> None:
        for place in range(len(text) + 1):
            actual = image_order(text, place)
            assert (list(actual.late.bitmap), actual.in_order, actual.late_starts_with_post) == (
                late,
                in_order,
                starts_with_post,
            )

    def test_images_that_look_like_pairs_and_are_none(self) -> None:
        assert list(image_order("<><>", pairs=False).late.bitmap) == [1, 3]

    def test_a_type_that_is_none(self) -> None:
        with pytest.raises(DataError, match="upsert"):
            ImageOrder.of(lambda: codes_of([pa.array(["upsert"])]))

    def test_early_writers_spellings(self) -> None:
        assert ImageOrder.of(lambda: codes_of([pa.array(["update_pre", "update_post"])])).paired


class Lot(NamedTuple):
    """A version's change data files: path, partition, images."""

    files: Sequence[tuple[str, int, Sequence[Image]]]

    def storage(self, group: int = 3) -> MemoryStorage:
        storage = MemoryStorage("memory://t")
        for path, _, rows in self.files:
            buffer = io.BytesIO()
            columns = {
                "id": pa.array([row.id for row in rows], pa.int64()),
                "_change_type": column("".join(r.kind for r in rows)),
            }
            pq.write_table(pa.table(columns), buffer, row_group_size=group)
            asyncio.run(storage.put(path, buffer.getvalue()))
        return storage

    def plan(self) -> ChangePlan:
        return _planned([(path, partition) for path, partition, _ in self.files])


def _planned(files: Sequence[tuple[str, int]]) -> ChangePlan:
    actions = [
        {"cdc": {"path": path, "partitionValues": {"p": str(partition)}, "size": 0, "dataChange": False}}
        for path, partition in files
    ]
    fields: list[dict[str, object]] = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", "p")
    ]
    metadata = Metadata("T", json.dumps({"type": "struct", "fields": fields}), ("p",), {})
    header = PartialHeader(1, Protocol(1, 2), metadata).finish()
    return plan(commits.parse(1, b"\n".join(json.dumps(action).encode() for action in actions)), header, 7)


def delivered(
    lot: Lot,
    start: Position | None = None,
    end: int | None = None,
    key: tuple[str, ...] = (),
    large: bool = True,
    remote: bool = False,
    **options: Any,
) -> list[Numbered]:
    """The change rows; with a key, as those of files that are too large to be paired by it, or not."""
    made = lot.plan()
    made = replace(made, scans=made.scans[:end], key=key)
    made = made if large else with_images_paired(made)
    options = {"workers": 1, "batch_rows": 4} | options
    storage = lot.storage()
    storage.remote = remote
    execution = Execution(TableFiles(storage, MemoryStorage), **options)
    letters = {kind: letter for letter, kind in KINDS.items()}
    rows: list[Numbered] = []
    following = 0 if start is None else start.ordinal
    for batch in execution.batches([made], start):
        # The last rows of a version may be left out.
        assert batch.rows.num_rows or execution.rows.drop_unchanged
        for row in batch.rows.to_pylist():
            rows.append(Numbered(row["_change_ordinal"], letters[row["_change_type"]], row["id"]))
        assert execution.rows.drop_unchanged or rows[-1].ordinal + 1 == batch.following
        assert following <= batch.following - batch.rows.num_rows
        following = batch.following
    return rows


def brief(rows: Iterable[Numbered]) -> str:
    """Kinds and ids in order, with a blank where a number is left out."""
    text, following = "", 0
    for row in rows:
        text += " " * (row.ordinal - following) + f"{row.kind}{row.id}"
        following = row.ordinal + 1
    return text


def lot(*files: str, partitions: Sequence[int] = ()) -> Lot:
    """Files of images like `<1>1i2`."""
    parsed = [[Image(kind, int(number)) for kind, number in zip(text[::2], text[1::2], strict=True)] for text in files]
    return Lot([(f"f{at}", partitions[at] if partitions else 0, rows) for at, rows in enumerate(parsed)])


class TestOrder:
    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            (["<1>1<2>2"], "<1>1<2>2"),
            (["<1>1d2i3"], "<1>1d2i3"),
            (["i1<2>2d1"], "<2>2d1i1"),
            # As delta-rs writes an update: two blocks, the images that meet are of two rows.
            (["<1<2>1>2"], "<1<2 >1>2"),
            ([">1>2<1<2"], "<1<2 >1>2"),
            ([">1<1"], "<1 >1"),
            # Over files: a part that is overwritten.
            (["i1i2", "d1d2"], "d1d2i1i2"),
            (["<1>1", "<2>2"], "<1>1<2>2"),
            (["<1>1i5", "d3"], "<1>1d3i5"),
            (["", "i1"], "i1"),
        ],
    )
    @pytest.mark.parametrize("workers", [1, 3])
    @pytest.mark.parametrize("held", [0, ordering.REORDER_BUFFER_BYTES])
    def test_examples(
        self, files: list[str], expected: str, workers: int, held: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(execute, "REORDER_BUFFER_BYTES", held)
        assert brief(delivered(lot(*files), workers=workers)) == expected

    @pytest.mark.parametrize("workers", [1, 3])
    def test_a_row_that_moves_to_another_partition(self, workers: int) -> None:
        moved = lot(">1", "<1", partitions=[0, 1])
        assert brief(delivered(moved, workers=workers)) == "<1 >1"

    def test_two_rows_that_change_places(self) -> None:
        """In the first file, images of two rows look like a pair."""
        swapped = lot("<1>2", ">1<2", partitions=[0, 1])
        assert brief(delivered(swapped)) == "<1<2 >2 >1"

    def test_updates_in_partitions_stay_pairs(self) -> None:
        assert brief(delivered(lot("<1>1i4", "<2>2", partitions=[0, 1]))) == "<1>1<2>2i4"

    def test_a_file_that_is_gone_is_told_once(self) -> None:
        class Gone(Lot):
            def storage(self, group: int = 3) -> MemoryStorage:
                return Lot(self.files[1:]).storage(group)

        for workers in (1, 3):
            told: list[MissingFileError] = []
            actual = delivered(
                Gone(lot("i1", "i2d3", partitions=[0, 1]).files), on_missing=told.append, workers=workers
            )
            assert brief(actual) == "d3i2"
            assert [error.path for error in told] == ["f0"]

    def test_damage_is_told_where_it_is(self) -> None:
        class Damaged(Lot):
            def storage(self, group: int = 3) -> MemoryStorage:
                storage = Lot(self.files[:1]).storage(group)
                asyncio.run(storage.put("f1", b"PAR1"))
                return storage

        with pytest.raises(DataError) as caught:
            delivered(Damaged(lot("i1", "i2", partitions=[0, 1]).files))
        assert caught.value.path == "f1"


CHANGES = st.lists(st.sampled_from(["insert", "delete", "update", "move", "replace"]), max_size=14)


@st.composite
def versions(draw: st.DrawFn) -> tuple[Lot, set[int]]:
    """Changes of rows with the keys 0, 1, ..., written as Spark does: a pair at once, and each image into the file of its partition."""
    partitions = draw(st.sampled_from([[0], [0, 0], [0, 1], [0, 1, 2, 1]]))
    files: list[list[Image]] = [[] for _ in partitions]
    place = st.integers(0, len(partitions) - 1)
    moves = len(set(partitions)) > 1
    live, spread = set(), list[tuple[int, Image]]()
    for key, change in enumerate(draw(CHANGES)):
        if change != "delete":
            live.add(key)
        home = draw(place)
        there = draw(place) if change == "move" and moves else home
        if change in ("update", "move"):
            spread += [(home, Image("<", key)), (there, Image(">", key))]
        if change in ("delete", "replace"):
            spread.append((draw(place), Image("d", key)))
        if change in ("insert", "replace"):
            at = draw(st.integers(0, len(spread)))
            # Not between two images that were written together.
            at += at < len(spread) and spread[at][1].kind == ">"
            spread.insert(at, (draw(place), Image("i", key)))
    for at, image in spread:
        files[at].append(image)
    return Lot([(f"f{at}", partitions[at], rows) for at, rows in enumerate(files)]), live


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Lot, set[int]]:
    """As delta-rs does: pre-images and post-images of each file in blocks."""
    count = draw(st.integers(2, 9))
    kinds = draw(st.permutations("<>"))
    rows = [Image(kind, key) for kind in kinds for key in draw(st.permutations(range(count)))]
    plan_splits = draw(st.integers(0, len(rows)))
    files = [rows] if draw(st.booleans()) else [rows[:plan_splits], rows[plan_splits:]]
    return Lot([(f"f{at}", 0, listed) for at, listed in enumerate(files)]), set(range(count))


@settings(max_examples=100 // stride(4), deadline=None)
@given(versions() | blocks(), st.sampled_from([1, 3]))
def test_the_last_change_of_each_key_is_the_right_one(made: tuple[Lot, set[int]], workers: int) -> None:
    written, live = made
    rows = delivered(written, workers=workers)
    assert sorted((row.kind, row.id) for row in rows) == sorted(row for _, _, rows in written.files for row in rows)
    last = {row.id: row.kind for row in rows}
    assert {key for key, kind in last.items() if kind in "i>"} == live
    # Adjacent images with consecutive ordinals are a pair of one row.
    for row, after in itertools.pairwise(rows):
        if (row.kind, after.kind, after.ordinal) == ("<", ">", row.ordinal + 1):
            assert row.id == after.id


@settings(max_examples=100 // stride(4), deadline=None)
@given(versions() | blocks())
def test_begun_again_at_any_part_it_is_the_same(made: tuple[Lot, set[int]]) -> None:
    written, _ = made
    whole = delivered(written)
    parts = len(written.plan().scans)
    actual: list[Numbered] = []
    for part in range(parts):
        start = Position("T", 1, part, ordinal=actual[-1].ordinal + 1 if actual else 0)
        assert delivered(written, start) == whole[len(actual) :]
        actual += delivered(written, start, part + 1)
    assert actual == whole


def folded(rows: Sequence[Numbered]) -> set[int]:
    """The keys of a consumer that keeps the last change of each key, and applies a changed key as a delete and an insert."""
    live: set[int] = set()
    for row in rows:
        if row.kind in "i>":
            live.add(row.id)
        else:
            live.discard(row.id)
    return live


class TestKeys:
    """With a key, a consumer that keeps the last change of each key is right even if rows move from key to key."""

    @pytest.mark.parametrize(
        ("files", "large", "small"),
        [
            (["<1>1<2>2"], "<1>1<2>2", "<1>1<2>2"),
            (["d1<2>2i1"], "d1<2>2i1", "d1<2>2i1"),
            (["<1>9"], "d1 i9", "<1>9"),
            (["<2>2<1>9i5"], "<2>2d1 i9i5", "<1>9<2>2i5"),
            (["d9<1>9"], "d9d1 i9", "d9<1>9"),
            # A chain, and two rows that change places.
            (["<1>2<2>3"], "d1d2 i2i3", "d1<2>2i3"),
            (["<1>2<2>1"], "d1d2 i2i1", "<1>1<2>2"),
            (["<2>3", "<1>2<5>5"], "d2d1<5>5 i3 i2", "<2>2d1<5>5i3"),
            # Blocks, in one file and in two.
            (["<1<2>1>2"], "d1d2 i1i2", "<1>1<2>2"),
            ([">2>1<1<2"], "d1d2 i2i1", "<1>1<2>2"),
            ([">1>2", "<2<1"], "d2d1 i1i2", "<2>2<1>1"),
            (["<1<2>1>3"], "d1d2 i1i3", "<1>1d2i3"),
            # An update has both images: the only ones belong together.
            ([">9<1"], "d1 i9", "<1>9"),
            ([">9", "d9<1"], "d9d1 i9", "d9<1>9"),
            # A key that is there twice: nothing says which images belong together.
            (["<1<1>1>1"], "d1d1 i1i1", "d1d1i1i1"),
            (["<1>2<2>2<2>3"], "d1<2>2d2 i2i3", "d1<2>2<2>2i3"),
            ([""], "", ""),
        ],
    )
    @pytest.mark.parametrize("held", [0, ordering.REORDER_BUFFER_BYTES])
    @pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
    def test_examples(
        self, files: list[str], large: str, small: str, held: int, batch_rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(execute, "REORDER_BUFFER_BYTES", held)
        options: dict[str, Any] = {"key": ("id",), "batch_rows": batch_rows}
        assert brief(delivered(lot(*files), **options)).replace(" ", "") == large.replace(" ", "")
        for remote in (False, True):
            assert brief(delivered(lot(*files), large=False, keeps_moves=True, remote=remote, **options)) == small
        split = [row.kind + str(row.id) for row in delivered(lot(*files), large=False, **options)]
        moves = {f"<{old}>{new}": f"d{old}i{new}" for old in range(10) for new in range(10) if old != new}
        assert "".join(split) == re.sub("<.>.", lambda match: moves.get(match[0], match[0]), small)

    def test_neighbours_of_other_partitions_belong_to_different_rows(self) -> None:
        moved = lot("<1>9", ">1<9", partitions=[0, 1])
        assert brief(delivered(moved, key=("id",), large=False)) == "<1>1<9>9"

    @pytest.mark.parametrize("large", [False, True])
    @settings(max_examples=100 // stride(4), deadline=None)
    @given(data=st.data())
    def test_chains_and_cycles_of_any_length(self, large: bool, data: st.DataObject) -> None:
        before = data.draw(st.lists(st.integers(0, 12), unique=True, max_size=10))
        after = data.draw(st.lists(st.integers(0, 12), unique=True, min_size=len(before), max_size=len(before)))
        files: list[list[Image]] = [[], [], []][: data.draw(st.integers(1, 3))]
        for old, new in zip(before, after, strict=True):
            files[data.draw(st.integers(0, len(files) - 1))] += [Image("<", old), Image(">", new)]
        written = Lot([(f"f{at}", 0, rows) for at, rows in enumerate(files)])
        moves = data.draw(st.booleans())
        rows = delivered(written, key=("id",), large=large, keeps_moves=moves)
        assert folded(rows) == set(after)
        _check_images(rows, moves and not large)
        cut_elsewhere: dict[str, Any] = {"batch_rows": data.draw(st.integers(1, 5)), "keeps_moves": moves}
        cut_elsewhere["remote"] = data.draw(st.booleans())
        assert rows == delivered(written, key=("id",), large=large, **cut_elsewhere)

    @pytest.mark.parametrize("large", [False, True])
    @settings(max_examples=100 // stride(4), deadline=None)
    @given(made=versions() | blocks(), workers=st.sampled_from([1, 3]))
    def test_the_last_change_of_each_key(self, large: bool, made: tuple[Lot, set[int]], workers: int) -> None:
        written, live = made
        rows = delivered(written, key=("id",), large=large, workers=workers)
        assert folded(rows) == live
        assert rows == delivered(written, key=("id",), large=large, remote=True)
        _check_images(rows, moves=False)
        if not large:
            images = {row.id for _, _, listed in written.files for row in listed if row.kind in "<>"}
            assert {row.id for row in rows if row.kind in "<>"} == images

    @settings(max_examples=100 // stride(4), deadline=None)
    @given(st.data())
    def test_large_versions_begin_again_at_any_part(self, data: st.DataObject) -> None:
        ids = st.integers(0, 12)
        pairs = data.draw(st.lists(st.tuples(ids, ids), max_size=10))
        files: list[list[Image]] = [[], [], []][: data.draw(st.integers(1, 3))]
        for old, new in pairs:
            files[data.draw(st.integers(0, len(files) - 1))] += [Image("<", old), Image(">", new)]
        written = Lot([(f"f{at}", 0, rows) for at, rows in enumerate(files)])
        rows = delivered(written, key=("id",))
        for part in range(len(written.plan().scans)):
            start = len(delivered(written, end=part, key=("id",))) if part else 0
            following = rows[start - 1].ordinal + 1 if start else 0
            others = delivered(written, Position("T", 1, part, ordinal=following), key=("id",))
            assert others == rows[start:]
        plan = replace(written.plan(), key=("id",))
        execution = Execution(TableFiles(written.storage(), MemoryStorage), workers=1)
        splits = plan_splits(plan, 1)
        actual = place_splits(plan, splits, [measure(each, execution) for each in splits])
        ordinals = [
            n for each in actual for b in read_splits([each], execution) for n in b.rows["_change_ordinal"].to_pylist()
        ]
        assert ordinals == [row.ordinal for row in rows]


def _check_images(rows: Sequence[Numbered], moves: bool) -> None:
    """Each image is next to its other image, which has the same key unless rows may move."""
    pairs = [(row, after) for row, after in itertools.pairwise(rows) if row.kind == "<"]
    assert all((after.kind, after.ordinal) == (">", row.ordinal + 1) for row, after in pairs)
    assert sum(row.kind in "<>" for row in rows) == 2 * len(pairs)
    assert moves or all(row.id == after.id for row, after in pairs)


class TestNoOps:
    """With `drop_unchanged`, updates that change nothing are left out; all others keep their numbers."""

    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            (["<1>1<2>3"], [(2, "<", 2), (3, ">", 3)]),
            (["<1>1"], []),
            (["d1<2>2i4"], [(0, "d", 1), (3, "i", 4)]),
            # Not a pair: these images meet by chance.
            (["<2<1>1"], [(0, "<", 2), (1, "<", 1), (3, ">", 1)]),
        ],
    )
    @pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
    def test_examples(self, files: list[str], expected: list[Any], batch_rows: int) -> None:
        assert delivered(lot(*files), rows=RowOptions(drop_unchanged=True), batch_rows=batch_rows) == expected

    @pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
    def test_updates_without_their_pre_images(self, batch_rows: int) -> None:
        rows = RowOptions(drop_unchanged=True, shape=Shape(excluded=("update_preimage",)))
        assert delivered(lot("<1>1d2<2>3i4"), rows=rows, batch_rows=batch_rows) == [
            (2, "d", 2),
            (4, ">", 3),
            (5, "i", 4),
        ]


class TestReorderBuffer:
    def test_holds_what_fits_into_the_budget(self) -> None:
        batches = [pa.record_batch({"n": pa.array([2 * n, 2 * n + 1], pa.int64())}) for n in range(4)]
        late = RowSet.of([0, 2, 3, 7])
        buffer = ReorderBuffer(MemoryBudget(24))
        assert [batch["n"].to_pylist() for batch in buffer.split(iter(batches), late)] == [[1], [4, 5]]
        assert buffer.reread_from == 6
        assert [batch["n"].to_pylist() for batch in buffer.drain()] == [[0], [2, 3]]
        assert buffer.budget.reserve(24)
        assert not buffer.budget.reserve(1)
