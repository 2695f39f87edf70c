"""The specification's sentences, byte by byte. `docs/trevni-format.md` names the test of each."""

from __future__ import annotations

import bz2
import io
import json
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cdfd.trevni as trevni
from cdfd.cli.commands.trevni import physical_document
from cdfd.errors import ConfigError
from cdfd.trevni import metadata as headers
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.codecs import Codec
from cdfd.trevni.file_writer import ColumnRows
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.rows import Reader
from cdfd.trevni.source import Cursor, long_bytes, sized_bytes
from cdfd.trevni.values.value_types import ARROW, ValueType
from tests.support.trevni.memory import file_writer, memory_source

PAGE = Path(__file__).parents[3] / "docs" / "trevni-format.md"


def written(
    column: ColumnMetadata, values: Sequence[Any], lengths: Sequence[int] | None = None, **options: Any
) -> bytes:
    """A file with one column, of as many rows as there are lengths, or values."""
    options = {"codec": Codec.NULL, "checksum": Checksum.NULL} | options
    column = replace(column, codec=options["codec"], checksum=options["checksum"])
    writer = file_writer([column], **options)
    rows = len(values) if lengths is None else len(lengths)
    counts = None if lengths is None else np.array(lengths, np.int64)
    # Of a slice: the values do not begin the buffer.
    array = pa.array([*values[:1], *values], ARROW[column.type])[len(values[:1]) :]
    writer.write(rows, [ColumnRows(counts, array, np.arange(rows + 1))])
    return b"".join(writer.finish())


def block_of(file: bytes, number: int = 0) -> bytes:
    """The stored bytes of a block, with its checksum."""
    table = Reader(memory_source(file)).blocks(0)
    end = table.starts[number] + table.stored[number] + table.column.checksum.size
    return file[int(table.starts[number]) : int(end)]


def document(file: bytes) -> Any:
    return json.loads(b"".join(physical_document(Reader(memory_source(file)))))


