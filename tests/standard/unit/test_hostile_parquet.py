"""Parquet files that decode to much more than they say: correct rows or an error, in a process that may have little memory.

Each file is read in a child process whose address space is limited: where memory is not bounded, that process fails.
"""

import json
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.errors import DataError
from tests.support.hostile_pages import write_table as table
from tests.support.parquet_bytes import (
    BYTE_ARRAY,
    DELTA_STRINGS,
    FIXED,
    INT32,
    PLAIN,
    RLE_DICTIONARY,
    ZSTD,
    data_page,
    dictionary_page,
    element,
    file,
    flat,
    levels,
    number,
    run,
    varint,
)
from tests.support.sampling import sample

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="memory of a process is limited and measured as Linux does"
)

ADDRESS_SPACE = 2 << 30
"""Arrow's allocator takes a gigabyte of it before anything is read."""
RESIDENT = 1 << 30
"""Bytes of memory that are used."""

READ = """
import sys, cdfd, pyarrow.compute as pc
rows = size = 0
try:
    for batch in cdfd.changes(sys.argv[1]):
        rows += batch.num_rows
        column = batch.column(0)
        size += (pc.sum(pc.binary_length(column)).as_py() or 0) if str(column.type) in ("string", "binary") else 0
    print("rows", rows, size)
except cdfd.errors.CdfdError as error:
    print(type(error).__name__, str(error)[:400])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""

STREAM = """
import sys, pyarrow as pa, pyarrow.compute as pc
from cdfd.errors import CdfdError
from cdfd.scan.parquet.reader import open_parquet
rows = size = 0
try:
    with open_parquet(pa.PythonFile(open(sys.argv[1] + "/f.parquet", "rb"), "r")) as file:
        for batch in file.batches(["c"], rows=65536):
            rows += batch.num_rows
            column = batch.column(0)
            column = column.dictionary_decode() if hasattr(column, "dictionary") else column
            size += (pc.sum(pc.binary_length(column)).as_py() or 0) if str(column.type) in ("string", "binary") else 0
    print("rows", rows, size)
