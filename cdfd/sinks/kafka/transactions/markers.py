"""Records for side topics: BEGIN and END of each version, and the table's schema."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from cdfd.encode.records import Records
from cdfd.encode.side import EVENTS, RowCounts, begin_record, end_record, schema_record
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.progress.records import Progress

SideRecord = tuple[str, Records]
"""A record, and its topic."""


class Markers:
    """Creates the side records of one delivery.

    Args:
        destination: of the table.
        position: the start of the delivery.
        progress: the last progress record; None if nothing is delivered.
    """

    def __init__(self, destination: Destination, position: Position, progress: Progress | None) -> None:
        self._schema_topic = destination.schema_topic
        self._transactions_topic = destination.transactions_topic
        self._origin = destination.origin(position.table_id)
        self._position = position
        self._announced = progress is not None and progress.announced
        self._job: Mapping[str, str | int] = {} if progress is None else progress.job
        self._backfill: Mapping[str, str | int] = {} if progress is None else progress.backfill
        self._counts_before: Mapping[str, int] = {} if progress is None else progress.counts
        self._control = EMPTY if progress is None else progress.control
        self._event_key = destination.event_key
        self._counts = RowCounts(self._event_key)
        self._version: Version | None = None

    @property
    def counting(self) -> bool:
        """Whether the rows of each version are counted: for its END record, or for that of the job of a part."""
        return self._transactions_topic is not None or self._event_key is not None

    @property
    def events(self) -> int | None:
        """Events of the rows so far; None if rows are counted instead."""
        return self._counts.events

    def start(self, version: Version) -> Iterator[SideRecord]:
        """The side records for the start of a version or of its next part, after those for the end of the previous version."""
        plan = version.plan
        if self._version is not None and self._version.plan.version == plan.version:
            return
        yield from self._end()
        continued = bool(self._position.part) and self._position.version == plan.version
        if not continued:
            self._counts_before = {}
        self._version, self._counts = version, RowCounts(self._event_key)
        if self._schema_topic is not None and (not self._announced or (version.schema_change and not continued)):
            change = version.schema_change if self._announced else None
            yield self._schema_topic, schema_record(self._origin, plan, change)
            self._announced = True
        if self._transactions_topic is not None and not continued:
            yield self._transactions_topic, begin_record(self._origin, plan)

    def resume(self, version: Version, counts: Mapping[str, int]) -> None:
        """Continue a version that an earlier delivery started. `counts` are its rows from other producers, by change type."""
        self._version, self._counts, self._counts_before = version, RowCounts(self._event_key), counts

    def count(self, batch: pa.RecordBatch) -> None:
        """Count rows of the version. `DataError` if they are not change rows."""
        self._counts.add(batch)

    def finish(self, following: Position) -> Iterator[SideRecord]:
        """The side records for the end of the delivery."""
        if self._version is not None and following.version > self._version.plan.version:
            yield from self._end()

    def progress(
        self, following: Position, job: Mapping[str, str | int] | None = None, counts: Mapping[str, int] | None = None
    ) -> Progress:
        """The progress record after the delivery.

        Args:
            following: the position.
            job: a new job; None: the current job, which ends once the position advances.
            counts: the rows of a part; None if this is not a part.
        """
        if job is None:
            job = self._job if following == self._position else {}
        if counts is None:
            counts = self._total() if following.part else {}
        return Progress(
            following,
            {name: count for name, count in counts.items() if count},
            self._announced,
            job,
            self._backfill,
            self._control,
        )

    def announce(self, version: Version) -> Iterator[SideRecord]:
        """The record of the schema before the first rows, if those are of an incremental snapshot. BEGIN and END are not repeated then."""
        if self._schema_topic is not None and not self._announced:
            yield self._schema_topic, schema_record(self._origin, version.plan, None)
            self._announced = True

    def controlled(self, known: Progress | None, control: Control, to: Position | None) -> Progress:
        """The progress record after a delivery that keeps the position, or moves it to `to`.

        Args:
            known: the last progress record.
            control: the new control.
            to: another position; None: it stays.
        """
        if known is None or to is not None:
            return Progress(to or self._position, {}, self._announced, {}, self._backfill, control)
        return replace(known, announced=self._announced, control=control)

    def _end(self) -> Iterator[SideRecord]:
        if self._version is None:
            return
        plan = self._version.plan
        if self._transactions_topic is not None:
            yield self._transactions_topic, end_record(self._origin, plan, self._total())
        self._version, self._counts_before = None, {}

    def _total(self) -> dict[str, int]:
        """Rows of the version so far, including those of earlier deliveries; and events, if records are events."""
        before = {name: count for name, count in self._counts_before.items() if name != EVENTS}
        total = Counter(self._counts.by_type())
        total.update(before)
        events = self._counts.events
        if events is None:
            return dict(total)
        # Parts that an earlier release has delivered count rows alone.
        return {**total, EVENTS: events + self._counts_before.get(EVENTS, sum(before.values()))}
