"""Late rows that wait: blocks of them are not copied, and few of them do not hold the memory of a whole batch."""

import pyarrow as pa

from cdfd.delta.roaring import RowSet
from cdfd.scan.image_order import ReorderBuffer

ROWS = 1_000


def split(late: range | list[int]) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The early rows and the late ones of a batch of `ROWS` rows."""
    buffer = ReorderBuffer()
    early = list(buffer.split(iter([pa.record_batch({"id": range(ROWS)})]), RowSet.of(late)))
    assert buffer.reread_from is None
    return early, list(buffer.drain())


def ids(batches: list[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


def held(batches: list[pa.RecordBatch]) -> int:
    """Bytes of memory that they keep from being freed."""
    return sum(batch.get_total_buffer_size() for batch in batches)


def test_halves_are_slices_of_the_batch() -> None:
    early, late = split(range(400, ROWS))
    assert (ids(early), ids(late)) == (list(range(400)), list(range(400, ROWS)))
    assert early[0]["id"].buffers()[1].address == late[0]["id"].buffers()[1].address


def test_few_late_rows_are_copied() -> None:
    early, late = split(range(990, ROWS))
    assert (ids(early), ids(late)) == (list(range(990)), list(range(990, ROWS)))
    assert held(late) < 8 * ROWS // 10


def test_rows_in_turn_are_copied() -> None:
    early, late = split(list(range(1, ROWS, 2)))
    assert (ids(early), ids(late)) == (list(range(0, ROWS, 2)), list(range(1, ROWS, 2)))
    assert len(early) == len(late) == 1
