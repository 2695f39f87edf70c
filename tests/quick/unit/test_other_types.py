"""Tables of other writers: types that few have, and removes that name another deletion vector."""

import json
import logging
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.encode.json import LineEncoder
from cdfd.errors import UnsupportedError
from cdfd.storage.local import LocalStorage
from tests.support.lake import checkpoint, run
from tests.support.tracked_table import TrackedTable

NANOS = pa.timestamp("ns", "UTC")
TYPES: dict[str, Any] = {
    "id": "long",
    "months": "interval year to month",
    "span": "interval day to second",
    "shape": "geometry(OGC:CRS84)",
    "at": "timestamp_nanos",
    "nothing": "void",
    "nothings": {"type": "array", "elementType": "void", "containsNull": True},
    "odd": "interval",
}
READABLE = [name for name in TYPES if name != "odd"]


@pytest.fixture
def table(tmp_path: Path) -> str:
    folder = tmp_path / "t"
    (folder / "_delta_log").mkdir(parents=True)
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "months": pa.array([14, None], pa.int32()),
            "span": pa.array([86_400_000_001, None], pa.int64()),
            "shape": pa.array([b"\x01\x01", None], pa.binary()),
            "at": pa.array([1_767_225_600_123_456_789, None], NANOS),
        }
    )
    pq.write_table(rows, folder / "a.parquet")
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in TYPES.items()]
    features = ["geospatial", "timestampNanos"]
    add = {"path": "a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    actions: list[dict[str, Any]] = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": "T",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": 0,
            }
        },
        {"add": add},
    ]
    log = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / "_delta_log" / f"{0:020d}.json").write_text(log)
    return str(folder)


def test_types_of_some_writers_are_read(table: str) -> None:
    actual = cdfd.changes(table, columns=READABLE).read_all()
    assert actual["months"].to_pylist() == [14, None]
    assert actual["span"].to_pylist() == [86_400_000_001, None]
    assert actual["shape"].to_pylist() == [b"\x01\x01", None]
    assert actual.schema.field("at").type == NANOS
    assert actual["at"].cast(pa.int64()).to_pylist() == [1_767_225_600_123_456_789, None]
    assert actual["nothing"].to_pylist() == actual["nothings"].to_pylist() == [None, None]
    line = json.loads(LineEncoder()(actual.to_batches()[0]).to_pybytes().splitlines()[0])
    assert line["at"] == "2026-01-01T00:00:00.123456Z"
    assert (line["months"], line["span"], line["nothing"], line["nothings"]) == (14, 86_400_000_001, None, None)


def test_a_type_that_cannot_be_read_is_refused_if_it_is_selected(table: str) -> None:
    for columns in (None, ["odd"]):
        with pytest.raises(UnsupportedError, match="column 'odd': the type 'interval' cannot be read"):
            cdfd.changes(table, columns=columns)
    assert cdfd.changes(table, columns="id", where="months IS NULL").read_all()["id"].to_pylist() == [2]
    assert cdfd.snapshot(table, columns=["id"]).read_all().num_rows == 2


def test_a_remove_with_another_deletion_vector_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = TrackedTable(tmp_path / "t")
    made.insert([{"id": number} for number in range(4)])
    made.insert([{"id": 100}])
    first = made.files[0].path

    made.change(random.Random(1), {}, {made.rows[0].row_id}, [], vectors=True)
    uri = str(made.folder)
    assert Counter(cdfd.snapshot(uri).read_all()["id"].to_pylist()) == {1: 1, 2: 1, 3: 1, 100: 1}
    # This writer leaves the deletion vector out.
    version = made.version
    entry = {"remove": {"path": first, "deletionTimestamp": int(time.time() * 1000), "dataChange": True}}
    (made.folder / "_delta_log" / f"{version:020d}.json").write_text(json.dumps(entry) + "\n")
    with caplog.at_level(logging.WARNING, logger="cdfd.tail"):
        assert cdfd.snapshot(uri).read_all()["id"].to_pylist() == [100]
    assert f"version {version} removes {first} with another deletion vector" in caplog.text
    caplog.clear()
    # Its changes are the rows that the file still has, wherever reading starts and however rows are matched.
    for start in (0, version):
        for refine in ("off", "rows"):
            with caplog.at_level(logging.WARNING, logger="cdfd.tail"):
                actual = cdfd.changes(uri, start, refine=refine).read_all()
            actual = actual.filter(pc.equal(actual["_commit_version"], version))
            assert set(actual["_change_type"].to_pylist()) == {"delete"}
            assert sorted(actual["id"].to_pylist()) == [1, 2, 3]
            assert f"version {version} removes {first} with another deletion vector" in caplog.text
            caplog.clear()


def test_without_the_state_before_a_remove_means_the_deletion_vector_that_it_names(tmp_path: Path) -> None:
    """Log clean-up leaves entries behind whose state before is gone."""
    made = TrackedTable(tmp_path / "t")
    made.insert([{"id": number} for number in range(4)])
    made.insert([{"id": 100}])
    chance = random.Random(1)
    made.change(chance, {}, {made.rows[0].row_id}, [], vectors=True)
    made.change(chance, {}, {row.row_id for row in made.rows[:3]}, [])
    removing = made.version - 1
    uri = str(made.folder)
    # Entries written in one millisecond get the time of the entry before plus one: the clean-up below would change it.
    for version in range(made.version):
        os.utime(made.folder / "_delta_log" / f"{version:020d}.json", (version, version))
    expected = cdfd.changes(uri, removing).read_all()
    run(checkpoint(LocalStorage(uri), removing))
    for version in range(removing):
        (made.folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert cdfd.changes(uri, removing).read_all().equals(expected)
