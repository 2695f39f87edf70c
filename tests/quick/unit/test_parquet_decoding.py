"""The kernel that decodes pages returns what pyarrow returns, or leaves the rows to it."""

from __future__ import annotations

import io
import random
import struct
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdfd.errors import CdfdError
from cdfd.parquet import arrow_run, decoding, reader
from tests.support import parquet_bytes

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
    found: st.SearchStrategy[Any]
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        found = st.fixed_dictionaries({field.name: values_of(field.type, field.nullable) for field in fields})
    elif pa.types.is_map(kind):
        found = st.lists(st.tuples(st.text("ab", max_size=3), values_of(kind.item_type, True)), max_size=3)
    elif pa.types.is_list(kind):
        found = st.lists(values_of(kind.value_type, kind.value_field.nullable), max_size=4)
    else:
        found = SCALARS[kind]
    return st.none() | found if null else found


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
    with reader.opened(pa.BufferReader(data), **options) as file:
        return list(file.batches(columns or file.schema_arrow.names, rows=rows))


def by_pyarrow(data: bytes, rows: int, **options: Any) -> list[pa.RecordBatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "native", None)
        return read(data, rows, **options)


def by_kernel(data: bytes, rows: int, **options: Any) -> list[pa.RecordBatch]:
    """The rows, all of which the kernel has to read."""

    def unread(*_: object) -> Any:
        pytest.fail("rows were left to pyarrow")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_run.ArrowRun, "batches", unread)
        return read(data, rows, **options)


@pytest.fixture(autouse=True)
def _kernel() -> None:
    if decoding.native is None:
        pytest.skip("the kernels are not built")


def same(found: list[pa.RecordBatch], expected: list[pa.RecordBatch], schema: pa.Schema) -> None:
    one, other = (pa.Table.from_batches(batches, schema) for batches in (found, expected))
    one.validate(full=True)
    assert one.schema == other.schema
    assert one.combine_chunks().equals(other.combine_chunks()) or (len(one) == len(other) == 0)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
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
        found = by_kernel(data, rows)
        same(found, table.cast(file.schema_arrow).to_batches(), file.schema_arrow)
    assert all(batch.num_rows <= rows for batch in found)


def test_times_of_spark() -> None:
    times = [None, datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29), datetime(1883, 11, 18)]  # noqa: DTZ001
    table = pa.table({"time": pa.array(times * 50, pa.timestamp("us"))})
    for dictionary in (True, False):
        data = stored(table, use_deprecated_int96_timestamps=True, use_dictionary=dictionary)
        same(by_kernel(data, 7), by_pyarrow(data, 7), table.schema)


def both(data: bytes) -> tuple[Any, Any]:
    """The rows of a file by `read` and by pyarrow alone; None for an error."""
    found: list[Any] = []
    for way in (read, by_pyarrow):
        try:
            found.append(pa.Table.from_batches(way(data, 1_000)).column(0).to_pylist())
        except (CdfdError, OSError):
            found.append(None)
    return found[0], found[1]


@pytest.mark.parametrize("dictionary", [True, False])
def test_times_with_any_julian_day(dictionary: bool) -> None:
    """pyarrow takes Julian day 0 for that of a null."""
    days = [0, 1, 2_440_588, 2_440_589, 2**31 - 1, 2**31, 2**32 - 1]
    times = [(day, nanoseconds) for day in days for nanoseconds in (0, 999, 86_399_999_999_999, 2**63, 2**64 - 1)]
    body = b"".join(struct.pack("<QI", nanoseconds, day) for day, nanoseconds in times)
    valid = parquet_bytes.levels(parquet_bytes.run(len(times), 1))
    if dictionary:
        places = valid + b"\x08" + b"".join(parquet_bytes.run(1, place) for place in range(len(times)))
        pages = parquet_bytes.dictionary_page(body, len(body), len(times))
        pages += parquet_bytes.data_page(places, len(places), len(times), parquet_bytes.RLE_DICTIONARY)
    else:
        pages = parquet_bytes.data_page(valid + body, len(valid + body), len(times), parquet_bytes.PLAIN)
    data = parquet_bytes.flat(parquet_bytes.INT96, pages, len(times))
    schema = pa.schema({"c": pa.timestamp("us")})
    found = by_kernel(data, 9)
    same(found, by_pyarrow(data, 9), schema)
    assert found[0].column(0).cast(pa.int64())[:5].to_pylist() == [0] * 5


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
        found, expected = both(parquet_bytes.flat(parquet_bytes.BOOLEAN, page, rows))
        assert found == expected
        read_well += found is not None
    assert 100 < read_well < 400


