"""Row ids of a file's rows: those that it stores, and those that its place in the table implies."""

import pyarrow as pa
import pytest

from cdfd.errors import DataError
from cdfd.model.file_scan import RowIds
from cdfd.model.refinement import RowTracking
from cdfd.scan.updates.row_ids import ROW_ID, ROW_VERSION, FileRowIds

TRACKING = RowTracking("_id", "_version")


def of(batch: pa.RecordBatch, tracking: RowTracking = TRACKING) -> FileRowIds:
    return FileRowIds.of(RowIds(100, 7), tracking, batch.schema)


def extend(batch: pa.RecordBatch, first_row: int = 0) -> list[tuple[int, int]]:
    rows = of(batch).extend(batch, first_row)
    return list(zip(rows.column(ROW_ID).to_pylist(), rows.column(ROW_VERSION).to_pylist(), strict=True))


def test_rows_without_stored_ids_are_numbered_from_that_of_the_file() -> None:
    batch = pa.record_batch({"n": [1, 2]})
    assert of(batch).names == ()
    assert extend(batch, 5) == [(105, 7), (106, 7)]


def test_stored_ids_and_versions_go_before_implied_ones() -> None:
    batch = pa.record_batch({"_id": pa.array([3, None, 1], pa.int64()), "_version": pa.array([None, 2, 2], pa.int64())})
    assert of(batch).names == ("_id", "_version")
    assert extend(batch, 5) == [(3, 7), (106, 2), (1, 2)]
    assert extend(batch.slice(1), 6) == [(106, 2), (1, 2)]
    assert extend(batch.slice(2), 7) == [(1, 2)]


def test_negative_id_is_refused() -> None:
    assert extend(pa.record_batch({"_id": pa.array([0])})) == [(0, 7)]
    with pytest.raises(DataError, match="a row has the id -1"):
        extend(pa.record_batch({"_id": pa.array([5, -1])}))
    assert extend(pa.record_batch({"_id": pa.array([], pa.int64())})) == []


@pytest.mark.parametrize("name", ["_id", "_version"])
def test_column_of_another_type_or_twice_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"column '{name}' has row ids of type int32 instead of int64"):
        of(pa.record_batch({name: pa.array([1], pa.int32())}))
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], [name, name])
    with pytest.raises(DataError, match=f"the file has 2 columns '{name}' of row ids"):
        of(twice)
