"""Damaged and hostile files: always a `TrevniError`, and never more memory than the file allows."""

from __future__ import annotations

import io
import subprocess
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

import cdfd.trevni as trevni
from cdfd.cli.commands.trevni import physical_document
from cdfd.trevni.avro_schema import KEY, parse
from cdfd.trevni.column_reader import UNBACKED
from cdfd.trevni.file_writer import ColumnRows
from cdfd.trevni.files.data_file import MOST_GROUPS, open_trevni
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.rows import MOST_LOADED, WINDOW_BYTES, Reader
from cdfd.trevni.source import Source, long_bytes, sized_bytes
from cdfd.trevni.values.value_types import ValueType
from tests.support.sampling import sample, stride
from tests.support.trevni import rows
from tests.support.trevni.memory import file_writer, memory_source


def small(codec: str = "null", checksum: str = "crc32") -> bytes:
    table = rows.table(3, pa.schema([rows.SCHEMA.field(name) for name in ("string", "long", "bit", "list")]))
    file = io.BytesIO()
    trevni.write_table(table, file, codec=codec, checksum=checksum, first_values=["long"], use_threads=False)
    return file.getvalue()


def read(data: bytes) -> pa.Table:
    """All that can be read of a file."""
    for _ in physical_document(Reader(memory_source(data))):
        pass
    return read_rows(data)


def read_rows(data: bytes) -> pa.Table:
    table = trevni.read_table(pa.BufferReader(data), use_threads=False)
    table.validate(full=True)
    return table


@pytest.mark.parametrize("codec", sample(["null", "snappy", "deflate", "bzip2"], 1))
def test_file_that_ends_at_any_byte_is_an_error(codec: str) -> None:
    data = small(codec)
    read(data)
    for end in range(len(data)):
        with pytest.raises(trevni.TrevniError):
            read_rows(data[:end])