def test_few_strings_as_dictionaries_of_several_row_groups() -> None:
    kinds = pa.array(["insert"] * 10 + ["update_preimage", "update_postimage"] * 20 + ["delete"] * 3)
    data = stored(pa.table({"kind": kinds, "id": range(53)}), row_group_size=9)
    found = by_kernel(data, 20, dictionaries=["kind"])
    assert {batch.schema.field("kind").type for batch in found} == {pa.dictionary(pa.int32(), pa.string())}
    assert pa.chunked_array([batch["kind"] for batch in found]).cast(pa.string()).combine_chunks().equals(kinds)


def test_strings_that_do_not_fit_into_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One column of strings has fewer rows for its bytes than the other ones."""
    monkeypatch.setattr(decoding, "BATCH_BYTES", 3_000)
    rows = 500
    long = [None if number % 7 == 3 else "x" * (number % 900) for number in range(rows)]
    table = pa.table({"id": range(rows), "long": long, "short": [str(number) for number in range(rows)]})
    for dictionary in (True, False):
        data = stored(table, use_dictionary=dictionary, row_group_size=170, data_page_size=2_000)
        found = by_kernel(data, 100)
        assert all(batch["long"].nbytes < 9_000 for batch in found)
        assert len(found) > 30
        same(found, by_pyarrow(data, 100), table.schema)


def test_other_encodings_are_left_to_pyarrow() -> None:
    rows = 3_000
    table = pa.table({"id": range(rows), "delta": range(rows), "text": [f"text {number}" for number in range(rows)]})
    encodings = {"delta": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}
    data = stored(table, use_dictionary=False, column_encoding=encodings, row_group_size=1_000)
    same(read(data, 700), by_pyarrow(data, 700), table.schema)
    same(
        by_kernel(data, 700, columns=["id"]),
        by_pyarrow(data, 700, columns=["id"]),
        table.schema.empty_table().select(["id"]).schema,
    )


def test_types_that_the_kernel_does_not_know_are_left_to_pyarrow() -> None:
    table = pa.table(
        {"id": range(9), "time": pa.array(range(9), pa.time64("us")), "big": pa.array(["a"] * 9, pa.large_string())}
    )
    data = stored(table)
    same(read(data, 4), by_pyarrow(data, 4), table.schema)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_damage_gives_no_other_rows_than_pyarrow(codec: str, version: str) -> None:
    """A page that is damaged is read as pyarrow reads it, or is an error of both. Without checksums, both may read other values."""
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
        data, found, expected = bytes(spoilt), None, None
        try:
            expected = pa.Table.from_batches(by_pyarrow(data, 90))
        except (CdfdError, pa.ArrowException, OSError, ValueError):
            damaged += 1
        try:
            found = pa.Table.from_batches(read(data, 90))
        except (CdfdError, pa.ArrowException, OSError, ValueError):
            assert expected is None
        if found is not None:
            found.validate(full=True)
            assert expected is None or found.equals(expected)
    assert damaged > 100


def test_lists_of_very_many_nulls_are_left_to_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a few bytes may have millions of them, in one row."""
    monkeypatch.setattr(decoding, "NESTED_BYTES", 80_000)
    count = 20_000
    nulls = pa.nulls(count, pa.int64())
    table = pa.table({"list": pa.ListArray.from_arrays(pa.array([0, count, count], pa.int32()), nulls)})
    data, left = stored(table), []
    with monkeypatch.context() as patch:
        whole = arrow_run.ArrowRun.batches
        patch.setattr(arrow_run.ArrowRun, "batches", lambda *given: left.append(given) or whole(*given))
        same(read(data, 10), table.to_batches(), table.schema)
    assert left


def test_memory_of_released_blocks_is_used_again() -> None:
    """A part of it: what is kept has a limit."""
    native = decoding.native
    assert native is not None

    def place(block: Any) -> int:
        return int(np.frombuffer(block, np.uint8).ctypes.data)

    native.release()
    size = 1 << 20
    block = native.Block(size, True)
    before = place(block)
    del block
    again = native.Block(size - 1_000, True)
    assert place(again) == before
    assert memoryview(again).nbytes == size - 1_000
    blocks = [native.Block(size, True) for _ in range(100)]
    places = {place(block) for block in blocks}
    assert len(places) == 100
    del blocks, again
    kept = [native.Block(size, True) for _ in range(100)]
    assert len({place(block) for block in kept}) == 100
    native.release()
