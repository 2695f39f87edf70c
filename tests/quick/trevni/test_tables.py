"""Arrow tables to Trevni files and back."""

import contextlib
import datetime as dt
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

import cdfd.trevni as trevni
from cdfd.errors import ConfigError, DataError, StorageError, UnsupportedError
from cdfd.trevni import metadata as headers
from cdfd.trevni.assembly import logical
from cdfd.trevni.avro_schema import DEEPEST, KEY, parse
from cdfd.trevni.file_writer import ColumnRows
from cdfd.trevni.files.writing import SpillStore
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.shapes import Leaf, arrow_type
from cdfd.trevni.shredding import physical
from cdfd.trevni.source import Cursor, Source, long_bytes
from cdfd.trevni.table_reader import TableReader
from cdfd.trevni.table_writer import TableWriter
from cdfd.trevni.values.lengths import Lengths
from cdfd.trevni.values.value_types import ValueType
from tests.support.trevni import rows
from tests.support.trevni.memory import file_writer, memory_source

CODECS = ("null", "snappy", "deflate", "bzip2")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [0, 1, 7, 2000])
def test_every_type_comes_back_equal(tmp_path: Path, codec: str, count: int) -> None:
    table = rows.table(count)
    trevni.write_table(table, tmp_path / "rows.trv", codec=codec, block_bytes=4096)
    actual = trevni.read_table(tmp_path / "rows.trv")
    actual.validate(full=True)
    assert actual.schema.equals(table.schema)
    assert actual.equals(table)


@pytest.mark.parametrize("nulls", [0.0, 0.02, 1.0])
def test_columns_with_few_nulls_or_nothing_else(tmp_path: Path, nulls: float) -> None:
    table = rows.table(3000, nulls=nulls)
    trevni.write_table(table, tmp_path / "rows.trv")
    assert trevni.read_table(tmp_path / "rows.trv").equals(table)


def test_batches_that_are_written_one_by_one(tmp_path: Path) -> None:
    table = rows.table(1000)
    with trevni.TrevniWriter(tmp_path / "rows.trv", table.schema, block_bytes=1000) as writer:
        for batch in table.to_batches(max_chunksize=17):
            writer.write_batch(batch)
    with trevni.TrevniFile(tmp_path / "rows.trv") as file:
        batches = list(file.iter_batches(100))
        assert file.num_rows == 1000
    assert max(batch.num_rows for batch in batches) <= 100
    assert pa.Table.from_batches(batches).equals(table)


@pytest.mark.parametrize("use_threads", [True, False])
def test_a_file_is_written_once(tmp_path: Path, use_threads: bool) -> None:
    table = rows.table(20)
    with trevni.TrevniWriter(tmp_path / "rows.trv", table.schema, use_threads=use_threads) as writer:
        writer.write_table(table)
        writer.close()
        with pytest.raises(ConfigError, match="the file is closed"):
            writer.write_table(table)
    assert trevni.read_table(tmp_path / "rows.trv").equals(table)


@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_()])
@pytest.mark.parametrize("nullable", [True, False])
def test_many_equal_values_are_read_back(kind: pa.DataType, nullable: bool) -> None:
    """3,000,000 rows in 9 KB: far more than bytes of the file stand for in other files."""
    schema = pa.schema([pa.field("n", kind, nullable=nullable)])
    table = pa.table([pa.array(np.ones(3_000_000, np.int8)).cast(kind)], schema=schema)
    file = io.BytesIO()
    trevni.write_table(table, file, codec="deflate")
    assert trevni.read_table(file).equals(table)


def test_a_writer_that_an_error_has_left_writes_nothing(tmp_path: Path) -> None:
    table = rows.table(20)
    with contextlib.suppress(KeyError), trevni.TrevniWriter(tmp_path / "rows.trv", table.schema) as writer:
        writer.write_table(table)
        raise KeyError
    writer.close()
    with pytest.raises(ConfigError, match="the file is closed"):
        writer.write_table(table)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("use_threads", [True, False])
def test_rows_that_a_failed_write_has_lost_are_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_threads: bool
) -> None:
    monkeypatch.setattr("cdfd.trevni.table_writer.CHUNK_BYTES", 100)
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    good, bad = (pa.record_batch([pa.array(n, pa.int64())], schema=schema) for n in ([1], [None] * 20))
    writer = trevni.TrevniWriter(tmp_path / "rows.trv", schema, use_threads=use_threads)
    writer.write_batch(good)  # it is encoded together with the next one
    with pytest.raises(DataError, match="column n has nulls"):
        writer.write_batch(bad)
    writer.write_batch(good)
    with pytest.raises(DataError, match="an earlier write did not complete"):
        writer.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("use_threads", [True, False])
