"""Small files that are read together: the rows, their order and the errors are those of each file read by itself."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.delta.types.schema import Primitive, StructField, StructType, TableSchema
from cdfd.errors import CdfdError, LogError, MissingFileError, PathError, StorageError
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.scan.execute import Execution
from cdfd.scan.joined import JOINED_FILES, PlannedScan, groups_of
from cdfd.scan.parquet.reader import FilesTogether
from cdfd.scan.table_files import TableFiles
from cdfd.storage.local import LocalStorage
from tests.support.sampling import stride

FIELDS = (
    StructField("n", Primitive("long")),
    StructField("word", Primitive("string")),
    StructField("day", Primitive("date")),
    StructField("region", Primitive("string")),
)
SCHEMA = TableSchema(StructType(FIELDS), ("day", "region"))
COUNT = 9


def file(number: int, rows: int = 30, **options: Any) -> bytes:
    sink = io.BytesIO()
    words = [None if row % 7 == 3 else f"wörd {row * (number + 3)}" for row in range(rows)]
    table = pa.table({"n": pa.array(range(number * 100, number * 100 + rows), pa.int64()), "word": words})
    pq.write_table(table, sink, row_group_size=20, **options)
    return sink.getvalue()


def scan(folder: Path, number: int, data: bytes, values: dict[str, str | None] | None = None) -> FileScan:
    path = f"part {number % 2}/{number}.parquet"
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_bytes(data)
    return FileScan(path, "insert", {"day": None, "region": "north"} if values is None else values, len(data))


Found = tuple[list[dict[str, Any]], str]
"""All rows, and the error after them."""


def execution(folder: Path, **options: Any) -> Execution:
    storage = LocalStorage(folder)
    return Execution(TableFiles(storage, lambda _: storage), **options)


def joined(folder: Path, scans: Sequence[FileScan], **options: Any) -> Found:
    return found_in(folder, [ChangePlan(4, 1_000, SCHEMA, scans, "files")], **options)


def found_in(folder: Path, plans: Iterable[ChangePlan], start: Position | None = None, **options: Any) -> Found:
    rows: list[dict[str, Any]] = []
    try:
        for batch in execution(folder, **options).batches(plans, start):
            some = batch.rows.to_pylist()
            rows += some
            assert {row["_commit_version"] for row in some} == {batch.plan.version}
            assert some[-1]["_change_ordinal"] + 1 == batch.following
    except CdfdError as error:
        return rows, f"{type(error).__name__} {error} {error.version} {error.path}"
    return rows, ""


def alone(folder: Path, scans: Sequence[FileScan], **options: Any) -> Found:
    """The same, each file by itself."""
    return alone_in(folder, [ChangePlan(4, 1_000, SCHEMA, scans, "files")], **options)


def alone_in(folder: Path, plans: Sequence[ChangePlan], start: Position | None = None, **options: Any) -> Found:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdfd.scan.joined.FEW", 1 << 30)
        return found_in(folder, plans, start, **options)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch_rows", [1, 7, 65_536])
def test_rows_of_several_files(tmp_path: Path, together: list[int], workers: int, batch_rows: int) -> None:
    days = [None, "2026-01-02", "2026-01-03"]
    scans = [
        scan(tmp_path, number, file(number), {"day": days[number % 3], "region": f"r{number // 4}"})
        for number in range(COUNT)
    ]
    options = {"workers": workers, "batch_rows": batch_rows}
    rows, error = joined(tmp_path, scans, **options)
    assert together == [COUNT]
    assert (rows, error) == alone(tmp_path, scans, **options)
    assert [row["_change_ordinal"] for row in rows] == list(range(30 * COUNT))
    assert {str(row["day"]) for row in rows} == {"None", "2026-01-02", "2026-01-03"}


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_codecs_and_pages(tmp_path: Path, together: list[int], compression: str, version: str) -> None:
    options: dict[str, Any] = {"compression": compression, "data_page_version": version, "data_page_size": 64}
    scans = [
        scan(tmp_path, number, file(number, 500, use_dictionary=bool(number % 2), **options)) for number in range(COUNT)
    ]
    assert joined(tmp_path, scans) == alone(tmp_path, scans)
    assert together == [COUNT]


def test_files_that_differ_are_read_by_themselves(tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"word": ["x", "y"], "n": pa.array([1, 2], pa.int32())}), sink)
    scans = [scan(tmp_path, number, sink.getvalue() if number == 4 else file(number)) for number in range(COUNT)]
    rows, error = joined(tmp_path, scans)
    assert (rows, error) == alone(tmp_path, scans)
    assert len(rows) == 30 * (COUNT - 1) + 2


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("rows", [0, 2])
def test_a_column_that_the_first_file_lacks_has_the_values_of_the_others(
    tmp_path: Path, columns: int, rows: int
) -> None:
    """Such files are read by themselves, also if no column of the first one is read, or it has no row groups."""
    sink, first = io.BytesIO(), pa.table({"n": pa.array(range(rows), pa.int64())})
    with pq.ParquetWriter(sink, first.schema) as writer:
        if rows:
            writer.write_table(first)
    scans = [scan(tmp_path, number, file(number) if number else sink.getvalue(), {}) for number in range(COUNT)]
    schema = TableSchema(StructType((FIELDS[1], FIELDS[0])[:columns]))
    plans = [ChangePlan(4, 1_000, schema, scans, "files")]
    result, error = found_in(tmp_path, plans)
    assert (result, error) == alone_in(tmp_path, plans)
    assert [row["word"] for row in result[rows : rows + 2]] == ["wörd 0", "wörd 4"]


def test_partition_values_that_python_has_not(tmp_path: Path, together: list[int]) -> None:
    days = ["+10000-01-01", "2026-01-01", None]
    scans = [
        scan(tmp_path, number, file(number, 1), {"day": days[number % 3], "region": "x"}) for number in range(COUNT)
    ]
    [batch] = execution(tmp_path).batches([ChangePlan(4, 1_000, SCHEMA, scans, "files")])
    assert together == [COUNT]
    assert batch.rows["day"].cast(pa.int32()).to_pylist() == [2_932_897, 20_454, None] * (COUNT // 3)


def test_files_with_lists_are_read_together_if_no_list_is_read(tmp_path: Path, together: list[int]) -> None:
    """Pages of lists do not say where a row begins, so rows of one file could count for another."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([1, 2]), "word": ["a", "b"], "list": [[1, 2], [3]]}), sink)
    scans = [scan(tmp_path, number, sink.getvalue()) for number in range(COUNT)]
    rows, _ = joined(tmp_path, scans)
    assert len(rows) == 2 * COUNT
    assert together
    files = FilesTogether([sink.getvalue()] * 2)
    with pytest.raises(ValueError, match="lists are not read together"):
        next(files.batches(["list"], rows=10))