LONGS = [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001"), (2**63 - 1, "feff" + "ff" * 7 + "01")]


@pytest.mark.parametrize(("number", "digits"), [*LONGS, (-(2**63), "ff" * 9 + "01")])
def test_longs_are_zigzag_coded_with_a_bit_for_more_bytes(number: int, digits: str) -> None:
    data = bytes.fromhex(digits)
    assert long_bytes(number) == data
    assert Cursor(memory_source(data)).long() == number
    file = written(ColumnMetadata("n", ValueType.LONG), [number])
    assert block_of(file) == data
    assert document(file)["columns"][0]["values"] == [number]


def test_bytes_and_strings_follow_their_length() -> None:
    assert sized_bytes(b"foo") == bytes.fromhex("06666f6f")
    assert Cursor(memory_source(bytes.fromhex("06666f6f"))).text() == "foo"
    assert block_of(written(ColumnMetadata("s", ValueType.STRING), ["foo", "é"])) == b"\x06foo\x04\xc3\xa9"
    assert block_of(written(ColumnMetadata("b", ValueType.BYTES), [b"foo", b""])) == b"\x06foo\0"
    with pytest.raises(trevni.TrevniError, match="a length is negative: -1"):
        Cursor(memory_source(long_bytes(-1) + b"foo")).byte_string()


VALUES: list[tuple[ValueType, list[Any], bytes]] = [
    (ValueType.NULL, [None, None], b""),
    (ValueType.BOOLEAN, [True, False, False, True, False, False, False, False, True], b"\x09\x01"),
    (ValueType.INT, [1, -1, -(2**31)], b"\x02\x01\xff\xff\xff\xff\x0f"),
    (ValueType.LONG, [64, -(2**31) - 1], b"\x80\x01\x81\x80\x80\x80\x10"),
    (ValueType.FIXED32, [1, -2], struct.pack("<ii", 1, -2)),
    (ValueType.FIXED64, [1, -2], struct.pack("<qq", 1, -2)),
    (ValueType.FLOAT, [1.5, -0.0], struct.pack("<ff", 1.5, -0.0)),
    (ValueType.DOUBLE, [1.5, float("inf")], struct.pack("<dd", 1.5, float("inf"))),
    (ValueType.STRING, ["a", ""], b"\x02a\0"),
    (ValueType.BYTES, [b"\xff"], b"\x02\xff"),
]


@pytest.mark.parametrize(("kind", "values", "data"), VALUES)
def test_values_of_each_type(kind: ValueType, values: list[Any], data: bytes) -> None:
    file = written(ColumnMetadata("c", kind), values)
    assert block_of(file) == data
    assert sized_bytes(b"trevni.type") + sized_bytes(str(kind).encode()) in file
    assert [batch["c"].to_pylist() for batch in trevni.TrevniFile(io.BytesIO(file)).iter_batches()] == [values]


def test_metadata_is_a_number_of_pairs_of_a_string_and_bytes() -> None:
    file = written(ColumnMetadata("c", ValueType.INT), [1], metadata={"é": b"\xff\0"})
    assert file[16:].startswith(
        b"\x06" + b"\x18trevni.codec\x08null" + b"\x1etrevni.checksum\x08null" + b"\x04\xc3\xa9" + b"\x04\xff\0"
    )
    assert headers.read(memory_source(file)).metadata["é"] == b"\xff\0"


def test_keys_that_begin_with_trevni_are_reserved() -> None:
    with pytest.raises(ConfigError, match="the format uses itself"):
        trevni.write_table(pa.table({"n": [1]}), io.BytesIO(), metadata={"trevni.x": b""})
    assert b"trevni.x" not in written(ColumnMetadata("c", ValueType.INT), [1], metadata={"trevni.x": b""})


def handmade(
    file: Sequence[tuple[str, bytes]], column: Sequence[tuple[str, bytes]], block: bytes, rows: int = 1
) -> bytes:
    """A file of one column and one block, written by hand."""
    parts = [b"Trv\2", rows.to_bytes(8, "little"), b"\1\0\0\0"]
    for pairs in (file, column):
        parts.append(long_bytes(len(pairs)))
        parts += [sized_bytes(key.encode()) + sized_bytes(value) for key, value in pairs]
    start = sum(map(len, parts)) + 8
    return b"".join([*parts, start.to_bytes(8, "little"), struct.pack("<4i", 1, rows, len(block), len(block)), block])


NAME, INT = ("trevni.name", b"c"), ("trevni.type", b"int")


def test_codec_and_checksum_are_null_if_absent() -> None:
    file = handmade([], [NAME, INT], b"\x54")
    assert document(file)["columns"][0]["values"] == [42]
    assert headers.read(memory_source(file)).columns[0].codec == "null"


def test_codec_and_checksum_of_a_column_go_before_those_of_the_file() -> None:
    compressed = Codec.DEFLATE.compress(b"\x54")
    file = handmade([("trevni.codec", b"bzip2")], [NAME, INT, ("trevni.codec", b"deflate")], bytes(compressed))
    at = len(file) - len(compressed) - 8
    file = file[:at] + struct.pack("<i", 1) + file[at + 4 :]
    assert document(file)["columns"][0]["values"] == [42]


def test_metadata_of_applications_may_be_added_to_a_file_and_its_columns() -> None:
    file = handmade([("origin", b"shop")], [NAME, INT, ("unit", b"CHF")], b"\x54")
    actual = headers.read(memory_source(file))
    assert (actual.metadata, actual.columns[0].metadata["unit"]) == ({"origin": b"shop"}, b"CHF")
    assert document(file)["columns"][0]["values"] == [42]


def test_name_and_type_are_required() -> None:
    for properties in ([NAME], [INT]):
        with pytest.raises(trevni.TrevniError, match=r"has no (name|type)"):
            headers.read(memory_source(handmade([], properties, b"\x54")))


def test_first_values_are_in_the_descriptors() -> None:
    column = ColumnMetadata("c", ValueType.STRING, values=True)
    file = written(column, ["aa", "b" * 100, "c"], block_bytes=50)
    start = headers.read(memory_source(file)).starts[0]
    assert file[start:].startswith(
        struct.pack("<i", 2) + struct.pack("<3i", 2, 105, 105) + b"\x04aa" + struct.pack("<3i", 1, 2, 2) + b"\x02c"
    )
    assert Reader(memory_source(file)).blocks(0).first_values == ["aa", "c"]
    long = written(column, ["b" * 10_000, "c"])
    assert Reader(memory_source(long)).blocks(0).first_values == ["b" * 10_000]


@pytest.mark.parametrize("kind", list(ValueType))
def test_first_values_of_each_type(kind: ValueType) -> None:
    values = next(stored for each, stored, _ in VALUES if each is kind)
    file = written(ColumnMetadata("c", kind, values=True), values)
    assert Reader(memory_source(file)).blocks(0).first_values == [values[0]]


def test_first_values_are_not_permitted_for_arrays_and_children() -> None:
    for extra in ({"array": True}, {"parent": "p"}):
        with pytest.raises(trevni.TrevniError, match=r"not permitted|not a column"):
            file_writer([ColumnMetadata("c", ValueType.INT, values=True, **extra)])  # type: ignore[arg-type]
    with pytest.raises(trevni.TrevniError, match="not permitted"):
        document(handmade([], [NAME, INT, ("trevni.array", b""), ("trevni.values", b"")], b"\2\2"))


def test_an_integer_length_precedes_each_sequence() -> None:
    column = ColumnMetadata("c", ValueType.INT, array=True)
    assert block_of(written(column, [1, 2, 3], [2, 0, 1])) == b"\x04\x02\x04" + b"\x00" + b"\x02\x06"


RUNS = [(-1, [0, 0]), (-2, [1, 1]), (-3, [0, 0, 0]), (-4, [1, 1, 1])]


@pytest.mark.parametrize(("number", "lengths"), RUNS)
@pytest.mark.parametrize("kind", list(ValueType))
def test_negative_lengths_are_runs(number: int, lengths: list[int], kind: ValueType) -> None:
    """The reference writes runs of ones for nulls alone. The text allows them for all types: the values then follow the run."""
    values = next(stored for each, stored, _ in VALUES if each is kind)[:1]
    one = block_of(written(ColumnMetadata("c", kind, array=True), values, [1]))[1:]
    block = long_bytes(number) + one * sum(lengths) + b"\x00"
    kind_property = ("trevni.type", str(kind).encode())
    file = handmade([], [NAME, kind_property, ("trevni.array", b"")], block, len(lengths) + 1)
    [column] = document(file)["columns"]
    assert column["lengths"] == [*lengths, 0]
    actual = trevni.read_table(io.BytesIO(file))["c"].to_pylist()
    assert actual == [*([values if sum(lengths) else []] * len(lengths)), []]


def test_runs_that_are_written_are_those_of_the_reference() -> None:
    """Runs of zeros, and of ones in columns of nulls; a value ends a run, and so does a block."""
    lengths = [0, 0, 0, 1, 1, 2, 0]
    nulls = written(ColumnMetadata("c", ValueType.NULL, array=True), [None] * 4, lengths)
    assert block_of(nulls) == long_bytes(-3) + long_bytes(-2) + long_bytes(2) + long_bytes(0)
    ints = written(ColumnMetadata("c", ValueType.INT, array=True), [1, 2, 3, 4], lengths)
    assert block_of(ints) == long_bytes(-3) + b"\2\2" + b"\2\4" + b"\4\6\x08" + b"\0"


def test_the_first_layout_has_no_runs() -> None:
    column = ColumnMetadata("c", ValueType.INT, array=True)
    for lengths, readable in (([1, 0, 1], True), ([0, 0], False)):
        file = written(column, [7] * sum(lengths), lengths)
        first = b"Trv\1" + file[4:]
        if readable:
            assert document(first) == document(file)
        else:
            with pytest.raises(trevni.TrevniError, match="negative length"):
                document(first)


ROW = {
    "id": 566,
    "date": 23423234234,
    "from": "foo@bar.com",
    "to": ["bar@baz.com", "bang@foo.com"],
    "content": "Hi!",
    "received": [
        {"date": 234234234234, "host": "192.168.0.0.1", "sigs": [{"algo": "weak", "value": "0af345de"}]},
        {"date": 234234545645, "host": "192.168.0.0.2", "sigs": []},
    ],
}


def test_the_columns_of_the_example() -> None:
    """The row of the specification, with its array column, its column of records and its records within them."""
    signature = pa.struct([pa.field(name, pa.string(), False) for name in ("algo", "value")])
    inside = [pa.field("date", pa.int64(), False), pa.field("host", pa.string(), False)]
    inside.append(pa.field("sigs", pa.list_(pa.field("element", signature, False)), False))
    received = pa.list_(pa.field("element", pa.struct(inside), False))
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), False),
            pa.field("date", pa.int64(), False),
            pa.field("from", pa.string(), False),
            pa.field("to", pa.list_(pa.field("element", pa.string(), False)), False),
            pa.field("content", pa.string(), False),
            pa.field("received", received, False),
        ]
    )
    file = io.BytesIO()
    trevni.write_table(pa.Table.from_pylist([ROW], schema=schema), file)
    actual = document(file.getvalue())["columns"]
    assert [(each["type"], each["array"], each["parent"]) for each in actual] == [
        ("int", False, None),
        ("long", False, None),
        ("string", False, None),
        ("string", True, None),
        ("string", False, None),
        ("null", True, None),
        ("long", False, "received[]"),
        ("string", False, "received[]"),
        ("null", True, "received[]"),
        ("string", False, "received[]#sigs[]"),
        ("string", False, "received[]#sigs[]"),
    ]
    assert (actual[5]["lengths"], actual[8]["lengths"], actual[9]["values"]) == ([2], [1, 0], ["weak"])
    assert trevni.read_table(file).to_pylist() == [ROW]