def test_a_closed_file_is_not_read(tmp_path: Path, use_threads: bool) -> None:
    trevni.write_table(sorted_table(pa.int64(), range(10)), tmp_path / "rows.trv", first_values=["c"])
    with trevni.TrevniFile(tmp_path / "rows.trv", use_threads=use_threads) as file:
        batches = file.iter_batches(5)
        next(batches)
        file.close()
    reads: list[Callable[[], object]] = [file.read, lambda: next(file.iter_batches()), lambda: next(batches)]
    for read in (*reads, lambda: file.find("c", 1), lambda: file.blocks(0)):
        with pytest.raises(ConfigError, match=r"the file is closed .*rows\.trv"):
            read()
    assert (file.num_rows, file.schema.names) == (10, ["c"])


@pytest.mark.parametrize("some", [range(1), range(1234, 1300), range(1999, 2000), range(5, 5), slice(-3, None), (7, 9)])
def test_range_of_rows_is_a_slice_of_the_table(tmp_path: Path, some: range | slice | tuple[int, int]) -> None:
    table = rows.table(2000)
    trevni.write_table(table, tmp_path / "rows.trv", block_bytes=500)
    expected = table.slice(*_span(some, 2000))
    assert trevni.read_table(tmp_path / "rows.trv", rows=some).equals(expected)