def test_damage_gives_the_rows_before_it_and_the_error_of_its_file(tmp_path: Path, together: list[int]) -> None:
    """Any byte of any file: joined or not, the same rows come, and then the same error.

    Damaged statistics are no error for joined files, which leave them out. Then all rows come.
    """
    chance, whole = random.Random(15), [file(number) for number in range(COUNT)]
    intact = joined(tmp_path, [scan(tmp_path, place, each) for place, each in enumerate(whole)], workers=1)
    damaged = errors = 0
    for _ in range(250 // stride(4)):
        number = chance.randrange(COUNT)
        data = bytearray(whole[number])
        for _ in range(chance.choice((1, 1, 1, 30))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        files = [bytes(data) if place == number else each for place, each in enumerate(whole)]
        scans = [scan(tmp_path, place, each) for place, each in enumerate(files)]
        expected = alone(tmp_path, scans, workers=1)
        assert joined(tmp_path, scans, workers=1) in (expected, intact)
        damaged += 1
        errors += bool(expected[1])
    assert 0 < errors < damaged
    assert together


def test_any_damage_of_footers_is_an_error_or_gives_as_many_rows() -> None:
    chance, whole = random.Random(16), file(1)
    read = 0
    for _ in range(3_000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data) - 600, len(data) - 4)] = chance.randrange(256)
        try:
            files = FilesTogether([whole, bytes(data)])
            rows = sum(batch.num_rows for batch in files.batches(files.schema_arrow.names, rows=1_000))
        except (CdfdError, ValueError):
            continue
        read += 1
        assert rows == sum(files.rows)
    assert 0 < read < 3_000
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="f"):
            FilesTogether([whole[:size]])


def test_a_file_that_is_gone(tmp_path: Path, together: list[int]) -> None:
    scans = [scan(tmp_path, number, file(number)) for number in range(COUNT)]
    (tmp_path / scans[5].path).unlink()
    rows, error = joined(tmp_path, scans)
    assert len(rows) == 5 * 30
    assert error.startswith("MissingFileError")
    gone: list[MissingFileError] = []
    rows, error = joined(tmp_path, scans, on_missing=gone.append)
    assert (len(rows), error) == (30 * (COUNT - 1), "")
    assert [each.path for each in gone] == [scans[5].path]


def test_a_damaged_page_after_rows_that_were_delivered(tmp_path: Path, together: list[int]) -> None:
    scans = [scan(tmp_path, number, file(number, compression="none")) for number in range(COUNT)]
    data = bytearray((tmp_path / scans[7].path).read_bytes())
    at = data.index("wörd".encode())
    data[at + 1] = 0xFF
    scans[7] = scan(tmp_path, 7, bytes(data))
    rows, error = joined(tmp_path, scans, batch_rows=10)
    assert (rows, error) == alone(tmp_path, scans, batch_rows=10)
    assert len(rows) >= 7 * 30
    assert "text that is not UTF-8" in error