def test_header_ends_with_the_position_of_the_first_column() -> None:
    file = written(ColumnMetadata("c", ValueType.INT), [1, 2, 3])
    assert file.startswith(b"Trv\x02" + (3).to_bytes(8, "little") + (1).to_bytes(4, "little"))
    actual = headers.read(memory_source(file))
    assert file[actual.size - 8 : actual.size] == actual.starts[0].to_bytes(8, "little")
    assert actual.starts[0] == actual.size


def test_a_column_is_its_descriptors_and_its_blocks() -> None:
    file = written(ColumnMetadata("c", ValueType.FIXED32), list(range(5)), codec=Codec.DEFLATE, block_bytes=8)
    start = headers.read(memory_source(file)).starts[0]
    blocks = [Codec.DEFLATE.compress(struct.pack("<2i", *each)) for each in ((0, 1), (2, 3))]
    blocks.append(Codec.DEFLATE.compress(struct.pack("<i", 4)))
    descriptors = b"".join(
        struct.pack("<3i", *each) for each in ((2, 8, len(blocks[0])), (2, 8, len(blocks[1])), (1, 4, len(blocks[2])))
    )
    assert file[start:] == struct.pack("<i", 3) + descriptors + b"".join(map(bytes, blocks))


def test_blocks_have_64_kb_and_end_between_rows() -> None:
    column = ColumnMetadata("c", ValueType.BYTES, array=True)
    file = written(column, [b"x" * 1000] * 300, [3] * 100)
    table = Reader(memory_source(file)).blocks(0)
    assert [int(size) for size in table.sizes[:-1]] == [22 * 3007] * (len(table) - 1)
    assert 22 * 3007 >= 64 << 10 > 21 * 3007