@pytest.mark.parametrize(("codec", "checksum"), [("null", "null"), ("null", "crc32"), ("snappy", "crc32")])
def test_flipped_bit_is_an_error_or_changes_no_row(codec: str, checksum: str) -> None:
    """The checksum finds a flipped bit in a block. In a header, another value may be a valid one: a column has another name."""
    data = small(codec, checksum)
    expected = read(data)
    starts = trevni.read_metadata(pa.BufferReader(data)).starts
    unnoticed = 0
    for bit in range(0, 8 * len(data), stride(7)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        try:
            actual = read_rows(bytes(flipped))
        except trevni.TrevniError:
            continue
        if checksum == "crc32" and bit // 8 >= starts[0]:
            unnoticed += 1
            assert actual.equals(expected)
    # First values have no checksum: nothing else is without one.
    assert unnoticed <= 8 * 10


def physical_file(column: ColumnMetadata, block: bytes, rows: int, *, file_rows: int | None = None) -> bytes:
    """A file with one block of a column, however damaged."""
    header = b"Trv\x02" + (rows if file_rows is None else file_rows).to_bytes(8, "little") + b"\1\0\0\0" + b"\0"
    properties = {b"trevni.name": column.name.encode(), b"trevni.type": str(column.type).encode()}
    if column.array:
        properties[b"trevni.array"] = b""
    header += long_bytes(len(properties))
    header += b"".join(sized_bytes(key) + sized_bytes(value) for key, value in properties.items())
    header += (len(header) + 8).to_bytes(8, "little")
    descriptor = b"\1\0\0\0" + np.array([rows, len(block), len(block)], "<i4").tobytes()
    return header + descriptor + block


@pytest.mark.parametrize("place", [0, 4, 8])
def test_a_descriptor_with_a_negative_number(place: int) -> None:
    file = physical_file(plain(ValueType.INT), b"\2", 1)
    at = len(file) - 1 - 12 + place
    with pytest.raises(trevni.TrevniError, match="a descriptor has a negative number") as caught:
        read(file[:at] + b"\xff" * 4 + file[at + 4 :])
    assert caught.value.block == 0


def plain(kind: ValueType) -> ColumnMetadata:
    return ColumnMetadata("c", kind)


def array(kind: ValueType) -> ColumnMetadata:
    return ColumnMetadata("c", kind, array=True)


@pytest.mark.parametrize(
    ("column", "block", "count", "what"),
    [
        (plain(ValueType.INT), b"\x80", 1, "ends within a number"),
        (plain(ValueType.INT), b"\x02\x02", 1, "more than 1 values for 1 rows"),
        (plain(ValueType.INT), b"\x02\x02", 3, "2 values for 3 rows"),
        (plain(ValueType.INT), b"\xff" * 5 + b"\1", 1, "more than 5 bytes"),
        (plain(ValueType.INT), b"\xff" * 4 + b"\x1f", 1, "more than 32 bits"),
        (plain(ValueType.LONG), b"\xff" * 10 + b"\1", 1, "more than 10 bytes"),
        (plain(ValueType.LONG), b"\xff" * 9 + b"\2", 1, "more than 64 bits"),
        (plain(ValueType.DOUBLE), b"1234567", 1, "ends within a value"),
        (plain(ValueType.BOOLEAN), b"\0\0", 8, "2 bytes for 8 bits"),
        (plain(ValueType.NULL), b"\0", 1, "nulls has data"),
        (plain(ValueType.STRING), b"\x01", 1, "negative"),
        (plain(ValueType.STRING), b"\x08abc", 1, "ends within a value"),
        (plain(ValueType.STRING), b"\x04\xc3\x28", 1, "not UTF-8"),
        (plain(ValueType.STRING), b"\x02\xc3\x02\xa9", 2, "not UTF-8"),
        (plain(ValueType.BYTES), b"\xfe\xff\xff\xff\x0f", 1, "ends within a value"),
        (array(ValueType.INT), b"\x04\x02", 1, "ends within a value"),
        (array(ValueType.INT), b"\x02\xff\xff\xff\xff\x1f", 1, "more than 32 bits"),
        (array(ValueType.INT), b"\xff\xff\xff\xff\x1f", 1, "more than 32 bits"),
        (array(ValueType.FLOAT), b"\x02\0\0\0", 1, "ends within a value"),
        (array(ValueType.STRING), b"\x04\x02a\x01", 1, "negative"),
        (array(ValueType.STRING), b"\x02\x80", 1, "within a number"),
        (array(ValueType.BOOLEAN), b"\x12\0", 1, "ends within a value"),
        (array(ValueType.NULL), b"\x05", 2, "3 lengths for 2 rows"),
    ],
)
def test_a_block_that_does_not_fit_its_column(column: ColumnMetadata, block: bytes, count: int, what: str) -> None:
    with pytest.raises(trevni.TrevniError, match=what) as caught:
        read(physical_file(column, block, count))
    assert caught.value.column == "c"
    assert caught.value.block == 0
    assert caught.value.offset is not None


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) >= 1
    return data.replace(old, new, 1)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: b"PAR1" + data[4:], "not a Trevni file"),
        (lambda data: b"Trv\3" + data[4:], "version 3 of the Trevni layout"),
        (lambda data: data[:4] + b"\xff" * 8 + data[12:], "number of rows is negative"),
        (lambda data: data[:12] + b"\xff\xff\xff\x7f" + data[16:], "announces 2147483647 columns"),
        (lambda data: changed(data, b"snappy", b"snoopy"), "the codec 'snoopy' is unknown"),
        (lambda data: changed(data, b"crc32", b"md532"), "the checksum 'md532' is unknown"),
        (
            lambda data: changed(data, b"trevni.type\x0cstring", b"trevni.type\x0cstrong"),
            "the type 'strong' is unknown",
        ),
        (lambda data: changed(data, b"trevni.name", b"trevni.nome"), "a column has no name"),
        (lambda data: changed(data, b"trevni.type\x0cstring", b"trevni.tipe\x0cstring"), "the column has no type"),
        (lambda data: changed(data, b'"record"', b'"recurd"'), "unknown type: 'recurd'"),
    ],
)
def test_a_header_that_cannot_be(change: Callable[[bytes], bytes], what: str) -> None:
    with pytest.raises(trevni.TrevniError, match=what):
        read(change(small("snappy")))


