"""`format("cdfd-kafka")`: writes change rows of a stream or a batch job to a topic, encoded and delivered as by the daemon.

Each partition of a micro-batch is delivered in its own transaction, with a record of the query, the batch and the number of rows. A repeated
partition finds this record and is not sent again. A partition is repeated if a task failed or ran twice, or if the driver crashed between
the commits of the executors and Spark's own.

This requires that a repeated batch has the same partitions, as with Spark's own sources and `format("cdfd")`. If the rows of a delivered
partition differ from the repeated ones, the query ends with an error, so that no row is lost.

Reads the source offset from a query's checkpoint. `offsets/` has a file for each micro-batch, whose last line is an offset in JSON.

v1
{"batchWatermarkMs":0,...}
{"table_id":"...","version":8,...,"first_version":7,"first_phase":"snapshot"}
"""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cdfd.deliver.configured import open_table
from cdfd.delta.types.datatypes import StructType as Columns
from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.encode.encoding import key_columns
from cdfd.encode.side import RowCounts
from cdfd.errors import CdfdError, ConfigError, MissingFileError, SinkError
from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import CHANGE_COLUMNS, COMMIT_VERSION, change_schema
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.shape.shape import AS_IT_IS, Shape
from cdfd.runtime import compute as pc
from cdfd.runtime.tasks import iterate_in_thread
from cdfd.scan.shaping import RowShaper
from cdfd.scan.updates.whole_pairs import whole_pairs
from cdfd.sinks.base import Delivery
from cdfd.sinks.jobs import Counts
from cdfd.sinks.kafka.connector import KafkaConnector
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.transactions import parts
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from cdfd.spark.engine.sink_options import SinkOptions
from cdfd.spark.source.change_rows import ChangeRows
from cdfd.spark.source.offsets import Offset
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.packed import rows_schema, unpack
from cdfd.spark.source.reading import ChangePartition, change_rows
from cdfd.storage.base import Storage
from cdfd.storage.location import open_storage

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties with which Spark passes query and micro-batch to tasks."""
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""The setting, and the local property, of the folder with the checkpoints of queries that give no location."""


class CdfdKafka(DataSource):
    """The format; register it with `spark.dataSource.register(CdfdKafka)`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "cdfd-kafka"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """The writer for `writeStream`. `overwrite` is the output mode `complete`, which change rows do not support.

        Raises:
            ConfigError, UnsupportedError: as in `SinkOptions.parse` and `ChangeRows.plan`.
            CdfdError: the table cannot be read.
        """
        out, options = _task_sink(self.options, schema, overwrite), dict(self.options)
        if "checkpointlocation" in options:
            return StreamWriter(out.with_snapshot(options["checkpointlocation"]))
        return StreamWriter(out, options.get("queryname"))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """The writer for `write`. Raises the errors of `streamWriter`."""
        out = _task_sink(self.options, schema, overwrite)
        return BatchWriter(out, out.options.job or str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class TaskSink:
    """The sink as tasks receive it.

    Attributes:
        options: of the sink.
        rows: converts Spark's rows to change rows. Packed ones are such rows.
        table_id: of the table.
        schema: of the rows, but for the change columns.
        shape: of the records' rows; those of Spark are brought into it.
        packed: whether Spark's rows are packed; see `cdfd.spark.source.packed`.
    """

    options: SinkOptions
    rows: ChangeRows
    table_id: str
    schema: TableSchema
    shape: Shape = AS_IT_IS
    packed: bool = False

    def with_snapshot(self, checkpoint: str) -> TaskSink:
        """The sink that knows the version of the snapshot of a checkpoint, if its format tells live rows from inserts."""
        options = self.options
        if options.snapshot is not None or not options.sink.format.record_format.tells_snapshots:
            return self
        snapshot = snapshot_version(checkpoint, options.config.options(checkpoint))
        return replace(self, options=replace(options, snapshot=snapshot))

    def deliver(self, batches: Iterator[pa.RecordBatch], query: str, batch: int, number: int) -> None:
        """Deliver one partition's rows, unless they are delivered.

        Args:
            batches: Spark's batches.
            query, batch: of the rows. A query delivers one batch after the other.
            number: of the partition.

        Raises:
            CdfdError: the partition cannot be delivered. Spark then retries.
        """
        # Opened once, if packed rows refer to partitions.
        table = cache(partial(open_table, self.options.config, self.options.table))

        def read(portion: ChangePartition) -> Iterator[pa.RecordBatch]:
            try:
                yield from change_rows(portion, SourceOptions(table().uri, packed=True), table())
            except MissingFileError as error:
                error.hint = f"{error.hint}. Or the source reads another table than the sink's `uri`"
                raise

        full = (batch for batch in batches if batch.num_rows)
        unpacked = (
            (rows.select(self.rows.schema.names) for rows in unpack(full, read))
            if self.packed
            else map(self.rows, full)
        )
        # Rows of all versions: images of one update are of the same one.
        plan = ChangePlan(-1, 0, self.schema, (), "files")
        pairs = whole_pairs(ChangeBatch(plan, self.schema, rows) for rows in unpacked)
        shaped = pairs if self.shape.is_plain else map(RowShaper(self.shape).shape_batch, pairs)
        rows = (batch.rows for batch in shaped if batch.rows.num_rows)
        first = next(rows, None)
        if first is not None:
            part = _Part(self, query, batch, number, itertools.chain((first,), rows))
            asyncio.run(part.deliver(first[COMMIT_VERSION][0].as_py()))


@dataclass(eq=False, repr=False)
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query.

    Attributes:
        out: the sink.
        name: of a query whose checkpoint is in the session's folder; None: the sink knows the checkpoint, or the query has no name.
    """

    out: TaskSink
    name: str | None = None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Deliver a partition. Raises what `TaskSink.deliver` does."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise ConfigError("this version of Spark does not pass the micro-batch to tasks", hint="Use PySpark 4.1")
        out, folder = self.out, context.getLocalProperty(CHECKPOINTS)
        if self.name is not None and folder is not None:
            # Spark passes settings of the session to tasks alone.
            out = out.with_snapshot(f"{folder.rstrip('/')}/{self.name}")
        out.deliver(iterator, query, int(batch), context.partitionId())
        return WriterCommitMessage()


