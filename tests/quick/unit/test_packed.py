"""Packed rows: what rows that refer to a partition hold, and what else their bytes may be."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

pytest.importorskip("pyspark")

from cdfd.errors import DataError
from cdfd.model.plan import ChangePlan
from cdfd.spark.source.packed import refer, unpack
from cdfd.spark.source.reading import ChangePartition, change_rows, open_table
from cdfd.spark.source.source import CdfdSource
from cdfd.storage.local import LocalStorage
from tests.support import lake


class Call:
    """A pickle that calls a function."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def orders(folder: Path) -> str:
    async def made() -> None:
        await lake.table(LocalStorage(str(folder)), 3, lake.manual_clock())

    lake.run(made())
    return str(folder)


class Packed:
    """The packed rows of a table, and what is read of them."""

    def __init__(self, table: str, **options: str) -> None:
        source = CdfdSource({"path": table, "packed": "true", "startingversion": "0", **options})
        reader = source.reader(source.schema())
        self.options = source._options
        self.batches = [rows for each in reader.partitions() for rows in reader.read(each)]
        self.references = list[ChangePartition]()
        self.count = sum(each.num_rows for each in unpack(self.batches, self.read))

    def read(self, portion: ChangePartition) -> Iterator[pa.RecordBatch]:
        self.references.append(portion)
        return change_rows(portion, self.options, open_table(self.options))


def test_small_files_are_not_opened_twice(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    write_deltalake(table, pa.table({"id": [1, 2, 3]}), configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(table).update({"id": "id + 10"}, predicate="id > 1")
    packed = Packed(str(table))
    # Change data files have no statistics.
    assert not packed.references
    assert packed.count == 7


def unread(portion: ChangePartition) -> Iterator[pa.RecordBatch]:
    raise AssertionError(portion)


def test_rows_refer_to_a_partition_if_their_number_is_known(tmp_path: Path) -> None:
    packed = Packed(orders(tmp_path))
    assert len(packed.references) == 1
    assert packed.count == sum(each.num_rows for each in packed.batches) > 1
    assert sum(each.num_rows - each.column(0).null_count for each in packed.batches) == 1


def test_a_log_that_promises_no_rows_loses_none(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2, 3]}))
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    text, counts = log.read_text(), '\\"numRecords\\":'
    assert f"{counts}3" in text
    log.write_text(text.replace(f"{counts}3", f"{counts}0"))
    with pytest.raises(DataError, match="the file has 3 rows, and the log says 0"):
        Packed(str(tmp_path))


@pytest.mark.parametrize(
    "options",
    [
        {"where": "id > 1"},
        {"excludeChangeTypes": "delete"},
        {"dropUnchanged": "true"},
        {"key": "id", "netChanges": "true"},
        {"mask.id": "nullify"},
        {"ignoreMissingFiles": "true"},
        {"allowedRoots": "/lake"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_rows_are_packed(tmp_path: Path, options: dict[str, str]) -> None:
    packed = Packed(orders(tmp_path), **options)
    assert not packed.references
    assert packed.count == sum(each.num_rows for each in packed.batches)


@pytest.mark.parametrize(
    "value",
    [
        Call(os.system, "true"),
        Call(pa.OSFile, "made", "w"),
        Call(Path, "made"),
        Call(exec, "1"),
    ],
    ids=["function", "file", "path", "builtin"],
)
def test_bytes_that_call_something_else(value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="which no partition consists of"):
        list(unpack(refer(value, 1), unread))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["blake2b", "json.JSONDecoder", "pa.OSFile", "Literal"])
def test_names_that_a_module_of_values_imports(name: str) -> None:
    reference = b"".join((b"\x80\x04", pickle.SHORT_BINUNICODE, bytes([15]), b"cdfd.model.plan"))
    reference += b"".join((pickle.SHORT_BINUNICODE, bytes([len(name)]), name.encode(), pickle.STACK_GLOBAL, b"."))
    with pytest.raises(DataError, match="which no partition consists of"):
        list(unpack([row_of(reference)], unread))


def test_bytes_that_change_a_class() -> None:
    """Later partitions of the same process would have the attribute, too."""
    reference = b"ccdfd.model.plan\nChangePlan\n" + b"N}X\x07\0\0\0versionK\x07s\x86b."
    before = ChangePlan.version
    with pytest.raises(DataError, match="sets attributes"):
        list(unpack([row_of(reference)], unread))
    assert ChangePlan.version is before


def row_of(reference: bytes) -> pa.RecordBatch:
    """A packed row that refers to a pickle."""
    column = next(refer(None, 1)).column(0)[0].as_py()
    return pa.record_batch({"_packed_rows": pa.array([column[: column.index(b":") + 1] + reference], pa.binary())})


def test_references_that_are_cut_short(tmp_path: Path) -> None:
    reference = Packed(orders(tmp_path)).batches[0].column(0)[0].as_py()
    for length in range(15, len(reference), 7):
        batch = pa.record_batch({"_packed_rows": pa.array([reference[:length]], pa.binary())})
        with pytest.raises(DataError, match="damaged"):
            list(unpack([batch], unread))
