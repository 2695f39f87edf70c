"""A file whose rows a writer deletes keeps the statistics that another writer gave it."""

from dataclasses import replace

import pytest

from cdfd.delta.actions import Add, DeletionVectorDescriptor
from cdfd.delta.file_actions import replacements

VECTOR = DeletionVectorDescriptor("i", "", None, 0, 1)


def rewritten(stats: str) -> object:
    """The statistics of a file after some of its rows were deleted."""
    [written] = [
        fields["stats"]
        for name, fields in replacements([(Add("f", {}, 1, 0, True, stats), VECTOR)], 0)
        if name == "add"
    ]
    return written


def test_numbers_stay_as_they_are_written() -> None:
    stats = '{"numRecords":3,"minValues":{"price":-123456789012345678901234567890.10,"ratio":1e-7},"tightBounds":true}'
    assert rewritten(stats) == stats.replace("true", "false")
    assert rewritten(stats.replace("true", "false")) == stats.replace("true", "false")


@pytest.mark.parametrize(
    ("vector", "offset"), [(VECTOR, {}), (replace(VECTOR, storage_type="u", offset=0), {"offset": 0})]
)
def test_only_a_vector_in_a_file_has_an_offset(vector: DeletionVectorDescriptor, offset: dict[str, int]) -> None:
    written = [fields for _, fields in replacements([(Add("f", {}, 1, 0, True, None, vector), vector)], 0)]
    assert len(written) == 2
    for fields in written:
        assert {name: value for name, value in fields["deletionVector"].items() if name == "offset"} == offset


@pytest.mark.parametrize("broken", ["{", "[1]", '{"a":"\\ud800"}', "[" * 100_000], ids=lambda text: text[:9])
def test_broken_statistics_stay_as_they_are(broken: str) -> None:
    assert rewritten(broken) == broken
