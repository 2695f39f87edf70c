"""What side topics are told of versions: where each begins and ends, and the table's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pyarrow as pa

from cdfd.changes.position import Position
from cdfd.changes.stream import Version
from cdfd.encoding.side import RowCounts, begin_record, end_record, schema_record
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.transactions.gathering import Note


class Markers:
    """The notes of one delivery.

    Args:
        destination: of the table.
        position: where the delivery begins.
        progress: of what is delivered; None where nothing is.
    """

    def __init__(self, destination: Destination, position: Position, progress: Progress | None) -> None:
        self._schema_topic = destination.schema_topic
        self._transactions_topic = destination.transactions_topic
        self._origin = destination.origin(position.table_id)
        self._position = position
        self._announced = progress is not None and progress.announced
        self._job: Mapping[str, str | int] = {} if progress is None else progress.job
        self._whole: Mapping[str, str | int] = {} if progress is None else progress.whole
        self._earlier: Mapping[str, int] = {} if progress is None else progress.counts
        self._counts = RowCounts()
        self._version: Version | None = None

    def start(self, version: Version) -> Iterator[Note]:
        """Notes where a version, or a part of it, begins; and of the end of the one before."""
        plan = version.plan
        if self._version is not None and self._version.plan.version == plan.version:
            return
        yield from self._end()
        continued = bool(self._position.part) and self._position.version == plan.version
        if not continued:
            self._earlier = {}
        self._version, self._counts = version, RowCounts()
        if self._schema_topic is not None and (not self._announced or (version.schema_change and not continued)):
            change = version.schema_change if self._announced else None
            yield Note(self._schema_topic, schema_record(self._origin, plan, change))
            self._announced = True
        if self._transactions_topic is not None and not continued:
            yield Note(self._transactions_topic, begin_record(self._origin, plan))

    def resume(self, version: Version, counts: Mapping[str, int]) -> None:
        """A version that an earlier delivery began, and of which others have sent rows: `counts`, by change type."""
        self._version, self._counts, self._earlier = version, RowCounts(), counts

    def count(self, batch: pa.RecordBatch) -> None:
        """Rows of the version. `DataError` where they are no change rows."""
        if self._transactions_topic is not None:
            self._counts.add(batch)

    def finish(self, following: Position) -> Iterator[Note]:
        """Notes where the delivery ends."""
        if self._version is not None and following.version > self._version.plan.version:
            yield from self._end()

    def progress(
        self, following: Position, job: Mapping[str, str | int] | None = None, counts: Mapping[str, int] | None = None
    ) -> Progress:
        """What is to be remembered with the position after the delivery.

        Args:
            following: the position.
            job: another one than before; None for the same, which ends where the position moves on.
            counts: rows of a part; None where it is none.
        """
        if job is None:
            job = self._job if following == self._position else {}
        if counts is None:
            counts = self._total() if following.part else {}
        return Progress(
            following, {name: count for name, count in counts.items() if count}, self._announced, job, self._whole
        )

    def _end(self) -> Iterator[Note]:
        if self._version is None:
            return
        plan = self._version.plan
        if self._transactions_topic is not None:
            yield Note(self._transactions_topic, end_record(self._origin, plan, self._total()))
        self._version, self._earlier = None, {}

    def _total(self) -> dict[str, int]:
        """Rows of the version so far, with those of earlier deliveries."""
        total = Counter(self._counts.by_type())
        total.update(self._earlier)
        return dict(total)
