"""Log fields of a data file with values of every kind give rows, or an error with the table, the version and the file."""

import math
import os
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.delta import paths
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError
from cdfd.storage.local import LocalStorage
from tests.support.lake import SCHEMA, rows
from tests.support.sampling import sample

Fields = dict[str, Any]

KINDS = (
    *("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp"),
    *("timestamp_ntz", "decimal(10,2)", "decimal(38,38)"),
)
TEXTS = [
    *("", " ", "0", "-1", "1.5", "1e400", "1e999999999", "1e-999999999", "NaN", "-inf", "true", "0x10", "1_000"),
    *("9" * 5_000, "0" * 5_000, "0." + "3" * 5_000, "9223372036854775808", "-129", "\u0661"),
    *(
        "0000-00-00",
        "9999999-12-31",
        "-9999999-01-01",
        "2026-02-30",
        "2026-01-01 24:00:00",
        "2026-01-01T00:00:00+99:99",
    ),
    *(
        "99999999-01-01",
        "2026-01-01 00:00:00.999999999999",
        "\0",
        "\x1b[31m",
        "\\u00",
        "\\u00ff",
        "\uffff",
        "x" * 70_000,
    ),
]


def write(entry: Path, actions: list[Fields]) -> None:
    entry.write_bytes(b"\n".join(map(orjson.dumps, actions)))
    os.utime(entry, (1_700_000_000, 1_700_000_000))  # one of now might still be written to, and would be waited for


def wrong_places(error: CdfdError, table: Path, version: int) -> list[str]:
    problems = []
    # A name may be longer than a disk takes: the store says so.
    if error.family not in ("log", "data", "path", "unsupported", "storage") or error.retriable:
        problems.append(error.family)
    if error.table != str(table):
        problems.append(f"table {error.table}")
    if error.version != version:
        problems.append(f"version {error.version}")
    if error.path is None:
        problems.append("no file")
    return problems


def read(table: Path, version: int) -> int | list[str]:
    """The number of rows, or the parts of a location that an error lacks."""
    counts = set[int]()
    for reading in (lambda: cdfd.changes(str(table), version), lambda: cdfd.snapshot(str(table))):
        try:
            content = reading().read_all()
        except CdfdError as error:
            return wrong_places(error, table, version)
        content.validate(full=True)
        counts.add(content.num_rows)
    return max(counts)


@pytest.mark.parametrize("kind", KINDS)
def test_partition_values(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a")
    fields = [
        {"name": name, "type": type, "nullable": True, "metadata": {}} for name, type in (("id", "long"), ("p", kind))
    ]
    start = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "T",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": orjson.dumps({"type": "struct", "fields": fields}).decode(),
                "partitionColumns": ["p"],
                "configuration": {},
            }
        },
    ]
    log = tmp_path / paths.LOG
    log.mkdir()
    for text in TEXTS:
        add = {
            "add": {"path": "a", "partitionValues": {"p": text}, "size": 1, "modificationTime": 1, "dataChange": True}
        }
        write(log / paths.commit_name(0), [*start, add])
        assert read(tmp_path, 0) in (2, []), text[:80]


VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 1.5, 2**31 - 1, 2**31, 2**63 - 1, 1e300, [], {}),
    *(
        "",
        "i",
        "p",
        "u",
        "x",
        "../../../etc/passwd",
        "/etc/passwd",
        "file:///etc/passwd",
        "%zz",
        "\0",
        "#" * 20,
        "0" * 20,
    ),
    *("^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", "x" * 100_000, "é" * 20, math.pi),
]


@pytest.mark.parametrize(
    "name", sample(["storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality", "maxRowIndex"], 2)
)
@pytest.mark.parametrize("kind", ["u", "i", "p"])
async def test_wrong_deletion_vector_gives_rows_or_an_error(name: str, kind: str, tmp_path: Path) -> None:
    writer = TableWriter(LocalStorage(tmp_path, sync=False), SCHEMA)
    await writer.create()
    await writer.insert(rows(1, 2, 3))
    assert await writer.delete(pc.field("id") == 2) == 2
    entry = tmp_path / paths.LOG / paths.commit_name(2)
    actions: list[Fields] = [orjson.loads(line) for line in entry.read_bytes().splitlines()]
    added = next(action["add"] for action in actions if "add" in action)
    vector = added["deletionVector"] | {"storageType": kind}
    if kind == "p":
        (file,) = tmp_path.glob("deletion_vector_*")
        vector["pathOrInlineDv"] = file.as_uri()
    for value in VALUES:
        added["deletionVector"] = vector | {name: value}
        write(entry, actions)
        # One row is deleted, two are left. Without an offset, the first vector of a file is meant.
        assert read(tmp_path, 2) in (2, []), value
