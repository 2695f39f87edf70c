"""`format("cdfd")`: a table's row-level changes as a Spark data source, batch and streaming.

    import cdfd.spark
    cdfd.spark.register(spark)
    spark.read.format("cdfd").option("startingVersion", 5).load("s3://lake/orders")
    spark.readStream.format("cdfd").option("startingVersion", "latest").load("s3://lake/orders")

Python processes of Spark's driver plan the reads. Executors read `ChangePartition`s, with the same functions as cdfd's other engines.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cdfd.errors import ConfigError, LogError
from cdfd.log.start import check_range, start_version
from cdfd.log.table import Table
from cdfd.model.plan import ChangePlan
from cdfd.spark.engine.target import Target, resolve_target
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.packed import packed_schema
from cdfd.spark.source.partitioning import PlanRange, Schemas, listed_snapshot, partition_splits, range_partitions
from cdfd.spark.source.reading import ChangePartition, execution_of, open_table, read_partition
from cdfd.spark.source.short_errors import ShortErrors
from cdfd.spark.source.stream import StreamReader


class CdfdSource(DataSource):
    """A table's changes."""

    @ShortErrors()
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = SourceOptions.parse(options)
        self._target: Target | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "cdfd"

    @ShortErrors()
    def schema(self) -> StructType:
        """The columns as of the last version to read. The versions of a batch are fixed here, once for each DataFrame."""
        self._target = asyncio.run(resolve_target(open_table(self._options), self._options))
        rows = self._target.spark_schema
        return packed_schema(rows) if self._options.packed else rows

    @ShortErrors()
    def reader(self, schema: StructType) -> BatchReader:
        """A reader of the existing versions."""
        self._check_packed()
        return BatchReader(self._options, self._target, schema)

    @ShortErrors()
    def streamReader(self, schema: StructType) -> StreamReader:
        """A reader of the existing and all new versions."""
        if self._options.net:
            raise ConfigError("a stream has no net changes", hint="Net changes are those of a range: use spark.read")
        self._check_packed()
        return StreamReader(self._options, self._target, schema)

    def _check_packed(self) -> None:
        if self._options.packed and self._target is None:
            raise ConfigError("packed rows have their own schema", hint="Name columns by the option `columns`")


class BatchReader(DataSourceReader):
    """Reads a range of versions, inclusive. `target` is None if the user gives a schema."""

    @ShortErrors()
    def __init__(self, options: SourceOptions, target: Target | None, schema: StructType) -> None:
        self._options = options
        self._target = target or asyncio.run(resolve_target(open_table(options), options, schema))

    @ShortErrors()
    def partitions(self) -> Sequence[InputPartition]:
        """The partitions, one for each task."""
        table, target = open_table(self._options), self._target
        if self._options.start == "snapshot":
            live = asyncio.run(listed_snapshot(table.stream(target.rows, target.schema), self._options, target.version))
            if live is not None:
                return range_partitions(live, table, target, self._options) or [ChangePartition((), target)]
        schemas, plans = Schemas(target.schema), asyncio.run(plans_of(table, self._options, target))
        plan_ranges = [PlanRange(schemas.of(plan, table.uri)) for plan in plans]
        groups = partition_splits(
            plan_ranges,
            execution_of(table, self._options),
            ordered=target.ordered,
            limit=self._options.partition_bytes,
        )
        if self._options.net:
            # One task reads all rows: a key may have changes in any split.
            groups = [tuple(split for splits in groups for split in splits)]
        return [ChangePartition(splits, target) for splits in groups] or [ChangePartition((), target)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; called in an executor."""
        assert isinstance(partition, ChangePartition)
        with ShortErrors():
            yield from read_partition(partition, self._options)


async def first_version(table: Table, target: Target) -> int:
    """The first version to read. Raises what `start_version` does."""
    if target.start == "latest":
        return target.version + 1
    return await start_version(table.log, "earliest" if target.start is None else target.start)


async def plans_of(
    table: Table, options: SourceOptions, target: Target, most: float = math.inf, most_bytes: float = math.inf
) -> list[ChangePlan]:
    """The plans of the versions to read, up to the one that exceeds `most` files and versions, or `most_bytes`.

    Raises what planning raises.
    """
    last = target.version
    stream = table.stream(target.rows, target.schema)
    if options.start == "snapshot":
        return [(await stream.snapshot(last)).plan]
    first = await first_version(table, target)
    try:
        await check_range(table.log, first, last)
    except LogError as error:
        error.hint = "Set startingVersion to `latest`, or to a version up to the next one"
        raise
    plans = list[ChangePlan]()
    if first > last:
        return plans
    with table.tailer() as tailer:
        async with aclosing(stream.versions(tailer, first, last)) as versions:
            count = size = 0
            async for version in versions:
                plans.append(version.plan)
                count += count_files(plans[-1:])
                size += version.plan.size
                if count > most or size > most_bytes:
                    break
    return plans


def count_files(plans: Sequence[ChangePlan]) -> int:
    """The number of versions, and of their files."""
    return sum(1 + len(plan.scans) for plan in plans)
