"""Which columns of a remote file to ask for ahead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from cdfd.model.file_scan import FileScan
from cdfd.plan.shape.predicate import Predicate
from cdfd.scan.data_files import DataFile
from cdfd.storage.base import ColumnPrefetch


def prefetch_columns(
    source: Any, file: DataFile, columns: Sequence[str], groups: Collection[int] | None = None
) -> None:
    """Let a remote file prefetch the columns to read, of some row groups or of all. Files of some formats do not say where columns are."""
    if can_prefetch(source.__class__) and (ranges := getattr(file, "ranges", None)) is not None:
        source.prefetch_columns(ranges(columns, groups))


def may_skip_groups(scan: FileScan, where: Predicate | None) -> bool:
    """Whether a scan may skip row groups."""
    return scan.only is not None or scan.piece is not None or (where is not None and scan.change_type is not None)


@cache
def can_prefetch(kind: type) -> bool:
    """Whether files of that class can prefetch columns. Cached, because checking a protocol takes as long as opening a file."""
    return issubclass(kind, ColumnPrefetch)
