"""Packed rows refer to partitions: each partition of the golden tables is restored from its reference, and has as many rows as counted."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from cdfd.errors import CdfdError
from cdfd.log.table import Table
from cdfd.spark.source import admission
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.packed import unpack
from cdfd.spark.source.reading import ChangePartition, change_rows, open_table, read_partition
from cdfd.spark.source.source import CdfdSource

Batches = Iterator[pa.RecordBatch]

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"
TABLES = sorted({log.parent for log in GOLDEN.glob("*/*/**/_delta_log")})
READS = {
    "changes": {"startingversion": "0"},
    "snapshot": {"startingversion": "snapshot"},
    "files": {"startingversion": "0", "changes": "files"},
    "file by file": {"startingversion": "0", "maxpartitionbytes": "1"},
    "ranges of paths": {"startingversion": "snapshot", "maxpartitionbytes": "1", "snapshotplanning": "executors"},
}

pytestmark = pytest.mark.skipif(not TABLES, reason="the golden tables are not beside this checkout")


@pytest.mark.parametrize("options", READS.values(), ids=READS)
def test_partitions_are_restored_from_their_references(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_WORTH_OPENING", 0)  # most of these files are small
    references: list[ChangePartition] = []
    for path in TABLES:
        source = CdfdSource({"path": str(path), "packed": "true", **options})
        table = open_table(source._options)

        def read(portion: ChangePartition, options: SourceOptions = source._options, table: Table = table) -> Batches:
            references.append(portion)
            return change_rows(portion, options, table)

        try:
            reader = source.reader(source.schema())
            partitions = [(each, list(change_rows(each, source._options, table))) for each in reader.partitions()]
        except CdfdError:
            continue  # broken tables, for which others have tests
        for partition, rows in partitions:
            packed = list(read_partition(partition, source._options))
            assert sum(each.num_rows for each in packed) == sum(each.num_rows for each in rows), path
            assert list(unpack(packed, read)) == rows, path
    assert len(references) > 40