def test_no_rows_no_blocks_and_no_columns() -> None:
    assert document(written(ColumnMetadata("c", ValueType.INT), []))["columns"][0]["values"] == []
    assert len(Reader(memory_source(written(ColumnMetadata("c", ValueType.INT), []))).blocks(0)) == 0
    writer = file_writer([])
    writer.write(7, [])
    file = b"".join(writer.finish())
    assert document(file) == {"rows": 7, "columns": []}
    assert trevni.read_table(io.BytesIO(file)).num_rows == 7


DATA = b"The quick brown fox " * 50


def test_each_codec_writes_its_bare_format_and_reads_it_back() -> None:
    """Deflate is that of RFC 1951, without a header; Snappy has no frame; bzip2 is the reference's own addition."""
    assert Codec.NULL.compress(DATA) == DATA
    assert zlib.decompress(bytes(Codec.DEFLATE.compress(DATA)), wbits=-15) == DATA
    assert bytes(pa.decompress(bytes(Codec.SNAPPY.compress(DATA)), len(DATA), "snappy")) == DATA
    assert bz2.decompress(bytes(Codec.BZIP2.compress(DATA))) == DATA
    for codec in Codec:
        assert bytes(codec.decompress(codec.compress(DATA), len(DATA))) == DATA


@pytest.mark.parametrize("name", [b"crc32", b"crc-32"])
@pytest.mark.parametrize("order", ["big", "little"])
def test_checksum_of_a_block_is_verified_in_either_byte_order(name: bytes, order: Any) -> None:
    """Four bytes of the CRC-32 of the block before its codec. cdfd writes the reference's name and order, and reads both."""
    stored = Codec.DEFLATE.compress(b"\x54")
    file = handmade([("trevni.codec", b"deflate"), ("trevni.checksum", name)], [NAME, INT], bytes(stored))
    at = len(file) - len(stored) - 8
    file = file[:at] + struct.pack("<i", 1) + file[at + 4 :]
    file += zlib.crc32(b"\x54").to_bytes(4, order)
    assert document(file)["columns"][0]["values"] == [42]
    with pytest.raises(trevni.TrevniError, match="the checksum is"):
        document(file[:-1] + bytes([file[-1] ^ 1]))
    ours = written(ColumnMetadata("c", ValueType.INT), [42], checksum=Checksum.CRC32)
    assert ours.endswith(b"\x54" + zlib.crc32(b"\x54").to_bytes(4, "big"))
    assert b"crc32" in ours


def test_the_checksum_null_has_no_bytes() -> None:
    assert block_of(written(ColumnMetadata("c", ValueType.INT), [42])) == b"\x54"


def test_every_test_that_the_page_names_is_here() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    here = {name for name in globals() if name.startswith("test_")} - {"test_every_test_that_the_page_names_is_here"}
    assert named >= here
    elsewhere = "".join(path.read_text() for path in Path(__file__).parents[2].glob("*/trevni/test_*.py"))
    assert all(f"def {name}(" in elsewhere for name in named)
