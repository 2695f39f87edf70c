"""Row groups that a filter excludes are not decoded; no row is lost, and each keeps its ordinal."""

import datetime as dt
import random
from collections.abc import Mapping
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from deltalake.writer import WriterProperties

import cdfd
from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.plan.shape.compiler import compile_filter
from cdfd.plan.shape.parser import parse_filter
from cdfd.runtime import native
from cdfd.scan.parquet import reader as parquet
from cdfd.scan.parquet.statistics import ChunkStatistics, decoder

ROWS = 1000
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FILTERS = [
    "i < 40",
    "i = 500 OR s = 'name-00990'",
    "NOT i > 30",
    "i BETWEEN 310 AND 390 AND f IS NOT NULL",
    "d >= 99.5",
    "day = '2026-01-03'",
    "t > '2026-01-01T00:15:00Z'",
    "n <= '2026-01-01 00:01:00'",
    "f > 990",
    "f = 'NaN'",
    "s LIKE 'name-0001%'",
    "nul IS NOT NULL",
    "nul = 7 OR i = 3",
    "st.a = 999",
    "i IN (5, 905)",
]


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    chance = random.Random(3)
    numbers = range(ROWS)
    return pa.table(
        {
            "i": pa.array(numbers, pa.int32()),
            "s": [f"name-{number:05}" for number in numbers],
            "d": pa.array([Decimal(number) / 10 for number in numbers], pa.decimal128(20, 2)),
            "day": [dt.date(2026, 1, 1) + dt.timedelta(number // 100) for number in numbers],
            "t": pa.array([EPOCH + dt.timedelta(seconds=number) for number in numbers], pa.timestamp("us", "UTC")),
            "n": pa.array(
                [(EPOCH + dt.timedelta(seconds=number)).replace(tzinfo=None) for number in numbers], pa.timestamp("us")
            ),
            "f": [chance.choice([None, float("nan")]) if number % 7 == 0 else float(number) for number in numbers],
            "nul": pa.array([7 if number == 950 else None for number in numbers], pa.int64()),
            "st": [{"a": number} for number in numbers],
        }
    )


@pytest.fixture(scope="module")
def table(rows: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("t") / "t"
    write_deltalake(folder, rows, writer_properties=WriterProperties(max_row_group_size=50))
    return str(folder)


@pytest.mark.parametrize("where", FILTERS)
def test_no_row_is_lost(rows: pa.Table, table: str, where: str) -> None:
    schema = TableSchema(from_arrow(rows.schema))
    kept = compile_filter(parse_filter(where), schema)(rows.combine_chunks().to_batches()[0])
    wanted = [number for number, keep in enumerate(kept) if keep]
    assert wanted
    actual = cdfd.changes(table, where=where).read_all()
    assert actual["i"].to_pylist() == wanted
    assert actual["_change_ordinal"].to_pylist() == wanted


@pytest.mark.parametrize("columns", [None, ["a.b"], ["a"]])
def test_a_column_with_a_dot_has_its_own_values_beside_a_struct(tmp_path: Path, columns: list[str] | None) -> None:
    """Its name is the path of the struct's child, too."""
    numbers = range(ROWS)
    rows = pa.table({"a.b": pa.array(numbers), "a": [{"b": -number} for number in numbers]})
    write_deltalake(tmp_path / "t", rows, writer_properties=WriterProperties(max_row_group_size=50))
    actual = cdfd.changes(tmp_path / "t", where="`a.b` >= 990", columns=columns).read_all()
    for name in columns or rows.schema.names:
        assert actual[name].to_pylist() == rows[name].to_pylist()[990:]


@pytest.mark.skipif(not native.built, reason="another reader decodes them")
def test_groups_are_not_decoded(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    batches = parquet.ParquetReader.batches

    def counted(self: Any, columns: Any, wanted: Any = None, **options: Any) -> Any:
        groups.extend(range(self.metadata.num_row_groups) if wanted is None else wanted)
        return batches(self, columns, wanted, **options)

    monkeypatch.setattr(parquet.ParquetReader, "batches", counted)
    for where, most in (
        ("i < 40", 1),
        ("s = 'name-00500'", 1),
        ("d >= 99.5", 1),
        ("nul = 7", 1),
        ("day = '2026-01-03'", 2),
    ):
        groups.clear()
        assert cdfd.changes(table, where=where, columns=["i"]).read_all().num_rows
        assert len(groups) == most, where


def statistics(data: bytes, names: list[str]) -> list[Mapping[str, ChunkStatistics]]:
    with parquet.open_parquet(pa.BufferReader(data)) as file:
        assert isinstance(file, parquet.ParquetReader)
        return [known for known, _ in file.statistics(names)]


@pytest.mark.skipif(not native.built, reason="pyarrow reads the statistics itself")
def test_statistics_are_those_of_pyarrow(rows: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(rows.select(["i", "s", "nul"]), sink, row_group_size=300)
    data = sink.getvalue().to_pybytes()
    actual = statistics(data, ["i", "s", "nul"])
    metadata = pq.read_metadata(pa.BufferReader(data))
    assert len(actual) == metadata.num_row_groups
    for number, group in enumerate(actual):
        of_i, of_s, of_nul = (metadata.row_group(number).column(column).statistics for column in range(3))
        assert int.from_bytes(group["i"].low or b"", "little") == of_i.min
        assert (group["s"].high or b"").decode() == of_s.max
        assert group["nul"].nulls == of_nul.null_count


@pytest.mark.skipif(not native.built, reason="pyarrow reads the statistics itself")
def test_bounds_in_another_order_than_that_of_the_type_are_not_used() -> None:
    """Writers before the field `column_orders` compared as they liked, and there may be other orders."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1, 2, None]}), sink)
    data = sink.getvalue().to_pybytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    orders = b"\x19\x1c\x1c\x00\x00\x00"  # a list of one struct, whose field 1 is the order of the type
    assert footer.endswith(orders)
    for end in (b"\x00", orders.replace(b"\x1c\x1c", b"\x1c\x2c")):
        other = footer.removesuffix(orders) + end
        [group] = statistics(data[: -8 - size] + other + len(other).to_bytes(4, "little") + b"PAR1", ["x"])
        assert group == {"x": ChunkStatistics(nulls=1, values=3)}
    [group] = statistics(data, ["x"])
    assert group["x"].low == (1).to_bytes(8, "little")


NUMBER = Decimal("-123456789012345678901234567890.12345678")
UNSCALED = int(NUMBER.scaleb(8, Context(prec=40)))


@pytest.mark.parametrize(
    ("writer", "known"),
    [
        ("parquet-mr version 1.12.3 (build f8dced182c4c1fbdec6ccb3185537b5a01e6ed6b)", True),
        ("parquet-mr compatible Photon version 0.3 (build 15.4)", True),
        ("parquet-cpp-arrow version 26.0.1", True),
        ("delta-rs version py-1.6.6", True),
        ("parquet-cpp version 1.5.1-SNAPSHOT", False),
        ("parquet-cpp-arrow version 3.0.0", False),
        ("Polars", False),
        ("", False),
    ],
)
def test_bounds_of_decimals_are_exact_and_of_writers_that_order_them(writer: str, known: bool) -> None:
    kind = pa.decimal128(38, 8)
    decode = decoder(kind, "FIXED_LEN_BYTE_ARRAY", writer)
    assert (decode is not None) is known
    if decode is not None:
        assert decode(UNSCALED.to_bytes(16, "big", signed=True)) == NUMBER
        assert decode(b"") is None
        assert decode(bytes(17)) is None
    assert (decoder(kind, "INT64", writer) is not None) is known
    assert decoder(kind, "BYTE_ARRAY", writer) is None