except CdfdError as error:
    print(type(error).__name__, str(error)[:400])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def zeros_of(size: int, head: bytes) -> bytes:
    """So many zeros after some bytes, compressed."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(head)
        for start in range(0, size, 1 << 20):
            out.write(bytes(min(1 << 20, size - start)))
    return bytes(sink.getvalue())


def one_value_of(size: int) -> bytes:
    head = levels(run(1, 1)) + struct.pack("<I", size)
    return flat(BYTE_ARRAY, data_page(zeros_of(size, head), len(head) + size, 1, PLAIN), 1, ZSTD)


def one_number_in_a_page_of(size: int) -> bytes:
    return flat(INT32, data_page(zeros_of(size, levels(run(1, 1))), 6 + size, 1, PLAIN), 1, ZSTD)


def a_dictionary_of(size: int, rows: int) -> bytes:
    head = struct.pack("<I", size)
    body = levels(run(rows, 1)) + b"\1" + run(rows, 0)
    chunk = dictionary_page(zeros_of(size, head), 4 + size, 1)
    indices = pa.Codec("zstd").compress(body, asbytes=True)
    return flat(BYTE_ARRAY, chunk + data_page(indices, len(body), rows, RLE_DICTIONARY), rows, ZSTD)


def a_dictionary_after_plain_values(size: int, rows: int) -> bytes:
    """The first page has plain values, so that it does not show how large the later ones are."""
    first = levels(run(1, 1)) + struct.pack("<I", 1) + b"x"
    body = levels(run(rows - 1, 1)) + b"\1" + run(rows - 1, 0)
    chunk = dictionary_page(struct.pack("<I", size) + bytes(size), 4 + size, 1)
    chunk += data_page(first, len(first), 1, PLAIN) + data_page(body, len(body), rows - 1, RLE_DICTIONARY)
    return flat(BYTE_ARRAY, chunk, rows)


def prefixes_of(size: int, rows: int) -> bytes:
    """Each value repeats the one before it by a prefix."""
    blocks = -(-(rows - 1) // 128) - 1
    start = varint(128) + varint(4) + varint(rows)
    zeros = (number(0) + bytes(4)) * blocks
    prefix = start + number(0) + number(0) + bytes([32, 0, 0, 0]) + struct.pack("<I", size) + bytes(124) + zeros
    suffix = start + number(size) + number(-size) + bytes([32] * 4) + bytes(4) + struct.pack("<I", size) * 127 + zeros
    body = levels(run(rows, 1)) + prefix + suffix + b"x" * size
    return flat(BYTE_ARRAY, data_page(body, len(body), rows, DELTA_STRINGS), rows)


def a_list_of(count: int) -> bytes:
    """One row."""
    schema = [
        element("schema", children=1),
        element("c", 1, children=1, converted=3),
        element("list", 2, children=1),
        element("element", 1, INT32),
    ]
    body = levels(run(1, 0) + run(count - 1, 1)) + levels(run(count, 3)) + b"\1" + run(count, 0)
    chunk = dictionary_page(struct.pack("<i", 7), 4, 1) + data_page(body, len(body), count, RLE_DICTIONARY)
    return file(schema, ["c", "list", "element"], INT32, chunk, count, 1)


def nulls(rows: int, kind: int, **more: int) -> bytes:
    body = levels(run(rows, 0))
    return flat(kind, data_page(body, len(body), rows, PLAIN), rows, **more)


# --- reading them ---

LISTS = {"type": "array", "elementType": "integer", "containsNull": True}
TEXTS = {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}
STRUCTS = {"type": "struct", "fields": [{"name": "a", "type": "string", "nullable": True, "metadata": {}}]}


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def outcome(path: Path, script: str = READ) -> str:
    """The output of a child process that reads a table: rows and bytes, or the error."""
    actual = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=120,
        check=False,
    )
    assert actual.returncode == 0, actual.stderr[-2000:]
    said, kibibytes = actual.stdout.splitlines()
    assert int(kibibytes) << 10 < RESIDENT
    return said


def repeated(rows: int, size: int, shape: str = "string", **options: object) -> Callable[[Path], None]:
    """A long string that all rows have; the table that writes it takes no more memory than the file."""

    def write(path: Path) -> None:
        values = pa.array(["v" * size])
        strings = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), values)
        column: pa.Array = strings
        if shape == "struct":
            column = pa.StructArray.from_arrays([strings], ["a"])
        pq.write_table(pa.table({"c": column}), path, **{"store_schema": False, **options})

    return write


REFUSED = {
    "a value of 1 GB": (lambda: one_value_of(1 << 30), "string", "page"),
    "a page of 1 GB with one number": (lambda: one_number_in_a_page_of(1 << 30), "integer", "page"),
    "a dictionary of 1 GB": (lambda: a_dictionary_of(1 << 30, 10), "string", "page"),
    "a list of a thousand million": (lambda: a_list_of(1_000_000_000), LISTS, "lists or maps"),
    "numbers of 1 GB": (lambda: nulls(100_000, FIXED, length=1 << 30), "binary", "row"),
}

READ_WELL = {  # about 5 GB each, twice and more of what the process may have
    "a dictionary of one long value": (lambda: a_dictionary_of(16 << 20, 300), "string", 300, 300 * (16 << 20)),
    "a long value after a short one": (
        lambda: a_dictionary_after_plain_values(1 << 20, 5_000),
        "string",
        5_000,
        1 + 4_999 * (1 << 20),
    ),
    "values that are their predecessors": (lambda: prefixes_of(1 << 20, 5_000), "string", 5_000, 5_000 << 20),
    "long strings that repeat": (lambda: repeated(65_536, 80 << 10), "string", 65_536, 65_536 * (80 << 10)),
    "as categories": (lambda: repeated(20_000, 256 << 10, store_schema=True), "string", 20_000, 20_000 * (256 << 10)),
    "in several row groups": (
        lambda: repeated(20_000, 256 << 10, row_group_size=9_000),
        "string",
        20_000,
        20_000 * (256 << 10),
    ),
    "in structs": (lambda: repeated(20_000, 256 << 10, "struct"), STRUCTS, 20_000, 0),
    "a short list": (lambda: a_list_of(1_000_000), LISTS, 1, 0),
    "nulls": (lambda: nulls(20_000_000, BYTE_ARRAY), "string", 20_000_000, 0),
}


@pytest.mark.parametrize("name", sample(REFUSED, 2))
def test_more_than_is_read_is_an_error(name: str, tmp_path: Path) -> None:
    make, kind, what = REFUSED[name]
    table(tmp_path / "t", make(), kind)
    said = outcome(tmp_path / "t")
    assert said.startswith("DataError")
    assert what in said
    assert "at most" in said
    assert "version 0" in said
    assert "f.parquet" in said


@pytest.mark.parametrize("name", sample(READ_WELL, 2))
def test_what_is_much_in_few_bytes_is_read_in_parts(name: str, tmp_path: Path) -> None:
    make, kind, rows, size = READ_WELL[name]
    table(tmp_path / "t", make(), kind)
    assert outcome(tmp_path / "t") == f"rows {rows} {size}"


@pytest.mark.parametrize("codec", sample(["zstd", "none", "snappy", "gzip", "brotli", "lz4"], 1))
def test_coalesced_files_are_read_in_parts(codec: str, tmp_path: Path) -> None:
    """Together they have more than the process may, whether the kernel knows their codec or not."""
    size = 128 << 10
    table(tmp_path / "t", repeated(8_000, size, compression=codec), "string", copies=5)
    assert outcome(tmp_path / "t") == f"rows 48000 {48_000 * size}"


def structs_of(count: int) -> dict[str, object]:
    """Lists of structs of so many fields."""
    fields = [{"name": f"a{place}", "type": "long", "nullable": True, "metadata": {}} for place in range(count)]
    return {"type": "array", "elementType": {"type": "struct", "fields": fields}, "containsNull": True}


def lists_of_structs(rows: int, length: int) -> Callable[[Path], None]:
    """Structs of one field."""

    def write(path: Path) -> None:
        structs = pa.StructArray.from_arrays([pa.nulls(rows * length, pa.int64())], ["a0"])
        ends = pa.array(range(0, (rows + 1) * length, length), pa.int32())
        pq.write_table(pa.table({"c": pa.ListArray.from_arrays(ends, structs)}), path, compression="zstd")

    return write


def variants_of_one_name(rows: int, length: int, times: int) -> Callable[[Path], None]:
    """Lists of objects. The name of their only field is long."""
    names = b"\xc1" + struct.pack("<III", 1, 0, length) + b"n" * length
    field = b"\2\1\0\0\1\0"  # one, the first of the names, from 0 to 1: null
    value = (
        b"\x1f" + struct.pack(f"<{times + 2}I", times, *range(0, (times + 1) * len(field), len(field))) + field * times
    )
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])

    def write(path: Path) -> None:
        row = {"metadata": names, "value": value}
        pq.write_table(pa.table({"c": pa.array([row] * rows, kind)}), path, store_schema=False)

    return write


GROWS = {
    "a long partition value": (nulls(65_536, INT32), "integer", 65_536, {"partition_bytes": 40_000}),
    "long partition values of joined files": (
        nulls(20_000, INT32),
        "integer",
        100_000,
        {"partition_bytes": 40_000, "copies": 4},
    ),
    "columns that the file lacks": (nulls(70_000, INT32), "integer", 70_000, {"more_columns": 3_000}),
    "fields that lists lack": (lists_of_structs(100, 50_000), structs_of(60), 100, {}),
    "names of variants": (variants_of_one_name(20, 1 << 20, 60), "variant", 20, {}),
}
"""More than a gigabyte each, of a few bytes."""


@pytest.mark.parametrize("name", sample(GROWS, 3))
def test_rows_that_get_much_are_read_in_parts(name: str, tmp_path: Path) -> None:
    data, kind, rows, options = GROWS[name]
    table(tmp_path / "t", data, kind, **options)
    assert outcome(tmp_path / "t") == f"rows {rows} 0"


def test_a_row_that_gets_too_much_is_an_error(tmp_path: Path) -> None:
    table(tmp_path / "t", lists_of_structs(1, 2_000_000), structs_of(60))
    said = outcome(tmp_path / "t")
    assert said.startswith("DataError")
    assert "fields that the file lacks" in said
    assert "version 0" in said
    assert "f.parquet" in said


SNAPSHOT = """
import sys, cdfd
from cdfd.errors import CdfdError
try:
    print("rows", sum(batch.num_rows for batch in cdfd.snapshot(sys.argv[1])))