def test_only_the_known_magic_number_and_versions_are_read() -> None:
    """Every bit of the three letters counts, and no version but 1 and 2 is taken for one of them."""
    data = small("snappy")
    for bit in range(24):
        damaged = bytes(byte ^ (1 << bit % 8 if place == bit // 8 else 0) for place, byte in enumerate(data[:3]))
        with pytest.raises(trevni.TrevniError, match="not a Trevni file") as caught:
            read(damaged + data[3:])
        assert caught.value.offset == 0
    for version in {*range(256)} - {1, 2}:
        with pytest.raises(trevni.TrevniError, match=f"version {version} of the Trevni layout") as caught:
            read(data[:3] + bytes([version]) + data[4:])
        assert caught.value.offset == 3
    for length in range(4):
        with pytest.raises(trevni.TrevniError, match="not a Trevni file"):
            read(data[:length])


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ([ColumnMetadata("a", ValueType.INT), ColumnMetadata("a", ValueType.INT)], "the same name"),
        ([ColumnMetadata("a", ValueType.INT, parent="b")], "not a column before it"),
        ([ColumnMetadata("a", ValueType.INT, parent="a")], "not a column before it"),
        ([ColumnMetadata("a", ValueType.INT), ColumnMetadata("b", ValueType.INT, parent="a")], "not an array column"),
        ([ColumnMetadata("a", ValueType.INT, array=True, values=True)], "not permitted for array columns"),
    ],
)
def test_columns_that_cannot_be_are_neither_written_nor_read(
    columns: list[ColumnMetadata], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(trevni.TrevniError, match=what):
        file_writer(columns)
    with monkeypatch.context() as patched:
        patched.setattr("cdfd.trevni.file_writer.check_column", lambda *_: None)
        writer = file_writer(columns)
        data = b"".join(writer.finish())
    with pytest.raises(trevni.TrevniError, match=what):
        read(data)


def test_cycles_of_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdfd.trevni.file_writer.check_column", lambda *_: None)
    columns = [ColumnMetadata(name, ValueType.NULL, True, other) for name, other in ("ab", "ba")]
    with pytest.raises(trevni.TrevniError, match="not a column before it"):
        read(b"".join(file_writer(columns).finish()))


RECURSIVE = '{"type":"record","name":"A","fields":[{"name":"a","type":["null","A"]}]}'
WIDE = '{"type":"record","name":"A0","fields":[{"name":"a","type":"int"}]}'
for level in range(1, 40):
    WIDE = f'{{"type":"record","name":"A{level}","fields":[{{"name":"x","type":{WIDE}}},{{"name":"y","type":"A{level - 1}"}}]}}'
FIELDLESS = WIDE.replace('{"name":"a","type":"int"}', "")
DEEP = '{"type":"array","items":' * 900 + '"int"' + "}" * 900


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (RECURSIVE, "recursive"),
        (WIDE, "more than 1 columns"),
        (DEEP, "more than 1 columns|levels"),
        (FIELDLESS, "more than 100008 types for 1 columns"),
        ("[[]]", "directly in another one"),
        ("nonsense", "not JSON"),
        ('"string"', r"has 'string' \(string\) here"),
        ('{"type":"record","name":"r","fields":[]}', "has 0 columns, and the file 1"),
        ('{"type":"array"}', "has no items"),
        ('{"type":"map"}', "a map of the Avro schema has no values"),
        ('{"type":"fixed","name":"f"}', "a fixed type of the Avro schema has no size"),
        ('{"type":"fixed","name":"f","size":-1}', "a fixed type of the Avro schema has no size"),
        ('{"type":"fixed","name":"f","size":2147483647}', "has 2147483647 bytes; at most 67108864 are read"),
        ('{"type":"array","items":7}', "a type that is neither text, nor an object or a list"),
        ('{"type":{"type":{"type":"nothing"}}}', "unknown type"),
    ],
)
def test_avro_schemas_that_cannot_be(schema: str, what: str) -> None:
    writer = file_writer([ColumnMetadata("c", ValueType.INT)], metadata={"avro.schema": schema.encode()})
    with pytest.raises(trevni.TrevniError, match=what):
        trevni.read_schema(pa.BufferReader(b"".join(writer.finish())))


