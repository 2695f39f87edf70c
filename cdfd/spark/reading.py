"""What executors do: a portion of a table's changes, read and handed to Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cdfd.changes.cutting import Slice
from cdfd.changes.execute import Execution, raise_missing
from cdfd.changes.reconciliation import SchemaReconciler
from cdfd.changes.slices import read_slices
from cdfd.errors import MissingFileError
from cdfd.spark.options import SourceOptions
from cdfd.spark.target import Target
from cdfd.tables.table import Table

logger = logging.getLogger("cdfd.spark")

BATCH_ROWS = 16_384
"""Rows of a batch. The JVM goes through one row by row, over all columns: a tenth faster while they fit into a core's cache."""


@dataclass(frozen=True)
class Portion(InputPartition):
    """What one task reads; its plans are conformed to the target's schema."""

    slices: tuple[Slice, ...]
    target: Target


def opened(options: SourceOptions) -> Table:
    """The table. A process keeps the ones that it was asked for: their connections, and what it learned of their files."""
    return _opened(options.path, tuple(sorted(options.storage.items())), options.allowed_roots)


@lru_cache(maxsize=8)
def _opened(path: str, storage: tuple[tuple[str, object], ...], allowed_roots: tuple[str, ...]) -> Table:
    return Table.open(path, dict(storage), allowed_roots)


def execution_of(table: Table, options: SourceOptions, workers: int | None = None, *, whole: bool = False) -> Execution:
    """How its files are read: by so many threads, and whether with all of their columns."""
    return Execution(
        table.files,
        workers=workers,
        on_missing=_warn if options.skip_missing else raise_missing,
        batch_rows=BATCH_ROWS,
        whole=whole,
    )


def _warn(error: MissingFileError) -> None:
    logger.warning("left out: %s", error)


def read_portion(portion: Portion, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a portion as Spark takes them.

    Raises:
        CdfdError: naming table, version and file.
    """
    # A task has one core: another thread would take it from another task.
    execution = execution_of(opened(options), options, workers=1, whole=portion.target.whole)
    reconciler = SchemaReconciler(portion.target.schema)
    convert = portion.target.for_spark(reconciler)
    for found in read_slices(portion.slices, execution):
        yield convert(reconciler.reconcile(found))