except CdfdError as error:
    print(type(error).__name__, str(error)[:400])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def checkpoint(path: Path, actions: dict[str, pa.Array]) -> None:
    """A table of a checkpoint of version 0, with these actions' columns after the rows of protocol and metadata."""
    schema = {"type": "struct", "fields": [{"name": "c", "type": "string", "nullable": True, "metadata": {}}]}
    metadata = {"id": "x", "schemaString": json.dumps(schema), "partitionColumns": [], "configuration": []}
    metadata["format"] = {"provider": "parquet", "options": []}
    count = len(next(iter(actions.values())))
    pairs = pa.map_(pa.string(), pa.string())
    format_ = pa.struct([("provider", pa.string()), ("options", pairs)])
    kinds = {"id": pa.string(), "schemaString": pa.string(), "partitionColumns": pa.list_(pa.string())}
    kind = pa.struct([*kinds.items(), ("configuration", pairs), ("format", format_)])
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    head = pa.struct([(name, pa.int32()) for name in protocol])
    columns = {
        "protocol": pa.chunked_array([pa.array([protocol, None], head), pa.nulls(count, head)]),
        "metaData": pa.chunked_array([pa.array([None, metadata], kind), pa.nulls(count, kind)]),
    }
    for name, rows in actions.items():
        columns[name] = pa.chunked_array([pa.nulls(2, rows.type), rows])
    (path / "_delta_log").mkdir(parents=True)
    file = path / "_delta_log" / f"{0:020}.checkpoint.parquet"
    pq.write_table(pa.table(columns), file, store_schema=False, compression="zstd")
    (path / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": 0, "size": count + 2}))


def same(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()).fill_null(0), pa.array([text]))


