"""A batch's planning and reading without Spark: in portions of any size, the rows are those of `cdfd.changes`."""

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

import cdfd
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError, ConfigError, GapError, LogError, SchemaChangedError
from cdfd.plan import refining
from cdfd.runtime.clock import SystemClock
from cdfd.scan.splits import FILE_BYTES
from cdfd.spark.source.source import BatchReader, CdfdSource
from cdfd.storage.local import LocalStorage
from tests.support import lake

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"


def source(path: str, **options: object) -> CdfdSource:
    return CdfdSource({"path": path} | {name: str(value) for name, value in options.items()})


def reader(path: str, **options: object) -> BatchReader:
    made = source(path, **options)
    schema = made.schema()
    # Spark carries it to another process after it was asked for its schema.
    carried: CdfdSource = pickle.loads(pickle.dumps(made))
    return carried.reader(schema)


def read(made: BatchReader) -> Iterator[pa.RecordBatch]:
    elsewhere: BatchReader = pickle.loads(pickle.dumps(made))
    for partition in made.partitions():
        yield from elsewhere.read(pickle.loads(pickle.dumps(partition)))


def rows(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [str(row) for batch in batches for row in batch.to_pylist()]


def wanted(path: str, *args: Any) -> list[str]:
    return rows(iter(cdfd.changes(path, *args)))


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """Twelve versions of a row each, but for the first."""
    lake.run(lake.table(LocalStorage(str(tmp_path)), 12, lake.manual_clock()))
    return str(tmp_path)


class TestPortions:
    def test_small_versions_go_together(self, numbers: str) -> None:
        assert len(reader(numbers).partitions()) == 1
        assert len(reader(numbers, maxPartitionBytes=1).partitions()) == 11
        assert 2 <= len(reader(numbers, maxPartitionBytes=4 * FILE_BYTES).partitions()) <= 5

    @pytest.mark.parametrize("limit", [1, 4 * FILE_BYTES, 1 << 30])
    def test_the_rows_are_the_same(self, numbers: str, limit: int) -> None:
        assert rows(read(reader(numbers, maxPartitionBytes=limit))) == wanted(numbers)

    def test_some_versions(self, numbers: str) -> None:
        assert rows(read(reader(numbers, startingVersion=3, endingVersion=5))) == wanted(numbers, 3, 5)

    def test_versions_from_the_newest_and_times(self, numbers: str) -> None:
        assert rows(read(reader(numbers, startingVersion=-3, endingVersion=-2))) == wanted(numbers, 9, 10)
        assert rows(read(reader(numbers, startingTimestamp="1 day ago", endingTimestamp="4102444800000"))) == wanted(
            numbers, "1 day ago", 4102444800000
        )

    def test_the_first_version_is_not_the_earliest_there_is(self, numbers: str) -> None:
        lake.run(lake.checkpoint(LocalStorage(numbers), 3))
        for version in range(3):
            (Path(numbers) / lake.entry_path(version)).unlink()
        assert rows(read(reader(numbers))) == wanted(numbers, "earliest")
        with pytest.raises(GapError, match="version 0 is no longer in the log; the oldest is 3"):
            reader(numbers, startingVersion=0).partitions()

    def test_nothing_to_read_is_one_portion(self, numbers: str) -> None:
        assert rows(read(reader(numbers, startingVersion="latest"))) == []

    def test_what_comes_later_is_not_read(self, numbers: str) -> None:
        """The versions are fixed where the schema is."""
        made = reader(numbers)
        lake.run(lake.table(LocalStorage(f"{numbers}/other"), 2, lake.manual_clock()))
        (Path(numbers) / lake.entry_path(12)).write_bytes((Path(numbers) / "other" / lake.entry_path(1)).read_bytes())
        assert cdfd.snapshot(numbers).schema.names
        assert rows(read(made)) == wanted(numbers, 0, 11)


@pytest.mark.parametrize(
    ("start", "first"), [({"startingVersion": -1}, 11), ({"startingVersion": "after -2"}, 11), ({}, 0)]
)
def test_a_start_is_fixed_where_the_schema_is(numbers: str, start: dict[str, Any], first: int) -> None:
    made = source(numbers, **start)
    schema = made.schema()
    later = TableWriter(LocalStorage(numbers), lake.SCHEMA, clock=lake.manual_clock(), table_id="T", version=11)
    lake.run(later.insert(lake.rows(99)))
    for _ in range(2):
        assert rows(read(made.reader(schema))) == wanted(numbers, first, 11)


def test_a_time_before_now_is_fixed_where_the_schema_is(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = source(numbers, startingTimestamp="1 hour ago")
    schema, later = made.schema(), SystemClock().now_ms() + 2 * 3_600_000
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: later)
    assert rows(read(made.reader(schema))) == wanted(numbers)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 30])
def test_change_types_without_ordinals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_bytes: int) -> None:
    """The images of large change data files are pairs by the order of the key, also where no order is requested."""
    monkeypatch.setattr(refining, "BUCKET_BYTES", bucket_bytes)
    path = str(tmp_path)

    async def made() -> None:
        writer = await lake.table(LocalStorage(path), 5, lake.manual_clock())
        await writer.update(pc.field("id") < 3, {"id": pc.add(pc.field("id"), pa.scalar(10))})

    lake.run(made())
    expected = [row["_change_type"] for row in cdfd.changes(path, 5, key="id").read_all().to_pylist()]
    assert set(expected) == {"delete", "insert"}
    made_reader = reader(path, startingVersion=5, key="id", columns="id,_change_type")
    assert [row["_change_type"] for batch in read(made_reader) for row in batch.to_pylist()] == expected


def test_a_table_that_is_dropped_and_created_again_is_read(numbers: str) -> None:
    """The process of a session or a notebook reads it by the same path."""
    assert rows(read(reader(numbers))) == wanted(numbers)
    shutil.rmtree(numbers)
    lake.run(lake.table(LocalStorage(numbers), 3, lake.manual_clock(), table_id="U"))
    assert len(wanted(numbers)) == 2
    assert rows(read(reader(numbers))) == wanted(numbers)


def test_errors_cross_processes(numbers: str) -> None:
    with pytest.raises(LogError, match="there is no version 99"):
        reader(numbers, startingVersion="snapshot", endingVersion=99)
    with pytest.raises(ConfigError, match="a stream has no end"):
        CdfdSource({"path": numbers, "endingVersion": "3"}).streamReader(CdfdSource({"path": numbers}).schema())


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden tables are not beside this checkout")
@pytest.mark.parametrize("folder", sorted(GOLDEN.glob("*/*")), ids=lambda folder: str(folder.name))
def test_golden_tables(folder: Path) -> None:
    """The Spark source reads the tables that `cdfd.changes` reads, and refuses the others, too."""
    path = str(folder / "delta" if (folder / "delta").is_dir() else folder)
    try:
        expected = wanted(path, "earliest")
    except SchemaChangedError:
        raise
    except CdfdError as error:
        with pytest.raises(type(error)):
            rows(read(reader(path)))
        return
    for limit in (1, 1 << 30):
        actual = rows(read(reader(path, maxPartitionBytes=limit)))
        assert sorted(actual) == sorted(expected)
