"""Tables that other writers wrote, with the rows that they ought to give.

The tables are not part of this repository (they are delta-kernel-rs's, Apache License 2.0): these tests run where a
checkout has them beside it, and every rule that they exercise has a test of its own elsewhere.
"""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.errors import CdfdError, LogError, MissingFileError, PathError, UnsupportedError
from tests.support.fold import LEFT_OUT, META, Row, bag, fold

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden tables are not beside this checkout")

# Broken tables, and tables with a broken past: what the newest snapshot raises, and what changes from version 0 raise.
BROKEN: dict[str, tuple[type[CdfdError] | None, type[CdfdError]]] = {
    "deltalog-commit-info": (LogError, LogError),  # files without a schema
    "deltalog-invalid-protocol-version": (UnsupportedError, UnsupportedError),
    "deltalog-state-reconstruction-from-checkpoint-missing-protocol": (LogError, LogError),
    "deltalog-state-reconstruction-without-protocol": (LogError, LogError),
    "no-delta-log-folder": (LogError, LogError),
    "versions-not-contiguous": (LogError, LogError),
    "log-replay-special-characters-b": (MissingFileError, MissingFileError),
    # Files that a later version removes, and that are not there: the newest snapshot is empty, its past unreadable.
    "log-replay-special-characters": (None, MissingFileError),
    "canonicalized-paths-normal-b": (None, PathError),
    "canonicalized-paths-special-b": (None, PathError),
}

# Its last commit, made by hand, has change data files and no other action: changes that no table went through.
CHANGES_ONLY = "cdf-table-simple"

# Expected rows took a partition value without a zone for the writer's local time; the specification says UTC.
NOT_COMPARED = {"data-reader-partition-values": ["as_timestamp"]}


def names(kind: str) -> list[str]:
    return sorted(folder.name for folder in (GOLDEN / kind).glob("*"))


def root(name: str) -> Path:
    folder = GOLDEN / "snapshot" / name
    return folder / "delta" if (folder / "delta").is_dir() else folder


def typed(rows: list[dict[str, object]], schema: pa.Schema) -> pa.Table:
    """Rows of JSON in the columns of a schema: dates, timestamps and decimals are text there."""
    columns = [name for name in schema.names if name not in LEFT_OUT]
    kinds = {field.name: field.type for field in schema}
    kinds["_change_type"] = pa.string()
    return pa.table({name: pa.array([row.get(name) for row in rows]).cast(kinds[name]) for name in columns})


def written(name: str, schema: pa.Schema) -> Counter[Row] | None:
    """The expected rows of the newest snapshot, or None if the golden table has none on file."""
    files = sorted((GOLDEN / "snapshot" / name / "expected").glob("*.parquet"))
    if not files:
        return None
    rows: Counter[Row] = Counter()
    for file in files:
        table = pq.ParquetFile(file, coerce_int96_timestamp_unit="us").read()
        assert set(table.column_names) == set(schema.names) - set(META)
        rows.update(
            bag(table.select([c for c in schema.names if c not in META]).cast(without(META, schema)).to_batches())
        )
    return rows


def without(columns: tuple[str, ...], schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in columns])


@pytest.mark.parametrize("name", names("cdf"))
def test_change_rows_of_real_writers_are_as_expected(name: str) -> None:
    folder = GOLDEN / "cdf" / name
    start = json.loads((folder / "range.json").read_text())["starting_version"]
    expected = [json.loads(line) for line in (folder / "changes.jsonl").read_text().splitlines()]
    reader = cdfd.changes(str(folder / "table"), start)
    schema = reader.schema
    assert bag(reader) == bag(typed(expected, schema).to_batches())


@pytest.mark.parametrize("name", names("cdf"))
def test_changes_fold_to_the_snapshot(name: str) -> None:
    """Derived from the files alone too: another way to the same rows."""
    uri = str(GOLDEN / "cdf" / name / "table")
    snapshot = bag(cdfd.snapshot(uri), META)
    assert fold(cdfd.changes(uri, changes="files")) == snapshot
    if name != CHANGES_ONLY:
        assert fold(cdfd.changes(uri)) == snapshot


@pytest.mark.parametrize("name", [name for name in names("snapshot") if name not in BROKEN])
def test_snapshot_and_folded_changes_are_the_expected_rows(name: str) -> None:
    less = NOT_COMPARED.get(name, [])
    uri = str(root(name))
    reader = cdfd.snapshot(uri)
    expected = written(name, reader.schema)
    ours = bag(reader, META)
    assert expected is not None
    assert only(ours, less) == only(expected, less)
    assert fold(cdfd.changes(uri)) == ours


def only(rows: Counter[Row], less: list[str]) -> Counter[Row]:
    kept: Counter[Row] = Counter()
    for row, count in rows.items():
        kept[frozenset(field for field in row if field[0] not in less)] += count
    return kept


@pytest.mark.parametrize(("name", "snapshot", "history"), [(name, *kinds) for name, kinds in BROKEN.items()])
def test_broken_table_raises_an_error_that_names_it(
    name: str, snapshot: type[CdfdError] | None, history: type[CdfdError]
) -> None:
    uri = str(root(name))
    if snapshot is None:
        assert bag(cdfd.snapshot(uri), META) == Counter()
    else:
        with pytest.raises(snapshot) as caught:
            list(cdfd.snapshot(uri))
        assert caught.value.table is not None
    with pytest.raises(history) as caught:
        list(cdfd.changes(uri))
    assert caught.value.table is not None
    assert "\n" not in str(caught.value)
