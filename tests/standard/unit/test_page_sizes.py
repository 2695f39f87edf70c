"""Pages whose headers promise another size than their bytes have: an error, and never a byte that is not the file's."""

import contextlib
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdfd.errors import DataError
from cdfd.scan.parquet.reader import open_parquet
from tests.support.parquet_bytes import (
    BYTE_ARRAY,
    INT32,
    PLAIN,
    RLE_DICTIONARY,
    data_page,
    data_page_v2,
    dictionary_page,
    flat,
    levels,
    run,
)
from tests.support.sampling import sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux does")

ROWS = 20_000
GIBIBYTES = (1 << 31) - 1
CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
"""As pyarrow names them, by their numbers in Parquet."""
NAMES = {number: name or "none" for number, name in CODECS.items()}
ERRORS = (DataError, pa.ArrowException, ValueError, OSError)

Make = Callable[[int, int], bytes]


def compressed(codec: int, data: bytes) -> bytes:
    name = CODECS[codec]
    return data if name is None else pa.Codec(name).compress(data, asbytes=True)


def numbers(codec: int, promised: int) -> bytes:
    """A page of `ROWS` numbers, which promises so many bytes more than it has."""
    body = levels(run(ROWS, 1)) + struct.pack(f"<{ROWS}i", *range(ROWS))
    return flat(INT32, data_page(compressed(codec, body), len(body) + promised, ROWS, PLAIN), ROWS, codec)


def numbers_left_out(codec: int, promised: int) -> bytes:
    """The same with levels alone: the numbers would be those of the memory behind them."""
    body = levels(run(ROWS, 1))
    page = data_page(compressed(codec, body), len(body) + 4 * ROWS + promised, ROWS, PLAIN)
    return flat(INT32, page, ROWS, codec)


def numbers_after_levels(codec: int, promised: int) -> bytes:
    body = struct.pack(f"<{ROWS}i", *range(ROWS))
    size = len(run(ROWS, 1)) + len(body) + promised
    return flat(INT32, data_page_v2(run(ROWS, 1), compressed(codec, body), size, ROWS, PLAIN), ROWS, codec)


def dictionary(codec: int, promised: int) -> bytes:
    """Strings whose dictionary promises so many bytes more than it has."""
    text = struct.pack("<I", 3) + b"abc"
    chunk = dictionary_page(compressed(codec, text), len(text) + promised, 1)
    body = levels(run(ROWS, 1)) + b"\1" + run(ROWS, 0)
    chunk += data_page(compressed(codec, body), len(body), ROWS, RLE_DICTIONARY)
    return flat(BYTE_ARRAY, chunk, ROWS, codec)


def strings_left_out(codec: int, promised: int) -> bytes:
    """A dictionary of a string that is not there: it would be what the memory had."""
    text = struct.pack("<I", 1000)
    chunk = dictionary_page(compressed(codec, text), len(text) + 1000 + promised, 1)
    body = levels(run(ROWS, 1)) + b"\1" + run(ROWS, 0)
    chunk += data_page(compressed(codec, body), len(body), ROWS, RLE_DICTIONARY)
    return flat(BYTE_ARRAY, chunk, ROWS, codec)


def fill_memory() -> None:
    """Write a pattern to memory that is then released. Code that reads uninitialised memory reads the pattern."""
    for size in (1 << 12, 1 << 17, 1 << 20):
        blocks = [pa.allocate_buffer(size) for _ in range(8)]
        for block in blocks:
            np.frombuffer(block, np.uint8)[:] = 0x5A
        del blocks


@contextlib.contextmanager
def at_most_64_mebibytes() -> Iterator[None]:
    """Assert that the block takes no more memory than this, on top of the process's own."""

    def resident(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    yield
    assert resident("VmHWM") - before < 64 << 20


def from_memory(data: bytes, path: Path) -> pa.NativeFile:
    return pa.BufferReader(data)


def from_disk(data: bytes, path: Path) -> pa.NativeFile:
    (path / "f.parquet").write_bytes(data)
    return pa.OSFile(str(path / "f.parquet"))


def as_it_is_read(data: bytes, path: Path) -> pa.NativeFile:
    """As a file in a store, whose headers are not read before its columns."""
    (path / "f.parquet").write_bytes(data)
    return pa.PythonFile((path / "f.parquet").open("rb"), "r")


def read(data: bytes, source: Callable[[bytes, Path], pa.NativeFile], path: Path, rows: int = 7_000) -> list[object]:
    fill_memory()
    with source(data, path) as file, open_parquet(file) as reader:
        return [value for batch in reader.batches(["c"], rows=rows) for value in batch.column(0).to_pylist()]


SOURCES = [from_memory, from_disk, as_it_is_read]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
@pytest.mark.parametrize("make", [numbers, numbers_after_levels])
def test_pages_that_keep_their_promise_are_read(
    make: Make, codec: int, source: Callable[[bytes, Path], pa.NativeFile], tmp_path: Path
) -> None:
    assert read(make(codec, 0), source, tmp_path) == list(range(ROWS))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("codec", sample(CODECS, 2), ids=NAMES.get)
@pytest.mark.parametrize("promised", [-1, 1, 1000])
@pytest.mark.parametrize("make", [numbers, numbers_after_levels, dictionary])
def test_other_sizes_than_promised_are_an_error(
    make: Make, promised: int, codec: int, source: Callable[[bytes, Path], pa.NativeFile], tmp_path: Path
) -> None:
    data = make(codec, promised)
    with pytest.raises(ERRORS):
        read(data, source, tmp_path)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
@pytest.mark.parametrize("make", [numbers_left_out, strings_left_out])
def test_values_that_are_not_stored_are_an_error(
    make: Make, codec: int, source: Callable[[bytes, Path], pa.NativeFile], tmp_path: Path
) -> None:
    with pytest.raises(ERRORS):
        read(make(codec, 0), source, tmp_path)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", [GIBIBYTES, 200 << 20])
@pytest.mark.parametrize("codec", sample([0, 1, 2, 7], 2), ids=NAMES.get)
@pytest.mark.parametrize("make", [numbers, numbers_after_levels, dictionary])
def test_no_memory_is_taken_for_more_than_the_stored_bytes_can_be(
    make: Make, codec: int, size: int, source: Callable[[bytes, Path], pa.NativeFile], tmp_path: Path
) -> None:
    data = make(codec, size - 4 * ROWS - 100)
    with at_most_64_mebibytes(), pytest.raises(ERRORS):
        read(data, source, tmp_path)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("codec", CODECS, ids=NAMES.get)
def test_no_memory_is_taken_for_two_gibibytes(
    codec: int, source: Callable[[bytes, Path], pa.NativeFile], tmp_path: Path
) -> None:
    with at_most_64_mebibytes(), pytest.raises(ERRORS):
        read(numbers(codec, GIBIBYTES - 4 * ROWS - 100), source, tmp_path)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("body", [b"", b"\0", b"\1"])
@pytest.mark.parametrize("codec", sample(CODECS, 2), ids=NAMES.get)
def test_a_page_of_no_bytes_is_an_error(
    codec: int, body: bytes, size: int, source: Callable[[bytes, Path], pa.NativeFile], tmp_path: Path
) -> None:
    with pytest.raises(ERRORS):
        read(flat(INT32, data_page(body, size, 10, PLAIN), 10, codec), source, tmp_path)
    with pytest.raises(ERRORS):
        read(
            flat(BYTE_ARRAY, dictionary_page(body, size, 3) + data_page(b"", 0, 10, RLE_DICTIONARY), 10, codec),
            source,
            tmp_path,
        )
