"""A writer that several threads use, and open files that cannot be written."""

import errno
import io
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import cdfd.trevni as trevni
from cdfd.errors import StorageError


def test_batches_of_several_threads_are_all_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdfd.trevni.table_writer.CHUNK_BYTES", 4096)
    file = io.BytesIO()
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    with trevni.TrevniWriter(file, schema) as writer, ThreadPoolExecutor(4) as threads:
        batches = [pa.record_batch({"a": [number] * 50, "b": [str(number)] * 50}) for number in range(240)]
        list(threads.map(writer.write_batch, batches))
    rows = trevni.read_table(pa.BufferReader(file.getvalue()))
    assert sorted(rows["a"].to_pylist()) == [number for number in range(240) for _ in range(50)]
    assert rows["b"].to_pylist() == [str(number) for number in rows["a"].to_pylist()]


class Full(io.BytesIO):
    """A file on a full disk."""

    def write(self, data: object, /) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_open_file_that_cannot_be_written_is_an_error_of_cdfd() -> None:
    table = pa.table({"a": [1]})
    with pytest.raises(StorageError, match="No space left on device"):
        trevni.write_table(table, Full())
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(StorageError, match="closed file"):
        trevni.write_table(table, closed)