def planned(scans: Sequence[FileScan], schema: TableSchema = SCHEMA, version: int = 4) -> list[PlannedScan]:
    plan = ChangePlan(version, 1_000 + version, schema, tuple(scans), "files")
    return [PlannedScan(plan, scan) for scan in scans]


def test_what_is_joined() -> None:
    small = FileScan("a.parquet", "insert", {}, 1_000)
    deleted = replace(small, change_type="delete")
    large = replace(small, size=1 << 30)
    unknown = replace(small, size=0)
    trevni = replace(small, path="a.trv")
    piece = replace(small, piece=(0, 2))
    images = replace(small, change_type=None)
    scans = planned(
        [small] * 5 + [large] + [small] * 3 + [images] + [small, deleted] * 4 + [unknown, trevni, piece] * 4
    )
    assert [len(group) for group in groups_of(scans)] == [5, 1, 1, 1, 1, 1, 8, *[1] * 12]
    many = planned([small] * (JOINED_FILES + 50))
    assert [len(group) for group in groups_of(many)] == [JOINED_FILES, 50]
    assert [scan for group in groups_of(scans) for scan in group] == scans


def test_files_of_several_versions_are_joined_while_the_schema_is_the_same() -> None:
    small = FileScan("a.parquet", "insert", {}, 1_000)
    other = TableSchema(StructType(FIELDS[:1]))
    versions = [planned([small] * 2, version=version) for version in range(4)]
    later = [planned([small], other, version) for version in range(4, 9)]
    replaced = planned([replace(small, schema=SCHEMA)] * 4, other, 9)
    scans = [scan for each in [*versions, *later, replaced] for scan in each]
    assert [len(group) for group in groups_of(scans)] == [8, 5, 4]


def several_versions(folder: Path) -> list[ChangePlan]:
    """Versions of no file, of one and of several, some of which delete, and two that are as large as many others."""
    plans, number = list[ChangePlan](), 0
    for version, files in enumerate([1, 1, 0, 3, 1, 2, 0, 1, 5, 1, 1, 2], 7):
        scans = [scan(folder, number + at, file(number + at, 1 + 9 * (files > 2))) for at in range(files)]
        if files == 2:
            scans[0] = replace(scans[0], change_type="delete")
        plans.append(ChangePlan(version, 5_000 - version, SCHEMA, tuple(scans), "files" if scans else "none"))
        number += files
    return plans


