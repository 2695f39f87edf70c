"""What decodes and encodes blocks of Trevni columns: the kernels in machine code, and numpy. Both give the same."""

from __future__ import annotations

import io
import os
import zlib
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cdfd.trevni as trevni
from cdfd import native
from cdfd.trevni import native_decoding
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.codecs import Codec
from cdfd.trevni.decoding import Decoded, decode
from cdfd.trevni.file_writer import ColumnRows, FileWriter
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.rows import Reader
from cdfd.trevni.source import Source
from cdfd.trevni.value_types import ARROW, ValueType
from tests.support.trevni import rows

FORMS = [
    (kind, array)
    for kind, array in product(ValueType, [False, True])
    if array or kind not in (ValueType.NULL, ValueType.BOOLEAN)
]
"""Columns that the kernels know."""

VALUES: dict[ValueType, st.SearchStrategy[object]] = {
    ValueType.NULL: st.none(),
    ValueType.BOOLEAN: st.booleans(),
    ValueType.INT: st.integers(-(2**31), 2**31 - 1) | st.integers(-100, 100),
    ValueType.LONG: st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100),
    ValueType.FIXED32: st.integers(-(2**31), 2**31 - 1),
    ValueType.FIXED64: st.integers(-(2**63), 2**63 - 1),
    ValueType.FLOAT: st.floats(width=32, allow_nan=False),
    ValueType.DOUBLE: st.floats(allow_nan=False),
    ValueType.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    ValueType.BYTES: st.binary(max_size=80),
}


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    if not native.built:
        assert "CI" not in os.environ, "the kernels are not built: `pip install --editable .` builds them"
        pytest.skip("the kernels are not built")


def column(kind: ValueType, array: bool, parent: str | None = None) -> ColumnMetadata:
    return ColumnMetadata("c", kind, array=array, parent=parent, codec=Codec.NULL, checksum=Checksum.NULL)


@st.composite
def columns(draw: st.DrawFn) -> tuple[ColumnMetadata, list[int] | None, pa.Array, int]:
    """A column, lengths, values and a block size."""
    kind, array = draw(st.sampled_from(FORMS))
    lengths = draw(st.lists(st.integers(0, 3) | st.sampled_from([0, 0, 1, 70]), max_size=40)) if array else None
    count = sum(lengths) if lengths is not None else draw(st.integers(0, 60))
    # Some values, again and again: drawing each one takes long.
    some = draw(st.lists(VALUES[kind], min_size=1, max_size=7))
    values = pa.array([some[number % len(some)] for number in range(count)], ARROW[kind])
    return column(kind, array), lengths, values, draw(st.integers(1, 200))


def written(found: tuple[ColumnMetadata, list[int] | None, pa.Array, int], pieces: int = 1) -> bytes:
    """A file of one column, whose rows are written in pieces."""
    of, lengths, values, block_bytes = found
    writer = FileWriter([of], codec=Codec.NULL, checksum=Checksum.NULL, block_bytes=block_bytes)
    count = len(values) if lengths is None else len(lengths)
    for part in np.array_split(np.arange(count), pieces):
        start, end = (int(part[0]), int(part[-1]) + 1) if len(part) else (0, 0)
        if lengths is None:
            each, some = None, values.slice(start, end - start)
        else:
            each = np.array(lengths[start:end], np.int64)
            some = values.slice(sum(lengths[:start]), int(each.sum()))
        writer.write(end - start, [ColumnRows(each, some, np.arange(end - start + 1))])
    return b"".join(writer.finish())


def in_numpy(found: tuple[ColumnMetadata, list[int] | None, pa.Array, int], pieces: int = 1) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "built", False)
        return written(found, pieces)


def same(found: Decoded, expected: Decoded) -> None:
    assert (found.lengths is None) == (expected.lengths is None)
    if found.lengths is not None and expected.lengths is not None:
        count = len(expected.lengths)
        assert len(found.lengths) == count
        assert found.lengths.expand(0, count).tolist() == expected.lengths.expand(0, count).tolist()
    # Equality of arrays would say that NaN is not itself.
    assert found.values.type == expected.values.type
    assert repr(found.values.to_pylist()) == repr(expected.values.to_pylist())
    found.values.validate(full=True)
    if expected.entries is not None:
        assert found.entries is not None
        assert found.entries.tolist() == expected.entries.tolist()


def by_kernels(of: ColumnMetadata, blocks: list[bytes], counts: list[int], *, runs: bool = True) -> Decoded | None:
    sizes = np.array([len(block) for block in blocks], np.int64)
    found = native_decoding.decode(of, iter(blocks), sizes, np.array(counts, np.int64), runs=runs)
    return None if found is None else Decoded(*found)


@settings(max_examples=300, deadline=None)
@given(columns(), st.integers(1, 4))
def test_both_write_the_same_bytes(found: tuple[ColumnMetadata, list[int] | None, pa.Array, int], pieces: int) -> None:
    assert written(found, pieces) == in_numpy(found, pieces) == in_numpy(found)


