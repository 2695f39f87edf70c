"""Which columns of a remote file to ask for ahead."""

from __future__ import annotations

from functools import cache
from typing import Any

from cdfd.changes.data_files import DataFile, is_parquet
from cdfd.changes.layout import Layouts
from cdfd.changes.plan import FileScan
from cdfd.changes.shape.predicate import Predicate
from cdfd.delta.schema import TableSchema
from cdfd.storage.base import ColumnPrefetch


def prefetch_columns(
    source: Any, schema: TableSchema, scan: FileScan, layouts: Layouts, file: DataFile, where: Predicate | None
) -> None:
    """Let a remote file prefetch the columns to read. A scan of some row groups does not know yet which ones."""
    if not may_skip_groups(scan, where) and is_parquet(scan.path) and can_prefetch(source.__class__):
        source.prefetch_columns(layouts.of(schema, file.schema_arrow).names(scan.change_type))


def may_skip_groups(scan: FileScan, where: Predicate | None) -> bool:
    """Whether a scan may skip row groups."""
    return scan.only is not None or scan.piece is not None or (where is not None and scan.change_type is not None)


@cache
def can_prefetch(kind: type) -> bool:
    """Whether files of that class can prefetch columns. Cached, because checking a protocol takes as long as opening a file."""
    return issubclass(kind, ColumnPrefetch)
