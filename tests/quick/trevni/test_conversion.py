"""Files of other formats that are damaged, and converted to Trevni."""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

import cdfd.trevni as trevni
from cdfd.cli.commands.trevni_convert import run
from cdfd.errors import DataError, UnsupportedError
from cdfd.trevni.source import long_bytes


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_text_that_ends_outside_of_its_buffer_is_refused(tmp_path: Path, make: Callable[..., Any]) -> None:
    file = io.BytesIO()
    table = pa.table({"name": pa.array(["aa", "bb"]), "other": pa.array(["cccccc", "dddddd"])})
    with make(file, table.schema) as writer:
        writer.write_table(table)
    source = tmp_path / "rows.arrow"
    source.write_bytes(file.getvalue().replace(struct.pack("<3i", 0, 2, 4), struct.pack("<3i", 0, 2, 99)))
    with pytest.raises(DataError, match=r"offset.*rows\.arrow"):
        run(str(source), str(tmp_path / "rows.trv"))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.arrow"]


def avro() -> bytes:
    """An Avro file."""
    file = io.BytesIO()
    fields = [{"name": "name", "type": "string"}]
    fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, [{"name": "a"}] * 9, codec="deflate")
    return file.getvalue()


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"type": "string"', b'"typf": "string"'), (b'"name": "row"', b'"namf": "row"'), (b"deflate", b"deflatf")],
)
def test_avro_schema_that_is_damaged_is_refused_with_the_name_of_the_file(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    data = avro()
    assert old in data
    source = tmp_path / "rows.avro"
    source.write_bytes(data.replace(old, new))
    with pytest.raises(DataError, match=r"rows\.avro"):
        run(str(source), str(tmp_path / "rows.trv"))


def test_avro_block_that_is_damaged_is_refused(tmp_path: Path) -> None:
    data = avro()
    marker = data[-16:]
    # A marker ends the header, too. The block has a byte for the number of its rows, and one for its size.
    begin = data.index(marker) + len(marker) + 2
    source = tmp_path / "rows.avro"
    source.write_bytes(data[:begin] + b"\xff" * (len(data) - begin - len(marker)) + marker)
    with pytest.raises(DataError, match=r"rows\.avro"):
        run(str(source), str(tmp_path / "rows.trv"))


@pytest.mark.parametrize(
    "items", ["null", {"type": "record", "name": "none", "fields": []}, {"type": "fixed", "name": "none", "size": 0}]
)
def test_avro_array_whose_items_take_no_bytes_is_refused(tmp_path: Path, items: Any) -> None:
    """Its number of items is not bounded by the size of the file: a million here, a billion in as many bytes."""
    field = {"name": "list", "type": ["null", {"type": "array", "items": items}]}
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "row", "fields": [field]}, [{"list": []}])
    header, marker = file.getvalue()[:-20], file.getvalue()[-16:]
    row = long_bytes(1) + long_bytes(1_000_000) + long_bytes(0)
    source = tmp_path / "rows.avro"
    source.write_bytes(header + long_bytes(1) + long_bytes(len(row)) + row + marker)
    with pytest.raises(UnsupportedError, match=r"arrays of nulls.*rows\.avro"):
        run(str(source), str(tmp_path / "rows.trv"))


def test_rows_that_the_target_cannot_have_are_refused_with_its_name(tmp_path: Path) -> None:
    source, target = tmp_path / "rows.trv", tmp_path / "rows.parquet"
    trevni.write_table(pa.table({"a": pa.array([{}], pa.struct([]))}), source)
    with pytest.raises(DataError, match=r"no child field.*rows\.parquet"):
        run(str(source), str(target))