@dataclass(eq=False, repr=False)
class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch job.

    Attributes:
        out: the sink.
        job: name of the job.
    """

    out: TaskSink
    job: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Deliver a partition. Raises what `TaskSink.deliver` does."""
        context = TaskContext.get()
        assert context is not None
        self.out.deliver(iterator, self.job, 0, context.partitionId())
        return WriterCommitMessage()


@dataclass(eq=False)
class _Part:
    """The delivery of one partition.

    Attributes:
        out: the sink.
        query, batch: of the rows.
        number: of the partition.
        rows: not empty; can be read once.
    """

    out: TaskSink
    query: str
    batch: int
    number: int
    rows: Iterator[pa.RecordBatch]
    _counts: RowCounts = field(default_factory=RowCounts, init=False)
    _begun: bool = field(default=False, init=False)

    async def deliver(self, version: int) -> None:
        """Deliver the partition. `version` is the version of the first row."""
        options = self.out.options
        sinks = KafkaConnector(options.config, options.sink)
        place = sinks.destination(options.table, parts.role(self.number))
        position = Position(self.out.table_id, version)
        job = f"{self.query}/{self.batch}"
        delivered = await parts.deliver(place, lambda: self._open(place, version), job, position, self._write)
        for rows in self.rows:
            self._counts.add(rows)
        counts = {name: count for name, count in self._counts.by_type().items() if count}
        if counts != {name: count for name, count in delivered.items() if count}:
            raise self._other_rows(f"{sum(delivered.values())} rows", f"{sum(counts.values())}")

    async def _write(self, delivery: Delivery) -> Counts:
        if self._begun:
            raise SinkError(
                "another attempt took over and did not deliver the rows, which cannot be read twice",
                hint="Spark retries the task",
                retriable=True,
            )
        self._begun = True
        snapshot: bool | None = None
        async with aclosing(iterate_in_thread(self.rows)) as batches:
            async for rows in batches:
                for group in _by_origin(rows, self.out.options.snapshot):
                    version = group[COMMIT_VERSION][0].as_py()
                    live = version == self.out.options.snapshot
                    if live != snapshot:
                        snapshot = live
                        await delivery.start_version(_version(version, self.out.table_id, snapshot=live))
                    self._counts.add(group)
                    await delivery.write(group)
        return self._counts.by_type()

    @asynccontextmanager
    async def _open(self, place: Destination, version: int) -> AsyncIterator[KafkaSink]:
        options = self.out.options
        async with KafkaConnector(options.config, options.sink).open_at(place, options.table) as sink:
            self._check(sink.progress, version)
            yield sink

    def _check(self, progress: Progress | None, version: int) -> None:
        """Refuse a batch that is older than the last delivered one, or has other partitions."""
        query, _, batch = str({} if progress is None else progress.job.get("id", "")).rpartition("/")
        if progress is None or query != self.query or not batch.isdecimal():
            return
        if int(batch) > self.batch:
            raise SinkError(
                f"batch {self.batch} of query {query} is over: batch {batch} is delivered",
                hint="This attempt was abandoned, or the query resumed from an older checkpoint",
            )
        if int(batch) == self.batch and progress.position.version != version + 1:
            raise self._other_rows(f"rows from version {progress.position.version - 1} on", f"version {version}")

    def _other_rows(self, then: str, now: str) -> SinkError:
        return SinkError(
            f"partition {self.number} of batch {self.batch} was delivered with {then}, and now it is {now}",
            hint="A repeated batch must have the same partitions: check for a `repartition` that depends on the cluster",
        )


