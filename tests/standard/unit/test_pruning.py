"""Files that a filter excludes: never one that has a row for it; and what is left out is not read."""

import json
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

import cdfd
from cdfd.delta import checkpoint, statistics
from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles, pack
from cdfd.delta.types import values
from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import LiveScans
from cdfd.plan.shape.compiler import compile_filter
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.predicate import Predicate
from cdfd.plan.shape.pruning import RangeOf, compile_pruning, select_files
from cdfd.plan.shape.ranges import Columns, Range
from cdfd.scan.data_files import open_data_file
from cdfd.scan.file_reader import FileReader
from cdfd.scan.group_pruning import excluded_groups
from cdfd.scan.table_files import TableFiles
from cdfd.sinks.delta.data_files import no_other_root
from tests.support.extremes import KINDS, WRITERS, Column, columns, filters
from tests.support.filters import NUMBERS, texts
from tests.support.fold import META, bag, fold
from tests.support.memory_storage import MemoryStorage
from tests.support.sampling import stride

FILE = FileScan("f", "insert", {}, 0)
SCHEMA = TableSchema(from_arrow(NUMBERS))
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | st.integers(-2, 2) for name in "ab"}), min_size=1, max_size=4)


def possible(predicate: Predicate, schema: TableSchema, range_of: RangeOf) -> bool:
    return compile_pruning(predicate, schema)(range_of)


def range_of(rows: list[Any], name: str) -> Range:
    known = [row[name] for row in rows if row[name] is not None]
    if not known:
        return Range(nulls=True, values=False)
    return Range(min(known), max(known), len(known) < len(rows))


@given(texts(), ROWS, st.booleans())
def test_no_row_is_lost(filter: tuple[str, Any], rows: list[Any], known: bool) -> None:
    predicate = parse_filter(filter[0])
    kept = compile_filter(predicate, SCHEMA)(pa.RecordBatch.from_pylist(rows, NUMBERS))
    actual = possible(predicate, SCHEMA, lambda name: range_of(rows, name) if known else Range())
    assert actual or not kept.any()


def kept(column: Column, text: str) -> npt.NDArray[np.bool_]:
    """Which rows a filter keeps that reads all of them."""
    return compile_filter(parse_filter(text), column.schema())(column.rows)


def is_skipped(column: Column, text: str, scan: FileScan, stats: str | None, *partition_by: str) -> bool:
    """Whether a file of the log is left out."""
    schema = column.schema(*partition_by)
    known, ranges = statistics.parse(stats, schema), Columns(schema, schema)
    return not possible(parse_filter(text), schema, lambda name: ranges.range(name, scan, known))


@pytest.mark.parametrize("kinds", KINDS)
@settings(max_examples=100 // stride(2))
@given(data=st.data())
def test_statistics_in_the_log_lose_no_row(kinds: str, data: st.DataObject) -> None:
    column = data.draw(columns(KINDS[kinds]))
    written = sorted({write(column) for write in WRITERS})
    adds = [Add(f"{number}", {}, 1, 0, True, stats) for number, stats in enumerate(written)]
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack(adds)])))
    for text in data.draw(filters(column)):
        # Also if an operator gives the filter as a condition.
        selected = select_files(parse_filter(text), scans, column.schema())
        for stats, is_selected in zip(written, selected, strict=True):
            if is_skipped(column, text, FILE, stats) or not is_selected:
                assert not kept(column, text).any(), (text, stats)


