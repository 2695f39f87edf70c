"""The two codecs of Trevni blocks, `cdfd_native` and Python, give the same values, bytes and errors."""

from __future__ import annotations

import io
import os
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cdfd.trevni as trevni
from cdfd.runtime import native
from cdfd.trevni.blocks import BlockTable
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.codecs import Codec
from cdfd.trevni.column_reader import Decoder, block_decoder
from cdfd.trevni.file_writer import ColumnRows
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.rows import Reader
from cdfd.trevni.source import long_bytes
from cdfd.trevni.values.lengths import Decoded
from cdfd.trevni.values.plain_decoding import PlainDecoder
from cdfd.trevni.values.value_types import ARROW, ValueType
from tests.support.sampling import stride
from tests.support.trevni import rows
from tests.support.trevni.memory import file_writer, memory_source

FORMS = list(product(ValueType, [False, True]))
Rows = tuple[ColumnMetadata, list[int] | None, pa.Array, int]
"""A column, lengths, values and a block size."""
Content = tuple[list[int] | None, str]

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
        assert "CI" not in os.environ, "cdfd_native is not installed: `make` builds it where there is cargo"
        pytest.skip("cdfd_native is not installed")


def column(
    kind: ValueType,
    array: bool,
    parent: str | None = None,
    codec: Codec = Codec.NULL,
    checksum: Checksum = Checksum.NULL,
) -> ColumnMetadata:
    return ColumnMetadata("c", kind, array=array, parent=parent, codec=codec, checksum=checksum)


@st.composite
def columns(draw: st.DrawFn) -> Rows:
    kind, array = draw(st.sampled_from(FORMS))
    lengths = draw(st.lists(st.integers(0, 3) | st.sampled_from([0, 0, 1, 70]), max_size=40)) if array else None
    count = sum(lengths) if lengths is not None else draw(st.integers(0, 60))
    # Some values, again and again: drawing each one takes long.
    some = draw(st.lists(VALUES[kind], min_size=1, max_size=7))
    values = pa.array([some[number % len(some)] for number in range(count)], ARROW[kind])
    return column(kind, array), lengths, values, draw(st.integers(1, 200))


def written(of_rows: Rows, pieces: int = 1) -> bytes:
    """A file of one column, whose rows are written in pieces."""
    of, lengths, values, block_bytes = of_rows
    writer = file_writer([of], codec=of.codec, checksum=of.checksum, block_bytes=block_bytes)
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


def written_plainly(of_rows: Rows, pieces: int = 1) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "built", False)
        return written(of_rows, pieces)


def table(
    of: ColumnMetadata, blocks: list[bytes], sizes: list[int], counts: list[int]
) -> tuple[BlockTable, memoryview]:
    """Stored blocks, one after the other, with their checksums; and their table."""
    behind = of.checksum.size
    starts = np.cumsum([0, *map(len, blocks)])[:-1].astype(np.int64)
    stored = np.array([len(block) - behind for block in blocks], np.int64)
    number_of = np.array(counts, np.int64)
    first_rows = np.concatenate((np.zeros(1, np.int64), np.cumsum(number_of)))
    blocks_table = BlockTable(of, number_of, first_rows, np.array(sizes, np.int64), stored, starts)
    return blocks_table, memoryview(b"".join(blocks))


def content(decoder: Decoder, data: memoryview, count: int) -> Content | tuple[str, int | None]:
    """Lengths and values, or the error and its block. Equality of arrays would say that NaN is not itself."""
    try:
        if count:
            decoder.append(data, 0, count)
        decoded = decoder.finish()
    except trevni.TrevniError as error:
        return error.what, error.block
    decoded.values.validate(full=True)
    return lengths_of(decoded), f"{decoded.values.type} {decoded.values.to_pylist()!r}"


def lengths_of(decoded: Decoded) -> list[int] | None:
    """Lengths, of which there may be more than there is memory for: then their number alone."""
    if decoded.lengths is None:
        return None
    count = len(decoded.lengths)
    return decoded.lengths.expand(0, count).tolist() if count < 1 << 20 else [count]


def alike(
    of: ColumnMetadata, blocks: list[bytes], counts: list[int], runs: bool, sizes: list[int] | None = None
) -> None:
    described, data = table(of, blocks, sizes or [len(block) for block in blocks], counts)
    if len(blocks) > 1 and not described.can_have_sizes(0, len(blocks)):
        return  # such blocks are decoded one by one
    by_native = block_decoder(described, 0, len(blocks), runs=runs)
    assert not isinstance(by_native, PlainDecoder)
    assert content(by_native, data, len(blocks)) == content(PlainDecoder(described, runs=runs), data, len(blocks))