def _task_sink(texts: object, schema: StructType, overwrite: bool) -> TaskSink:
    if overwrite:
        raise ConfigError("a topic cannot be overwritten", hint='Write with mode "append"')
    options = SinkOptions.parse(dict(texts))  # type: ignore[call-overload] # Spark's dictionary, whose types it does not tell
    table = open_table(options.config, options.table)
    header = asyncio.run(table.log.header())
    shape, read_schema = options.table.shape, header.schema
    if options.table.key:
        key_columns(change_schema(read_schema.arrow), options.table.key)
    if options.shaped:
        read_schema = shape.published(shape.select(read_schema))
        shape = AS_IT_IS
    wanted = None if shape.columns is None else shape.select(read_schema).names
    packed = rows_schema(schema)
    rows = ChangeRows.plan((packed or schema).json(), read_schema.arrow, wanted)
    columns = TableSchema(from_arrow(pa.schema(list(rows.schema)[: -len(CHANGE_COLUMNS)])))
    shape.check_rows(columns, options.table.key)
    return TaskSink(options, rows, header.metadata.id, columns, shape, packed is not None)


def _by_origin(rows: pa.RecordBatch, snapshot: int | None) -> Iterator[pa.RecordBatch]:
    """Split rows into runs of only live rows or only changes, in order."""
    if snapshot is None:
        yield rows
        return
    live = pc.equal(rows[COMMIT_VERSION], snapshot).to_numpy(zero_copy_only=False)
    edges = [0, *(np.flatnonzero(np.diff(live)) + 1).tolist(), len(live)]
    for start, end in itertools.pairwise(edges):
        yield rows.slice(start, end - start)


def _version(number: int, table_id: str, *, snapshot: bool) -> Version:
    """A version with only the fields that a delivery needs."""
    plan = ChangePlan(number, 0, TableSchema(Columns(()), ()), (), "snapshot" if snapshot else "files")
    return Version(plan, table_id)


_OFFSETS = "offsets/"
_LONGEST = 1 << 20


def snapshot_version(location: str, storage_options: Mapping[str, object] | None = None) -> int | None:
    """The version of the snapshot with which a stream of `format("cdfd")` began.

    Args:
        location: of the checkpoint.
        storage_options: settings of its store.

    Returns:
        None if it began with changes, has another source, or if the checkpoint cannot be read here. Formats then treat live rows as inserts.
    """
    try:
        text = asyncio.run(_newest(open_storage(location, storage_options)))
        lines = [] if text is None else text.decode().splitlines()
        document = json.loads(lines[2]) if len(lines) == 3 else None
        offset = Offset.from_json(document) if isinstance(document, dict) else None
    except (CdfdError, ValueError, RecursionError):
        return None
    return offset.first_version if offset is not None and offset.first_phase == "snapshot" else None


async def _newest(storage: Storage) -> bytes | None:
    """The file of the newest micro-batch."""
    # The folder also has checksum files, such as `.7.crc`.
    names = [stat.path.removeprefix(_OFFSETS) async for stat in storage.list(_OFFSETS)]
    numbers = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 20]
    return await storage.read(f"{_OFFSETS}{max(numbers)}", 0, _LONGEST) if numbers else None
