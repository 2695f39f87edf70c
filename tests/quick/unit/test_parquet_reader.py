"""The Parquet reader returns what was written, whatever the writer and its options, and as pyarrow reads it."""

from __future__ import annotations

import errno
import io
import os
import random
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdfd.delta.types.arrow_types import from_arrow
from cdfd.delta.types.schema_string import MAX_DEPTH, parse, serialize
from cdfd.errors import CdfdError, UnsupportedError
from cdfd.runtime import native
from cdfd.scan.parquet import reader
from tests.support import parquet_bytes
from tests.support.sampling import stride

pytestmark = pytest.mark.skipif(
    not native.built, reason="pyarrow alone reads other types, and other rows of damaged files"
)

SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    pa.binary(): st.binary(max_size=40),
    pa.date32(): st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    pa.timestamp("us", "UTC"): st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001
    pa.timestamp("us"): st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001
    pa.decimal128(9, 2): st.decimals(-9999999, 9999999, places=2),
    pa.decimal128(38, 5): st.decimals(Decimal(-(10**32)), Decimal(10**32), places=5),
}


@pytest.mark.parametrize(
    ("levels", "kind_of", "value_of"),
    [
        (1, lambda kind: pa.struct([("x", kind)]), lambda value: {"x": value}),
        (2, lambda kind: pa.list_(pa.field("element", kind)), lambda value: [value]),
        (2, lambda kind: pa.map_(pa.string(), kind), lambda value: [("x", value)]),
    ],
)
def test_the_deepest_column_that_a_schema_can_have_is_read(levels: int, kind_of: Any, value_of: Any) -> None:
    kind, value = pa.int64(), 1
    for _ in range((MAX_DEPTH - 1) // levels):
        kind, value = kind_of(kind), value_of(value)
    deepest = pa.table({"x": pa.array([value, None], kind)})
    parse(serialize(from_arrow(deepest.schema)))
    file = io.BytesIO()
    pq.write_table(deepest, file)
    with reader.open_parquet(pa.BufferReader(file.getvalue())) as parquet_file:
        assert pa.Table.from_batches(parquet_file.batches(["x"], rows=2)).to_pylist() == deepest.to_pylist()
    deeper = from_arrow(pa.schema({"x": kind_of(kind)}))
    with pytest.raises(UnsupportedError, match=f"deeper than {MAX_DEPTH} levels"):
        parse(serialize(deeper))


KINDS = st.recursive(
    st.sampled_from(list(SCALARS)),
    lambda kind: st.one_of(
        st.builds(lambda item, null: pa.list_(pa.field("element", item, null)), kind, st.booleans()),
        st.builds(lambda item: pa.map_(pa.string(), item), kind),
        st.builds(
            lambda one, other, null: pa.struct([pa.field("one", one, null), pa.field("other", other)]),
            kind,
            kind,
            st.booleans(),
        ),
    ),
    max_leaves=4,
)


def values_of(kind: pa.DataType, null: bool) -> st.SearchStrategy[Any]:
    """Values of a type; some of them None if it can be null."""
    strategy: st.SearchStrategy[Any]
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        strategy = st.fixed_dictionaries({field.name: values_of(field.type, field.nullable) for field in fields})
    elif pa.types.is_map(kind):
        strategy = st.lists(st.tuples(st.text("ab", max_size=3), values_of(kind.item_type, True)), max_size=3)
    elif pa.types.is_list(kind):
        strategy = st.lists(values_of(kind.value_type, kind.value_field.nullable), max_size=4)
    else:
        strategy = SCALARS[kind]
    return st.none() | strategy if null else strategy


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    fields = [pa.field(f"c{number}", draw(KINDS), draw(st.booleans())) for number in range(draw(st.integers(1, 3)))]
    count = draw(st.integers(0, 40))
    columns = []
    for field in fields:
        some = draw(st.lists(values_of(field.type, field.nullable), min_size=min(count, 1), max_size=count))
        # Few values that are repeated, or as many as there are rows.
        columns.append(pa.array([some[number % len(some)] for number in range(count)], field.type))
    return pa.table(columns, schema=pa.schema(fields))


def stored(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def read(data: bytes, rows: int, columns: list[str] | None = None, **options: Any) -> list[pa.RecordBatch]:
    with reader.open_parquet(pa.BufferReader(data), **options) as file:
        return list(file.batches(columns or file.schema_arrow.names, rows=rows))


def by_pyarrow(data: bytes, rows: int, **options: Any) -> list[pa.RecordBatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "built", False)
        return read(data, rows, **options)


def same(actual: list[pa.RecordBatch], expected: list[pa.RecordBatch], schema: pa.Schema) -> None:
    one, other = (pa.Table.from_batches(batches, schema) for batches in (actual, expected))
    one.validate(full=True)
    assert one.schema == other.schema
    assert one.combine_chunks().equals(other.combine_chunks()) or (len(one) == len(other) == 0)


def test_structs_that_are_never_null_within_one_that_is() -> None:
    inner = pa.struct([pa.field("flag", pa.bool_(), False), pa.field("name", pa.string())])
    outer = pa.struct([pa.field("inner", inner, False)])
    table = pa.table({"c": pa.array([None, {"inner": {"flag": True, "name": "a"}}], outer)})
    same(read(stored(table), 10), table.to_batches(), table.schema)


@settings(max_examples=300 // stride(4), suppress_health_check=[HealthCheck.too_slow])
@given(
    table=tables(),
    codec=st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    page=st.sampled_from([1, 40, 1 << 20]),
    group=st.integers(1, 50),
    rows=st.integers(1, 50),
    whole_numbers=st.booleans(),
)
def test_every_type_layout_and_codec(
    table: pa.Table, codec: str, version: str, dictionary: bool, page: int, group: int, rows: int, whole_numbers: bool
) -> None:
    data = stored(
        table,
        compression=codec,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=page,
        write_batch_size=7,
        row_group_size=group,
        store_decimal_as_integer=whole_numbers,
    )
    # pyarrow 26 does not read all of these files, some of which have pages of nulls only. So the table says what is in them.
    with pq.ParquetFile(io.BytesIO(data)) as file:
        actual = read(data, rows)
        same(actual, table.cast(file.schema_arrow).to_batches(), file.schema_arrow)
    assert all(batch.num_rows <= rows for batch in actual)


def test_times_of_spark() -> None:
    times = [None, datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29), datetime(1883, 11, 18)]  # noqa: DTZ001
    table = pa.table({"time": pa.array(times * 50, pa.timestamp("us"))})
    for dictionary in (True, False):
        data = stored(table, use_deprecated_int96_timestamps=True, use_dictionary=dictionary)
        same(read(data, 7), by_pyarrow(data, 7), table.schema)


def both(data: bytes) -> tuple[Any, Any]:
    """The rows of a file by `read` and by pyarrow alone; None for an error."""
    answers: list[Any] = []
    for way in (read, by_pyarrow):
        try:
            answers.append(pa.Table.from_batches(way(data, 1_000)).column(0).to_pylist())
        except (CdfdError, ValueError, OSError):
            answers.append(None)
    return answers[0], answers[1]


@pytest.mark.parametrize("dictionary", [True, False])
def test_times_with_any_julian_day(dictionary: bool) -> None:
    """As Spark reads them. pyarrow takes Julian day 0 for that of a null."""
    days = [0, 1, 2_440_587, 2_440_588, 2_440_589, 5_373_484]
    times = [(day, nanoseconds) for day in days for nanoseconds in (0, 999, 86_399_999_999_999)]
    body = b"".join(struct.pack("<QI", nanoseconds, day) for day, nanoseconds in times)
    valid = parquet_bytes.levels(parquet_bytes.run(len(times), 1))
    if dictionary:
        places = valid + b"\x08" + b"".join(parquet_bytes.run(1, place) for place in range(len(times)))
        pages = parquet_bytes.dictionary_page(body, len(body), len(times))
        pages += parquet_bytes.data_page(places, len(places), len(times), parquet_bytes.RLE_DICTIONARY)
    else:
        pages = parquet_bytes.data_page(valid + body, len(valid + body), len(times), parquet_bytes.PLAIN)
    data = parquet_bytes.flat(parquet_bytes.INT96, pages, len(times))
    actual = pa.Table.from_batches(read(data, 9))["c"].cast(pa.int64()).to_pylist()
    assert actual == [(day - 2_440_588) * 86_400_000_000 + nanoseconds // 1_000 for day, nanoseconds in times]


def test_booleans_in_runs() -> None:
    """Of the byte of a run, one bit counts. A page of nulls has the size of its runs too."""
    chance = random.Random(27)
    read_well = 0
    for _ in range(400):
        rows = chance.choice([1, 9, 40, 1_100])
        valid = [chance.random() < share for share in [chance.choice([0, 0.3, 1])] for _ in range(rows)]
        runs = b""
        while len(runs) < 2 * rows:
            runs += parquet_bytes.run(chance.choice([1, 8, 70]), chance.choice([0, 1, 2, 3, 128, 255]))
            runs += chance.choice([b"", b"\x03" + chance.randbytes(1)])
        body = parquet_bytes.levels(chance.choice([runs, runs[: chance.randrange(len(runs))]]))
        body = chance.choice([body, body, body[: chance.randrange(8)]])
        definitions = b"".join(parquet_bytes.run(1, int(each)) for each in valid)
        if chance.random() < 0.5:
            page = parquet_bytes.data_page_v2(definitions, body, len(definitions + body), rows, parquet_bytes.RLE)
        else:
            whole = parquet_bytes.levels(definitions) + body
            page = parquet_bytes.data_page(whole, len(whole), rows, parquet_bytes.RLE)
        actual, expected = both(parquet_bytes.flat(parquet_bytes.BOOLEAN, page, rows))
        # A value of more bits than one is damage here, and a bit of it there.
        assert actual is None or actual == expected
        read_well += actual is not None
    assert 30 < read_well < 400


def test_few_strings_as_dictionaries_of_several_row_groups() -> None:
    kinds = pa.array(["insert"] * 10 + ["update_preimage", "update_postimage"] * 20 + ["delete"] * 3)
    data = stored(pa.table({"kind": kinds, "id": range(53)}), row_group_size=9)
    actual = read(data, 20, dictionaries=["kind"])
    assert {batch.schema.field("kind").type for batch in actual} == {pa.dictionary(pa.int32(), pa.string())}
    assert pa.chunked_array([batch["kind"] for batch in actual]).cast(pa.string()).combine_chunks().equals(kinds)


def test_strings_that_do_not_fit_into_a_batch() -> None:
    """A batch has 32 MiB of strings. Other columns are cut where they are."""
    rows = 3_000
    long = [None if number % 7 == 3 else "x" * (number % 90) * 1_000 for number in range(rows)]
    table = pa.table({"id": range(rows), "long": long, "short": [str(number) for number in range(rows)]})
    for dictionary in (True, False):
        data = stored(table, use_dictionary=dictionary, row_group_size=1_700, data_page_size=200_000)
        actual = read(data, 65_536)
        assert all(batch["long"].nbytes < 33 << 20 for batch in actual)
        assert len(actual) > 3
        same(actual, table.to_batches(), table.schema)


@pytest.mark.parametrize("dictionary", [True, False])
def test_strings_of_every_length(dictionary: bool) -> None:
    """Short strings are copied in another way than long ones, and so are those at the end of a page."""
    lengths = [*range(70), 12, 13, 0, 64, 65, 1000, 63]
    texts = ["ä" * (length // 2) + "b" * (length % 2) for length in lengths]
    with_nulls = [text if place % 3 else None for place, text in enumerate(texts)]
    table = pa.table(
        {
            "text": texts,
            "null": with_nulls,
            "bytes": [text.encode() for text in texts],
            "list": [[text, None] if text else None for text in texts],
        }
    )
    data = stored(table, use_dictionary=dictionary)
    same(read(data, 50), by_pyarrow(data, 50), table.schema)


def test_a_batch_of_lists_has_as_many_values_as_rows_of_others() -> None:
    """The crate copies what it has read of a batch with each further page."""
    data = stored(pa.table({"list": [[number] * 10 for number in range(1000)], "id": range(1000)}))
    assert [batch.num_rows for batch in read(data, 400)] == [40] * 25
    assert [batch.num_rows for batch in read(data, 400, ["id"])] == [400, 400, 200]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux counts what a process reads")
def test_large_pages_of_a_local_file_are_read_once(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).integers(0, 1 << 60, 2_000_000)
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({"id": numbers}), path, use_dictionary=False, data_page_size=1 << 20)

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])

    with pa.OSFile(str(path)) as file, reader.open_parquet(file) as opening:
        before = bytes_read()
        assert sum(batch.num_rows for batch in opening.batches(["id"], rows=65_536)) == len(numbers)
        assert bytes_read() - before < 1.05 * path.stat().st_size


def test_rows_of_every_encoding_are_read() -> None:
    rows = 3_000
    table = pa.table(
        {
            "id": range(rows),
            "delta": range(rows),
            "prefixed": [f"text {number}" for number in range(rows)],
            "lengths": [f"text {number}" for number in range(rows)],
            "split": [number / 7 for number in range(rows)],
            "lists": [[f"text {number}"] * (number % 4) for number in range(rows)],
        }
    )
    encodings = {
        "delta": "DELTA_BINARY_PACKED",
        "prefixed": "DELTA_BYTE_ARRAY",
        "lengths": "DELTA_LENGTH_BYTE_ARRAY",
        "split": "BYTE_STREAM_SPLIT",
        "lists.list.element": "DELTA_BYTE_ARRAY",
    }
    data = stored(table, use_dictionary=False, column_encoding=encodings, row_group_size=1_000, data_page_size=500)
    same(read(data, 700), by_pyarrow(data, 700), table.schema)


def test_large_strings_and_views_are_read_as_strings() -> None:
    """Arrow's large strings and string views are read as strings."""
    big = ["a", "bcd" * 20, None] * 3
    table = pa.table({"time": pa.array(range(9), pa.time64("us")), "big": pa.array(big, pa.large_string())})
    table = table.append_column("view", pa.array(big, pa.string_view()))
    actual = pa.Table.from_batches(read(stored(table), 4))
    assert actual.schema.types == [pa.time64("us"), pa.string(), pa.string()]
    assert actual.to_pydict() == table.to_pydict()


@pytest.mark.parametrize("threads", [False, True])
def test_columns_in_threads(threads: bool) -> None:
    table = pa.table({"id": range(900), "l": [[1, None]] * 900, "word": [f"word {number}" for number in range(900)]})
    with reader.open_parquet(pa.BufferReader(stored(table, row_group_size=400))) as file:
        actual = list(file.batches(table.column_names, rows=70, use_threads=threads))
    same(actual, table.to_batches(), table.schema)


def test_columns_of_files_that_are_read_at_a_time() -> None:
    """Their threads share the cores: batch by batch, the columns of a file are decoded side by side or one after the other."""
    numbers = np.arange(200_000)
    table = pa.table({"id": numbers, "word": pa.array(numbers).cast(pa.string()), "half": numbers / 2})
    data = stored(table, row_group_size=30_000)

    def rows_read() -> pa.Table:
        with reader.open_parquet(pa.BufferReader(data)) as file:
            return pa.Table.from_batches(file.batches(table.column_names, rows=7_000, use_threads=True))

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(rows_read) for _ in range(8)]:
            assert future.result(timeout=60).equals(table)


def test_local_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(stored(pa.table({"id": np.random.default_rng(1).integers(0, 1 << 60, 200_000)})))
    with pa.OSFile(str(path)) as source, reader.open_parquet(source) as file:
        os.truncate(path, 100_000)
        with pytest.raises(ValueError, match="the file ends at byte 100000, and not at"):
            list(file.batches(["id"], rows=1_000))


def test_errors_of_the_system_keep_their_number(tmp_path: Path) -> None:
    """It says whether another attempt may succeed."""
    from cdfd_native import parquet

    for name, number in (("gone", errno.ENOENT), ("", errno.EISDIR)):
        with pytest.raises(OSError, match="os error") as caught:
            parquet.ParquetFile(str(tmp_path / name), 100)
        assert caught.value.errno == number


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_selection_of_rows(codec: str) -> None:
    """Pages without such a row are not decoded."""
    lists = [[number] * (number % 3) for number in range(5_000)]
    structs = [None if len(each) > 1 else {"a": len(each) or None, "b": 7, "l": each} for each in lists]
    table = pa.table({"id": range(5_000), "l": lists, "s": structs})
    data = stored(table, compression=codec, row_group_size=1_900, data_page_size=700, write_batch_size=50)
    file = reader.ParquetReader(pa.BufferReader(data))
    chance = random.Random(3)
    for _ in range(40):
        runs, wanted, at = list[int](), list[int](), 0
        while at < 5_000:
            count = min(chance.choice([0, 1, 7, 900]), 5_000 - at)
            if len(runs) % 2:
                wanted += range(at, at + count)
            runs.append(count)
            at += count
        lengths = np.array(runs, np.uint64)
        batches = file.selected_batches(["id", "l", "s"], range(3), lengths, rows=chance.choice([9, 4_000]))
        same(list(batches), table.take(wanted).to_batches(), table.schema)


def test_some_columns_have_their_share_of_the_size() -> None:
    table = pa.table({"a": range(10_000), "b": [chr(65 + number % 26) * 40 for number in range(10_000)]})
    with reader.open_parquet(pa.BufferReader(stored(table, use_dictionary=False, compression="none"))) as file:
        sizes = [file.size_of(names) for names in (["a"], ["b"], ["a", "b"])]  # type: ignore[union-attr]
    assert 75_000 < sizes[0] < 90_000
    assert 400_000 < sizes[1] < 480_000
    assert abs(sizes[0] + sizes[1] - sizes[2]) < 10


def test_the_stored_bytes_of_a_file_are_summed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    file = reader.ParquetReader(pa.BufferReader(stored(pa.table({"a": [1, 2], "b": ["x", "y"]}))))
    asked = list[list[str]]()

    class Ranges:
        def ranges(self, columns: list[str]) -> list[tuple[int, int, int]]:
            asked.append(columns)
            return []

    monkeypatch.setattr(file, "_file", Ranges())
    for _ in range(3):
        file.size_of(["a"])
    assert sorted(asked) == [["a"], ["a"], ["a"], ["a", "b"]]


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_damage_is_an_error_or_gives_as_many_rows(codec: str, version: str) -> None:
    """Without checksums, values may be others. There are never fewer or more rows than the footer says."""
    rows = 400
    table = pa.table(
        {
            "id": pa.array([None if number % 11 == 5 else number for number in range(rows)], pa.int64()),
            "word": [f"word {number % 17}" for number in range(rows)],
            "list": [[number, None][: number % 3] for number in range(rows)],
        }
    )
    whole = stored(table, compression=codec, data_page_version=version, data_page_size=300, write_batch_size=20)
    (footer,) = memoryview(whole)[-8:-4].cast("I")
    chance, damaged = random.Random(15), 0
    for _ in range(600):
        spoilt = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            spoilt[chance.randrange(4, len(spoilt) - 8 - footer)] = chance.randrange(256)
        try:
            actual = pa.Table.from_batches(read(bytes(spoilt), 90))
        except (CdfdError, ValueError):
            damaged += 1
            continue
        actual.validate(full=True)
        assert len(actual) == rows
    assert damaged > 100


PAIR = pa.struct([("a", pa.int64()), ("b", pa.int64())])
ONE = {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("kind", "rows", "others"),
    [
        (PAIR, [ONE, None], [None, ONE]),
        (pa.list_(PAIR), [[ONE], [ONE, ONE]], [[ONE, ONE], [ONE]]),
        (pa.list_(PAIR), [[ONE], [], None], [[ONE], None, []]),
        (pa.list_(pa.list_(PAIR)), [[[ONE], [ONE, ONE]]], [[[ONE, ONE], [ONE]]]),
        (pa.map_(pa.int64(), pa.int64()), [[(1, 1)], [(2, 2), (3, 3)]], [[(1, 1), (2, 2)], [(3, 3)]]),
        (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))]), [{"a": 1, "b": [1]}, None], [None, {"a": 1, "b": [1]}]),
        (pa.struct([("s", pa.list_(PAIR))]), [{"s": [ONE]}, {"s": [ONE] * 2}], [{"s": [ONE] * 2}, {"s": [ONE]}]),
    ],
)  # fmt: skip
def test_columns_of_one_file_in_the_lists_of_another_are_refused(kind: pa.DataType, rows: Any, others: Any) -> None:
    """Whatever the size of batches: the numbers of rows and values are the same."""
    options: Any = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    one, other = (stored(pa.table({"c": pa.array(each * 9, kind)}), **options) for each in (rows, others))
    chunk = pq.read_metadata(io.BytesIO(one)).row_group(0).column(1)
    start, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    assert one[:start] != other[:start]
    for mixed in (one[:start] + other[start:end] + one[end:], other[:start] + one[start:end] + other[end:]):
        for size in (1, 2, 1_000):
            with pytest.raises(ValueError, match="its lists or structs are not those of column 'c"):
                read(mixed, size)
    for whole in (one, other):
        read(whole, 4)


