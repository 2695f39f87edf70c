"""Which files Spark's own reader reads, and deletion vectors as words of bits; without Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import cdfd.spark
from cdfd.delta.roaring import RowSet
from cdfd.delta.types.datatypes import Primitive, StructField, StructType
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema
from cdfd.errors import ConfigError
from cdfd.log.table import Table
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.refinement import Refinement
from cdfd.spark.frames import groups
from cdfd.spark.frames.groups import FileRows, ReadByCdfd
from cdfd.spark.frames.paths import check_store, escape
from cdfd.spark.frames.scan_frame import RowWords

SCHEMA = TableSchema(StructType((StructField("id", Primitive("long")), StructField("p", Primitive("string")))), ("p",))
SCAN = FileScan("a.parquet", "insert", {"p": "x"}, 1000)
PLAN = ChangePlan(3, 5, SCHEMA, (SCAN,), "files")


def files(*scans: FileScan, version: int = 3) -> list[FileRows]:
    return [FileRows(scan, version, 5, SCHEMA) for scan in scans]


@given(st.sets(st.integers(0, 700), max_size=200), st.integers(0, 1 << 40))
def test_words_have_the_bits_of_the_rows(rows: set[int], first: int) -> None:
    words = RowWords.of(RowSet.of(sorted(first + row for row in rows)), keeps=True)
    bits = np.unpackbits(words.words.view(np.uint8), bitorder="little").nonzero()[0]
    assert {words.first * 64 + int(bit) for bit in bits} == {first + row for row in rows}
    assert len(words.words) <= 12  # as many as from the first row to the last one, wherever they are


class TestGroups:
    def test_a_change_data_file_comes_once(self) -> None:
        images = tuple(
            replace(SCAN, path=path, change_type=None, image_phase=phase)
            for phase in ("early", "late")
            for path in ("a", "b")
        )
        actual = list(groups.file_rows([replace(PLAN, scans=images, origin="cdc")]))
        assert [each.scan.path for each in actual] == ["a", "b"]

    @pytest.mark.parametrize(
        "plan",
        [
            replace(PLAN, refinement=Refinement((SCAN,), ("id",))),
            # Large change data files, of which only neighbours are pairs.
            replace(PLAN, origin="cdc", key=("id",)),
        ],
    )
    def test_derived_updates_are_left_to_cdfd(self, plan: ChangePlan) -> None:
        with pytest.raises(ReadByCdfd, match="version 3 has updates"):
            list(groups.file_rows([plan]))

    def test_names_tell_files_apart_while_they_are_few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        some = files(SCAN, replace(SCAN, path="b"), replace(SCAN, path="c", partition_values={"p": "y"}))
        some += files(replace(SCAN, path="p=x/c"), replace(SCAN, path="d"), version=4)
        assert groups.groups_of(some) == [some[:3], some[3:]]  # two files have the name c
        monkeypatch.setattr(groups, "MOST_NAMED", 2)
        assert groups.groups_of(some) == [some[:2], some[2:3], some[3:]]
        monkeypatch.setattr(groups, "MOST_SCANS", 2)
        assert groups.groups_of(some) == [some]

    def test_a_file_that_is_added_and_removed_is_in_one_group(self) -> None:
        kept, added = files(SCAN, replace(SCAN, path="b"))
        (removed,) = files(replace(SCAN, path="b", change_type="delete"), version=4)
        assert groups.groups_of([kept, added, removed]) == [[kept], [added, removed]]

    @pytest.mark.parametrize(
        "other", [replace(SCAN, path="p=x/a.parquet"), replace(SCAN, path="ä.parquet"), replace(SCAN, path="a%20b")]
    )
    def test_names_that_do_not_tell_files_apart(self, other: FileScan) -> None:
        some = [*files(SCAN), *files(other, version=4)]
        assert groups.groups_of(some) == [some[:1], some[1:]]

    def test_change_types_of_files_are_not_joined_with_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(groups, "MOST_SCANS", 0)
        actual = groups.groups_of(files(SCAN, replace(SCAN, path="b", change_type=None)))
        assert [group[0].is_cdc for group in actual] == [False, True]


class TestChecks:
    @pytest.mark.parametrize(
        ("names", "size", "why"),
        [
            (["a.parquet"], 10, None),
            ([f"{number}.parquet" for number in range(33)], 10, "33 files are small"),
            ([f"{number}.parquet" for number in range(33)], groups.SMALL_FILE, None),
            ([f"{number}.parquet" for number in range(10_001)], groups.SMALL_FILE, "10001 files are too many"),
            (["p=1/_a.parquet"], 10, "Spark does not read a file of the name '_a.parquet'"),
            (["_change_data/a.parquet"], 10, None),
            (["a.trv"], 10, "is not Parquet"),
        ],
    )
    def test_files_that_spark_does_not_read(self, names: list[str], size: int, why: str | None) -> None:
        some = files(*(replace(SCAN, path=name, size=size) for name in names))
        if why is None:
            groups.check_files(some)
        else:
            with pytest.raises(ReadByCdfd, match=why):
                groups.check_files(some)

    def test_columns_that_spark_does_not_read(self) -> None:
        by_id = replace(SCHEMA, mapping=ColumnMappingMode.ID)
        groups.check_schema(by_id, field_ids=True)
        with pytest.raises(ReadByCdfd, match="finds columns by id"):
            groups.check_schema(by_id, field_ids=False)
        variant = TableSchema(StructType((StructField("v", Primitive("variant")),)))
        with pytest.raises(ReadByCdfd, match="'v' is of type variant"):
            groups.check_schema(variant, field_ids=True)
        taken = TableSchema(StructType((StructField("__CDFD_file", Primitive("string")),)))
        with pytest.raises(ReadByCdfd, match="'__CDFD_file' is kept"):
            groups.check_schema(taken, field_ids=True)

    def test_keys_of_a_store_are_not_passed_to_spark(self) -> None:
        options = {"access_key_id": "a", "secret_access_key": "secret", "region": "x"}
        bucket = Table.open("s3://lake/orders", options)
        with pytest.raises(ReadByCdfd, match="options of the store") as caught:
            check_store(bucket.files, has_options=True)
        assert "secret'" not in str(caught.value)


@pytest.mark.parametrize("name", ["path", "startingVersion", "starting_version", "endingversion"])
def test_an_option_does_not_replace_an_argument(name: str) -> None:
    session: Any = SimpleNamespace(version="4.1.1")
    with pytest.raises(ConfigError, match=f"options has '{name}', which is an argument"):
        cdfd.spark.changes(session, "lake/orders", 1, 2, {name: "0"})


def test_no_path_is_a_pattern() -> None:
    assert escape("file:///a/[b]{c}*?\\d e%20") == "file:///a/\\[b\\]\\{c\\}\\*\\?\\\\d e%20"
    assert escape("file:///a/10:30") == "file:///a/10:30"
    with pytest.raises(ReadByCdfd, match="does not read the path"):
        escape("file:///a/[b]/10:30")
