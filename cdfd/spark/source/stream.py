"""The streaming reader of `format("cdfd")`: offsets, and the partitions between two offsets."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructType

from cdfd.errors import CdfdError, ConfigError, SchemaChangedError, TableChangedError
from cdfd.spark.engine.target import Target, resolve_target
from cdfd.spark.records.records import types_in
from cdfd.spark.source.offsets import Offset
from cdfd.spark.source.options import MOST, SourceOptions
from cdfd.spark.source.partitioning import partition_splits, range_partitions
from cdfd.spark.source.reading import ChangePartition, execution_of, open_table, read_partition, read_small
from cdfd.spark.source.short_errors import ShortErrors
from cdfd.spark.source.stream_plan import StreamPlanner

try:
    # PySpark wraps simple readers, whose rows come with the plan. It has no public class for readers of which some micro-batches do.
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as PlannedRowsReader
except ImportError:
    from pyspark.sql.datasource import DataSourceStreamReader as PlannedRowsReader  # type: ignore[assignment]

T = TypeVar("T")

PLANNED_BYTES = 2 << 20
"""Weight of a micro-batch whose rows come with the plan, at most: it is read in less time than an executor needs to call Python."""
_MOST_FILES = 2**31 - 1

_REPLACED_HINT = (
    "Start a query with another checkpoint. After a CREATE OR REPLACE TABLE, the option `onReplace` = `continue` reads on instead: "
    "the old rows are deletes, the new ones inserts"
)


class StreamReader(PlannedRowsReader):
    """Reads versions as they appear. Spark plans in one process, and reads in others with a copy of this object.

    The rows of a small micro-batch come with its plan, and no executor calls Python: with one row, it takes 0.1 s instead of 0.2. Only the
    process that plans has a planner with its event loop, and the offsets of the stream. `target` is None if the user gives a schema.
    """

    _planner: StreamPlanner | None = None
    _runner: asyncio.Runner | None = None
    _key: tuple[str, ...] = ()
    _first: Offset | None = None
    _at: Offset | None = None
    _latest: Offset | None = None
    _small: ChangePartition | None = None
    """The only partition of the micro-batch that was planned last, if it is small."""

    @ShortErrors()
    def __init__(self, options: SourceOptions, target: Target | None, schema: StructType) -> None:
        if options.end is not None:
            raise ConfigError("a stream has no end", hint="Omit endingVersion and endingTimestamp, or use spark.read")
        self._options = options
        self._target = target
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_target": self._target, "_schema": self._schema}

    @ShortErrors()
    def initialOffset(self) -> dict[str, Any]:
        """The start of a stream without a checkpoint. It is the same at every call."""
        return self._beginning().to_json()

    @ShortErrors()
    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """The end of the next micro-batch.

        Args:
            start: its start. PySpark before 4.2 does not pass it, so it is also stored here.
            limit: of Spark; None before 4.2. Spark asks for everything (`ReadAllAvailable`) or passes `getDefaultReadLimit` back.
        """
        planner = self._planning
        at = (None if start is None else Offset.from_json(start)) or self._at or self._beginning()
        self._check_key(at)
        # The end of the next micro-batch is fixed until it is planned.
        if self._latest is None or start is not None or self._latest.position == at.position:
            limited = type(limit).__name__ != "ReadAllAvailable"
            position, backlog = self._run(planner.latest(at.position, limited=limited))
            # Spark compares offsets as text. Another backlog at the same position would be a micro-batch without rows.
            further = replace(at, position=position, backlog=backlog, key=self._key)
            self._latest = at if position == at.position else further
        return self._latest.to_json()

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

    @ShortErrors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current newest version as the end of the query, which may take several micro-batches."""
        self._planning.last = self._run(self._planning.table.log.latest_version())

    @ShortErrors()
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The partitions between two offsets. After a restart, Spark passes the current offset twice."""
        planner, begin, stop = self._planning, Offset.from_json(start), Offset.from_json(end)
        # If the first micro-batch was not complete, a later call may have returned a newer start.
        first = stop.first if begin.position == begin.first else begin.position
        self._check_key(stop)
        self._at, self._latest = stop, None
        plan_ranges = self._run(planner.plan_ranges(first, stop.position))
        listed = self._run(planner.listed(first, stop.position))
        large = [] if listed is None else range_partitions(listed, planner.table, planner.target, self._options)
        groups = partition_splits(
            plan_ranges,
            execution_of(planner.table, self._options),
            ordered=planner.target.ordered,
            limit=self._options.partition_bytes,
        )
        partitions = [*large, *(ChangePartition(splits, planner.target) for splits in groups)]
        is_small = not large and len(groups) == 1 and sum(split.weight for split in groups[0]) <= PLANNED_BYTES
        self._small = partitions[0] if is_small else None
        return partitions

    @property
    def simple_reader(self) -> Any:  # type: ignore[override]
        """Spark 4.2 asks this one whether it supports `Trigger.AvailableNow`."""
        return self

    def getCache(self, start: object, end: object) -> Any:
        """The rows of the partitions that Spark has just asked for; None if a task reads them."""
        if self._small is None:
            return None
        # Spark's copy of arrays fails for nulls in them, and Arrow's schema has no comments.
        types = list(types_in(self._schema))
        comments = (field.metadata for each in types if isinstance(each, StructType) for field in each)
        if any(isinstance(each, (ArrayType, MapType)) for each in types) or any(comments):
            return None
        try:
            batches = read_small(self._small, self._options)
        except CdfdError:
            return None  # the task meets it again, and Spark retries the task
        # Spark ends the query unless it finds its own schema in that of the rows.
        if batches and from_arrow_schema(batches[0].schema, prefer_timestamp_ntz=True) == self._schema:
            return iter(batches)
        return None

    @ShortErrors()
    def commit(self, end: Mapping[str, Any]) -> None:
        """Everything before `end` is delivered."""
        self._planning.delivered(Offset.from_json(end).position)

    def stop(self) -> None:
        """The query has ended."""
        if self._planner is not None:
            self._planner.close()
        if self._runner is not None:
            self._runner.close()
        self._planner = self._runner = self._first = self._at = self._latest = self._small = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; called in an executor."""
        assert isinstance(partition, ChangePartition)
        with ShortErrors():
            yield from read_partition(partition, self._options)

    @property
    def _planning(self) -> StreamPlanner:
        if self._planner is None:
            table, target = open_table(self._options), self._target
            if target is None:
                target = self._run(resolve_target(table, self._options, self._schema))
            self._key = target.key_paths if self._options.keep_key_names else ()
            self._planner = StreamPlanner(table, self._options, target)
        return self._planner

    def _beginning(self) -> Offset:
        if self._first is None:
            position = self._run(self._planning.beginning())
            self._first = Offset(position, position.version, position.phase, self._key)
        return self._first

    def _check_key(self, offset: Offset) -> None:
        """Refuse to continue a query whose records have the key's columns by other names."""
        renamed = offset.renamed_key(self._key)
        if renamed is not None:
            raise SchemaChangedError(
                f"the key column {renamed[0]!r:.200} is {renamed[1]!r:.200} now, so all records would have other keys",
                table=self._planning.table.uri,
                version=offset.position.version,
                hint="Give the table a new topic and a new checkpoint, or keep the name with `columns` and `as`",
            )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(work)
        except TableChangedError as error:
            error.hint = _REPLACED_HINT  # the position is in Spark's checkpoint
            raise


# PySpark 4.2 has this. Before it, `Trigger.AvailableNow` reads the latest offset once, and ends there.
with contextlib.suppress(ImportError):
    importlib.import_module("pyspark.sql.streaming.datasource").SupportsTriggerAvailableNow.register(StreamReader)
