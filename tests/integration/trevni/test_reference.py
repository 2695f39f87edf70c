"""The reference implementation reads the files of cdfd, and cdfd those of the reference, for its oldest and its newest version."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

import cdfd.trevni as trevni
from cdfd.cli.commands.trevni import physical_document
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.codecs import Codec
from cdfd.trevni.file_writer import ColumnRows
from cdfd.trevni.files import avro_rows
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.rows import Reader
from cdfd.trevni.values.value_types import ARROW, ValueType
from tests.support.trevni import reference, rows
from tests.support.trevni.memory import file_writer, memory_source

MISSING = reference.missing()
if MISSING is not None and os.environ.get("CI") != "true":
    pytest.skip(MISSING, allow_module_level=True)

FORMS = [(codec, checksum) for codec in Codec for checksum in Checksum]


@pytest.fixture(params=reference.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def ours(path: Path) -> Any:
    return json.loads(b"".join(physical_document(Reader(memory_source(path.read_bytes())))))


def check(version: str, commands: Sequence[Sequence[object]]) -> None:
    actual = reference.answers(version, commands)
    assert {answer: command for answer, command in zip(actual, commands, strict=True) if answer != "ok"} == {}


def readable(version: str, codec: Codec, checksum: Checksum) -> bool:
    """Whether the reference reads its own files.

    It writes a checksum of nothing with the codec `null`. The oldest version does not read its own blocks of bzip2 if they are large.
    """
    return checksum is Checksum.NULL or (codec is not Codec.NULL and (version != "1.7.7" or codec is not Codec.BZIP2))


def test_files_of_the_reference(version: str, tmp_path: Path) -> None:
    commands: list[Sequence[object]] = []
    files = []
    for codec, checksum in FORMS:
        for kind, count in (("flat", 0), ("flat", 1), ("flat", 12_000), ("nested", 0), ("nested", 3000)):
            path = tmp_path / f"{kind}-{count}-{codec}-{checksum}.trv"
            commands.append((kind, path, codec, checksum, count))
            files.append(path)
            if readable(version, codec, checksum):
                commands.append(("columns", path, path.with_suffix(".json")))
    check(version, commands)
    compared = 0
    for path in files:
        actual = ours(path)
        twin = path.with_suffix(".json") if path.with_suffix(".json").exists() else _twin(path)
        assert actual == json.loads(twin.read_text()), path.name
        compared += 1
    assert compared == len(FORMS) * 5


def _twin(path: Path) -> Path:
    """The same rows without codec and checksum, which the reference can read."""
    return path.with_name("-".join([*path.stem.split("-")[:2], "null", "null"]) + ".json")


def random_rows(kind: ValueType, chance: random.Random, count: int) -> pa.Array:
    match kind:
        case ValueType.NULL:
            return pa.nulls(count)
        case ValueType.BOOLEAN:
            values: list[Any] = [chance.random() < 0.5 for _ in range(count)]
        case ValueType.INT | ValueType.FIXED32:
            values = [chance.choice([-1, 1]) * chance.randrange(1 << chance.randrange(1, 31)) for _ in range(count)]
        case ValueType.LONG | ValueType.FIXED64:
            values = [chance.choice([-1, 1]) * chance.randrange(1 << chance.randrange(1, 63)) for _ in range(count)]
        case ValueType.FLOAT | ValueType.DOUBLE:
            values = [chance.choice([0.0, -0.0, float("inf"), float("nan"), chance.random()]) for _ in range(count)]
        case ValueType.STRING:
            values = ["é🍖x"[: chance.randrange(4)] * chance.choice([1, 1, 1, 50]) for _ in range(count)]
        case _:
            values = [chance.randbytes(chance.randrange(30)) for _ in range(count)]
    return pa.array(values, ARROW[kind])


def written(count: int, codec: Codec, checksum: Checksum) -> bytes:
    """A file with a column of each type: plain, as arrays, below a parent, and as arrays below a parent."""
    chance = random.Random(count)
    columns: list[ColumnMetadata] = []
    data: list[ColumnRows] = []
    each_row = np.arange(count + 1)
    parent_lengths = np.array([chance.choice([0, 0, 1, 1, 2, 5]) for _ in range(count)], np.int64)
    items = np.concatenate([[0], np.cumsum(parent_lengths)])
    for kind in ValueType:
        first = kind in (ValueType.LONG, ValueType.STRING)
        columns.append(ColumnMetadata(f"c_{kind}", kind, values=first, codec=codec, checksum=checksum))
        data.append(ColumnRows(None, random_rows(kind, chance, count), each_row))
    columns.append(ColumnMetadata("items", ValueType.NULL, array=True, codec=codec, checksum=checksum))
    data.append(ColumnRows(parent_lengths, pa.nulls(int(items[-1])), each_row))
    for kind in ValueType:
        columns.append(ColumnMetadata(f"i_{kind}", kind, parent="items", codec=codec, checksum=checksum))
        data.append(ColumnRows(None, random_rows(kind, chance, int(items[-1])), items))
        for parent, entries in ((None, each_row), ("items", items)):
            lengths = np.array([chance.choice([0, 0, 1, 1, 3, 9]) for _ in range(int(entries[-1]))], np.int64)
            name = f"{parent}_a_{kind}"
            columns.append(ColumnMetadata(name, kind, True, parent, codec=codec, checksum=checksum))
            data.append(ColumnRows(lengths, random_rows(kind, chance, int(lengths.sum())), entries))
    writer = file_writer(columns, codec=codec, checksum=checksum, metadata={"note": b"x"}, block_bytes=2000)
    writer.write(count, data)
    return b"".join(writer.finish())


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_files_of_ours(version: str, tmp_path: Path, count: int) -> None:
    paths = []
    for codec, checksum in FORMS:
        paths.append(tmp_path / f"{codec}-{checksum}.trv")
        paths[-1].write_bytes(written(count, codec, checksum))
    check(version, [("columns", path, path.with_suffix(".json")) for path in paths])
    for path in paths:
        assert ours(path) == json.loads(path.with_suffix(".json").read_text()), path.name
    if count == 1000:
        blocks = [Reader(memory_source(paths[0].read_bytes())).blocks(number) for number in range(10)]
        assert sum(map(len, blocks)) > 20


def test_rows_of_ours_are_records_of_the_reference(version: str, tmp_path: Path) -> None:
    table = rows.table(700)
    for codec in Codec:
        trevni.write_table(table, tmp_path / f"{codec}.trv", codec=codec, block_bytes=3000)
    check(version, [("to-avro", tmp_path / f"{codec}.trv", tmp_path / f"{codec}.avro") for codec in Codec])
    for codec in Codec:
        with (tmp_path / f"{codec}.avro").open("rb") as file:
            schema, batches = avro_rows.read(file, 10_000)
            actual = pa.Table.from_batches(list(batches), schema)
        # Java's maps have no order.
        assert _sorted_maps(actual.to_pylist()) == _sorted_maps(table.to_pylist())


def _sorted_maps(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_maps(each) for key, each in value.items()}
    if isinstance(value, list):
        items = [_sorted_maps(each) for each in value]
        return sorted(items, key=repr) if items and all(isinstance(each, tuple) for each in items) else items
    return tuple(_sorted_maps(each) for each in value) if isinstance(value, tuple) else value


MAP: Any = {"type": "map", "avro.java.string": "String"}
"""The reference's writer takes keys that are Java's strings alone."""

SCHEMA: Any = {
    "type": "record",
    "name": "All",
    "namespace": "org.example",
    "fields": [
        {"name": "suit", "type": {"type": "enum", "name": "Suit", "symbols": ["SPADES", "HEARTS"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "again", "type": ["null", "Suit", "Hash", "long", {"type": "array", "items": ["null", "Hash"]}]},
        {"name": "m", "type": MAP | {"values": ["null", MAP | {"values": "double"}]}},
        {"name": "deep", "type": {"type": "array", "items": {"type": "array", "items": ["null", "string"]}}},
        {
            "name": "only",
            "type": ["null", {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}],
        },
        {"name": "other", "type": {"type": "array", "items": "Point"}},
        {"name": "nothing", "type": "null"},
    ],
}


def test_records_of_the_reference_are_rows_of_ours(version: str, tmp_path: Path) -> None:
    chance = random.Random(1)
    records = [_record(chance) for _ in range(2000)]
    with (tmp_path / "all.avro").open("wb") as file:
        fastavro.writer(file, SCHEMA, records)
    check(version, [("from-avro", tmp_path / "all.avro", tmp_path / "all.trv", "snappy", "crc32")])
    actual = trevni.read_table(tmp_path / "all.trv")
    actual.validate(full=True)
    expected = [_as_row(record) for record in records]
    assert _sorted_maps(actual.to_pylist()) == _sorted_maps(expected)
    # ... and what is written from these rows, the reference reads as the same records.
    trevni.write_table(actual.drop_columns(["again"]), tmp_path / "again.trv", codec="deflate")
    check(version, [("to-avro", tmp_path / "again.trv", tmp_path / "again.avro")])
    with (tmp_path / "again.avro").open("rb") as file:
        records_again = list(fastavro.reader(file))
    assert [each["suit"] for each in records_again] == [each["suit"] for each in records]
    assert [each["deep"] for each in records_again] == [each["deep"] for each in records]


def _record(chance: random.Random) -> dict[str, Any]:
    hashes = [chance.choice([None, chance.randbytes(3)]) for _ in range(chance.randrange(3))]
    inner = {f"k{n}": chance.random() for n in range(chance.randrange(3))}
    return {
        "suit": chance.choice(["SPADES", "HEARTS"]),
        "hash": chance.randbytes(3),
        "again": chance.choice([None, ("org.example.Suit", "HEARTS"), ("org.example.Hash", b"abc"), 7, hashes]),
        "m": {f"m{n}": chance.choice([None, inner]) for n in range(chance.randrange(3))},
        "deep": [[chance.choice([None, "é", "x" * 80]) for _ in range(chance.randrange(3))] for _ in range(2)],
        "only": chance.choice([None, {"x": chance.randrange(9)}]),
        "other": [{"x": n} for n in range(chance.randrange(3))],
        "nothing": None,
    }


def _as_row(record: dict[str, Any]) -> dict[str, Any]:
    again = record["again"]
    maps = [(key, None if value is None else list(value.items())) for key, value in record["m"].items()]
    return record | {"again": again[1] if isinstance(again, tuple) else again, "m": maps}


def test_the_reference_seeks_in_files_of_ours_as_we_do(version: str, tmp_path: Path) -> None:
    path = tmp_path / "sorted.trv"
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    trevni.write_table(pa.table([pa.array(range(0, 200_000, 2))], schema=schema), path, first_values=["n"])
    wanted = (0, 1, 777, 77_777, 199_998)
    actual = reference.answers(version, [("seek", path, "n", each) for each in wanted])
    with trevni.TrevniFile(path) as file:
        assert [answer.split() for answer in actual] == [
            [str(row := file.find("n", each)), str(2 * row)] for each in wanted
        ]


def test_the_checksum_of_nothing(tmp_path: Path) -> None:
    """The reference writes it with the codec `null`, and refuses it. cdfd writes a right one, and reads both."""
    check("1.11.3", [("flat", tmp_path / "a.trv", "null", "crc32", 10)])
    [refused] = reference.answers("1.11.3", [("columns", tmp_path / "a.trv", tmp_path / "a.json")])
    assert "Checksums mismatch" in refused
    assert ours(tmp_path / "a.trv")["rows"] == 10
    file = io.BytesIO()
    trevni.write_table(pa.table({"n": [1, 2]}), file, codec="null")
    (tmp_path / "b.trv").write_bytes(file.getvalue())
    check("1.11.3", [("columns", tmp_path / "b.trv", tmp_path / "b.json")])