def test_symbols_of_a_large_enum_count_for_each_of_its_columns() -> None:
    symbols = ",".join(f'"s{number}"' for number in range(20_000))
    fields = ",".join(f'{{"name":"c{number}","type":"e"}}' for number in range(1, 51))
    enum = f'{{"name":"c0","type":{{"type":"enum","name":"e","symbols":[{symbols}]}}}}'
    columns, _ = parse(f'{{"type":"record","name":"r","fields":[{enum}]}}', 51)
    assert len(columns) == 1
    with pytest.raises(trevni.TrevniError, match="more than 1000000 symbols"):
        parse(f'{{"type":"record","name":"r","fields":[{enum},{fields}]}}', 51)


@pytest.mark.parametrize(
    ("count", "what"),
    [(3, "the rows have 4 values in the parent, and 3 are left"), (5, "1 values are left after the blocks' rows")],
)
def test_children_with_more_or_fewer_values_than_their_parent(count: int, what: str) -> None:
    columns = [ColumnMetadata("p", ValueType.NULL, array=True), ColumnMetadata("c", ValueType.LONG, parent="p")]
    writer = file_writer(columns)
    values = ColumnRows(None, pa.array(range(count), pa.int64()), np.array([0, 2, count]))
    writer.write(2, [ColumnRows(np.array([2, 2]), pa.nulls(4), np.arange(3)), values])
    with pytest.raises(trevni.TrevniError, match=what):
        read(b"".join(writer.finish()))


@pytest.mark.parametrize(
    ("lengths", "what"),
    [
        (([1, 0], [0, 1]), None),
        (([1, 0], [1, 1]), "a value has two branches of its union"),
        (([1, 0], [0, 0]), "a value has no branch of its union"),
        (([2, 0], [0, 1]), "a branch of a union has more than one value"),
    ],
)
def test_a_value_has_one_branch_of_its_union(lengths: tuple[list[int], list[int]], what: str | None) -> None:
    text = b'{"type":"record","name":"r","fields":[{"name":"u","type":["int","string"]}]}'
    columns, _ = parse(text, 2)
    writer = file_writer(columns, metadata={KEY: text})
    parts = []
    for kind, counts in zip((pa.int32(), pa.string()), lengths, strict=True):
        values = pa.array(range(sum(counts)), pa.int32()).cast(kind)
        parts.append(ColumnRows(np.array(counts), values, np.arange(3)))
    writer.write(2, parts)
    data = b"".join(writer.finish())
    if what is None:
        assert read(data)["u"].to_pylist() == [0, "0"]
    else:
        with pytest.raises(trevni.TrevniError, match=what):
            read(data)


def test_row_may_have_as_many_arrays_as_are_cheap_and_its_file_has_bytes() -> None:
    columns = [ColumnMetadata("p", ValueType.NULL, array=True), ColumnMetadata("c", ValueType.INT, True, "p")]

    def lists(count: int) -> bytes:
        writer = file_writer(columns)
        empty = ColumnRows(np.zeros(count, np.int64), pa.array([], pa.int32()), np.array([0, count]))
        writer.write(1, [ColumnRows(np.array([count]), pa.nulls(count), np.array([0, 1])), empty])
        return b"".join(writer.finish())

    most = UNBACKED + Reader(memory_source(lists(UNBACKED))).blocks(1).num_bytes
    assert read_rows(lists(most)).num_rows == 1
    with pytest.raises(trevni.TrevniError, match=f"a row has {most + 1} arrays, for which the file has no bytes"):
        read_rows(lists(most + 1))


def peak(data: bytes, call: str = "trevni.read_table(pa.BufferReader(data), use_threads=False)") -> tuple[str, int]:
    """The error of reading a file in a process of its own, and the bytes by which it grew."""
    program = f"""
import sys, pyarrow as pa, numpy, pyarrow.compute
import cdfd.trevni as trevni
import cdfd.trevni.files.reading, cdfd.cli.commands.trevni
import cdfd.trevni.files.data_file as trevni_data_file
data = sys.stdin.buffer.read()
def peak():
    # Not `ru_maxrss`, which begins with that of the parent.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
before = peak()
try:
    {call}
    print("read")
except trevni.TrevniError as error:
    print(error)
print(1024 * (peak() - before))
"""
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    error, size = done.stdout.decode().splitlines()
    return error, int(size)


