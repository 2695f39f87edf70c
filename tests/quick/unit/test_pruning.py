"""Files that a filter excludes: never one that has a row for it; and what is left out is not read."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

import cdfd
from cdfd.changes.shape.compiler import compiled
from cdfd.changes.shape.parser import parse_filter
from cdfd.changes.shape.pruning import possible
from cdfd.changes.skipping import Range
from cdfd.delta.schema import TableSchema, from_arrow
from tests.support.filters import NUMBERS, texts
from tests.support.fold import META, bag, fold

SCHEMA = TableSchema(from_arrow(NUMBERS))
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | st.integers(-2, 2) for name in "ab"}), min_size=1, max_size=4)


def range_of(rows: list[Any], name: str) -> Range:
    known = [row[name] for row in rows if row[name] is not None]
    if not known:
        return Range(nulls=True, values=False)
    return Range(min(known), max(known), len(known) < len(rows))


@given(texts(), ROWS, st.booleans())
def test_no_row_is_lost(filter: tuple[str, Any], rows: list[Any], known: bool) -> None:
    predicate = parse_filter(filter[0])
    kept = compiled(predicate, SCHEMA).mask(pa.RecordBatch.from_pylist(rows, NUMBERS))
    found = possible(predicate, SCHEMA, lambda name: range_of(rows, name) if known else Range())
    assert found or not kept.any()


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
