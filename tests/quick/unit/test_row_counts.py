"""Rows that are read are counted against the file's footer, and against the log: fewer or more are an error, never a shorter result."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.delta.statistics import count_only, record_count
from cdfd.errors import DataError
from cdfd.runtime import native
from cdfd.scan.parquet.reader import open_parquet

LISTS = pa.table(
    {"l": pa.array([["a", "b", "c"], ["d"], None], pa.list_(pa.string())), "id": pa.array([1, 2, 3], pa.int64())}
)
LIST = {"type": "array", "elementType": "string", "containsNull": True}
FIELDS = {"l": LIST, "id": "long"}


def write_list_that_begins_with_an_empty_page(path: Path) -> None:
    """Valid, and pyarrow reads no row of it in batches."""
    how: dict[str, Any] = {"use_dictionary": ["l.list.element"], "column_encoding": {"id": "DELTA_BINARY_PACKED"}}
    pq.write_table(LISTS, path, data_page_size=1, row_group_size=1, compression="snappy", **how)


def table(path: Path, counts: list[str | None], *, deleted: int | None = None) -> Path:
    """A table of files of three rows, whose statistics are these."""
    (path / "_delta_log").mkdir(parents=True)
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata | {"configuration": {}}},
    ]
    for number, stats in enumerate(counts):
        name = f"{number}.parquet"
        if not (path / name).exists():
            pq.write_table(LISTS, path / name)
        add = {"path": name, "partitionValues": {}, "size": (path / name).stat().st_size, "modificationTime": 0}
        actions.append({"add": add | {"dataChange": True} | ({} if stats is None else {"stats": stats})})
    (path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return path


class TestFooter:
    @pytest.mark.skipif(not native.built, reason="pyarrow alone refuses such a file")
    def test_rows_that_pyarrow_leaves_out_are_read(self, tmp_path: Path) -> None:
        write_list_that_begins_with_an_empty_page(tmp_path / "a.parquet")
        with pa.OSFile(str(tmp_path / "a.parquet")) as source, open_parquet(source) as file:
            assert pa.Table.from_batches(file.batches(["l", "id"], rows=10)).to_pydict() == LISTS.to_pydict()

    @pytest.mark.skipif(not native.built, reason="pyarrow alone refuses such a file")
    @pytest.mark.parametrize("files", [1, 3])
    def test_without_machine_code_a_table_with_such_a_file_is_refused(
        self, files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "t").mkdir()
        for number in range(files):
            write_list_that_begins_with_an_empty_page(tmp_path / "t" / f"{number}.parquet")
        table(tmp_path / "t", [None] * files)
        assert cdfd.changes(str(tmp_path / "t")).read_all().num_rows == 3 * files
        monkeypatch.setattr(native, "built", False)
        with pytest.raises(DataError, match="0 rows were read") as error:
            cdfd.changes(str(tmp_path / "t")).read_all()
        assert error.value.path == "0.parquet"
        with pytest.raises(DataError, match="0 rows were read"):
            cdfd.snapshot(str(tmp_path / "t")).read_all()

    @pytest.mark.parametrize("columns", [["l", "id"], ["id"], []])
    @pytest.mark.parametrize("rows", [1, 2, 10])
    def test_all_rows_of_whole_files_are_counted(self, columns: list[str], rows: int, tmp_path: Path) -> None:
        pq.write_table(LISTS, tmp_path / "a.parquet", row_group_size=2)
        with pa.OSFile(str(tmp_path / "a.parquet")) as source, open_parquet(source) as file:
            assert sum(batch.num_rows for batch in file.batches(columns, rows=rows)) == 3
            assert sum(batch.num_rows for batch in file.batches(columns, [1], rows=rows)) == 1


class TestLog:
    @pytest.mark.parametrize("files", [1, 3])
    @pytest.mark.parametrize("count", [0, 2, 4])
    def test_a_file_of_other_rows_than_the_log_says_is_refused(self, count: int, files: int, tmp_path: Path) -> None:
        stats = [json.dumps({"numRecords": 3})] * (files - 1)
        path = str(table(tmp_path / "t", [*stats, json.dumps({"numRecords": count})]))
        for read in (cdfd.changes, cdfd.snapshot):
            with pytest.raises(DataError, match=f"the file has 3 rows, and the log says {count}") as error:
                read(path).read_all()
            assert error.value.path == f"{files - 1}.parquet"

    @pytest.mark.parametrize(
        "stats", [None, "", "{}", "null", '{"numRecords":null}', '{"numRecords":"3"}', '{"numRecords":3}', "{no JSON"]
    )
    def test_a_file_of_which_the_log_says_nothing_else_is_read(self, stats: str | None, tmp_path: Path) -> None:
        path = str(table(tmp_path / "t", [stats, stats]))
        assert cdfd.changes(path).read_all().num_rows == 6
        assert cdfd.snapshot(path).read_all().num_rows == 6

    def test_the_checkpoint_says_it_too(self, tmp_path: Path) -> None:
        from deltalake import DeltaTable

        path = table(tmp_path / "t", ['{"numRecords":3}', '{"numRecords":2}'])
        DeltaTable(str(path)).create_checkpoint()
        (path / "_delta_log" / f"{0:020}.json").unlink()
        with pytest.raises(DataError, match="the file has 3 rows, and the log says 2"):
            cdfd.snapshot(str(path)).read_all()


@pytest.mark.parametrize(
    ("stats", "count"),
    [
        (None, None),
        ('{"numRecords":12}', 12),
        ('{"numRecords":12,"minValues":{"numRecords":7}}', 12),
        ('{"minValues":{"numRecords":7}, "numRecords": 12}', 12),
        ('{"numRecords":-1}', None),
        ('{"numRecords":1.5}', None),
        ('{"numRecords":true}', None),
        ('{"numRecords":99999999999999999999}', None),
        ('["numRecords"]', None),
        ("{", None),
    ],
)
def test_the_count_of_a_document(stats: str | None, count: int | None) -> None:
    assert record_count(stats) == count
    assert record_count(count_only(stats)) == count
