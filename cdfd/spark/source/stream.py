"""The streaming reader of `format("cdfd")`: offsets, and the partitions between two offsets."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructType

from cdfd.errors import CdfdError, ConfigError, SchemaChangedError, TableChangedError
from cdfd.spark.engine.target import Target, resolve_target
from cdfd.spark.source.offsets import Offset
from cdfd.spark.source.options import MOST, SourceOptions
from cdfd.spark.source.partitioning import partition_splits
from cdfd.spark.source.range_partitions import range_partitions
from cdfd.spark.source.reading import ChangePartition, execution_of, open_table, read_partition
from cdfd.spark.source.short_errors import short_errors, short_errors_of_rows
from cdfd.spark.source.stream_plan import StreamPlanner

try:
    # PySpark wraps simple readers, whose rows come with the plan. It has no public class for readers of which some micro-batches do.
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as PlannedRowsReader
except ImportError:
    from pyspark.sql.datasource import DataSourceStreamReader as PlannedRowsReader  # type: ignore[assignment]

T = TypeVar("T")

PLANNED_BYTES = 2 << 20
"""Weight of a micro-batch whose rows come with the plan, at most: it is read in less time than an executor needs to call Python."""
PLANNED_ROW_BYTES = 32 << 20
"""Bytes of its rows in memory, at most: the values of a small file may be long."""
_MOST_FILES = 2**31 - 1

_REPLACED_HINT = (
    "Start a query with another checkpoint. After a CREATE OR REPLACE TABLE, the option `onReplace` = `continue` reads on instead: "
    "the old rows are deletes, the new ones inserts"
)


class StreamReader(PlannedRowsReader):
    """Reads versions as they appear. Spark plans in one process, and reads in others with a copy of this object.

    The rows of a small micro-batch come with its plan, and no executor calls Python: with one row, it takes 0.1 s instead of 0.2.

    Args:
        options: of the read.
        target: the columns, if known; None if the user gives a schema.
        schema: Spark's schema.
    """

    @short_errors
    def __init__(self, options: SourceOptions, target: Target | None, schema: StructType) -> None:
        if options.end is not None:
            raise ConfigError("a stream has no end", hint="Omit endingVersion and endingTimestamp, or use spark.read")
        self._options = options
        self._target = target
        self._schema = schema
        self._planning: _Planning | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planning": None}

    @short_errors
    def initialOffset(self) -> dict[str, Any]:
        """The start of a stream without a checkpoint. It is the same at every call."""
        return self._planner.beginning().to_json()

    @short_errors
    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """The end of the next micro-batch.

        Args:
            start: its start. PySpark before 4.2 does not pass it, so it is also stored here.
            limit: of Spark; None before 4.2. Spark asks for everything (`ReadAllAvailable`) or passes `getDefaultReadLimit` back.
        """
        limited = type(limit).__name__ != "ReadAllAvailable"
        return self._planner.latest(None if start is None else Offset.from_json(start), limited).to_json()

    def getDefaultReadLimit(self) -> Any:
        """Tells Spark 4.2 that the options limit micro-batches. `latestOffset` applies them."""
        limits: Any = importlib.import_module("pyspark.sql.streaming.datasource")
        options = self._options
        if options.max_rows is not None:
            return limits.ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return limits.ReadMaxBytes(options.max_bytes)
        if options.max_files is not None:
            return limits.ReadMaxFiles(min(options.max_files, _MOST_FILES))
        # Spark has no limit of versions. It does not apply this one, and passes it back.
        return limits.ReadAllAvailable() if options.max_versions is None else limits.ReadMaxBytes(MOST)

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current newest version as the end of the query, which may take several micro-batches."""
        self._planner.end_at_newest()

    @short_errors
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The partitions between two offsets. After a restart, Spark passes the current offset twice."""
        return self._planner.between(Offset.from_json(start), Offset.from_json(end))

    @property
    def simple_reader(self) -> Any:  # type: ignore[override]
        """Spark 4.2 asks this one whether it supports `Trigger.AvailableNow`."""
        return self

    def getCache(self, start: object, end: object) -> Any:
        """The rows of the partitions that Spark has just asked for; None if a task reads them."""
        small = self._planner.small
        if small is None or not _takes_planned(self._schema):
            return None
        batches, size = list[pa.RecordBatch](), 0
        try:
            for batch in read_partition(small, self._options):
                size += batch.nbytes
                if size > PLANNED_ROW_BYTES:
                    return None
                batches.append(batch)
        except CdfdError:
            return None  # the task meets it again, and Spark retries the task
        # Spark ends the query unless it finds its own schema in that of the rows.
        same = batches and from_arrow_schema(batches[0].schema, prefer_timestamp_ntz=True) == self._schema
        return iter(batches) if same else None

    @short_errors
    def commit(self, end: Mapping[str, Any]) -> None:
        """Everything before `end` is delivered."""
        self._planner.commit(Offset.from_json(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._planning is not None:
            self._planning.close()
            self._planning = None

    @short_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; called in an executor."""
        assert isinstance(partition, ChangePartition)
        return read_partition(partition, self._options)

    @property
    def _planner(self) -> _Planning:
        if self._planning is None:
            self._planning = _Planning(self._options, self._target, self._schema)
        return self._planning