ALLOWED = 32 << 20


def bomb(kind: str) -> tuple[bytes, str]:
    """A small file that asks for much, and the error that it is."""
    match kind:
        case "run of lengths":
            block = long_bytes(-(1 << 31) + 1)
            return physical_file(array(ValueType.INT), block, (1 << 30) + 1), "bytes for 1073741825 rows"
        case "columns":
            return b"Trv\2" + bytes(8) + b"\xff\xff\xff\x7f" + b"\0" * 100, "announces 2147483647 columns"
        case "blocks":
            data = physical_file(plain(ValueType.INT), b"\2", 1)
            return data[:-17] + b"\xff\xff\xff\x7f" + data[-13:], "announces 2147483647 blocks"
        case "text":
            return b"Trv\2" + bytes(12) + long_bytes(1) + long_bytes(1 << 40) + b"x", "announces|are left"
        case _:
            data = {"deflate": zlib.compress(bytes(1 << 20), wbits=-15), "snappy": b"\x80\x80\x80\x80\x04" + b"\0" * 9}[
                kind
            ]
            return compressed_bits(data, 1, 1 << 30, kind), "cannot have|is damaged|and its descriptor says"


def compressed_bits(block: bytes, rows: int, size: int, codec: str) -> bytes:
    """A file with one block of booleans, whose descriptor says that it has `size` bytes before its codec."""
    file = physical_file(plain(ValueType.BOOLEAN), block, rows)
    at = len(file) - len(block) - 8
    file = file[:at] + size.to_bytes(4, "little") + file[at + 4 :]
    # The codec is in the file's metadata, which moves the column.
    added = sized_bytes(b"trevni.codec") + sized_bytes(codec.encode())
    longer = file[:16] + b"\2" + added + file[17:]
    at = longer.index(b"trevni.type") + len(b"trevni.type") + 1 + len("boolean")
    return longer[:at] + (at + 8).to_bytes(8, "little") + longer[at + 8 :]


@pytest.mark.parametrize("kind", sample(["run of lengths", "columns", "blocks", "text", "deflate", "snappy"], 2))
def test_bomb_is_an_error_in_bounded_memory(kind: str) -> None:
    data, what = bomb(kind)
    error, grown = peak(data)
    assert error != "read"
    assert any(part in error for part in what.split("|")), error
    assert grown < ALLOWED + 50 * len(data)


DATA_FILE = """
with trevni_data_file.open_trevni(pa.BufferReader(data)) as file:
        for _ in file.batches(file.schema_arrow.names, rows=1000):
            pass
"""


def test_a_small_data_file_with_a_large_block() -> None:
    size = MOST_LOADED + (1 << 20)
    data = compressed_bits(zlib.compress(bytes(size), wbits=-15), 8 * size, size, "deflate")
    error, grown = peak(data, DATA_FILE.strip())
    assert f"the blocks of row 0 have {size} bytes decompressed" in error
    assert grown < ALLOWED


