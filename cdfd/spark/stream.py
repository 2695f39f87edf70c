"""The streaming half of `format("cdfd")`: offsets, and what is between two of them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from cdfd.errors import ConfigError
from cdfd.spark.offsets import Offset
from cdfd.spark.options import SourceOptions
from cdfd.spark.portions import portions
from cdfd.spark.reading import Portion, execution_of, opened, read_portion
from cdfd.spark.stream_plan import StreamPlanner
from cdfd.spark.target import Target, settled


class StreamReader(DataSourceStreamReader):
    """Reads versions as they come. Spark has it plan in one process, and read in others, which get a copy.

    Args:
        options: what the user asks for.
        target: the columns, where they are settled; None where the user gives a schema.
        schema: Spark's.
    """

    def __init__(self, options: SourceOptions, target: Target | None, schema: StructType) -> None:
        if options.end is not None:
            raise ConfigError(
                "a stream has no end", hint="Leave endingVersion and endingTimestamp out, or use spark.read"
            )
        self._options = options
        self._target = target
        self._schema = schema
        self._planning: _Planning | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planning": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a stream without a checkpoint begins; it says the same each time."""
        return self._planner.beginning().to_json()

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """Where the next micro-batch ends.

        Args:
            start: where it begins; PySpark before 4.2 does not say, and it is known here.
            limit: of no use: limits are options.
        """
        return self._planner.latest(None if start is None else Offset.from_json(start)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """The newest version of now is where the query ends, in as many micro-batches as it takes."""
        self._planner.end_at_newest()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """What is between two offsets. With twice the same one, Spark tells after a restart where the stream is."""
        return self._planner.between(Offset.from_json(start), Offset.from_json(end))

    def commit(self, end: Mapping[str, Any]) -> None:
        """What is before `end` is delivered."""
        self._planner.commit(Offset.from_json(end))

    def stop(self) -> None:
        """The query is at its end."""
        if self._planning is not None:
            self._planning.close()
            self._planning = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition, by an executor."""
        assert isinstance(partition, Portion)
        return read_portion(partition, self._options)

    @property
    def _planner(self) -> _Planning:
        if self._planning is None:
            self._planning = _Planning(self._options, self._target, self._schema)
        return self._planning


# Of PySpark 4.2. Before that, `Trigger.AvailableNow` asks once for the latest offset, and there it ends.
with contextlib.suppress(ImportError):
    importlib.import_module("pyspark.sql.streaming.datasource").SupportsTriggerAvailableNow.register(StreamReader)


class _Planning:
    """The planning process's side: a loop, and where the stream is."""

    def __init__(self, options: SourceOptions, target: Target | None, schema: StructType) -> None:
        self._options = options
        self._table = opened(options)
        self._runner = asyncio.Runner()
        if target is None:
            target = self._runner.run(settled(self._table, options, schema))
        self._target = target
        self._planner = StreamPlanner(self._table, options, target)
        self._first: Offset | None = None
        self._at: Offset | None = None
        self._latest: Offset | None = None

    def close(self) -> None:
        self._planner.close()
        self._runner.close()

    def beginning(self) -> Offset:
        if self._first is None:
            self._first = Offset.beginning(self._runner.run(self._planner.beginning()))
        return self._first

    def end_at_newest(self) -> None:
        self._planner.last = self._runner.run(self._table.log.latest_version())

    def latest(self, start: Offset | None) -> Offset:
        at = start or self._at or self.beginning()
        # Until it is planned, what was said of the next micro-batch holds.
        if self._latest is None or start is not None or self._latest.position == at.position:
            self._latest = at.at(self._runner.run(self._planner.latest(at.position)))
        return self._latest

    def between(self, start: Offset, end: Offset) -> list[InputPartition]:
        if start.is_first:
            # Asked again where to begin, before the first micro-batch was complete, it may have said something newer.
            start = end.at(end.first)
        self._at, self._latest = end, None
        stretches = self._runner.run(self._planner.stretches(start.position, end.position))
        execution = execution_of(self._table, self._options)
        found = portions(stretches, execution, ordered=self._target.ordered, limit=self._options.partition_bytes)
        return [Portion(slices, self._target) for slices in found]

    def commit(self, end: Offset) -> None:
        self._planner.delivered(end.position)
