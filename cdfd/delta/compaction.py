"""The small files of a table that become one file. Pure.

Files of one partition are taken in the order of their age until they are a file of the wanted size. Files with deletion vectors are left out:
their removed rows must not come back. So are files outside of the table's folder.
"""

from collections.abc import Sequence

import pyarrow.compute as pc

from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles
from cdfd.delta.snapshot import Snapshot

LEAST_FILES = 8
"""Fewer files are not worth a new one."""
_MOST_FILES = 10_000
"""Files that are looked at, at most."""


def groups(state: Snapshot, file_bytes: int, most_bytes: int) -> list[Sequence[Add]]:
    """Groups of files, each of one partition, that become one file each.

    Args:
        state: with statistics.
        file_bytes: a new file ends at about this size. Files of half of it stay as they are.
        most_bytes: the size of all groups, at most.
    """
    table = state.live().table
    small = pc.and_(pc.less(table.column("size"), file_bytes // 2), pc.is_null(table.column("deletion_vector")))
    inside = pc.invert(pc.match_substring_regex(table.column("path"), "^/|:"))
    chosen = table.filter(pc.and_(small, inside))
    if len(chosen) < LEAST_FILES:
        return []
    oldest = chosen.take(pc.sort_indices(chosen, [("time", "ascending")])[:_MOST_FILES])
    found: list[Sequence[Add]] = []
    left = most_bytes
    for files in _by_partition(PackedFiles(Add, oldest)):
        for group in _cut(files, file_bytes):
            size = sum(file.size for file in group)
            if len(group) >= LEAST_FILES and size <= left:
                found.append(group)
                left -= size
    return found


def _by_partition(files: Sequence[Add]) -> list[list[Add]]:
    parts: dict[tuple[tuple[str, str | None], ...], list[Add]] = {}
    for file in files:
        parts.setdefault(tuple(sorted(file.partition_values.items())), []).append(file)
    return list(parts.values())


def _cut(files: Sequence[Add], file_bytes: int) -> list[list[Add]]:
    cut: list[list[Add]] = [[]]
    size = 0
    for file in files:
        if size >= file_bytes:
            cut.append([])
            size = 0
        cut[-1].append(file)
        size += file.size
    return cut