def test_lists_of_very_many_nulls() -> None:
    """A page of a few bytes may have millions of them, in one row."""
    count = 3_000_000
    nulls = pa.nulls(count, pa.int64())
    table = pa.table({"list": pa.ListArray.from_arrays(pa.array([0, count, count], pa.int32()), nulls)})
    same(read(stored(table), 10), table.to_batches(), table.schema)


@pytest.mark.parametrize(("kind", "number"), [(pa.string(), 6), (pa.int64(), 2)])
def test_null_key_of_a_map_is_an_error(kind: pa.DataType, number: int) -> None:
    """pyarrow ends the process if it gets such an array. The footer says that the key is optional, and its levels are those of nulls."""
    rows = pa.array([[(1, 1)], None, [(2, 2), (3, 3)]], pa.map_(pa.int64(), pa.int64())).cast(pa.map_(kind, pa.int64()))
    required = bytes([0x15, 2 * number, 0x25, 0, 0x18, 3]) + b"key"
    data = stored(pa.table({"m": rows}), use_dictionary=False)
    assert data.count(required) == 1
    optional = data.replace(required, required.replace(b"\x25\x00", b"\x25\x02"))
    refused = pytest.raises(ValueError, match="column 'm' has a map with an entry or a key that is null")
    with reader.open_parquet(pa.BufferReader(optional)) as file, refused:
        list(file.batches(["m"], rows=10))