def test_blocks_of_a_data_file_are_decoded_together_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows at the end have nearly all bytes of the file, so that as many rows as usual have too many."""
    monkeypatch.setattr("cdfd.trevni.files.data_file.MOST_LOADED", 1000)
    monkeypatch.setattr("cdfd.trevni.rows.MOST_LOADED_PER_COLUMN", 0)

    def data_file(largest: int) -> pa.BufferReader:
        table = pa.table({"n": range(520), "s": ["x"] * 500 + ["x" * 300] * 19 + ["x" * largest]})
        file = io.BytesIO()
        trevni.write_table(table, file, block_bytes=100)
        return pa.BufferReader(file.getvalue())

    with open_trevni(data_file(500)) as file:
        assert pa.Table.from_batches(file.batches(["n", "s"], rows=100)).num_rows == 520
    with open_trevni(data_file(1000)) as file, pytest.raises(trevni.TrevniError, match="the blocks of row 519 have"):
        list(file.batches(["n", "s"], rows=100))


def nulls_of_fixed_types(width: int, count: int, *, in_list: bool = False) -> bytes:
    """A file whose only column is a fixed type with nothing but nulls: `count` rows, or items of one row."""
    union = f'["null",{{"type":"fixed","name":"f","size":{width}}}]'
    kind = f'{{"type":"array","items":{union}}}' if in_list else union
    text = f'{{"type":"record","name":"r","fields":[{{"name":"x","type":{kind}}}]}}'.encode()
    columns, _ = parse(text, 2)
    writer = file_writer(columns, metadata={KEY: text})
    each = ColumnRows(np.zeros(count, np.int64), pa.array([], pa.binary()), np.arange(count + 1))
    if in_list:
        lists = ColumnRows(np.array([count]), pa.nulls(count), np.array([0, 1]))
        writer.write(1, [lists, each._replace(entries=np.array([0, count]))])
    else:
        writer.write(count, [each])
    return b"".join(writer.finish())


def test_nulls_of_a_fixed_type_are_read_in_few_rows() -> None:
    data = nulls_of_fixed_types(1 << 20, 1000)
    call = "list(map(len, trevni.TrevniFile(pa.BufferReader(data), use_threads=False).iter_batches()))"
    error, grown = peak(data, call)
    assert error == "read"
    assert grown < ALLOWED + 2 * WINDOW_BYTES


@pytest.mark.parametrize(
    ("count", "in_list", "what"),
    [(1 << 20, False, "bytes for 1048576 rows"), (1 << 12, True, "a row has 4096 values of 65536 bytes")],
)
def test_nulls_of_a_fixed_type_that_take_too_much_memory(count: int, in_list: bool, what: str) -> None:
    error, grown = peak(nulls_of_fixed_types(1 << 16, count, in_list=in_list))
    assert what in error
    assert grown < ALLOWED


def test_runs_of_lengths_are_read_in_windows() -> None:
    """Rows of a column that is almost empty take no bytes, and are rows all the same."""
    count = 3 * UNBACKED
    data = physical_file(array(ValueType.INT), long_bytes(1 - 2 * (count - 1)), count)
    call = "list(map(len, trevni.TrevniFile(pa.BufferReader(data), use_threads=False).iter_batches()))"
    error, grown = peak(data, call)
    assert error == "read"
    assert grown < ALLOWED


@pytest.mark.parametrize("rows", [1 << 60, (1 << 63) - 1])
@pytest.mark.parametrize("column", [None, plain(ValueType.INT)])
def test_rows_of_a_data_file_that_only_its_header_has(rows: int, column: ColumnMetadata | None) -> None:
    data = b"Trv\2" + rows.to_bytes(8, "little") + bytes(5)
    if column is not None:
        data = physical_file(column, b"\2", 1, file_rows=rows)
    with open_trevni(pa.BufferReader(data)) as file:
        footer = file.metadata
        counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        assert len(counts) <= MOST_GROUPS
        assert (footer.num_rows, sum(counts)) == (rows, rows)
        what = (
            "the file has 17 bytes and no columns"
            if column is None
            else f"the blocks have 1 rows, and the file has {rows}"
        )
        with pytest.raises(trevni.TrevniError, match=what):
            next(file.batches([], rows=100))


def test_errors_name_column_block_and_byte() -> None:
    file = io.BytesIO()
    trevni.write_table(pa.table({"n": pa.array(range(1000), pa.int64())}), file, codec="null", block_bytes=100)
    data = bytearray(file.getvalue())
    data[-50] ^= 1
    with pytest.raises(trevni.TrevniError) as caught:
        read(bytes(data))
    error = caught.value
    assert (error.column, error.block) == ("n/long", trevni.TrevniFile(file).blocks(0).rows.size - 1)
    assert str(error).endswith(f"(column n/long, block {error.block}, byte {error.offset})")


def test_a_reader_that_returns_less_than_the_file_has() -> None:
    data = small()
    source = Source(lambda start, length: data[start : start + min(length, 10)], len(data))
    with pytest.raises(trevni.TrevniError, match="were read"):
        Reader(source)
