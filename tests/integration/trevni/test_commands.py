"""`cdfd trevni`: the real command, on files that it converts itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd.trevni as trevni
from tests.support.trevni import rows

COMMAND = [sys.executable, "-m", "cdfd", "trevni"]
NOT_IN_PARQUET = ("nothing", "perhaps")


def run(*arguments: str | Path, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trevni") / "rows.trv"
    trevni.write_table(pa.table({"n": [1, None, 3], "s": ["a", "bé", None]}), path, metadata={"origin": "shop"})
    return path


def test_schema(file: Path) -> None:
    assert run("schema", file) == "n: int64\ns: string\n"
    avro = json.loads(run("schema", "--avro", file))
    assert avro["fields"][0] == {"name": "n", "type": ["null", "long"]}


def test_rows_as_json_lines(file: Path) -> None:
    lines = '{"n":1,"s":"a"}\n{"n":null,"s":"bé"}\n{"n":3,"s":null}\n'
    assert run("cat", file) == lines
    assert run("head", "-n", "1", file) == lines[: lines.index("\n") + 1]
    assert run("cat", "--rows", "1:2", "--columns", "s", file) == '{"s":"bé"}\n'


def test_unions_as_json_lines(tmp_path: Path) -> None:
    kinds, offsets = pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32())
    union = pa.UnionArray.from_dense(kinds, offsets, [pa.array([7]), pa.array(["é"])], ["long", "string"])
    trevni.write_table(pa.table({"u": union}), tmp_path / "rows.trv")
    assert [json.loads(line) for line in run("cat", tmp_path / "rows.trv").splitlines()] == [{"u": 7}, {"u": "é"}]


def test_stats(file: Path) -> None:
    actual = json.loads(run("stats", "--json", file))
    assert (actual["rows"], actual["columns"], actual["codec"]) == (3, 2, "snappy")
    [numbers, _] = actual["physical_columns"]
    assert (numbers["name"], numbers["blocks"], numbers["bytes"]) == ("n/long", 1, 5)
    assert "n/long    long array" in run("stats", file)


def test_columns(file: Path) -> None:
    assert json.loads(run("columns", file)) == {
        "rows": 3,
        "columns": [
            {"name": "n/long", "type": "long", "array": True, "parent": None, "lengths": [1, 0, 1], "values": [1, 3]},
            {
                "name": "s/string",
                "type": "string",
                "array": True,
                "parent": None,
                "lengths": [1, 1, 0],
                "values": ["a", "bé"],
            },
        ],
    }


@pytest.mark.parametrize("kind", ["parquet", "arrow", "avro"])
def test_every_type_is_converted_and_back(tmp_path: Path, kind: str) -> None:
    table = rows.table(100).drop_columns(["void"])
    table = table.drop_columns(NOT_IN_PARQUET if kind == "parquet" else [])
    trevni.write_table(table, tmp_path / "rows.trv")
    assert run("convert", tmp_path / "rows.trv", tmp_path / f"rows.{kind}").startswith("100 rows written")
    run("convert", tmp_path / f"rows.{kind}", tmp_path / "back.trv", "--codec", "deflate")
    assert trevni.read_table(tmp_path / "back.trv").equals(table)


def nested(kind: pa.DataType) -> pa.StructType:
    map_kind = pa.map_(pa.string(), kind)
    return pa.struct({"text": kind, "list": pa.list_(kind), "map": map_kind, "no json": pa.string()})


def test_json_in_parquet_stays_json_at_every_depth(tmp_path: Path) -> None:
    row = {"text": "[1]", "list": ["[2]", None], "map": [("k", "{}")], "no json": "[3]"}
    structs = pa.array([row, None], nested(pa.string())).cast(nested(pa.json_()))
    table = pa.table({"text": pa.array(["[4]", None], pa.json_()), "structs": structs})
    pq.write_table(table, tmp_path / "rows.parquet")
    run("convert", tmp_path / "rows.parquet", tmp_path / "rows.trv")
    assert trevni.read_table(tmp_path / "rows.trv").equals(table)


def test_a_map_that_has_a_key_twice_is_not_converted_to_avro(tmp_path: Path) -> None:
    """It would have lost an entry."""
    entries = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    trevni.write_table(pa.table({"m": entries}), tmp_path / "rows.trv")
    error = run("convert", tmp_path / "rows.trv", tmp_path / "rows.avro", code=1)
    assert error.startswith("cdfd: a map has a key twice")
    assert not (tmp_path / "rows.avro").exists()


def test_times_out_of_range_name_the_file(tmp_path: Path) -> None:
    time = pa.array([2**62], pa.timestamp("ms", "UTC"))
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [time], ["time"])
    for name, column in (("time", time), ("union", union)):
        path = tmp_path / f"{name}.trv"
        trevni.write_table(pa.table({"c": column}), path)
        assert f"(file {path})" in run("cat", path, code=1)
    error = run("convert", tmp_path / "time.trv", tmp_path / "rows.avro", code=1)
    assert error.startswith("cdfd: a value cannot be written to Avro: ")
    assert f"(file {tmp_path / 'time.trv'}). Times have to be in the years 1 to 9999" in error


def test_json_lines_are_converted_with_a_schema_that_fits_all_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a":1}\n\n{"a":2.5,"b":{"c":["x"]}}\n')
    run("convert", tmp_path / "rows.jsonl", tmp_path / "rows.trv")
    expected = [{"a": 1.0, "b": None}, {"a": 2.5, "b": {"c": ["x"]}}]
    assert trevni.read_table(tmp_path / "rows.trv").to_pylist() == expected
    run("convert", tmp_path / "rows.trv", tmp_path / "back.jsonl")
    assert [json.loads(line) for line in (tmp_path / "back.jsonl").read_text().splitlines()] == expected


def test_deeply_nested_rows_are_converted_or_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a":' * 98 + "1" + "}" * 98)
    for source, target in (("rows.jsonl", "rows.trv"), ("rows.trv", "rows.avro"), ("rows.avro", "back.trv")):
        run("convert", tmp_path / source, tmp_path / target)
    assert run("cat", tmp_path / "back.trv").strip() == (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "deep.jsonl").write_text('{"a":' * 600 + "1" + "}" * 600)
    error = run("convert", tmp_path / "deep.jsonl", tmp_path / "deep.trv", code=1)
    assert error.startswith("cdfd: column a is nested deeper than the 100 levels of Trevni files")


def test_an_existing_target_is_kept_unless_you_say_otherwise(tmp_path: Path, file: Path) -> None:
    target = tmp_path / "rows.parquet"
    target.write_text("mine")
    assert "--overwrite" in run("convert", file, target, code=2)
    assert target.read_text() == "mine"
    run("convert", "--overwrite", "--columns", "s", file, target)
    assert pq.read_table(target).column_names == ["s"]


@pytest.mark.parametrize("kind", ["jsonl", "trevni"])
def test_a_link_or_a_fifo_is_never_replaced(tmp_path: Path, file: Path, kind: str) -> None:
    """As /dev/stdout and /dev/null would be, for root."""
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to("/dev/null")
    os.mkfifo(fifo)
    for target in (link, fifo):
        error = run("convert", "--overwrite", "--to", kind, file, target, code=1)
        assert error.startswith("cdfd: cannot write: it is a device, a link or a folder")
        assert error.endswith(f"(file {target})\n")
    assert link.is_symlink()
    assert fifo.is_fifo()
    assert sorted(tmp_path.iterdir()) == [fifo, link]


def test_an_existing_target_is_kept_at_its_uri(tmp_path: Path, file: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "rows.trv"
    source.write_text('{"a":1}\n')
    run("convert", source, target.as_uri())
    before = target.read_bytes()
    assert "--overwrite" in run("convert", file, target.as_uri(), "--from", "trevni", code=2)
    assert target.read_bytes() == before
    run("convert", file, target.as_uri(), "--overwrite")
    assert trevni.read_table(target).column_names == ["n", "s"]


def test_what_cannot_be_converted_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a":1}\n{"a":')
    error = run("convert", tmp_path / "rows.jsonl", tmp_path / "rows.trv", code=1)
    assert "line 2 is not JSON" in error
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_errors_are_one_line(tmp_path: Path, file: Path) -> None:
    (tmp_path / "cut.trv").write_bytes(file.read_bytes()[:-3])
    error = run("cat", tmp_path / "cut.trv", code=1)
    assert error.startswith("cdfd: the block ends at byte")
    assert error.count("\n") == 1
    assert "column s/string, block 0" in error
    assert "there is no column 'x'" in run("cat", "--columns", "x", file, code=2)
    assert "Give FROM:TO" in run("cat", "--rows", "5", file, code=2)
