"""The change columns."""

import pyarrow as pa
import pytest

from cdfd.errors import DataError
from cdfd.model.columns import CHANGE_TYPES, VersionColumns, change_codes, constant_type, types_as_written

STANDARD = ["insert", "update_preimage", "update_postimage", "delete"]


@pytest.mark.parametrize("encode", [lambda a: a, lambda a: a.dictionary_encode(), lambda a: a.cast(pa.large_string())])
def test_types_are_read_however_the_file_spells_strings(encode) -> None:  # type: ignore[no-untyped-def]
    codes = change_codes(encode(pa.array(STANDARD[::-1])))
    assert codes.tolist() == [3, 2, 1, 0]
    assert CHANGE_TYPES.take(pa.array(codes)).to_pylist() == STANDARD[::-1]


def test_early_spellings_are_passed_on_and_understood() -> None:
    early = pa.array(["update_pre", "update_post", "delete"])
    assert types_as_written(early).to_pylist() == ["update_pre", "update_post", "delete"]
    assert change_codes(types_as_written(early)).tolist() == [1, 2, 3]
    assert types_as_written(pa.array(STANDARD)).dictionary.equals(CHANGE_TYPES)


@pytest.mark.parametrize("wrong", ["upsert", "", None, "Insert"])
def test_anything_else_is_an_error(wrong: str | None) -> None:
    with pytest.raises(DataError, match="_change_type"):
        types_as_written(pa.array(["insert", wrong]))


def test_batches_of_a_version_are_completed_in_order() -> None:
    columns = VersionColumns(7, 1_000)
    # As many ordinals as batches share, and more.
    shared = [(end - 2, count) for end in (1 << 16, 1 << 20) for count in (2, 3)]
    for start, count in ((0, 3), (3, 1), (4, 5), *shared):
        batch = pa.record_batch(
            {"x": pa.array(range(count)), "_change_type": constant_type("insert", count)},
        )
        done = columns.complete(batch, start)
        assert done.column("_change_ordinal").to_pylist() == list(range(start, start + count))
        assert set(done.column("_commit_version").to_pylist()) == {7}
        assert done.column("_commit_timestamp").cast(pa.int64()).to_pylist() == [1_000] * count
        done.validate(full=True)


def test_the_columns_of_a_version_after_another() -> None:
    batch = pa.record_batch({"x": pa.array(range(3)), "_change_type": constant_type("delete", 3)})
    columns = VersionColumns(7, 1_000)
    columns.complete(batch, 0)
    after = columns.following(8, 2_000).complete(batch, 5)
    assert after.equals(VersionColumns(8, 2_000).complete(batch, 5))
    assert after.column("_commit_version").to_pylist() == [8] * 3
    assert after.column("_commit_timestamp").cast(pa.int64()).to_pylist() == [2_000] * 3
    after.validate(full=True)


@pytest.mark.parametrize("count", [0, 1, 256, 257, 1000])
@pytest.mark.parametrize("change_type", STANDARD)
def test_one_change_type_of_any_number_of_rows(change_type: str, count: int) -> None:
    made = constant_type(change_type, count)
    assert made.to_pylist() == [change_type] * count
    assert made.dictionary.equals(CHANGE_TYPES)