CHECKPOINTS = {
    "many paths from one": lambda: {"add": pa.StructArray.from_arrays([same("x" * 2_000, 200_000)], ["path"])},
    "transactions from one": lambda: {"txn": pa.StructArray.from_arrays([same("x" * 200, 500_000)], ["appId"])},
    "sidecars from one": lambda: {"sidecar": pa.StructArray.from_arrays([same("x" * 200, 500_000)], ["path"])},
    "a domain again and again": lambda: {
        "domainMetadata": pa.StructArray.from_arrays(
            [same("d", 500), same("x" * (1 << 20), 500)], ["domain", "configuration"]
        ),
    },
}


@pytest.mark.parametrize("name", sample(CHECKPOINTS, 1))
def test_a_checkpoint_of_a_few_bytes_does_not_fill_memory(name: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "t", CHECKPOINTS[name]())
    said = outcome(tmp_path / "t", SNAPSHOT)
    assert said.startswith("CheckpointError")
    assert f"{0:020}.checkpoint.parquet" in said


COMPACT = """
import asyncio, sys
from cdfd.sinks.delta import compactor
from cdfd.storage.local import LocalStorage
from cdfd.runtime.clock import SystemClock
from cdfd.log.log import DeltaLog
async def compact(path):
    storage = LocalStorage(path)
    state = await DeltaLog(storage).snapshot(with_stats=True, all_fields=True)
    await compactor.compact(storage, SystemClock(), lambda _: None, compactor.Compaction("zstd", 1 << 20), state)
    return await DeltaLog(storage).snapshot()
print("files", len((state := asyncio.run(compact(sys.argv[1]))).live()), state.version)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_files_of_a_few_bytes_are_compacted_in_parts(tmp_path: Path) -> None:
    """Eight files of half a GB, with one string in all rows."""
    size = 128 << 10
    table(tmp_path / "t", repeated(4_000, size, compression="zstd"), "string", copies=7)
    assert outcome(tmp_path / "t", COMPACT) == "files 1 1"
    said = outcome(tmp_path / "t", SNAPSHOT)
    assert said == "rows 32000"


class TestText:
    """Arrow's reader takes any bytes for text."""

    BAD = b"caf\xe9"

    def shapes(self, values: list[bytes]) -> dict[str, tuple[pa.Array, object]]:
        raw = pa.array(values, pa.binary())
        text = pa.StringArray.from_buffers(len(raw), *raw.buffers()[1:])
        codes = pa.array(range(len(values)), pa.int32())
        ends = pa.array(range(len(values) + 1), pa.int32())
        strings = {"type": "array", "elementType": "string", "containsNull": True}
        return {
            "strings": (text, "string"),
            "categories": (pa.DictionaryArray.from_arrays(codes, text), "string"),
            "structs": (pa.StructArray.from_arrays([text], ["a"]), STRUCTS),
            "lists": (pa.ListArray.from_arrays(ends, text), strings),
            "keys": (pa.MapArray.from_arrays(ends, text, text), TEXTS),
            "values": (pa.MapArray.from_arrays(ends, pa.array([str(code) for code in codes]), text), TEXTS),
            "views": (text.cast(pa.string_view()), "string"),
        }

    def read(self, path: Path, array: pa.Array, kind: object, **options: object) -> list[object]:
        table(path / "t", lambda name: pq.write_table(pa.table({"c": array}), name, **options), kind)
        return pa.Table.from_batches(cdfd.changes(str(path / "t"))).column("c").to_pylist()

    @pytest.mark.parametrize("shape", ["strings", "categories", "structs", "lists", "keys", "values", "views"])
    @pytest.mark.parametrize("dictionary", [True, False])
    def test_that_is_not_utf8_is_an_error(self, shape: str, dictionary: bool, tmp_path: Path) -> None:
        array, kind = self.shapes([b"a", b"b", self.BAD, b"d"])[shape]
        with pytest.raises(DataError, match="column 'c' has text that is not UTF-8") as caught:
            self.read(tmp_path, array, kind, use_dictionary=dictionary)
        assert caught.value.path == "f.parquet"
        assert caught.value.version == 0

    @pytest.mark.parametrize("dictionary", [True, False])
    def test_a_character_in_two_rows_is_none(self, dictionary: bool, tmp_path: Path) -> None:
        array, kind = self.shapes(["x\u00e9".encode()[:2], "\u00e9y".encode()[1:]])["strings"]
        with pytest.raises(DataError, match="not UTF-8"):
            self.read(tmp_path, array, kind, use_dictionary=dictionary)

    @pytest.mark.parametrize("precision", [4, 20])
    @pytest.mark.parametrize("dictionary", [True, False])
    def test_decimals_of_too_many_digits_are_an_error(self, precision: int, dictionary: bool, tmp_path: Path) -> None:
        wide = pa.array([Decimal(1), Decimal(10**precision)], pa.decimal128(38, 0))
        narrow = pa.Array.from_buffers(pa.decimal128(precision, 0), 2, wide.buffers())
        fits = pa.array([Decimal(1), Decimal(10**precision - 1)], pa.decimal128(precision, 0))
        kind = f"decimal({precision},0)"
        actual = self.read(tmp_path / "fits", fits, kind, use_dictionary=dictionary)
        assert actual == [Decimal(1), Decimal(10**precision - 1)]
        with pytest.raises(
            DataError, match=rf"column 'c' has a number of more digits than decimal128\({precision}, 0\)"
        ):
            self.read(tmp_path / "not", narrow, kind, use_dictionary=dictionary)

    @pytest.mark.parametrize("shape", ["strings", "categories", "structs", "lists", "keys", "values", "views"])
    def test_of_any_script_is_read(self, shape: str, tmp_path: Path) -> None:
        words = ["caf\u00e9", "\u65e5\u672c", "", "\U0001f600", "z"]
        array, kind = self.shapes([word.encode() for word in words])[shape]
        actual = str(self.read(tmp_path, array, kind))
        assert all(word in actual for word in words)


class TestAsItIsRead:
    """Files in stores, whose headers are not read before their columns."""

    @pytest.mark.parametrize("name", sample(REFUSED, 2))
    def test_more_than_is_read_is_an_error(self, name: str, tmp_path: Path) -> None:
        make, kind, what = REFUSED[name]
        table(tmp_path / "t", make(), kind)
        said = outcome(tmp_path / "t", STREAM)
        assert said.startswith("DataError")
        assert what in said

    @pytest.mark.parametrize("name", sample(READ_WELL, 2))
    def test_what_is_much_in_few_bytes_is_read_in_parts(self, name: str, tmp_path: Path) -> None:
        make, kind, rows, size = READ_WELL[name]
        table(tmp_path / "t", make(), kind)
        assert outcome(tmp_path / "t", STREAM) == f"rows {rows} {size}"
