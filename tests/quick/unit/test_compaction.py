"""Which small files of a table are compacted together."""

from cdfd.delta.actions import Add, Metadata, Protocol
from cdfd.delta.commit import Commit
from cdfd.delta.snapshot import first
from cdfd.sinks.delta.compactor import LEAST_FILES, file_groups

SCHEMA = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'
MUCH = 1 << 40


def grouped(sizes: list[int], file_bytes: int, most_bytes: int = MUCH, partitions: int = 1) -> list[list[int]]:
    """The sizes of the files of each group; files go to the partitions in turn."""
    adds = tuple(
        Add(f"{number:05}", {"p": str(number % partitions)} if partitions > 1 else {}, size, number, True)
        for number, size in enumerate(sizes)
    )
    by = ("a",) if partitions > 1 else ()
    state = first(
        Commit(0, adds=adds, protocol=Protocol(1, 2), metadata=Metadata("i", SCHEMA, by, {})), all_fields=True
    )
    return [[file.size for file in group] for group in file_groups(state, file_bytes, most_bytes)]


def test_group_ends_once_it_has_the_size_of_a_file() -> None:
    assert grouped([10] * 2 * LEAST_FILES, 10 * LEAST_FILES) == [[10] * LEAST_FILES] * 2


def test_files_of_half_the_size_stay() -> None:
    assert grouped([*[10] * LEAST_FILES, 500], 1000) == [[10] * LEAST_FILES]


def test_all_groups_are_at_most_as_large_as_allowed() -> None:
    one = 10 * LEAST_FILES
    sizes = [10] * (3 * LEAST_FILES)
    assert len(grouped(sizes, 1000, partitions=3)) == 3
    assert len(grouped(sizes, 1000, 2 * one, partitions=3)) == 2
    assert len(grouped(sizes, 1000, 2 * one - 1, partitions=3)) == 1


def test_few_files_are_no_group() -> None:
    assert grouped([10] * (LEAST_FILES - 1), 1000) == []