@pytest.mark.parametrize("kinds", KINDS)
@settings(max_examples=50 // stride(2))
@given(data=st.data())
def test_partition_values_lose_no_row(kinds: str, data: st.DataObject) -> None:
    column = data.draw(columns(KINDS[kinds]))
    for text in data.draw(filters(column)):
        for value in column.stored:
            written = values.serialize(value)
            if is_skipped(column, text, replace(FILE, partition_values={"x": written}), None, "x"):
                read = values.parse(written, column.field.type)
                rows = pa.record_batch([pa.array([read], read.type)], ["x"])
                assert not compile_filter(parse_filter(text), column.schema())(rows).any(), (text, written)


@pytest.mark.parametrize("kinds", KINDS)
@settings(max_examples=50 // stride(2))
@given(data=st.data(), as_integers=st.booleans())
def test_footers_lose_no_row(kinds: str, data: st.DataObject, as_integers: bool) -> None:
    column = data.draw(columns(KINDS[kinds]))
    buffer, schema = pa.BufferOutputStream(), column.schema()
    rows = pa.table([column.stored], ["x"])
    pq.write_table(rows, buffer, row_group_size=2, store_decimal_as_integer=as_integers)
    with open_data_file("f.parquet", pa.BufferReader(buffer.getvalue())) as file:
        reader = FileReader.prepare(file, schema, FILE, TableFiles(MemoryStorage("memory://"), no_other_root))
        for text in data.draw(filters(column)):
            for group in excluded_groups(reader, schema, parse_filter(text)):
                assert not kept(column, text)[2 * group : 2 * group + 2].any(), text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a = 3", False),
        ("a <> 1", True),
        ("b <> 7", False),
        ("NOT b = 7", False),
        ("a > 1 AND b = 7", True),
        ("a > 2 OR b > 7", False),
        ("NOT (a <= 2 AND b = 7)", False),
        ("a IN (3, 4)", False),
        ("a NOT IN (1, NULL)", False),
        ("a IS NULL", False),
        ("n IS NULL", True),
        ("n = 1 OR n <> 1", False),
        ("NOT n = 1", False),
        ("a BETWEEN 5 AND 9", False),
        ("a NOT BETWEEN 0 AND 9", False),
        ("3 <= a", False),
        ("a < b", True),
        ("a < n", False),
        ("later = 1", False),
        ("later IS NULL", True),
        ("FALSE", False),
    ],
)
def test_files_that_are_left_out(text: str, wanted: bool) -> None:
    schema = TableSchema(from_arrow(pa.schema([(name, pa.int64()) for name in "abn"])))
    ranges = {"a": Range(0, 2, False), "b": Range(7, 7, False), "n": Range(nulls=True, values=False)}
    assert possible(parse_filter(text), schema, ranges.__getitem__) is wanted


def test_statistics_of_delta_rs_lose_no_decimal(tmp_path: Path) -> None:
    """In the log they are doubles, or longs without scale. Those in its footers are exact."""
    for precision, scale in ((15, 2), (16, 2), (18, 0), (19, 0), (28, 10), (29, 0), (30, 0), (38, 10), (38, 38)):
        largest = Decimal((0, (9,) * precision, -scale))
        rows = [largest, largest.copy_negate(), Decimal((0, (1,), -scale))]
        for number, value in enumerate(rows):
            folder = tmp_path / f"{precision}-{scale}-{number}"
            write_deltalake(folder, pa.table({"x": pa.array([value], pa.decimal128(precision, scale))}))
            for where in (f"x = {value:f}", f"x >= {value:E}", f"NOT (x > {value:f})", f"x IN ({value:f}, 0.5)"):
                assert cdfd.snapshot(str(folder), where=where).read_all()["x"].to_pylist() == [value], where
            longer = f"{value:f}" + ("1" if scale else ".1")
            for where in (f"x <> {value:f}", f"x < {value:f}", f"x > {value:f}", f"x = {longer}"):
                assert not cdfd.snapshot(str(folder), where=where).read_all().num_rows, where


def test_a_checkpoint_with_statistics_as_a_struct_alone_leaves_no_file_out() -> None:
    """Their writer computed them as it liked: they are not read."""
    parsed = {"numRecords": 1, "minValues": {"a": 5}, "maxValues": {"a": 5}}
    rows = pa.RecordBatch.from_pylist([{"add": {"path": "f", "size": 1, "stats_parsed": parsed}}])
    [add] = PackedFiles(Add, pa.Table.from_batches([checkpoint.file_rows(rows, "add")]))
    known, ranges = statistics.parse(add.stats, SCHEMA), Columns(SCHEMA, SCHEMA)
    assert possible(parse_filter("a = 7"), SCHEMA, lambda name: ranges.range(name, FILE, known))


