"""A small range of changes, read by the driver: its rows become part of the plan, and no task opens a file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from cdfd.log.table import Table
from cdfd.model.plan import ChangePlan
from cdfd.spark.engine.target import Target
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.partitioning import PlanRange, Schemas, partition_splits
from cdfd.spark.source.reading import ChangePartition, execution_of, read_partition
from cdfd.spark.source.source import plans_of

MOST_BYTES: Final = 8 << 20
"""Bytes of the files of a range, at most. Planning a query of `format("cdfd")` takes longer than reading them."""

MOST_FILES: Final = 1_000
"""Files of a range, at most, and its versions."""

MOST_ROW_BYTES: Final = 32 << 20
"""Bytes of the rows in memory, at most: Spark sends them to its tasks."""


def small_range(
    table: Table, options: SourceOptions, target: Target, fields: Sequence[tuple[str, StructField]]
) -> pa.Table | None:
    """The rows of a range.

    Args:
        table: to read.
        options: of the read.
        target: of the read.
        fields: the columns: of each, the name in the target and the field.

    Returns:
        None if the range is large, is a snapshot, or has nested columns.

    Raises:
        CdfdError: as in `plans_of` and `read_partition`.
    """
    # PySpark takes nested arrays apart to look for times without a zone, and fails where one is a slice.
    nested = any(isinstance(field.dataType, (ArrayType, MapType, StructType)) for _, field in fields)
    if nested or options.start == "snapshot" or (plans := asyncio.run(_plans(table, options, target))) is None:
        return None
    names, spark_names = (tuple(each) for each in zip(*((name, field.name) for name, field in fields), strict=True))
    target, schemas = replace(target, names=names, spark_names=spark_names), Schemas(target.schema)
    plan_ranges = [PlanRange(schemas.of(plan, table.uri)) for plan in plans]
    execution = execution_of(table, options)
    groups = partition_splits(plan_ranges, execution, ordered=target.ordered, limit=1 << 40)
    partition = ChangePartition(tuple(split for splits in groups for split in splits), target)
    batches, size = list[pa.RecordBatch](), 0
    for batch in read_partition(partition, options):
        size += batch.nbytes
        if size > MOST_ROW_BYTES:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches) if batches else None


async def _plans(table: Table, options: SourceOptions, target: Target) -> list[ChangePlan] | None:
    plans, size, files = list[ChangePlan](), 0, 0
    async with aclosing(plans_of(table, options, target)) as versions:
        async for plan in versions:
            plans.append(plan)
            size += plan.size
            files += 1 + len(plan.scans)
            if size > MOST_BYTES or files > MOST_FILES:
                return None
    return plans
