"""A changelog has the rows of its source, whatever their types: for each golden table."""

import json
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cdfd
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.storage.local import LocalStorage
from tests.quick.golden.test_golden import BROKEN

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"
# Which versions the tables of a catalog have, their logs do not say.
LEFT_OUT = {*BROKEN, "catalog"}
TABLES = sorted(log.parent for log in GOLDEN.rglob("_delta_log") if not LEFT_OUT & {*log.relative_to(GOLDEN).parts})

pytestmark = pytest.mark.skipif(not TABLES, reason="the golden tables are not beside this checkout")


def bag(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """Rows without their nulls, because a changelog has the columns of all versions, and without the change columns."""
    kept = ({name: value for name, value in row.items() if value is not None and name[:2] != "_c"} for row in rows)
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in kept)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.relative_to(GOLDEN)))
async def test_the_rows_of_the_source(table: Path, tmp_path: Path) -> None:
    batches = list(cdfd.changes(table, 0))
    assert batches
    target = Target(LocalStorage(tmp_path / "t"), "cdfd/p/t", Layout(), SystemClock())
    sink = await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1 << 20))
    for version, batch in enumerate(batches):
        delivery = await sink.begin(Position("T", version))
        await delivery.write(batch)
        await delivery.commit(Position("T", version + 1))
    columns = dict.fromkeys(name for batch in batches for name in batch.schema.names if name[:2] != "_c")
    actual = cdfd.snapshot(tmp_path / "t", columns=list(columns)).read_all().select(list(columns))
    assert bag(actual.to_pylist()) == bag(row for batch in batches for row in batch.to_pylist())