def test_nan_among_equal_values_is_another_value() -> None:
    schema = TableSchema(from_arrow(pa.schema([("f", pa.float64())])))
    for nan in (True, False):
        only = Range(5.0, 5.0, nulls=False, nan=nan)
        assert possible(parse_filter("f <> 5"), schema, lambda _, only=only: only) is nan
    assert Range.constant(float("nan")) == Range(nulls=False, nan=True)


def test_bounds_in_the_wrong_order_say_nothing() -> None:
    assert Range.between(1, -1, nulls=False, nan=False) == Range(nulls=False)
    assert Range.between(-1, 1, nulls=False, nan=False) == Range(-1, 1, nulls=False)


def test_files_of_other_partitions_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    chance = random.Random(1)
    for _ in range(3):
        rows = [{"p": chance.choice(["a", "b", None]), "id": chance.randint(0, 99)} for _ in range(20)]
        write_deltalake(folder, pa.Table.from_pylist(rows), partition_by=["p"], mode="append")
    write_deltalake(folder, pa.table({"p": ["a"], "id": [5]}), mode="overwrite", predicate="p = 'a'")
    uri = str(folder)
    for where in ("p = 'a'", "p IS NULL", "NOT p = 'a'", "p = 'a' AND id > 50"):
        wanted = bag(cdfd.snapshot(uri, where=where).read_all().to_batches(), META)
        assert fold(cdfd.changes(uri, where=where).read_all().to_batches()) == wanted
        assert fold(cdfd.changes(uri, where=where, refine="key", key="id").read_all().to_batches()) == wanted
    # Their rows take no numbers, as the page about transforms says.
    last = cdfd.changes(uri, 0, 0, where="p = 'b'").read_all()
    assert last["_change_ordinal"].to_pylist() == list(range(last.num_rows))
    # Files of other partitions may be gone: nothing opens them.
    entries = (folder / "_delta_log").glob("*.json")
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    adds = [action["add"] for action in actions if "add" in action]
    for add in adds:
        if add["partitionValues"]["p"] != "a":
            (folder / add["path"]).unlink()
    assert cdfd.changes(uri, where="p = 'a'").read_all().num_rows
    assert cdfd.snapshot(uri, where="p = 'a' AND id = 5").read_all().num_rows == 1
    assert not cdfd.snapshot(uri, where="id > 99").read_all().num_rows


def test_columns_that_had_other_names(tmp_path: Path) -> None:
    """A filter has the names of the last version: the column `p` was `r` when the rows were written, and another one was `p`."""
    folder = tmp_path / "t"
    (folder / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"r1": pa.array([5, 6], pa.int64())}), folder / "a.parquet")

    def metadata(names: tuple[str, str]) -> dict[str, Any]:
        kinds = zip(names, (("string", "p1", 1), ("long", "r1", 2)), strict=True)
        fields = [
            {
                "name": name,
                "type": kind,
                "nullable": True,
                "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical},
            }
            for name, (kind, physical, number) in kinds
        ]
        return {
            "id": "T",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [names[0]],
            "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
        }

    add = {"path": "a.parquet", "partitionValues": {"p1": "a"}, "size": 1, "modificationTime": 0, "dataChange": True}
    versions: list[list[dict[str, Any]]] = [
        [
            {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
            {"metaData": metadata(("p", "r"))},
            {"add": add},
        ],
        [{"metaData": metadata(("q", "p"))}],
    ]
    for version, actions in enumerate(versions):
        entry = "".join(json.dumps(action) + "\n" for action in actions)
        (folder / "_delta_log" / f"{version:020d}.json").write_text(entry)
    uri = str(folder)
    for where, wanted in (
        ("p = 5", [5]),
        ("p IS NOT NULL", [5, 6]),
        ("q = 'a' AND p = 6", [6]),
        ("q = 'b'", []),
        ("q IS NULL", []),
    ):
        assert cdfd.changes(uri, where=where).read_all()["p"].to_pylist() == wanted
        assert cdfd.snapshot(uri, where=where).read_all()["p"].to_pylist() == wanted
    assert cdfd.changes(uri, end=0, where="p = 'a' AND r = 5").read_all()["r"].to_pylist() == [5]