def _takes_planned(schema: StructType) -> bool:
    """Whether Spark takes planned rows of a schema. Its copy of arrays fails for nulls in them, and Arrow's schema has no comments."""
    structs = (field.dataType for field in schema if isinstance(field.dataType, StructType))
    plain = not any(field.metadata or isinstance(field.dataType, (ArrayType, MapType)) for field in schema)
    return plain and all(map(_takes_planned, structs))


# PySpark 4.2 has this. Before it, `Trigger.AvailableNow` reads the latest offset once, and ends there.
with contextlib.suppress(ImportError):
    importlib.import_module("pyspark.sql.streaming.datasource").SupportsTriggerAvailableNow.register(StreamReader)


class _Planning:
    """The state of the planning process: an event loop, and the offsets of the stream."""

    def __init__(self, options: SourceOptions, target: Target | None, schema: StructType) -> None:
        self._options = options
        self._table = open_table(options)
        self._runner = asyncio.Runner()
        if target is None:
            target = self._run(resolve_target(self._table, options, schema))
        self._target = target
        self._planner = StreamPlanner(self._table, options, target)
        self._key = target.key_paths if options.keep_key_names else ()
        self._first: Offset | None = None
        self._at: Offset | None = None
        self._latest: Offset | None = None
        self.small: ChangePartition | None = None
        """The only partition of the micro-batch that was planned last, if it is small."""

    def close(self) -> None:
        self._planner.close()
        self._runner.close()

    def beginning(self) -> Offset:
        if self._first is None:
            self._first = Offset.beginning(self._run(self._planner.beginning()), self._key)
        return self._first

    def end_at_newest(self) -> None:
        self._planner.last = self._run(self._table.log.latest_version())

    def latest(self, start: Offset | None, limited: bool) -> Offset:
        at = start or self._at or self.beginning()
        self._check_key(at)
        # The end of the next micro-batch is fixed until it is planned.
        if self._latest is None or start is not None or self._latest.position == at.position:
            position, backlog = self._run(self._planner.latest(at.position, limited=limited))
            # Spark compares offsets as text. Another backlog at the same position would be a micro-batch without rows.
            self._latest = at if position == at.position else at.at(position, backlog, self._key)
        return self._latest

    def between(self, start: Offset, end: Offset) -> list[ChangePartition]:
        if start.is_first:
            # The first micro-batch was not complete, so a later call may have returned a newer start.
            start = end.at(end.first)
        self._check_key(end)
        self._at, self._latest = end, None
        plan_ranges = self._run(self._planner.plan_ranges(start.position, end.position))
        listed = self._run(self._planner.listed(start.position, end.position))
        first = [] if listed is None else range_partitions(listed, self._table, self._target, self._options)
        execution = execution_of(self._table, self._options)
        groups = partition_splits(
            plan_ranges, execution, ordered=self._target.ordered, limit=self._options.partition_bytes
        )
        partitions = [*first, *(ChangePartition(splits, self._target) for splits in groups)]
        is_small = not first and len(groups) == 1 and sum(split.weight for split in groups[0]) <= PLANNED_BYTES
        self.small = partitions[0] if is_small else None
        return partitions

    def _check_key(self, offset: Offset) -> None:
        """Refuse to continue a query whose records have the key's columns by other names."""
        renamed = offset.renamed_key(self._key)
        if renamed is not None:
            raise SchemaChangedError(
                f"the key column {renamed[0]!r:.200} is {renamed[1]!r:.200} now, so all records would have other keys",
                table=self._table.uri,
                version=offset.position.version,
                hint="Give the table a new topic and a new checkpoint, or keep the name with `columns` and `as`",
            )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except TableChangedError as error:
            error.hint = _REPLACED_HINT  # the position is in Spark's checkpoint
            raise

    def commit(self, end: Offset) -> None:
        self._planner.delivered(end.position)
