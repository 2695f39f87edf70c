"""Plans of refined versions: which rows are matched in which buckets, and which versions keep their plan."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from cdfd.delta.actions import Add, Metadata, Protocol, Remove
from cdfd.delta.commit import Commit
from cdfd.delta.header import Header, PartialHeader
from cdfd.model.file_scan import Bucket, FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import ORDINAL_SPAN
from cdfd.model.refinement import BUCKET_BYTES, Refine
from cdfd.plan import refining
from cdfd.plan.planner import plan
from cdfd.plan.refining import with_images_paired
from cdfd.plan.row_options import RowOptions
from cdfd.scan.updates.whole_pairs import matched_by_key

PROTOCOL = Protocol(1, 7, None, frozenset({"rowTracking", "domainMetadata"}))
TRACKED = {"delta.enableRowTracking": "true"}


def field(name: str, kind: str = "long") -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def mapped(name: str, number: int) -> dict[str, Any]:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"column-{number}"}
    return field(name) | {"metadata": metadata}


def header(*fields: dict[str, Any], version: int = 3, by: tuple[str, ...] = (), mode: str = "none") -> Header:
    schema = orjson.dumps({"type": "struct", "fields": fields or [field("id"), field("v")]}).decode()
    return PartialHeader(
        version, PROTOCOL, Metadata("T", schema, by, TRACKED | {"delta.columnMapping.mode": mode})
    ).finish()


def update(size: int = 1000) -> Commit:
    """A file that is replaced by another one."""
    add = Add("new", {}, size, 1, True, base_row_id=10, default_row_commit_version=4)
    remove = Remove("old", 1, True, {}, size, None, 0, 2)
    return Commit(4, adds=(add,), removes=(remove,))


def refined_plan(
    commit: Commit, refine: Refine = "rows", after: Header | None = None, before: Header | None = None
) -> ChangePlan:
    after, before = after or header(version=4), before or header()
    return refining.refine(
        plan(commit, after, 7, previous=before), commit, after, before, RowOptions(refine=refine, key=("id",))
    )


@pytest.mark.parametrize(("refine", "is_refined"), [("rows", True), ("key", False)])
def test_a_version_without_a_column_of_the_key_is_refined_by_rows_alone(refine: Refine, is_refined: bool) -> None:
    other = header(field("v"))
    made = refined_plan(update(), refine, replace(other, version=4), other)
    assert (made.refinement is not None) == is_refined
    assert made.unrefined == (None if is_refined else "it has no column 'id' of the key")


def sizes_and_buckets(made: ChangePlan) -> list[tuple[int, str | None, Bucket | None]]:
    return [(scan.size, scan.image_phase, scan.bucket) for scan in made.scans]


class TestBuckets:
    @pytest.mark.parametrize("refine", ["rows", "key"])
    def test_version_of_few_bytes_has_one_bucket_without_phases(self, refine: Refine) -> None:
        assert sizes_and_buckets(refined_plan(update(), refine)) == [(2000, None, Bucket(0, 1, 0))]
        assert refined_plan(update(), refine).scans[0].path == "old"

    @pytest.mark.parametrize("size", [0, -1])
    def test_files_without_a_size_have_one_empty_bucket(self, size: int) -> None:
        assert sizes_and_buckets(refined_plan(update(size))) == [(0, None, Bucket(0, 1, 0))]

    def test_buckets_by_key_have_ordinals_of_their_own(self) -> None:
        made = refined_plan(update(BUCKET_BYTES), "key")
        expected = [(BUCKET_BYTES, None, Bucket(0, 2, 0)), (BUCKET_BYTES, None, Bucket(1, 2, ORDINAL_SPAN))]
        assert sizes_and_buckets(made) == expected

    def test_buckets_by_row_id_have_all_deletes_before_all_inserts(self) -> None:
        made = refined_plan(update(BUCKET_BYTES + 1))
        assert [scan.image_phase for scan in made.scans] == ["early"] * 3 + ["late"] * 3
        buckets = [scan.bucket for scan in made.scans]
        assert buckets == [Bucket(place % 3, 3, place * ORDINAL_SPAN) for place in range(6)]
        assert sum(scan.size for scan in made.scans) == 2 * 2 * (BUCKET_BYTES + 1)

    def test_images_of_change_data_files_are_in_buckets_without_phases(self) -> None:
        scan = FileScan("c", None, {}, BUCKET_BYTES + 1)
        halves = tuple(replace(scan, image_phase=phase) for phase in ("early", "late"))
        made = with_images_paired(ChangePlan(4, 7, header().schema, halves, "cdc", key=("id",)))
        assert [scan.bucket for scan in made.scans] == [Bucket(0, 2, 0), Bucket(1, 2, ORDINAL_SPAN)]
        assert made.refinement is not None
        assert list(made.refinement.sources) == [scan]


class TestSchemaOfTheVersion:
    """Removed rows are matched in the schema of the version, if it loses no value of theirs."""

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ((field("id"),), (field("id"), field("v"))),
            ((field("id"), field("v", "integer")), (field("id"), field("v"))),
        ],
    )
    def test_added_or_widened_column_is_refined(
        self, before: tuple[dict[str, Any], ...], after: tuple[dict[str, Any], ...]
    ) -> None:
        made = refined_plan(update(), "key", header(*after, version=4), header(*before))
        assert made.unrefined is None
        assert made.refinement is not None
        assert [scan.schema for scan in made.refinement.sources] == [None, None]

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ((field("id"), field("v")), (field("id"),)),
            ((field("id"), field("v")), (field("id"), field("v", "string"))),
        ],
    )
    def test_dropped_or_replaced_column_is_not_refined(
        self, before: tuple[dict[str, Any], ...], after: tuple[dict[str, Any], ...]
    ) -> None:
        made = refined_plan(update(), "key", header(*after, version=4), header(*before))
        assert (made.unrefined, made.refinement) == ("it replaces the schema", None)

    def test_version_that_enables_column_mapping_is_not_refined(self) -> None:
        after = header(mapped("id", 1), mapped("v", 2), version=4, mode="name")
        made = refined_plan(update(), "key", after, header(mapped("id", 1), mapped("v", 2)))
        assert (made.unrefined, made.refinement) == ("it replaces the schema", None)

    def test_renamed_column_is_not_refined(self) -> None:
        after = header(mapped("id", 1), mapped("w", 2), version=4, mode="name")
        made = refined_plan(update(), "key", after, header(mapped("id", 1), mapped("v", 2), mode="name"))
        assert (made.unrefined, made.refinement) == ("it replaces the schema", None)

    @pytest.mark.parametrize("mode", ["name", "id"])
    def test_column_replaced_by_one_of_its_name_is_not_refined(self, mode: str) -> None:
        """The removed rows have its values by another physical name."""
        after = header(mapped("id", 3), mapped("v", 2), version=4, mode=mode)
        made = refined_plan(update(), "key", after, header(mapped("id", 1), mapped("v", 2), mode=mode))
        assert (made.unrefined, made.refinement) == ("it replaces the schema", None)

    def test_partitioned_anew_is_not_refined(self) -> None:
        made = refined_plan(update(), "key", header(version=4, by=("v",)), header())
        assert (made.unrefined, made.refinement) == ("it replaces the schema", None)


def test_files_of_row_ids_are_not_read_whole() -> None:
    by_key, by_row_id, plain = (
        refined_plan(update(), "key"),
        refined_plan(update(), "rows"),
        plan(update(), header(), 7),
    )
    assert [[scan.path for scan in each.files] for each in (by_key, by_row_id, plain)] == [
        ["old", "new"],
        [],
        ["old", "new"],
    ]


def test_only_versions_that_are_matched_by_key_promise_rows_that_differ() -> None:
    images = with_images_paired(ChangePlan(4, 7, header().schema, (FileScan("c", None, {}, 1),), "cdc", key=("id",)))
    by_key, by_row_id = refined_plan(update(), "key"), refined_plan(update(), "rows")
    plain = plan(update(), header(version=4), 7)
    assert [matched_by_key(each) for each in (by_key, by_row_id, images, plain)] == [True, False, False, False]