@pytest.mark.parametrize("start", [0, 3, 199])
@pytest.mark.parametrize("largest", [1, 1000])
def test_blocks_are_decoded_in_several_pieces(largest: int, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdfd.trevni.column_reader.LARGEST", largest)
    table, file = rows.table(200), io.BytesIO()
    trevni.write_table(table, file, block_bytes=200)
    assert trevni.read_table(file, rows=range(start, 200)).equals(table.slice(start))


def test_bits_of_records_in_lists_have_many_blocks() -> None:
    """No block says how many of its bits are values."""
    record = pa.struct([pa.field("bit", pa.bool_(), False), pa.field("n", pa.int64(), False)])
    schema = pa.schema([pa.field("l", pa.list_(pa.field("element", record, False)), False)])
    lists = [[{"bit": (row + n) % 3 == 0, "n": n} for n in range(row % 13)] for row in range(500)]
    table, file = pa.Table.from_pydict({"l": lists}, schema=schema), io.BytesIO()
    trevni.write_table(table, file, block_bytes=20)
    assert trevni.read_table(file).equals(table)


def _span(some: range | slice | tuple[int, int], count: int) -> tuple[int, int]:
    span = slice(*some) if isinstance(some, tuple) else slice(some.start, some.stop)
    start, end, _ = span.indices(count)
    return start, end - start


def test_some_columns_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    table = rows.table(50)
    trevni.write_table(table, tmp_path / "rows.trv")
    actual = trevni.read_table(tmp_path / "rows.trv", columns=["maps", "a b.c#", "string"])
    assert actual.equals(table.select(["string", "maps", "a b.c#"]))
    # Only structs are read in part.
    assert trevni.read_table(tmp_path / "rows.trv", columns=["list.x"]).equals(table.select(["list"]))
    for name in ("nope", "struct.nope"):
        with pytest.raises(ConfigError, match="there is no column"):
            trevni.read_table(tmp_path / "rows.trv", columns=[name])
    inside = trevni.read_table(tmp_path / "rows.trv", columns=["struct.z", "flat.x"])
    assert inside.schema.field("struct").type == pa.struct([pa.field("z", pa.int64(), nullable=False)])
    assert inside["flat"].to_pylist() == [{"x": each["x"]} for each in table["flat"].to_pylist()]


class Counting:
    """Counts the bytes that are read of a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read = list[tuple[int, int]]()
        self.source = Source(self._read, len(data))

    def _read(self, start: int, length: int) -> bytes:
        self.read.append((start, start + length))
        return self.data[start : start + length]


def test_no_rows_have_the_chosen_fields_of_a_struct_alone() -> None:
    file = io.BytesIO()
    trevni.write_table(pa.table({"n": [1, 2], "s": [{"x": 1, "y": "p"}, {"x": 2, "y": "q"}]}), file)
    no_rows = trevni.read_table(file, columns=["s.x"], rows=range(0))
    assert no_rows.schema == trevni.read_table(file, columns=["s.x"]).schema
    assert no_rows.schema.field("s").type == pa.struct([("x", pa.int64())])


def test_a_projection_reads_the_bytes_of_its_columns_alone() -> None:
    table = pa.table({name: pa.array(range(100_000), pa.int64()) for name in "abcdefghij"})
    file = io.BytesIO()
    trevni.write_table(table, file, codec="null")
    counting = Counting(file.getvalue())
    reader = TableReader(counting.source)
    header = counting.read
    counting.read = []
    list(reader.batches(reader.select(["c"])))
    start, end = reader.metadata.starts[2], reader.metadata.starts[3]
    assert sum(end - start for start, end in header) <= 8192
    assert all(start <= first and last <= end for first, last in counting.read)
    assert sum(last - first for first, last in counting.read) <= end - start + 4
    assert end - start < len(counting.data) / 9


def test_some_rows_read_the_blocks_that_have_them_alone() -> None:
    table = pa.table({"n": pa.array(range(100_000), pa.int64())})
    file = io.BytesIO()
    trevni.write_table(table, file, codec="null", block_bytes=4096)
    counting = Counting(file.getvalue())
    reader = TableReader(counting.source)
    blocks = reader.blocks(0)
    counting.read = []
    [batch] = list(reader.batches(reader.shape, 50_000, 50_010))
    assert batch["n"].to_pylist() == list(range(50_000, 50_010))
    block = blocks.block_of(50_000)
    assert counting.read == [(int(blocks.starts[block]), int(blocks.starts[block + 1]))]


def test_the_row_of_a_value_is_found_in_one_block(tmp_path: Path) -> None:
    kinds: dict[str, pa.DataType] = {"n": pa.int64(), "s": pa.string(), "d": pa.decimal128(38, 0)}
    schema = pa.schema([pa.field(name, kind, False) for name, kind in kinds.items()])
    values = [each // 3 * 2 - 3000 for each in range(10_000)]
    conversions: dict[str, Any] = {"n": int, "s": lambda each: f"{each + 3000:05}", "d": lambda each: Decimal(each)}
    columns = [pa.array(map(conversions[name], values), kind) for name, kind in kinds.items()]
    file = io.BytesIO()
    trevni.write_table(pa.table(columns, schema=schema), file, first_values=list(kinds), block_bytes=512)
    counting = Counting(file.getvalue())
    reader = TableReader(counting.source)
    for name, of in conversions.items():
        reader.find(name, of(0))
        for wanted in (-3000, -2999, -1, 0, 1, 2, 333, 3664, 3666, 9999):
            counting.read = []
            expected = next((row for row, value in enumerate(values) if value >= wanted), len(values))
            assert reader.find(name, of(wanted)) == expected
            assert len(counting.read) == 1


UTC_NOON, HOUR = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC), dt.timedelta(hours=1)
NOON, FIRST, LAST = (UTC_NOON.replace(year=year, tzinfo=None) for year in (2020, 1, 9999))
WANTED: list[tuple[pa.DataType, list[Any], list[Any]]] = [
    (pa.int8(), [1, 2, 3], [-300, 300, -math.inf, math.inf, 1.5, Decimal("2.5"), 3.0, pa.scalar(2), np.int64(2)]),
    (pa.int64(), [-(2**63), 2**53 + 1, 2**63 - 1], [-(2**63) - 1, 2**63, 2.0**53, 2.0**53 + 2, 2.0**63, 0.5]),
    (pa.float32(), [0.5, 1e10, math.inf], [2**70, 1, -(2**200), Decimal("0.51"), math.inf]),
    (pa.float64(), [0.1, 2.0], [Decimal("0.1"), 1, Decimal("1e400")]),
    (
        pa.decimal128(5, 2),
        [Decimal("-1"), Decimal("1.00"), Decimal("2.00")],
        [Decimal("1.005"), 12345, -12345, 0.99, 1],
    ),
    (pa.decimal128(38, 0), [Decimal(-(10**38) + 1), Decimal(10**38 - 1)], [10**38 - 2, 10**38, -math.inf, math.inf]),
    (pa.timestamp("ms"), [NOON, NOON + HOUR], [NOON + dt.timedelta(microseconds=1), FIRST, LAST]),
    (pa.timestamp("ms"), [NOON, NOON + HOUR], [pa.scalar(NOON + HOUR, pa.timestamp("ns")), pa.scalar(NOON)]),
    (
        pa.timestamp("ms"),
        [NOON, NOON + HOUR],
        [pa.scalar(NOON + HOUR, pa.timestamp("s")), pa.scalar(NOON, pa.timestamp("s"))],
    ),
    (pa.timestamp("us", "UTC"), [UTC_NOON], [UTC_NOON.astimezone(dt.timezone(HOUR)), UTC_NOON + HOUR]),
    (pa.timestamp("ns"), [NOON], [FIRST, LAST]),
    (pa.date32(), [dt.date.min, dt.date(2020, 1, 1)], [dt.date(1970, 1, 1), dt.date(2020, 1, 1), dt.date.max]),
    (pa.time32("ms"), [dt.time(1), dt.time(2)], [dt.time(1, 0, 0, 1), dt.time(2), dt.time.max]),
    (pa.string(), ["a", "é", "\U0001f600"], ["", "b", "\ud800", "\uffff", pa.scalar("é")]),
    (pa.binary(), [b"a", b"bb"], [b"", b"b", b"c"]),
    (pa.binary(2), [b"aa", b"bb"], [b"b", b"bbb"]),
    (pa.bool_(), [False, True], [False, True]),
]


def sorted_table(kind: pa.DataType, values: Iterable[Any]) -> pa.Table:
    schema = pa.schema([pa.field("c", kind, nullable=False)])
    return pa.Table.from_arrays([pa.array(values, kind)], schema=schema)


def sorted_file(kind: pa.DataType, values: Iterable[Any]) -> trevni.TrevniFile:
    file = io.BytesIO()
    trevni.write_table(sorted_table(kind, values), file, first_values=["c"], block_bytes=10)
    return trevni.TrevniFile(file)


@pytest.mark.parametrize(
    ("kind", "values", "wanted"), WANTED, ids=lambda each: str(each) if isinstance(each, pa.DataType) else ""
)
def test_the_value_to_find_is_compared_exactly(kind: pa.DataType, values: list[Any], wanted: list[Any]) -> None:
    with sorted_file(kind, values) as file:
        for each in wanted:
            value = each.as_py() if isinstance(each, pa.Scalar) else each
            assert file.find("c", each) == sum(other < value for other in values), each


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        (pa.int64(), [1, 2], [None, "1", b"1", math.nan, Decimal("NaN"), Decimal("sNaN"), [], NOON, np.array([1, 2])]),
        (pa.float64(), [1.0], [None, "1", math.nan]),
        (pa.decimal128(5, 2), [Decimal(1)], [None, "1", math.nan, Decimal("sNaN"), NOON]),
        (
            pa.timestamp("us"),
            [NOON],
            [None, "2020-01-01", 5, math.nan, NOON.date(), NOON.time(), HOUR, 2**80, "\ud800"],
        ),
        (pa.timestamp("us"), [NOON], [np.datetime64("NaT", "us"), object()]),
        (pa.date32(), [NOON.date()], [None, NOON, 5]),
        (pa.time64("us"), [NOON.time()], [None, NOON, 5]),
        (pa.string(), ["a"], [None, b"a", 1]),
        (pa.binary(), [b"a"], [None, "a", 1]),
    ],
    ids=lambda each: str(each) if isinstance(each, pa.DataType) else "",
)
def test_a_value_of_another_kind_cannot_be_found(kind: pa.DataType, values: list[Any], wanted: list[Any]) -> None:
    with sorted_file(kind, values) as file:
        for each in wanted:
            with pytest.raises(ConfigError, match=r"column 'c' cannot be compared with .* Give a value for the type"):
                file.find("c", each)


def test_a_sorted_column_ends_with_nan() -> None:
    with sorted_file(pa.float64(), [1.0, 2.0, math.nan, math.nan]) as file:
        assert [file.find("c", each) for each in (2, 2.5, Decimal(3), math.inf)] == [1, 2, 2, 2]


def test_symbols_of_an_enum_are_found_in_their_order() -> None:
    enum = {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["low", "high"]}}
    schema = json.dumps({"type": "record", "name": "r", "fields": [enum]}).encode()
    writer = file_writer([ColumnMetadata("e", ValueType.INT, values=True)], metadata={KEY: schema})
    writer.write(3, [ColumnRows(None, pa.array([0, 0, 1], pa.int32()), np.arange(4))])
    with trevni.TrevniFile(io.BytesIO(b"".join(writer.finish()))) as file:
        assert [file.find("e", symbol) for symbol in ("low", "high")] == [0, 2]
        with pytest.raises(ConfigError, match="cannot be compared with 'none'"):
            file.find("e", "none")


def test_only_sorted_columns_with_first_values_can_be_searched(tmp_path: Path) -> None:
    trevni.write_table(pa.table({"n": [1]}), tmp_path / "rows.trv")
    with trevni.TrevniFile(tmp_path / "rows.trv") as file, pytest.raises(ConfigError, match="first values"):
        file.find("n", 1)


def test_nothing_is_found_without_rows() -> None:
    file, schema = io.BytesIO(), pa.schema([pa.field("n", pa.int64(), nullable=False)])
    trevni.write_table(schema.empty_table(), file, first_values=["n"])
    with trevni.TrevniFile(file) as empty:
        assert empty.find("n", 1) == 0


def test_a_value_is_looked_for_in_a_block_without_rows() -> None:
    column = ColumnMetadata("n", ValueType.LONG, values=True)
    empty = headers.header_bytes(headers.FileMetadata(2, 1, (column,), (0,)), [0])
    blocks = [np.array([rows, rows, rows], "<i4").tobytes() + long_bytes(first) for rows, first in ((1, 1), (0, 5))]
    data = empty + (2).to_bytes(4, "little") + b"".join(blocks) + long_bytes(1)
    with trevni.TrevniFile(io.BytesIO(data)) as file:
        assert [file.find("n", value) for value in (0, 1, 2, 9)] == [0, 0, 1, 1]


def test_user_metadata_is_that_of_the_schema(tmp_path: Path) -> None:
    table = pa.table({"n": [1]}).replace_schema_metadata({"origin": "shop"})
    trevni.write_table(table, tmp_path / "rows.trv", metadata={"note": b"\xff"})
    assert trevni.read_schema(tmp_path / "rows.trv").metadata == {b"origin": b"shop", b"note": b"\xff"}
    assert trevni.read_metadata(tmp_path / "rows.trv").metadata["note"] == b"\xff"
    with pytest.raises(ConfigError, match="the format uses itself"):
        trevni.write_table(table, tmp_path / "rows.trv", metadata={"trevni.codec": "null"})


def test_codecs_and_checksums_of_columns(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    codecs = {"": "deflate", "b/string": "bzip2"}
    trevni.write_table(table, tmp_path / "rows.trv", codec=codecs, checksum={"": "null", "a/long": "crc-32"})
    metadata = trevni.read_metadata(tmp_path / "rows.trv")
    assert [column.codec for column in metadata.columns] == ["deflate", "bzip2"]
    assert [column.checksum for column in metadata.columns] == ["crc32", "null"]
    assert trevni.read_table(tmp_path / "rows.trv").equals(table)


WRONG_OPTIONS: list[dict[str, Any]] = [
    *({"codec": codec} for codec in ("lzo", 5, None, {"c": "null"}, {"": 5}, {5: "null"})),
    *({"checksum": checksum} for checksum in ("md5", None, {"a/long": 5})),
    *({"metadata": metadata} for metadata in ({"a": 5}, {5: "a"}, {b"a": "a"}, {"a": "\ud800"}, {"\ud800": "a"})),
    *({"block_bytes": size} for size in (-1, "x", None, 1.5, 1 << 31)),
    {"first_values": [5]},
]


@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=str)
def test_unknown_options_are_errors(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        trevni.write_table(pa.table({"a": [1]}), tmp_path / "rows.trv", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", [5, None, b"rows.trv"])
def test_what_is_no_file_is_not_written(where: Any) -> None:
    with pytest.raises(ConfigError, match="the file is of type"):
        trevni.write_table(pa.table({"a": [1]}), where)


WRONG_READS: list[dict[str, Any]] = [
    *({"columns": columns} for columns in ("n", 5, [5], [["n"]], [None])),
    *({"rows": some} for some in (5, "n", (1, 2, 3, 4), ("a", "b"), range(0, 9, 2), slice(0, 9, 0), [1, 2])),
]


@pytest.mark.parametrize("options", WRONG_READS, ids=str)
def test_columns_are_names_and_rows_are_a_range(options: dict[str, Any]) -> None:
    with sorted_file(pa.int64(), range(10)) as file, pytest.raises(ConfigError, match=next(iter(options))):
        file.read(**options)


@pytest.mark.parametrize("number", [-1, 1, "x", None])
def test_blocks_are_those_of_a_column_by_its_number(number: Any) -> None:
    with sorted_file(pa.int64(), range(10)) as file, pytest.raises(ConfigError, match="there is no physical column"):
        file.blocks(number)


@pytest.mark.parametrize("size", [0, "x", None, 1.5])
def test_a_batch_has_a_number_of_rows(size: Any) -> None:
    with sorted_file(pa.int64(), range(10)) as file, pytest.raises(ConfigError, match="batch_size is"):
        next(file.iter_batches(size))


def test_a_union_of_several_types(tmp_path: Path) -> None:
    kinds = pa.array([0, 1, 2, 1, 0], pa.int8())
    offsets = pa.array([0, 0, 0, 1, 1], pa.int32())
    children = [pa.array([7, -7]), pa.array(["x", "y"]), pa.nulls(1)]
    table = pa.table({"u": pa.UnionArray.from_dense(kinds, offsets, children, ["long", "string", "null"])})
    trevni.write_table(table, tmp_path / "rows.trv")
    for columns in (None, ["u"], ["u.x"]):
        assert trevni.read_table(tmp_path / "rows.trv", columns=columns)["u"].to_pylist() == [7, "x", None, "y", -7]


def test_nulls_in_a_column_that_has_none_are_an_error(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("s", pa.struct([pa.field("n", pa.int64(), nullable=False)]))])
    table = pa.Table.from_arrays([pa.array([{"n": None}], schema.field(0).type)], schema=schema)
    with pytest.raises(DataError, match=r"column s\.n has nulls"):
        trevni.write_table(table, tmp_path / "rows.trv")
    elements = pa.array([[1, None]], pa.list_(pa.field("element", pa.int64(), nullable=False)))
    with pytest.raises(DataError, match=r"column l\.element has nulls"):
        trevni.write_table(pa.table({"l": elements}), tmp_path / "rows.trv")
    assert not list(tmp_path.iterdir())


def test_types_that_files_cannot_have(tmp_path: Path) -> None:
    for kind in (pa.duration("s"), pa.time64("ns")):
        with pytest.raises(UnsupportedError, match=f"column d: values of the type {kind}".replace("[", r"\[")):
            trevni.write_table(pa.table({"d": pa.array([1], kind)}), tmp_path / "rows.trv")
    flag = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8()))
    with pytest.raises(UnsupportedError, match=r"column d: values of the type extension<arrow\.bool8>"):
        trevni.write_table(pa.table({"d": flag}), tmp_path / "rows.trv")


VIEWS: list[tuple[pa.DataType, list[Any], pa.DataType]] = [
    (pa.string_view(), ["a", None, "longer than a view"], pa.string()),
    (pa.binary_view(), [b"a", None], pa.binary()),
    (pa.struct([("s", pa.string_view())]), [{"s": "a"}, {"s": None}, None], pa.struct([("s", pa.string())])),
    (pa.list_(pa.string_view()), [["a", None], [], None], pa.list_(pa.string())),
    (pa.map_(pa.string_view(), pa.string_view()), [[("k", "v")], None], pa.map_(pa.string(), pa.string())),
]


@pytest.mark.parametrize(("kind", "values", "expected"), VIEWS, ids=str)
def test_views_are_written_as_text(kind: pa.DataType, values: list[Any], expected: pa.DataType) -> None:
    file = io.BytesIO()
    trevni.write_table(pa.table({"c": pa.array(values, kind)}), file)
    assert trevni.read_table(file)["c"].equals(pa.chunked_array([pa.array(values, expected)]))


def test_nulls_are_an_error_beside_views_too() -> None:
    fields = [pa.field("n", pa.int64(), nullable=False), pa.field("v", pa.string_view())]
    schema = pa.schema([pa.field("s", pa.struct(fields))])
    table = pa.Table.from_arrays([pa.array([{"n": None, "v": "a"}], schema.field(0).type)], schema=schema)
    with pytest.raises(DataError, match="nulls"):
        trevni.write_table(table, io.BytesIO())


def test_lists_of_each_kind_are_written(tmp_path: Path) -> None:
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)):
        values = pa.array([[1, 2], None, [3, None]], kind)
        trevni.write_table(pa.table({"c": values}), tmp_path / "rows.trv")
        assert trevni.read_table(tmp_path / "rows.trv")["c"].to_pylist() == values.to_pylist()


def test_lengths_that_take_several_bytes(tmp_path: Path) -> None:
    """Also those whose middle bytes say only that another one follows."""
    lengths = [0, 63, 64, 8191, 8192, 8193, 16384, 1 << 20, 5]
    table = pa.table({"s": [chr(97 + number) * length for number, length in enumerate(lengths)]})
    trevni.write_table(table, tmp_path / "rows.trv", block_bytes=1 << 22)
    assert trevni.read_table(tmp_path / "rows.trv").equals(table)


def test_rows_with_many_values_are_assembled_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"l": [[number] * (number % 40) for number in range(200)], "n": range(200)})
    trevni.write_table(table, tmp_path / "rows.trv")
    monkeypatch.setattr("cdfd.trevni.rows.WINDOW_VALUES", 64)
    with trevni.TrevniFile(tmp_path / "rows.trv") as file:
        batches = list(file.iter_batches(50))
    assert pa.Table.from_batches(batches).equals(table)


def test_longs_have_64_bits_at_most() -> None:
    with pytest.raises(trevni.TrevniError, match="more than 64 bits"):
        Cursor(memory_source(b"\xff" * 9 + b"\x02")).long()


def test_schema_of_a_file_without_metadata_has_none(tmp_path: Path) -> None:
    trevni.write_table(pa.table({"n": [1]}), tmp_path / "rows.trv")
    assert trevni.read_table(tmp_path / "rows.trv").schema.metadata is None


def test_decimals_have_as_many_bytes_as_their_writer_likes() -> None:
    values = [0, 1, -1, 127, 128, -128, -129, 255, 10**20, -(10**20)]
    shortest = [value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True) for value in values]
    leaf = Leaf(0, ValueType.BYTES, pa.decimal128(38, 0))
    # Of a slice: its bytes neither begin nor end the buffer.
    actual = logical(leaf, pa.array([b"\7", *shortest, bytes(9)], pa.binary())[1:-1])
    assert [int(value) for value in actual.to_pylist()] == values


def test_some_of_the_lengths_that_runs_stand_for() -> None:
    lengths, every = Lengths.of(np.array([-1, 5, -4, 0])), [0, 0, 5, 1, 1, 1, 0]
    assert len(lengths) == len(every)
    for start, end in itertools.combinations_with_replacement(range(len(every) + 1), 2):
        assert lengths.expand(start, end).tolist() == every[start:end]
        assert lengths.total(start, end) == sum(every[start:end])


@pytest.mark.parametrize("number", [-1, 2])
def test_an_enum_has_no_other_number_than_those_of_its_symbols(number: int) -> None:
    leaf = Leaf(0, ValueType.INT, pa.dictionary(pa.int32(), pa.string()), ("a", "b"))
    assert logical(leaf, pa.array([1, 0], pa.int32())).to_pylist() == ["b", "a"]
    assert logical(leaf, pa.array([], pa.int32())).to_pylist() == []
    with pytest.raises(trevni.TrevniError, match="a number is not one of the 2 symbols of an enum"):
        logical(leaf, pa.array([0, number], pa.int32()))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ({"type": "int", "arrow.type": "int8"}, pa.int8()),
        ({"type": "long", "arrow.type": "int8"}, pa.int64()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 3}, pa.decimal128(3, 3)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 4}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": -1}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, pa.binary()),
    ],
)
def test_a_type_that_does_not_fit_its_column_is_ignored(kind: dict[str, object], expected: pa.DataType) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    _, shape = parse(json.dumps(schema), 10)
    assert arrow_type(shape) == pa.struct([pa.field("x", expected, False)])


@pytest.mark.parametrize(
    ("leaf", "values", "error", "what"),
    [
        (Leaf(0, ValueType.INT, pa.dictionary(pa.int32(), pa.string()), ("a",)), ["b"], DataError, "not a symbol"),
        (Leaf(0, ValueType.INT, pa.int32()), [1 << 40], DataError, "column x has a value that does not fit"),
        (Leaf(0, ValueType.INT, pa.int32()), [{"a": 1}], UnsupportedError, "column x is of the type struct"),
    ],
)
def test_values_that_a_column_cannot_have(leaf: Leaf, values: list[Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        physical(leaf, pa.array(values), "x")


def test_a_stored_value_that_its_type_cannot_have() -> None:
    with pytest.raises(trevni.TrevniError, match="a value is not of the type int8"):
        logical(Leaf(0, ValueType.INT, pa.int8()), pa.array([300], pa.int32()))


@pytest.mark.parametrize("values", [[b""], [b"", b"1"], [bytes(17)], [bytes(17), b"1"]])
def test_a_decimal_has_1_to_16_bytes(values: list[bytes]) -> None:
    with pytest.raises(trevni.TrevniError, match="a decimal has no bytes, or more than 16"):
        logical(Leaf(0, ValueType.BYTES, pa.decimal128(38, 0)), pa.array(values, pa.binary()))


def test_type_is_known_by_its_name_within_a_namespace() -> None:
    inner = {"type": "fixed", "name": "b", "size": 2}
    fields = [{"name": "x", "type": inner}, {"name": "y", "type": "b"}, {"name": "z", "type": "a.b"}]
    columns, _ = parse(json.dumps({"type": "record", "name": "r", "namespace": "a", "fields": fields}), 10)
    assert [(column.name, column.type) for column in columns] == [(name, ValueType.BYTES) for name in "xyz"]


def test_schemas_have_a_number_of_levels_at_most() -> None:
    def nested(levels: int) -> str:
        return '{"type":"array","items":' * levels + '"int"' + "}" * levels

    parse(nested(DEEPEST), 1000)
    with pytest.raises(trevni.TrevniError, match="the Avro schema has more than 100 levels"):
        parse(nested(DEEPEST + 1), 1000)
    fields = [{"name": "a", "type": json.loads(nested(2))}, {"name": "b", "type": json.loads(nested(DEEPEST))}]
    with pytest.raises(trevni.TrevniError, match="the Avro schema has more than 100 levels"):
        parse(json.dumps({"type": "record", "name": "r", "fields": fields}), 1000)


Nest: TypeAlias = Callable[[pa.DataType, Any], tuple[pa.DataType, Any]]
NESTS: dict[str, tuple[int, Nest]] = {
    "struct": (DEEPEST - 1, lambda kind, value: (pa.struct([("f", kind)]), {"f": value})),
    "struct without nulls": (DEEPEST - 1, lambda kind, value: (pa.struct([pa.field("f", kind, False)]), {"f": value})),
    "list": (DEEPEST - 1, lambda kind, value: (pa.list_(pa.field("element", kind)), [value])),
    "map": (DEEPEST // 2 - 1, lambda kind, value: (pa.map_(pa.string(), kind), [("k", value)])),
    "map by numbers": (DEEPEST // 2 - 1, lambda kind, value: (pa.map_(pa.int8(), kind), [(1, value)])),
    "map by maps": (DEEPEST // 2 - 1, lambda kind, value: (pa.map_(kind, pa.int8()), [(value, 1)])),
}


@pytest.mark.parametrize("name", NESTS)
def test_columns_have_a_number_of_levels_at_most(name: str) -> None:
    most, nest = NESTS[name]

    def nested(levels: int) -> tuple[pa.DataType, Any]:
        return reduce(lambda inner, _: nest(*inner), range(levels), (pa.int64(), 1))

    kind, value = nested(most)
    table, file = pa.table({"c": pa.array([value], kind)}), io.BytesIO()
    trevni.write_table(table, file, use_threads=False)
    assert trevni.read_table(file, use_threads=False).equals(table)
    for levels in (most + 1, 400):
        with pytest.raises(UnsupportedError, match="column c is nested deeper than the 100 levels of Trevni files"):
            TableWriter(pa.schema([("c", nested(levels)[0])]), SpillStore())


def test_columns_have_a_number_of_levels_of_parents_at_most() -> None:
    def nested(levels: int) -> io.BytesIO:
        parents = (None if not number else f"c{number - 1}" for number in range(levels + 1))
        columns = [ColumnMetadata(f"c{number}", ValueType.NULL, True, parent) for number, parent in enumerate(parents)]
        return io.BytesIO(b"".join(file_writer(columns).finish()))

    trevni.read_schema(nested(DEEPEST))
    with pytest.raises(trevni.TrevniError, match="columns have more than 100 levels of parents"):
        trevni.read_schema(nested(DEEPEST + 1))


def test_field_without_a_type_is_refused() -> None:
    for field in ({"name": "a"}, {"type": "int"}, {"name": 1, "type": "int"}, "a"):
        with pytest.raises(trevni.TrevniError, match="a field of the Avro schema has no name or no type"):
            parse(json.dumps({"type": "record", "name": "r", "fields": [field]}), 10)


@pytest.mark.parametrize("symbols", [None, "A", ["A", 1]])
def test_enum_without_names_is_refused(symbols: object) -> None:
    enum = {"name": "e", "type": {"type": "enum", "name": "E", "symbols": symbols}}
    with pytest.raises(trevni.TrevniError, match="an enum of the Avro schema has no symbols"):
        parse(json.dumps({"type": "record", "name": "r", "fields": [enum]}), 10)


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (2, -1), (2, 2), (4, 0)])
def test_bytes_outside_of_the_file_are_not_asked_for(start: int, length: int) -> None:
    def read(start: int, length: int) -> bytes:
        raise AssertionError

    with pytest.raises(trevni.TrevniError, match=rf"{length} bytes are expected, and the file has 3"):
        Source(read, 3).bytes_at(start, length)


@pytest.mark.parametrize(("magic", "offset"), [(b"Trx\2", 0), (b"Trv\3", 3)])
def test_error_of_the_magic_number_names_its_byte(magic: bytes, offset: int) -> None:
    with pytest.raises(trevni.TrevniError) as error:
        headers.read(memory_source(magic + bytes(64)))
    assert error.value.offset == offset


@pytest.mark.parametrize("count", [-1, 1 << 20])
def test_number_of_properties_that_cannot_be_is_refused(count: int) -> None:
    file = b"Trv\2" + (1).to_bytes(8, "little") + b"\1\0\0\0" + long_bytes(count) + bytes(64)
    with pytest.raises(trevni.TrevniError, match=f"announces {count} properties"):
        headers.read(memory_source(file))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none\.trv"):
        trevni.read_table(tmp_path / "none.trv")


def test_file_objects_stay_open() -> None:
    table = pa.table({"n": [1, 2]})
    file = io.BytesIO()
    trevni.write_table(table, file)
    assert trevni.read_table(file).equals(table)
    assert trevni.read_table(pa.BufferReader(file.getvalue())).equals(table)
    assert not file.closed


def test_blocks_beyond_the_memory_limit_go_to_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdfd.trevni.files.writing.SPILL_BYTES", 10_000)
    table = rows.table(2000)
    trevni.write_table(table, tmp_path / "rows.trv", block_bytes=1000)
    assert trevni.read_table(tmp_path / "rows.trv").equals(table)
