"""Two sinks of one table: what one of them has decoded is the other one's too, and each gets the rows that it would have read alone."""

import asyncio
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.demo.writer import TableWriter
from cdfd.log.log import DeltaLog
from cdfd.log.table import Table
from cdfd.model.batch import ChangeBatch
from cdfd.model.file_scan import Bucket
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.plan.row_options import RowOptions
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import Shape
from cdfd.runtime.shared_results import RUN_BYTES, SharedResults
from cdfd.scan.execute import Execution
from cdfd.scan.joined import PlannedScan, Scanned
from cdfd.scan.scans import key_of
from cdfd.scan.table_files import SharedFiles
from cdfd.storage.local import LocalStorage
from tests.support.lake import SCHEMA, rows

VERSIONS = 25


class Counting(LocalStorage):
    """Counts the files that are opened, and the bytes of those that are read at once."""

    files = 0

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        Counting.files += not path.startswith("_delta_log")
        return super().open_input_file(path, size)

    def read_whole(self, paths: Sequence[str], sizes: Sequence[int]) -> Sequence[bytes]:
        Counting.files += len(paths)
        return super().read_whole(paths, sizes)


async def write(folder: Path, random: Random) -> None:
    writer = TableWriter(LocalStorage(folder, sync=False), SCHEMA)
    await writer.create()
    await writer.insert(rows(*range(200)))
    while writer.version < VERSIONS:
        there = writer.rows()["id"].to_pylist()
        some = pc.field("id").isin(random.sample(there, 5))
        match random.randrange(4):
            case 0:
                await writer.update(some, {"v": pc.scalar(f"u{writer.version}")})
            case 1:
                await writer.update(pc.field("id") == random.choice(there), {"id": pc.scalar(1000 + writer.version)})
            case 2:
                await writer.delete(some)
                await writer.insert(rows(*range(200, 205)))
            case _:
                await writer.insert(rows(*range(205, 206)))


async def plans_of(table: Table, options: RowOptions, last: int = VERSIONS) -> list[ChangePlan]:
    stream = table.stream(options)
    with table.tailer() as tailer:
        await stream.begin(tailer, 0)
        return [version.plan async for version in stream.versions(tailer, 0, last)]


def read(execution: Execution, plans: Sequence[ChangePlan], random: Random) -> Iterator[tuple[object, ...]]:
    """All rows, in deliveries of random numbers of versions. Large versions are begun in the middle, as parts are."""
    first = 0
    while first < len(plans):
        end = first + random.choice((1, 2, 5, 40))
        some = plans[first:end]
        start = Position("", some[0].version)
        for batch in execution.batches(some, start, joined=random.random() < 0.5):
            yield from zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
        first = end


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("refine", ["key", "off"])
def test_each_sink_gets_the_rows_that_it_would_read_alone(tmp_path: Path, seed: int, refine: str) -> None:
    random = Random(seed)
    asyncio.run(write(tmp_path, random))
    options = RowOptions(random.choice(("auto", "files")), refine, ("id",))  # type: ignore[arg-type]
    first = Table.open(str(tmp_path))
    files = SharedFiles.of(first.files)
    results = SharedResults[Scanned](lambda result: result.rows.nbytes, random.choice((0, 1 << 30)))
    plans = asyncio.run(plans_of(first, options))
    with results.reader("t") as one, results.reader("t") as two:
        alone = [
            Execution(first.files, options, batch_rows=random.choice((7, 1000)), keeps_moves=moves)
            for moves in (True, False)
        ]
        expected = [list(read(each, plans, Random(seed))) for each in alone]
        assert expected[0] != expected[1] or refine == "off" or options.changes == "files"
        beside = [replace(each, files=files, shared=reader) for each, reader in zip(alone, (one, two), strict=True)]
        beside[1] = replace(beside[1], batch_rows=beside[0].batch_rows)
        reading = [read(each, plans, Random(seed + number)) for number, each in enumerate(beside)]
        actual: list[list[tuple[object, ...]]] = [[], []]
        while under_way := [number for number, each in enumerate(actual) if len(each) < len(expected[number])]:
            number = random.choice(under_way)
            some = list(islice(reading[number], random.choice((1, 50, 1000))))
            assert some
            actual[number] += some
        assert [next(each, None) for each in reading] == [None, None]
        assert actual == expected


