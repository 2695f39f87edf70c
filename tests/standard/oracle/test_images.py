"""delta-rs's own change data files: a consumer that keeps the last change of each key ends with the table's rows."""

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import cdfd
from cdfd.encode.records import Origin
from tests.support.change_rows import record_encoder


def rows(ids: range, value: str) -> pa.Table:
    count = len(ids)
    return pa.table({"id": pa.array(ids, pa.int64()), "p": [n % 3 for n in ids], "v": [value] * count})


def made(folder: Path, partitions: list[str]) -> deltalake.DeltaTable:
    """A table that is updated, also from partition to partition, deleted from, merged into and overwritten in part."""
    settings = {"delta.enableChangeDataFeed": "true"}
    deltalake.write_deltalake(folder, rows(range(30), "a"), partition_by=partitions or None, configuration=settings)
    table = deltalake.DeltaTable(folder)
    table.update(updates={"v": "'b'"}, predicate="id >= 3")
    table.update(updates={"p": "(p + 1) % 3"}, predicate="id < 20")
    table.delete("id % 7 = 0")
    merge = table.merge(rows(range(15, 45), "m"), "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_delete("s.id < 18").when_matched_update_all().when_not_matched_insert_all().execute()
    deltalake.write_deltalake(table, rows(range(40, 44), "o"), mode="overwrite", predicate="id >= 40 and id < 44")
    return table


@pytest.mark.parametrize("partitions", [[], ["p"]])
@pytest.mark.parametrize("kind", ["flat", "debezium"])
def test_the_last_record_of_each_key(tmp_path: Path, partitions: list[str], kind: Any) -> None:
    table = made(tmp_path / "t", partitions)
    encoder = record_encoder(kind, Origin("p", "t", "T", "t"), key=["id"], tombstones=True)
    last: dict[bytes, bytes | None] = {}
    operations = []
    for records in [each for batch in cdfd.changes(str(tmp_path / "t"), 0, key="id") for each in encoder.encode(batch)]:
        for key, value in zip(records.whole_keys, records.whole_values, strict=True):
            last[key] = value
            operations.append(value and json.loads(value).get("op"))
    left = [json.loads(value) for value in last.values() if value is not None]
    left = [row["after"] if kind == "debezium" else row for row in left]
    actual = sorted((row["id"], row["p"], row["v"]) for row in left)
    assert actual == sorted((row["id"], row["p"], row["v"]) for row in table.to_pyarrow_table().to_pylist())
    if kind == "debezium":
        assert operations.count("u") >= 27
