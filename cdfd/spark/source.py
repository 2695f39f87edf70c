"""`format("cdfd")`: a table's row-level changes as a Spark data source, batch and streaming.

    import cdfd.spark
    cdfd.spark.register(spark)
    spark.read.format("cdfd").option("startingVersion", 5).load("s3://lake/orders")
    spark.readStream.format("cdfd").option("startingVersion", "latest").load("s3://lake/orders")

Planning happens where Spark's driver is, in Python processes of their own; executors read what they are told by `Portion`s, by the functions
that cdfd's other engines read with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cdfd.changes.plan import ChangePlan, plan_snapshot
from cdfd.spark.filters import Filters
from cdfd.spark.options import SourceOptions
from cdfd.spark.portions import Schemas, Stretch, portions
from cdfd.spark.reading import Portion, execution_of, opened, read_portion
from cdfd.spark.stream import StreamReader
from cdfd.spark.target import Target, settled
from cdfd.tables.table import Table
from cdfd.tail.start import check_range, start_version


class CdfdSource(DataSource):
    """A table's changes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = SourceOptions.parse(options)
        self._target: Target | None = None

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "cdfd"

    def schema(self) -> StructType:
        """The columns as of the last version to read. Which one that is is settled here, once for a DataFrame."""
        self._target = asyncio.run(settled(opened(self._options), self._options))
        return self._target.spark_schema

    def reader(self, schema: StructType) -> BatchReader:
        """Of the versions there are."""
        return BatchReader(self._options, self._target, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Of the versions there are and those to come."""
        return StreamReader(self._options, self._target, schema)


class BatchReader(DataSourceReader):
    """Reads a range of versions, both ends included.

    Args:
        options: what the user asks for.
        target: the columns, where they are settled; None where the user gives a schema.
        schema: Spark's.
    """

    def __init__(self, options: SourceOptions, target: Target | None, schema: StructType) -> None:
        self._options = options
        self._target = target or asyncio.run(settled(opened(options), options, schema))
        self._filters = Filters()

    @property
    def pushFilters(self) -> _Offer:
        """What Spark calls with filters, where the session lets it."""
        return _Offer(self)

    def take_filters(self, filters: Sequence[Filter]) -> None:
        """Leave out files that hold no row that these ask for."""
        names = dict(zip(self._target.called, self._target.names, strict=True))
        self._filters = Filters.of(filters, names)

    def partitions(self) -> Sequence[InputPartition]:
        """One for each task."""
        table, target = opened(self._options), self._target
        stretches = asyncio.run(self._planned(table))
        found = portions(
            stretches,
            execution_of(table, self._options),
            ordered=target.ordered,
            limit=self._options.partition_bytes,
        )
        return [Portion(slices, target) for slices in found] or [Portion((), target)]

    async def _planned(self, table: Table) -> list[Stretch]:
        schemas = Schemas.to(self._target.schema)
        found = []
        target = self._target
        for plan in await _plans(table, self._options, self._filters, target.version, ordered=target.ordered):
            conformed = schemas.of(plan, table.uri)
            kept = None
            if self._filters.conditions and self._filters.has_version(plan):
                known, stats = await _with_stats(table, plan) if self._filters.of_rows else (plan, {})
                kept = self._filters.kept(known, conformed, stats)
            elif self._filters.conditions:
                continue
            found.append(Stretch(conformed, kept=kept))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition, by an executor."""
        assert isinstance(partition, Portion)
        return read_portion(partition, self._options)


class _Offer:
    """`pushFilters` of a reader.

    Spark refuses a reader that has a `pushFilters` of its own where the session has not switched pushdown on
    (`spark.sql.python.filterPushdown.enabled`). Ours reads all the same: to that check, it is the base's.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Takes note of the filters; Spark is to apply all of them to the rows."""
        self._reader.take_filters(filters)
        return filters


async def _plans(
    table: Table, options: SourceOptions, filters: Filters, last: int, *, ordered: bool
) -> list[ChangePlan]:
    stream = table.stream(options.changes)
    if options.start == "snapshot":
        return [(await stream.snapshot(last, with_counts=ordered)).plan]
    first = (
        last + 1
        if options.start == "latest"
        else await start_version(table.log, "earliest" if options.start is None else options.start)
    )
    await check_range(table.log, first, last)
    first, last = filters.versions(first, last)
    if first > last:
        return []
    with table.tailer(replacements=True) as tailer:
        return [version.plan async for version in stream.versions(tailer, first, last)]


async def _with_stats(table: Table, plan: ChangePlan) -> tuple[ChangePlan, dict[str, str | None]]:
    """The plan with what the log says of its files, and that by path; planning does without it."""
    if plan.origin == "snapshot":
        return plan_snapshot(await table.log.snapshot(plan.version, with_stats=True), plan.timestamp_ms), {}
    if plan.origin != "files":
        return plan, {}
    entry = await table.log.entry(plan.version, with_stats=True)
    return plan, {add.path: add.stats for add in entry.commit.adds}