@pytest.mark.parametrize("taken", range(8))
def test_a_reader_that_is_cut_off_counts_the_row_groups_that_a_filter_excludes(tmp_path: Path, taken: int) -> None:
    """They end a file with a batch of no rows, which moves the ordinals of the next file."""

    async def scenario() -> None:
        storage = LocalStorage(tmp_path, sync=False)
        writer = TableWriter(storage, SCHEMA)
        await writer.create()
        adds = []
        for name, table in (("a.parquet", rows(*range(30))), ("b.parquet", rows(5))):
            file = io.BytesIO()
            pq.write_table(table, file, row_group_size=10)
            await storage.put(name, file.getvalue())
            action = {"path": name, "partitionValues": {}, "size": len(file.getvalue())}
            adds.append(("add", {**action, "modificationTime": 1, "dataChange": True}))
        await writer.commit("WRITE", adds)

    asyncio.run(scenario())
    options = RowOptions(shape=Shape(where=parse_filter("id < 20")))
    table = Table.open(str(tmp_path))
    [plan] = [plan for plan in asyncio.run(plans_of(table, options, 1)) if plan.scans]
    execution = Execution(table.files, options, workers=1, batch_rows=5)

    def ordinals(batches: Iterable[ChangeBatch]) -> list[int]:
        return [ordinal for batch in batches for ordinal in batch.rows["_change_ordinal"].to_pylist()]

    results = SharedResults[Scanned](lambda _: 1000, limit=2 * RUN_BYTES + 1500)
    with results.reader("t") as one, results.reader("t") as two:
        slow = replace(execution, shared=one).batches([plan])
        begun = list(islice(slow, taken))
        assert ordinals(replace(execution, shared=two).batches([plan])) == [*range(20), 30]
        assert ordinals([*begun, *slow]) == [*range(20), 30]


def test_tasks_of_other_rows_have_other_keys(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path, Random(1)))
    [plan, *_] = [each for each in asyncio.run(plans_of(Table.open(str(tmp_path)), RowOptions())) if each.scans]
    scan, vector = plan.scans[0], DeletionVectorDescriptor("u", "x", 1, 2, 3)
    changed: list[tuple[ChangePlan, dict[str, object]]] = [
        (plan, {}),
        (replace(plan, version=plan.version + 1), {}),
        (replace(plan, timestamp_ms=plan.timestamp_ms + 1), {}),
        (replace(plan, origin="snapshot"), {}),
        (plan, {"path": "other"}),
        (plan, {"change_type": "delete"}),
        (plan, {"image_phase": "late"}),
        (plan, {"piece": (0, 2)}),
        (plan, {"only": vector}),
        (plan, {"without": vector}),
        (plan, {"bucket": Bucket(0, 2, 0)}),
    ]
    keys = {key_of("file", [PlannedScan(plan, replace(scan, **fields))]) for plan, fields in changed}  # type: ignore[arg-type]
    assert len(keys) == len(changed)


def test_sinks_in_step_open_each_file_once(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path, Random(1)))
    options = RowOptions(key=("id",))
    storage = Counting(tmp_path)
    table = Table.open(str(tmp_path))
    table = Table(DeltaLog(storage), replace(SharedFiles.of(table.files), storage=storage))
    plans = asyncio.run(plans_of(table, options))
    alone = Execution(table.files, options)
    Counting.files = 0
    expected = list(read(alone, plans, Random(1)))
    first_count = Counting.files
    assert first_count > VERSIONS // 2
    results = SharedResults[Scanned](lambda result: result.rows.nbytes)
    with results.reader("t") as one, results.reader("t") as two:
        Counting.files = 0
        for reader in (one, two):
            assert list(read(replace(alone, shared=reader), plans, Random(1))) == expected
        assert Counting.files == first_count
        assert results.size == 0