@settings(max_examples=300, deadline=None)
@given(columns(), st.data())
def test_both_decode_blocks_alike_damaged_or_not(
    found: tuple[ColumnMetadata, list[int] | None, pa.Array, int], data: st.DataObject
) -> None:
    reader = Reader(Source.of(written(found)))
    table = reader.blocks(0)
    starts, sizes, counts = (list(map(int, each)) for each in (table.starts, table.sizes, table.rows))
    blocks = [bytes(reader.source.bytes_at(*each)) for each in zip(starts, sizes, strict=True)]
    damage = data.draw(st.sampled_from(["none", "byte", "cut", "more"]))
    if blocks and damage != "none":
        number = data.draw(st.integers(0, len(blocks) - 1))
        block = bytearray(blocks[number])
        place = data.draw(st.integers(0, max(0, len(block) - 1)))
        if damage == "byte" and block:
            block[place] = data.draw(st.integers(0, 255))
        elif damage == "cut":
            del block[place:]
        else:
            block[place:place] = data.draw(st.binary(min_size=1, max_size=12))
        blocks[number] = bytes(block)
    alike(found[0], blocks, counts, data.draw(st.booleans()))


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(FORMS),
    st.none() | st.just("parent"),
    st.lists(st.binary(max_size=40), max_size=4),
    st.integers(0, 30),
    st.booleans(),
)
def test_both_decode_any_bytes_alike(
    form: tuple[ValueType, bool], parent: str | None, blocks: list[bytes], count: int, runs: bool
) -> None:
    alike(column(*form, parent), blocks, [count] * len(blocks), runs)


def alike(of: ColumnMetadata, blocks: list[bytes], counts: list[int], runs: bool) -> None:
    """The kernels give what numpy does, or leave it to numpy, which finds an error or runs that are better kept."""
    found = by_kernels(of, blocks, counts, runs=runs)
    try:
        expected = decode(of, blocks, np.array(counts, np.int64), runs=runs)
    except trevni.TrevniError:
        assert found is None
        return
    if found is None:
        assert expected.lengths is not None
        assert len(expected.lengths) > (sum(counts) if of.parent is None else 65_536)
    else:
        same(found, expected)


def test_checksums_are_those_of_zlib() -> None:
    data = np.random.default_rng(1).integers(0, 256, 70_000, np.uint8).tobytes()
    for size in [*range(300), 1000, 65_536, 70_000]:
        assert native.trevni_decoding.crc32(data[:size]) == zlib.crc32(data[:size])
        assert native.trevni_decoding.crc32(memoryview(data)[size : size + 200]) == zlib.crc32(data[size : size + 200])


@pytest.mark.parametrize("width", range(1, 11))
def test_numbers_of_each_width(width: int) -> None:
    """Numbers that are all alike, then others, up to the end of the block."""
    number = 1 << (7 * width - 2) if width < 10 else -(2**63)
    for count in (1, 7, 8, 9, 40):
        values = pa.array([number] * count + [1] + [-number - 1] * count)
        found = column(ValueType.LONG, False), None, values, 1 << 20
        data = written(found)
        assert data == in_numpy(found)
        [window] = Reader(Source.of(data)).windows([0])
        assert window.columns[0].values.equals(values)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65, 8191, 8192, 100_000])
def test_strings_of_each_length(size: int) -> None:
    for kind, letter in ((ValueType.STRING, "a"), (ValueType.STRING, "\u20ac"), (ValueType.BYTES, b"\xff")):
        values = pa.array([letter[:0], letter * size, letter, letter * size], ARROW[kind])
        found = column(kind, False), None, values, 1 << 20
        data = written(found)
        assert data == in_numpy(found)
        [window] = Reader(Source.of(data)).windows([0])
        assert window.columns[0].values.equals(values)


def test_text_that_is_not_utf_8_is_left_to_numpy() -> None:
    assert by_kernels(column(ValueType.STRING, False), [b"\x02a\x02\xff"], [2]) is None
    assert by_kernels(column(ValueType.BYTES, False), [b"\x02a\x02\xff"], [2]) is not None


def test_runs_that_stand_for_more_than_the_bytes_allow_are_left_to_numpy() -> None:
    """Five bytes are a thousand million lengths. Expanding them is not for the kernels."""
    longest = b"\xff\xff\xff\xff\x0f"
    for kind in (ValueType.NULL, ValueType.STRING, ValueType.LONG):
        assert by_kernels(column(kind, True, "parent"), [longest], [1]) is None
        assert by_kernels(column(kind, True), [longest], [1 << 30]) is None


@pytest.mark.parametrize("codec", ["null", "snappy", "bzip2"])
def test_both_write_the_same_file_of_all_types(codec: str) -> None:
    table = rows.table(3000)
    files = []
    for kernels in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "built", kernels)
            file = io.BytesIO()
            trevni.write_table(table, file, codec=codec, block_bytes=4096, first_values=["long", "double"])
            files.append(file.getvalue())
            assert trevni.read_table(pa.BufferReader(file.getvalue())).equals(table)
    assert files[0] == files[1]