def damaged(blocks: list[bytes], data: st.DataObject) -> None:
    damage = data.draw(st.sampled_from(["none", "byte", "cut", "more"]))
    if not blocks or damage == "none":
        return
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


@settings(max_examples=300 // stride(4), deadline=None)
@given(columns(), st.integers(1, 4))
def test_both_write_the_same_bytes(of_rows: Rows, pieces: int) -> None:
    assert written(of_rows, pieces) == written_plainly(of_rows, pieces) == written_plainly(of_rows)


@settings(max_examples=300 // stride(4), deadline=None)
@given(columns(), st.data())
def test_both_decode_blocks_alike_damaged_or_not(of_rows: Rows, data: st.DataObject) -> None:
    reader = Reader(memory_source(written(of_rows)))
    actual = reader.blocks(0)
    blocks = [
        bytes(reader.source.bytes_at(*each)) for each in zip(actual.starts.tolist(), actual.sizes.tolist(), strict=True)
    ]
    damaged(blocks, data)
    alike(of_rows[0], blocks, actual.rows.tolist(), data.draw(st.booleans()))


@settings(max_examples=500 // stride(4), deadline=None)
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


@settings(max_examples=300 // stride(4), deadline=None)
@given(st.sampled_from(Codec), st.sampled_from(Checksum), st.integers(0, 300), st.data())
def test_both_decompress_alike_damaged_or_not(
    codec: Codec, checksum: Checksum, count: int, data: st.DataObject
) -> None:
    of = column(ValueType.LONG, False, None, codec, checksum)
    values = pa.array([number % 7 for number in range(count)], pa.int64())
    reader = Reader(memory_source(written((of, None, values, 100))))
    actual = reader.blocks(0)
    places = zip(actual.starts.tolist(), (actual.stored + checksum.size).tolist(), strict=True)
    blocks = [bytes(reader.source.bytes_at(*each)) for each in places]
    damaged(blocks, data)
    if all(len(block) >= checksum.size for block in blocks):
        alike(of, blocks, actual.rows.tolist(), True, actual.sizes.tolist())


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("kind", [ValueType.BOOLEAN, ValueType.INT, ValueType.FIXED64, ValueType.STRING])
def test_equal_values_that_bzip2_makes_very_small_are_decoded_natively(
    kind: ValueType, array: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = {ValueType.BOOLEAN: False, ValueType.STRING: ""}.get(kind, 0)
    values = pa.nulls(1_000_000 if kind is ValueType.BOOLEAN else 100_000, ARROW[kind]).fill_null(zero)
    of_rows = (
        column(kind, array, None, Codec.BZIP2, Checksum.CRC32),
        [1] * len(values) if array else None,
        values,
        40_000,
    )
    reader = Reader(memory_source(written(of_rows)))
    blocks = reader.blocks(0)
    assert not blocks.can_have_sizes(0, len(blocks))
    monkeypatch.setattr("cdfd.trevni.column_reader.PlainDecoder", None)
    assert pa.concat_arrays([window.columns[0].values for window in reader.windows([0])]).equals(values)


def test_both_read_a_run_of_bits_from_the_lowest_bit_of_each_byte() -> None:
    alike(column(ValueType.BOOLEAN, True), [long_bytes(-4) + b"\1\0\1"], [3], True)


@pytest.mark.parametrize("width", range(1, 11))
def test_numbers_of_each_width(width: int) -> None:
    """Numbers that are all alike, then others, up to the end of the block."""
    number = 1 << (7 * width - 2) if width < 10 else -(2**63)
    for count in (1, 7, 8, 9, 40):
        values = pa.array([number] * count + [1] + [-number - 1] * count)
        of_rows = column(ValueType.LONG, False), None, values, 1 << 20
        data = written(of_rows)
        assert data == written_plainly(of_rows)
        [window] = Reader(memory_source(data)).windows([0])
        assert window.columns[0].values.equals(values)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65, 8191, 8192, 100_000])
def test_strings_of_each_length(size: int) -> None:
    for kind, letter in ((ValueType.STRING, "a"), (ValueType.STRING, "\u20ac"), (ValueType.BYTES, b"\xff")):
        values = pa.array([letter[:0], letter * size, letter, letter * size], ARROW[kind])
        of_rows = column(kind, False), None, values, 1 << 20
        data = written(of_rows)
        assert data == written_plainly(of_rows)
        [window] = Reader(memory_source(data)).windows([0])
        assert window.columns[0].values.equals(values)


@pytest.mark.parametrize("kind", [ValueType.NULL, ValueType.STRING, ValueType.LONG])
def test_runs_that_stand_for_more_than_the_bytes_allow_take_no_memory(kind: ValueType) -> None:
    """Five bytes are a thousand million lengths, all of them zero."""
    block = long_bytes(-(1 << 31) + 1)
    actual, data = table(column(kind, True, "parent"), [block], [len(block)], [1])
    decoder = block_decoder(actual, 0, 1, runs=True)
    decoder.append(data, 0, 1)
    lengths = decoder.finish().lengths
    assert lengths is not None
    assert lengths.ends is not None
    assert (len(lengths), len(lengths.each), lengths.total(0, len(lengths))) == ((1 << 30) + 1, 1, 0)
    one = {ValueType.NULL: b"\x02", ValueType.STRING: b"\x02\x02a", ValueType.LONG: b"\x02\x0a"}[kind]
    alike(column(kind, True, "parent"), [one + block, block + one], [1, 1], True)


def test_rows_with_fewer_values_than_lengths_say_are_not_written() -> None:
    encoder = native.trevni.BlockEncoder("long", 100, 100)
    offsets, entries = np.zeros(1, np.int32), np.array([0, 2])
    with pytest.raises(ValueError, match="fewer values"):
        encoder.write(np.array([1, 1]), np.zeros(1, np.int64), offsets, 0, entries, 0, 0)
    with pytest.raises(ValueError, match="fewer values"):
        encoder.write(None, np.zeros(1, np.int64), offsets, 0, entries, 0, 0)
    text = native.trevni.BlockEncoder("string", 100, 100)
    with pytest.raises(ValueError, match="fewer values"):
        text.write(None, np.zeros(3, np.uint8), np.array([0, 2, 4], np.int32), 0, entries, 0, 0)
    with pytest.raises(ValueError, match="fewer values"):
        text.write(None, np.zeros(3, np.uint8), np.array([2, 0, 1], np.int32), 0, entries, 0, 0)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("long", np.int64), ("int", np.int32), ("double", np.uint8), ("bytes", np.uint8)]
)
def test_nothing_is_written_behind_the_arrays(kind: str, dtype: type) -> None:
    """Arrays that are too small are an error, whatever the blocks say."""
    whole = np.full(64, 77, dtype)
    offsets = np.zeros(9, np.int32)
    decoder = native.trevni.BlockDecoder(
        kind, None, whole[:2], offsets[:3], codec="null", crc32=False, counted=False, runs=True
    )
    one = np.array([24], np.int64)
    with pytest.raises(ValueError, match="more bytes than were announced"):
        decoder.append(np.full(24, 2, np.uint8), one - 24, one, one, one)
    assert (whole[2:] == 77).all()
    assert not offsets[3:].any()


@pytest.mark.parametrize(
    "numbers", [(1, 24, 24), (-1, 3, 3), (0, 25, 25), (0, -1, 3), (0, 24, 1 << 40), (1 << 62, 1, 1)]
)
def test_a_block_that_is_not_in_the_data_is_an_error(numbers: tuple[int, int, int]) -> None:
    values, offsets = np.zeros(24, np.int64), np.zeros(1, np.int32)
    decoder = native.trevni.BlockDecoder(
        "long", None, values, offsets, codec="null", crc32=True, counted=False, runs=True
    )
    start, stored, size = (np.array([number], np.int64) for number in numbers)
    with pytest.raises(ValueError, match=r"announced|descriptor says"):
        decoder.append(np.zeros(24, np.uint8), start, stored, size, size)


@pytest.mark.parametrize("codec", ["null", "snappy", "deflate", "bzip2"])
def test_both_write_the_same_file_of_all_types(codec: str) -> None:
    expected = rows.table(3000)
    files = []
    for built in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "built", built)
            file = io.BytesIO()
            trevni.write_table(expected, file, codec=codec, block_bytes=4096, first_values=["long", "double"])
            files.append(file.getvalue())
            assert trevni.read_table(pa.BufferReader(file.getvalue())).equals(expected)
    assert files[0] == files[1]
