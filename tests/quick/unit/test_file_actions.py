"""A file whose rows a writer deletes keeps the statistics and tags that another writer gave it."""

import json
from dataclasses import replace

import pytest

from cdfd.delta.actions import Add, DeletionVectorDescriptor
from cdfd.delta.file_actions import removals, replacements

VECTOR = DeletionVectorDescriptor("i", "", None, 0, 1)


def rewritten(stats: str | None) -> str:
    """The statistics of a file after some of its rows were deleted."""
    [written] = [
        fields["stats"]
        for name, fields in replacements([(Add("f", {}, 1, 0, True, stats), VECTOR, 3)], 0)
        if name == "add"
    ]
    return str(written)


def test_numbers_stay_as_they_are_written() -> None:
    stats = '{"numRecords":3,"minValues":{"price":-123456789012345678901234567890.10,"ratio":1e-7},"tightBounds":true}'
    assert rewritten(stats) == stats.replace("true", "false")
    assert rewritten(stats.replace("true", "false")) == stats.replace("true", "false")


@pytest.mark.parametrize(
    ("vector", "offset"), [(VECTOR, {}), (replace(VECTOR, storage_type="u", offset=0), {"offset": 0})]
)
def test_only_a_vector_in_a_file_has_an_offset(vector: DeletionVectorDescriptor, offset: dict[str, int]) -> None:
    written = [fields for _, fields in replacements([(Add("f", {}, 1, 0, True, None, vector), vector, 3)], 0)]
    assert len(written) == 2
    for fields in written:
        assert {name: value for name, value in fields["deletionVector"].items() if name == "offset"} == offset


@pytest.mark.parametrize(
    "missing", [None, "", "{", "[1]", '{"a":"\\ud800"}', "[" * 100_000], ids=lambda text: str(text)[:9]
)
def test_the_number_of_rows_is_there_without_statistics(missing: str | None) -> None:
    """The protocol demands it with a deletion vector."""
    assert json.loads(rewritten(missing)) == {"numRecords": 3, "tightBounds": False}


@pytest.mark.parametrize("count", ["", '"numRecords":null,', '"numRecords":"3",'])
def test_the_number_of_rows_is_there_where_statistics_lack_it(count: str) -> None:
    stats = json.loads(rewritten(f'{{{count}"nullCount":{{"a":1}}}}'))
    assert stats == {"numRecords": 3, "nullCount": {"a": 1}, "tightBounds": False}


@pytest.mark.parametrize("tags", [None, {}, {"k": "v", "none": None}])
def test_a_remove_has_all_fields_that_it_promises(tags: dict[str, str | None] | None) -> None:
    add = Add("f", {"p": "1"}, 1, 0, True, tags=tags)
    [(_, removed)], [(_, replaced), _] = removals([add], 0), replacements([(add, VECTOR, 3)], 0)
    for fields in (removed, replaced):
        assert fields["extendedFileMetadata"] is True
        assert (fields["partitionValues"], fields["size"], fields["tags"]) == ({"p": "1"}, 1, tags or {})
