"""The work of executors: reads a partition of a table's changes for Spark."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from cdfd.deliver.splits import list_files, read_splits
from cdfd.delta.paths import Prefixes
from cdfd.log.table import Table
from cdfd.model.columns import change_schema
from cdfd.plan.reconciliation import SchemaReconciler
from cdfd.plan.shape.shape import AS_IT_IS
from cdfd.scan.execute import Execution
from cdfd.scan.read import raise_missing
from cdfd.scan.splits import Split
from cdfd.scan.updates.last_refined import refined_versions
from cdfd.scan.updates.net import NetChanges
from cdfd.spark.engine.target import Target
from cdfd.spark.source.admission import portion_rows
from cdfd.spark.source.columns import SparkBatches
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.packed import pack, refer

logger = logging.getLogger("cdfd.spark")

BATCH_ROWS = 16_384
"""Rows of a batch. The JVM reads a batch row by row, which is a tenth faster if it fits into a core's cache."""

PLANNED_ROW_BYTES = 32 << 20
"""Bytes in memory of rows that come with a plan, at most: Spark sends them to its tasks, and the values of a small file may be long."""


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """The work of one task. Its plans have the target's schema."""

    splits: tuple[Split, ...]
    target: Target


def open_table(options: SourceOptions) -> Table:
    """Open a table. A process caches its connections and file metadata.

    Each call has a log of its own. The history of an earlier one would refuse a table that is dropped and created again.
    """
    table = _open(
        options.path,
        tuple(sorted(options.storage.items())),
        options.allowed_roots,
        options.path_prefixes,
        options.max_log_line,
    )
    return table.with_own_log()


@lru_cache(maxsize=8)
def _open(
    path: str,
    storage: tuple[tuple[str, object], ...],
    allowed_roots: tuple[str, ...],
    prefixes: Prefixes,
    max_log_line: int | None,
) -> Table:
    return Table.open(path, dict(storage), allowed_roots, path_prefixes=dict(prefixes), max_log_line=max_log_line)


def execution_of(
    table: Table, options: SourceOptions, workers: int | None = None, target: Target | None = None
) -> Execution:
    """The execution for a table's files: number of threads, and the rows; None if only files are measured."""
    return Execution(
        table.files,
        replace(options.rows, shape=AS_IT_IS) if target is None else target.rows,
        lambda schema: schema,
        workers,
        on_missing=partial(logger.warning, "skipping a missing file: %s") if options.skip_missing else raise_missing,
        batch_rows=BATCH_ROWS,
        whole=target is not None and target.whole,
        # Packed rows are for record formats.
        keeps_moves=options.packed and not options.rows.shape.excluded,
        refined=refined_versions(options.path),
    )


def read_small(portion: ChangePartition, options: SourceOptions) -> list[pa.RecordBatch] | None:
    """All rows that `read_rows` gives, for a plan that has them; None if they take more than `PLANNED_ROW_BYTES`."""
    batches, size = list[pa.RecordBatch](), 0
    for batch in read_rows(portion, options):
        size += batch.nbytes
        if size > PLANNED_ROW_BYTES:
            return None
        batches.append(batch)
    return batches


def read_partition(portion: ChangePartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a portion as a task gives them to Spark: packed ones refer to the portion, if their number is known.

    Raises:
        CdfdError: with table, version and file.
    """
    count = _count(portion, options) if options.packed else None
    if count is None:
        yield from read_rows(portion, options)
    else:
        yield from refer(replace(portion, target=replace(portion.target, start=None, spark_schema=StructType())), count)


def read_rows(portion: ChangePartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a portion as Spark takes them, or packed. Raises the errors of `read_partition`."""
    target = portion.target
    convert: Callable[[pa.RecordBatch], pa.RecordBatch] = partial(pack, names=target.names)
    if not options.packed:
        convert = SparkBatches.plan(change_schema(target.published.arrow), target.names, target.spark_schema)
    return map(convert, change_rows(portion, options, open_table(options)))


def change_rows(portion: ChangePartition, options: SourceOptions, table: Table) -> Iterator[pa.RecordBatch]:
    """The change rows of a portion. Raises the errors of `read_partition`."""
    target = portion.target
    # A task has one core. Another thread would take one from another task.
    execution = execution_of(table, options, 1, target)
    reconciler = SchemaReconciler(target.published, target.rows.shape.constants(target.schema))
    splits = [list_files(split, table.log.storage) for split in portion.splits]
    batches = read_splits(splits, execution)
    rows: Iterable[pa.RecordBatch] = (reconciler.reconcile(batch) for batch in batches if batch.rows.num_rows)
    if options.net:
        key = target.published.select(target.rows.published_key)
        changes = NetChanges(target.published.arrow, key.names, execution.space)
        for batch in rows:
            changes.add(batch)
        rows = changes.batches()
    yield from rows


def _count(portion: ChangePartition, options: SourceOptions) -> int | None:
    """Number of rows of a portion that the sink can read itself; None: none, it may lack an option, or as `portion_rows` says."""
    if options.net or options.skip_missing or options.allowed_roots or options.path_prefixes:
        return None
    if not portion.target.rows.is_plain:
        return None
    count = portion_rows(portion.splits, execution_of(open_table(options), options))
    # Reading alone shows whether a log that promises no rows is right. Nothing would refer to them.
    return count if count is not None and count > 0 else None
