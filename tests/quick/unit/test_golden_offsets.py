"""Offsets that a release has written into checkpoints: every later one reads them, and continues with the same rows.

`offsets/` has a table, and files with the options of a stream, its offset, the rows after it, and its offset at the end. These files stay as
they are. A new kind of offset is a new file.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import lake

pytest.importorskip("pyspark")

from cdfd.errors import ConfigError
from cdfd.plan import refining
from cdfd.spark.engine.kafka_sink import snapshot_version
from cdfd.spark.lag import Lag, lag
from tests.quick.unit.test_spark_lag import progress
from tests.quick.unit.test_spark_stream import Row, insert, reading, rows_between

OFFSETS = Path(__file__).parent / "offsets"
LAST = 5  # the newest version of the table
NAMES = (
    "end",
    "snapshot-middle",
    "snapshot-start",
    "version",
    "version-backlog",
    "version-part",
    "version-part-of-files",
    "version-part-refined",
    "version-part-without-digest",
)


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(shutil.copytree(OFFSETS / "lake", tmp_path / "lake"))


def golden(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((OFFSETS / f"{name}.json").read_text())
    if "bucket_bytes" in document:
        # Refinement divides versions by their size, and this one is small.
        monkeypatch.setattr(refining, "BUCKET_BYTES", document["bucket_bytes"])
    return document


def test_no_file_is_left_out() -> None:
    assert sorted(file.stem for file in OFFSETS.glob("*.json")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_continues(name: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """First as Spark restarts a query, which says where it is; then with micro-batches to the end, and a later version."""
    known = golden(name, monkeypatch)
    actual, at = list[Row](), known["offset"]
    with reading(table, **known["options"]) as reader:
        assert reader.partitions(at, at) == []
        while (end := reader.latestOffset()) != at:
            actual += rows_between(reader, at, end)
            reader.commit(end)
            at = end
        assert actual == [tuple(row) for row in known["rows"]]
        assert known["end"].items() <= at.items()  # a later release may add fields
        insert(table, LAST, lake.rows(99))
        after = reader.latestOffset()
        assert [row[3] for row in rows_between(reader, at, after)] == [99]


@pytest.mark.parametrize("name", NAMES)
def test_a_micro_batch_is_run_again(name: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of its offsets are in the checkpoint."""
    known = golden(name, monkeypatch)
    with reading(table, **known["options"]) as reader:
        actual = rows_between(reader, known["offset"], known["end"])
    assert actual == [tuple(row) for row in known["rows"]]


@pytest.mark.parametrize(("name", "version"), [("snapshot-middle", 5), ("version-part", None)])
def test_the_start_that_a_checkpoint_has(
    name: str, version: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink learns from it which rows are of a snapshot."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    lines = ["v1", '{"batchWatermarkMs":0}', json.dumps(golden(name, monkeypatch)["offset"])]
    (offsets / "0").write_text("\n".join(lines))
    assert snapshot_version(str(tmp_path)) == version


def test_the_lag_that_an_offset_has(monkeypatch: pytest.MonkeyPatch) -> None:
    known = golden("version-backlog", monkeypatch)
    assert lag(progress(known["offset"])) == [Lag(2, 3520, 90.5)]


def test_a_field_of_a_later_release(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """You may go back to this release."""
    known = golden("version-part", monkeypatch)
    with reading(table, **known["options"]) as reader:
        actual = rows_between(reader, known["offset"] | {"later": 1}, known["end"])
    assert actual == [tuple(row) for row in known["rows"]]


@pytest.mark.parametrize("change", [{"version": "4"}, {"part": -1}, {"phase": "live"}, {"table_id": None}])
def test_an_offset_that_is_none(change: dict[str, Any], table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = golden("version-part", monkeypatch)
    with (
        reading(table, **known["options"]) as reader,
        pytest.raises(ConfigError, match="offset is not of a cdfd source"),
    ):
        reader.partitions(known["offset"] | change, known["end"])
