"""The small files of a table that become one file. Pure.

Files of one partition are taken in the order of their age until they are a file of the wanted size. The size of a file with a deletion
vector is that of the rows that it still has, so a large file becomes small when rows are deleted. Files outside of the table's folder are
left out, and files that are clustered: another file would not be.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles
from cdfd.delta.snapshot import Snapshot

LEAST_FILES = 8
"""Fewer files are not worth a new one, unless many of their rows are deleted."""
_MOST_FILES = 10_000
"""Files that are looked at, at most."""


def groups(state: Snapshot, file_bytes: int, most_bytes: int) -> list[Sequence[Add]]:
    """Groups of files, each of one partition, that become one file each.

    Args:
        state: with statistics, and all fields of files.
        file_bytes: a new file ends at about this size. Files of half of it stay as they are.
        most_bytes: the size of all groups with their deleted rows, at most.
    """
    table = state.live().table
    small = pc.less(_left(table), file_bytes // 2)
    inside = pc.invert(pc.match_substring_regex(table.column("path"), "^/|:"))
    apart = pc.is_null(table.column("clustering_provider"))
    chosen = table.filter(pc.and_(pc.and_(small, inside), apart))
    oldest = chosen.take(pc.sort_indices(chosen, [("time", "ascending")])[:_MOST_FILES])
    left = dict(zip(oldest.column("path").to_pylist(), _left(oldest).to_pylist(), strict=True))
    found: list[Sequence[Add]] = []
    budget = most_bytes
    for files in _by_partition(PackedFiles(Add, oldest)):
        for group in _cut(files, file_bytes):
            size = sum(file.size for file in group)
            deleted = size - sum(left[file.path] for file in group)
            if (len(group) >= LEAST_FILES or deleted >= file_bytes // 2) and size <= budget:
                found.append(group)
                budget -= size
    return found


def _left(files: pa.Table) -> pa.ChunkedArray:
    """The bytes of the rows of each file that are not deleted, about; all bytes if the number of rows is not known."""
    rows = pc.struct_field(pc.extract_regex(files.column("stats"), _ROWS), "rows").cast(pa.float64())
    deleted = pc.struct_field(files.column("deletion_vector"), "cardinality").cast(pa.float64())
    share = pc.subtract(1.0, pc.divide(deleted, pc.max_element_wise(rows, 1.0, skip_nulls=False)))
    size = files.column("size")
    return pc.multiply(size.cast(pa.float64(), safe=False), pc.fill_null(share, 1.0))


_ROWS = r'"numRecords":\s*(?P<rows>[0-9]{1,15})\b'


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
