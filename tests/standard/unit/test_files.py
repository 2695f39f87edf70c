"""File actions packed in columns are the file actions."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta.actions import Add, Cdc, DeletionVectorDescriptor, Remove
from cdfd.delta.files import FILES, PACK, FileList, PackedFiles, pack
from cdfd.errors import LogError
from tests.support.cache import CACHE, locked

LONGS = st.integers(-(2**63), 2**63 - 1)
SIZES = st.integers(0, 2**63 - 1)
TEXTS = st.text(max_size=5)
VALUES = st.dictionaries(TEXTS, st.none() | TEXTS, max_size=3)
VECTORS = st.none() | st.builds(
    DeletionVectorDescriptor, st.sampled_from("uip"), TEXTS, st.none() | SIZES, SIZES, SIZES
)
ADDS = st.builds(Add, TEXTS, VALUES, SIZES, LONGS, st.booleans(), st.none() | TEXTS, VECTORS)
REMOVES = st.builds(Remove, TEXTS, st.none() | LONGS, st.booleans(), st.none() | VALUES, st.none() | SIZES, VECTORS)
CDCS = st.builds(Cdc, TEXTS, VALUES, SIZES)
ACTIONS: list[tuple[type, Any]] = [(Add, ADDS), (Remove, REMOVES), (Cdc, CDCS)]


def packed(kind: type, values: list[Any], chunk: int = 3) -> PackedFiles[Any]:
    """In several chunks, so that their borders are crossed."""
    batches = [pack(values[at : at + chunk]) for at in range(0, len(values), chunk)]
    return PackedFiles(kind, pa.Table.from_batches(batches, FILES))


def add(path: str, **more: Any) -> Add:
    return Add(path, {}, 1, 2, True, **more)


@pytest.mark.parametrize(("kind", "values"), ACTIONS, ids=["add", "remove", "cdc"])
class TestSameAsATuple:
    @given(data=st.data())
    def test_in_every_respect(self, kind: type, values: Any, data: st.DataObject) -> None:
        plain = tuple(data.draw(st.lists(values, max_size=8)))
        files = packed(kind, list(plain))
        assert len(files) == len(plain)
        assert tuple(files) == plain
        assert files == plain
        assert plain == files
        assert tuple(reversed(files)) == plain[::-1]
        for index in range(-len(plain), len(plain)):
            assert files[index] == plain[index]
        if plain:
            assert plain[-1] in files
            assert files.index(plain[-1]) == plain.index(plain[-1])
        assert bool(files) == bool(plain)

    @given(data=st.data())
    def test_slices(self, kind: type, values: Any, data: st.DataObject) -> None:
        plain = tuple(data.draw(st.lists(values, max_size=8)))
        cut = data.draw(st.slices(len(plain) + 2))
        actual = packed(kind, list(plain))[cut]
        assert isinstance(actual, PackedFiles)
        assert tuple(actual) == plain[cut]

    @given(data=st.data())
    def test_pickling(self, kind: type, values: Any, data: st.DataObject) -> None:
        files = packed(kind, data.draw(st.lists(values, max_size=8)))
        again = pickle.loads(pickle.dumps(files))
        assert again == files
        assert again.kind is kind
        assert again.table.schema.equals(FILES)


class TestPackedFiles:
    def test_change_data_files_change_no_data(self) -> None:
        assert pack([Cdc("a", {}, 1)]).column("data_change").to_pylist() == [False]

    @pytest.mark.parametrize("index", [-4, 3, 100])
    def test_out_of_range(self, index: int) -> None:
        with pytest.raises(IndexError):
            packed(Add, [add("a"), add("b"), add("c")])[index]

    def test_two_packings_of_the_same_are_equal(self) -> None:
        values = [add(str(number)) for number in range(10)]
        assert packed(Add, values, 3) == packed(Add, values, 7)
        assert packed(Add, values) != packed(Add, values[:-1])
        assert packed(Add, values) != packed(Remove, values)
        assert packed(Add, values) != "0123456789"
        assert packed(Add, values) != 5

    def test_equal_to_what_has_another_hash_so_without_one(self) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            hash(packed(Add, []))

    def test_a_slice_pickles_without_the_rest(self) -> None:
        files = packed(Add, [add(f"a-path-of-some-length/{number}") for number in range(20_000)], PACK)
        assert len(pickle.dumps(files[7:9])) < 5_000
        assert pickle.loads(pickle.dumps(files[7:9])) == files[7:9]

    def test_by_path_is_the_order_of_utf8_bytes(self) -> None:
        names = ["b", "a", "ä", "\uffff", "\U00010000", "", "a b", "Z"]
        assert [file.path for file in packed(Add, [add(name) for name in names]).by_path()] == sorted(
            names, key=str.encode
        )

    def test_sizes(self) -> None:
        assert packed(Remove, [Remove("a", None, True), Remove("b", None, True, size=5)]).total_size() == 5
        assert packed(Add, []).total_size() == 0

    def test_paths(self) -> None:
        assert packed(Add, [add("a"), add("b")]).paths.to_pylist() == ["a", "b"]

    def test_paths_beyond_two_gigabytes(self) -> None:
        """As tens of millions of files have; here they are few and long. Takes 4 GB for a moment, of one suite of a machine at a time."""
        names = pa.array([f"{number:05}{'x' * 1_600_000}" for number in range(140)], pa.large_string())
        columns = [names, *(pa.nulls(len(names), field.type) for field in list(FILES)[1:])]
        files = PackedFiles(Add, pa.Table.from_batches([pa.record_batch(columns, schema=FILES)] * 10))
        with locked(CACHE / "much-memory"):
            ordered = files.by_path()
            assert ordered.table.column("path").nbytes > 2**31
            assert ordered[-1].path.startswith("00139x")
            del ordered


class TestFileList:
    def gathered(self, *values: Add) -> list[Add]:
        files = FileList(Add)
        for value in values:
            files.append(value)
        return list(files.freeze())

    def test_of_few_is_a_tuple(self) -> None:
        files = FileList(Add)
        files.append(add("a"))
        assert files.freeze() == (add("a"),)
        assert isinstance(files.freeze(), tuple)

    def test_keeps_the_order(self) -> None:
        assert self.gathered(add("b"), add("a"), add("b")) == [add("b"), add("a")]

    @pytest.mark.parametrize("extra", [0, PACK])
    def test_repetitions_and_contradictions(self, extra: int) -> None:
        others = [add(f"rest{number}") for number in range(extra)]
        vector = DeletionVectorDescriptor("i", "x", None, 1, 1)
        assert len(self.gathered(add("a"), *others, add("a"))) == extra + 1
        with pytest.raises(LogError, match="two actions of one kind"):
            self.gathered(add("a"), *others, add("a", deletion_vector=vector))
        with pytest.raises(LogError, match="two different add actions") as caught:
            self.gathered(add("a"), *others, Add("a", {}, 1, 3, True))
        assert caught.value.path == "a"
