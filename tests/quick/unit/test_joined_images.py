"""Small change data files that are read together: rows, ordinals and errors are those of each file read by itself."""

from __future__ import annotations

import importlib
import io
import random
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.delta.types.schema import Primitive, StructField, StructType, TableSchema
from cdfd.errors import CdfdError, DataError, MissingFileError
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.runtime import native
from cdfd.scan.execute import Execution
from cdfd.scan.table_files import TableFiles
from cdfd.storage.local import LocalStorage

pytestmark = pytest.mark.skipif(not native.built, reason="files are read together only with cdfd-native")

FIELDS = (StructField("id", Primitive("long")), StructField("word", Primitive("string")))
SCHEMA = TableSchema(StructType((*FIELDS, StructField("region", Primitive("string")))), ("region",))
PRE, POST = "update_preimage", "update_postimage"
EXECUTE = importlib.import_module("cdfd.scan.execute")
JOINED = importlib.import_module("cdfd.scan.joined_images")
COUNT = 6
Rows = list[tuple[int, str]]
Found = tuple[list[dict[str, Any]], str]


def in_turn(number: int, updates: int = 8) -> Rows:
    """Images in turn, as Spark writes them."""
    return [(number * 100 + row // 2, POST if row % 2 else PRE) for row in range(2 * updates)]


def in_blocks(number: int, updates: int = 8) -> Rows:
    """A block of pre-images and one of post-images, as delta-rs writes them."""
    return [(number * 100 + row % updates, POST if row >= updates else PRE) for row in range(2 * updates)]


def any_rows(chance: random.Random) -> Rows:
    """Changes of any type, in pairs, blocks and one by one."""
    rows: Rows = []
    for _ in range(chance.randrange(1, 12)):
        number, kind = chance.randrange(100), chance.randrange(5)
        if kind == 0:
            rows += in_turn(number, chance.randrange(1, 4))
        elif kind == 1:
            rows += in_blocks(number, chance.randrange(1, 4)) if chance.random() < 0.2 else []
        elif kind == 2:
            # The key changes.
            rows += [(number, PRE), (number + 1, POST)]
        else:
            rows.append((number, chance.choice(["insert", "delete"])))
    return rows or [(0, "insert")]


def data_of(rows: Rows, **options: Any) -> bytes:
    sink, (ids, types) = io.BytesIO(), zip(*rows, strict=True)
    words = [None if row % 5 == 3 else f"wörd {row}" for row in range(len(rows))]
    table = pa.table({"id": pa.array(ids, pa.int64()), "word": words, "_change_type": list(types)})
    pq.write_table(table, sink, row_group_size=options.pop("row_group_size", 20), **options)
    return sink.getvalue()


def plan_of(folder: Path, files: Sequence[bytes], regions: int = 2, key: tuple[str, ...] = ()) -> ChangePlan:
    """A version with these change data files, in so many partitions."""
    scans = []
    for number, data in enumerate(files):
        path = f"_change_data/{number}.parquet"
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)
        region = {"region": f"r{number * regions // len(files)}"}
        scans.append(FileScan(path, None, region, len(data), image_phase="early"))
    late = [replace(scan, image_phase="late") for scan in scans]
    return ChangePlan(4, 1_000, SCHEMA, (*scans, *late), "cdc", tuple(scans) if regions > 1 else (), key=key)


def batches_of(folder: Path, plan: ChangePlan, **options: Any) -> Generator[list[dict[str, Any]], None, None]:
    storage = LocalStorage(folder)
    for batch in Execution(TableFiles(storage, lambda _: storage), **options).batches([plan]):
        yield batch.rows.to_pylist()


def joined(folder: Path, plan: ChangePlan, **options: Any) -> Found:
    """All rows, and the error after them."""
    rows: list[dict[str, Any]] = []
    try:
        for batch in batches_of(folder, plan, **options):
            rows += batch
    except CdfdError as error:
        return rows, f"{type(error).__name__} {error} {error.path}"
    return rows, ""


def alone(folder: Path, plan: ChangePlan, **options: Any) -> Found:
    """The same, each file by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdfd.scan.joined.FEW", 1 << 30)
        return joined(folder, plan, **options)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch_rows", [1, 7, 65_536])
@pytest.mark.parametrize("rows_of", [in_turn, in_blocks])
def test_rows_of_several_files(
    tmp_path: Path, together: list[int], workers: int, batch_rows: int, rows_of: Any
) -> None:
    plan = plan_of(tmp_path, [data_of(rows_of(number)) for number in range(COUNT)])
    options = {"workers": workers, "batch_rows": batch_rows}
    rows, error = joined(tmp_path, plan, **options)
    assert (rows, error) == alone(tmp_path, plan, **options)
    assert together == [COUNT, COUNT]
    assert len(rows) == 16 * COUNT
    # Blocks are not in pairs: the post-images come late, and each file's first one leaves an ordinal out.
    skipped = COUNT if rows_of is in_blocks else 0
    assert rows[-1]["_change_ordinal"] == 16 * COUNT - 1 + skipped


@pytest.mark.parametrize("key", [(), ("id",), ("region", "id")])
@pytest.mark.parametrize("regions", [1, 3])
def test_random_changes_have_the_rows_of_single_files(
    tmp_path: Path, together: list[int], monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...], regions: int
) -> None:
    """In pairs and not, with a key and without, and with any room for late rows."""
    chance = random.Random(4)
    for _ in range(6):
        files = [data_of(any_rows(chance), row_group_size=chance.choice([3, 20])) for _ in range(COUNT)]
        plan = plan_of(tmp_path, files, regions, key)
        room = chance.choice([0, 200, 1_000, 32 << 20])
        monkeypatch.setattr(EXECUTE, "REORDER_BUFFER_BYTES", room)
        monkeypatch.setattr(JOINED, "KEPT_CODES", chance.choice([50, 4 << 20]))
        options = {"workers": chance.choice([1, 3]), "batch_rows": chance.choice([2, 9, 100])}
        before = len(together)
        assert joined(tmp_path, plan, **options) == alone(tmp_path, plan, **options)
        assert len(together) > before


def test_damage_gives_the_rows_before_it_and_the_error_of_its_file(tmp_path: Path, together: list[int]) -> None:
    """Any byte of any file: the same rows come, and then the same error. Damaged statistics are no error for joined files."""
    chance = random.Random(16)
    whole = [data_of(in_blocks(number) if number % 2 else in_turn(number)) for number in range(COUNT)]
    intact = joined(tmp_path, plan_of(tmp_path, whole), workers=1)
    errors = 0
    for _ in range(50):
        number, files = chance.randrange(COUNT), whole[:]
        data = bytearray(whole[number])
        for _ in range(chance.choice((1, 1, 1, 30))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        files[number] = bytes(data)
        plan = plan_of(tmp_path, files)
        expected = alone(tmp_path, plan, workers=1)
        assert joined(tmp_path, plan, workers=1) in (expected, intact)
        errors += bool(expected[1])
    assert errors > 5


def test_a_value_that_is_no_change_type(tmp_path: Path, together: list[int]) -> None:
    files = [data_of(in_turn(number)) for number in range(COUNT)]
    files[4] = data_of([(1, "insert"), (2, "upsert")])
    rows, error = joined(tmp_path, plan_of(tmp_path, files), workers=1)
    assert "'upsert'" in error
    assert error.endswith("_change_data/4.parquet")
    assert len(rows) == 16 * 4
    assert together


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("place", [0, 2, COUNT - 1])
def test_a_file_without_rows_does_not_hide_those_of_others(
    tmp_path: Path, together: list[int], workers: int, place: int
) -> None:
    files = [data_of(in_blocks(number)) for number in range(COUNT)]
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(files[place])).slice(0, 0), sink)
    files[place] = sink.getvalue()
    plan = plan_of(tmp_path, files)
    rows, error = joined(tmp_path, plan, workers=workers)
    assert (rows, error) == alone(tmp_path, plan, workers=workers)
    assert len(rows) == 16 * (COUNT - 1)
    assert together


def test_early_spellings_stay(tmp_path: Path, together: list[int]) -> None:
    files = [data_of(in_turn(number)) for number in range(COUNT)]
    files[2] = data_of([(1, "update_pre"), (1, "update_post")])
    plan = plan_of(tmp_path, files)
    rows, error = joined(tmp_path, plan)
    assert (rows, error) == alone(tmp_path, plan)
    assert {"update_pre", PRE} <= {row["_change_type"] for row in rows}
    assert together


@pytest.mark.parametrize("workers", [1, 3])
def test_a_file_that_is_gone(tmp_path: Path, together: list[int], workers: int) -> None:
    """It is reported once, and the rows of the others come."""
    plan = plan_of(tmp_path, [data_of(in_blocks(number)) for number in range(COUNT)])
    (tmp_path / plan.scans[3].path).unlink()
    gone: list[MissingFileError] = []
    rows, error = joined(tmp_path, plan, workers=workers, on_missing=gone.append)
    assert (rows, error) == alone(tmp_path, plan, workers=workers, on_missing=lambda _: None)
    assert len(rows) == 16 * (COUNT - 1)
    assert [str(each.path) for each in gone] == [plan.scans[3].path]


def test_a_file_that_is_damaged_before_its_late_rows_are_read_again(
    tmp_path: Path, together: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for late rows. Those of the files before it come."""
    monkeypatch.setattr(EXECUTE, "REORDER_BUFFER_BYTES", 0)
    plan = plan_of(tmp_path, [data_of(in_blocks(number)) for number in range(COUNT)])
    intact, _ = joined(tmp_path, plan, workers=1)
    rows: list[dict[str, Any]] = []

    def read() -> None:
        for batch in batches_of(tmp_path, plan, workers=1, batch_rows=16):
            rows.extend(batch)
            if len(rows) >= 8 * (COUNT - 4):  # the last early rows wait for the row after them
                file = tmp_path / plan.scans[2].path
                file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)

    with pytest.raises(DataError) as caught:
        read()
    assert caught.value.path == plan.scans[2].path
    assert rows == intact[: 8 * COUNT + 8 * 2]


def test_a_reader_that_ends_early_leaves_no_thread(tmp_path: Path, together: list[int]) -> None:
    plan = plan_of(tmp_path, [data_of(in_blocks(number)) for number in range(2 * COUNT)])
    reading = batches_of(tmp_path, plan, workers=3, batch_rows=1)
    assert len(next(reading)) == 1
    # Closing waits for the threads.
    reading.close()
    assert together