class TestSeveralVersions:
    """Each row has its own version, timestamp and ordinal."""

    @pytest.mark.parametrize("workers", [1, 3])
    @pytest.mark.parametrize("batch_rows", [1, 7, 65_536])
    def test_rows(self, tmp_path: Path, together: list[int], workers: int, batch_rows: int) -> None:
        plans = several_versions(tmp_path)
        options = {"workers": workers, "batch_rows": batch_rows}
        rows, error = found_in(tmp_path, plans, **options)
        assert together == [sum(len(plan.scans) for plan in plans)]
        assert (rows, error) == alone_in(tmp_path, plans, **options)
        times = {plan.version: datetime.fromtimestamp(plan.timestamp_ms / 1000, UTC) for plan in plans}
        assert all(row["_commit_timestamp"] == times[row["_commit_version"]] for row in rows)
        assert {row["_change_type"] for row in rows} == {"insert", "delete"}

    def test_joined_batch_has_the_rows_of_many_versions(self, tmp_path: Path, together: list[int]) -> None:
        plans = several_versions(tmp_path)
        (run,) = execution(tmp_path).batches(plans, joined=True)
        versions = [*(plan.version for plan, _, _ in run.earlier), run.plan.version]
        assert versions == [plan.version for plan in plans if plan.scans]
        assert sum(rows for _, rows, _ in run.earlier) < run.rows.num_rows
        batches = list(execution(tmp_path).batches(plans))
        assert [batch.rows for batch in run.by_version()] == [batch.rows for batch in batches]
        assert [batch.following for batch in run.by_version()] == [batch.following for batch in batches]

    @pytest.mark.parametrize("part", [1, 2, 3])
    def test_from_a_position(self, tmp_path: Path, together: list[int], part: int) -> None:
        plans = several_versions(tmp_path)[3:]
        whole, _ = alone_in(tmp_path, plans)
        start = Position("t", plans[0].version, part, ordinal=10 * part)
        assert found_in(tmp_path, plans, start) == (whole[10 * part :], "")

    def test_columns_of_each_version(self, tmp_path: Path, together: list[int]) -> None:
        plans = several_versions(tmp_path)
        fewer = TableSchema(StructType(FIELDS[:1]))
        plans = [replace(plan, schema=fewer) if plan.version in (15, 16) else plan for plan in plans]
        rows, _ = found_in(tmp_path, plans)
        assert (rows, "") == alone_in(tmp_path, plans)
        assert {row["_commit_version"] for row in rows if "word" not in row} == {15, 16}

    def test_an_error_names_its_version_and_file(self, tmp_path: Path, together: list[int]) -> None:
        plans = several_versions(tmp_path)
        damaged = plans[8].scans[3]
        (tmp_path / damaged.path).write_bytes(b"PAR1" + b"x" * (damaged.size - 8) + b"PAR1")
        rows, error = found_in(tmp_path, plans)
        assert (rows, error) == alone_in(tmp_path, plans)
        assert error.endswith(f" {plans[8].version} {damaged.path}")
        assert rows[-1]["_commit_version"] == plans[8].version

    def test_a_file_that_is_gone(self, tmp_path: Path, together: list[int]) -> None:
        plans = several_versions(tmp_path)
        lost = plans[4].scans[0].path
        (tmp_path / lost).unlink()
        gone: list[MissingFileError] = []
        rows, error = found_in(tmp_path, plans, on_missing=gone.append)
        assert [(each.version, each.path) for each in gone] == [(plans[4].version, lost)]
        assert (rows, error) == alone_in(tmp_path, plans, on_missing=lambda _: None)

    def test_an_error_of_planning_comes_after_the_rows_before_it(self, tmp_path: Path, together: list[int]) -> None:
        plans = several_versions(tmp_path)

        def planning() -> Iterator[ChangePlan]:
            yield from plans
            raise LogError("no further")

        rows, error = found_in(tmp_path, planning())
        assert (rows, "") == alone_in(tmp_path, plans)
        assert "no further" in error

    def test_change_data_files_between_them(self, tmp_path: Path, together: list[int]) -> None:
        plans = several_versions(tmp_path)
        sink = io.BytesIO()
        pq.write_table(pa.table({"n": pa.array([1, 2]), "_change_type": ["insert", "delete"]}), sink)
        images = replace(scan(tmp_path, 99, sink.getvalue()), change_type=None)
        plans[5] = replace(plans[5], scans=(images,), origin="cdc")
        rows, error = found_in(tmp_path, plans)
        assert (rows, error) == alone_in(tmp_path, plans)
        assert sorted(together) == [6, 10]


class TestReadWhole:
    def test_a_link_that_leads_out(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("x")
        (tmp_path / "table").mkdir()
        (tmp_path / "table" / "a").symlink_to(tmp_path / "secret")
        with pytest.raises(PathError):
            LocalStorage(tmp_path / "table").read_whole(["a"], [9])
        with pytest.raises(PathError):
            LocalStorage(tmp_path / "table").read_whole(["../secret"], [9])

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        with pytest.raises(StorageError):
            LocalStorage(tmp_path).read_whole(["a"], [9])


def distinct(number: int, rows: int = 400, longest: int = 40, **options: Any) -> bytes:
    """Strings that are all distinct, of which one is longer than the others."""
    sink = io.BytesIO()
    words = [f"{number} {row} ".ljust(40, "x") for row in range(rows - 1)] + ["é" * (longest // 2)]
    pq.write_table(pa.table({"n": pa.array(range(rows), pa.int64()), "word": words}), sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("longest", [40, 3_000])
def test_large_dictionaries(tmp_path: Path, together: list[int], compression: str, longest: int) -> None:
    files = [distinct(number, longest=longest, compression=compression) for number in range(COUNT)]
    scans = [scan(tmp_path, number, data) for number, data in enumerate(files)]
    assert joined(tmp_path, scans) == alone(tmp_path, scans)
    assert together == [COUNT]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_damage_of_large_dictionaries(tmp_path: Path, together: list[int], compression: str) -> None:
    """Any byte of any file: the same rows come, and then the same error."""
    chance, whole = random.Random(17), [distinct(number, 300, compression=compression) for number in range(5)]
    intact = joined(tmp_path, [scan(tmp_path, place, each) for place, each in enumerate(whole)], workers=1)
    errors = 0
    for _ in range(25):
        number = chance.randrange(5)
        data = bytearray(whole[number])
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        files = [bytes(data) if place == number else each for place, each in enumerate(whole)]
        scans = [scan(tmp_path, place, each) for place, each in enumerate(files)]
        expected = alone(tmp_path, scans, workers=1)
        assert joined(tmp_path, scans, workers=1) in (expected, intact)
        errors += bool(expected[1])
    assert errors > 3
