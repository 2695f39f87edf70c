"""A producer without a broker, for tests of what is sent, and in which transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cdfd.encode.formats import FormatChoice
from cdfd.encode.records import Records
from cdfd.errors import SinkError
from cdfd.sinks.base import StageTimer, unmeasured
from cdfd.sinks.cursor import Cursor
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings
from cdfd.sinks.kafka.client.worker import Worker
from cdfd.sinks.kafka.destination import Destination, TopicFacts
from cdfd.sinks.kafka.progress.records import Progress, progress_of
from cdfd.sinks.kafka.records.batches import Batching, Oversized, Partitions, each
from cdfd.sinks.kafka.transactions.delivery import DeliveryContext
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from cdfd.sinks.kafka.transactions.writer import RecordWriter
from tests.support.kafka.encoders import encoders

LIMIT = 1000
"""Bytes of the largest value that a topic takes."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One call of `send`.

    Attributes:
        topic: of the records.
        partitions: one for each record.
        keys, values: of the records.
        timestamp: of all records.
        more: whether the caller announced further records.
    """

    topic: str
    partitions: tuple[int, ...]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamp: int
    more: bool


class RecordingProducer(Producer):
    """Keeps the records of each transaction that it commits.

    Attributes:
        calls: names of the calls that a broker would see, in order.
        committed: of all transactions, one after the other.
        failing: names of calls that fail.
        before_send, after_send, after_close: called at these times, in the thread that sends.
    """

    errors = (ConnectionError,)

    def __init__(self, settings: ProducerSettings) -> None:
        super().__init__(settings)
        self.calls: list[str] = []
        self.committed: list[list[Sent]] = []
        self.failing: set[str] = set()
        self.before_send: Callable[[], object] = lambda: None
        self.after_send: Callable[[], object] = lambda: None
        self.after_close: Callable[[], object] = lambda: None
        self._open: list[Sent] = []
        self._client = self

    def begin_transaction(self) -> None:
        self._call("begin")

    def _init_transactions(self) -> None:
        self._call("init")

    def _send(
        self, topic: str, partitions: Partitions, records: Records, timestamp: int, *, more: bool
    ) -> Sequence[Oversized]:
        self.before_send()
        self._call("send")
        keys, values = records.whole_keys, records.whole_values
        sizes = [len(value or b"") for value in values]
        kept = [number for number, size in enumerate(sizes) if size <= LIMIT]
        places = [place for place, _ in zip(each(partitions), values, strict=False)]
        chosen = tuple(places[number] for number in kept)
        self._open.append(Sent(topic, chosen, [keys[n] for n in kept], [values[n] for n in kept], timestamp, more))
        self.after_send()
        return [Oversized(number, size) for number, size in enumerate(sizes) if size > LIMIT]

    def _flush(self) -> None:
        self._call("flush")
        self._keep()

    def _commit(self) -> None:
        self._call("commit")
        self._keep()

    def _abort(self, timeout: float) -> None:
        self.calls.append("abort")
        self._open = []

    def _forget_failures(self) -> None:
        pass

    def _disconnect(self, timeout: float) -> None:
        self.calls.append("close")
        self.after_close()

    def _as_sink_error(self, error: Exception, doing: str) -> SinkError:
        return SinkError(f"cannot {doing}")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise ConnectionError(name)

    def _keep(self) -> None:
        self.committed.append(self._open)
        self._open = []

    def values(self, topic: str) -> list[bytes | None]:
        """Of all committed records of a topic."""
        return [value for sent in self.sent(topic) for value in sent.values]

    def sent(self, topic: str) -> list[Sent]:
        """The calls that sent the committed records of a topic."""
        return [sent for transaction in self.committed for sent in transaction if sent.topic == topic]


@dataclass
class Recorded:
    """A sink of a destination, whose producer records.

    Args:
        destination: of the sink.
        progress: that the sink starts with.
        kind: format of the records.
        partitions: of the topic.
        key: the column of the records' keys.
        chunk_bytes: size of a full chunk.
        closing_timeout: seconds to wait for the end of an aborted delivery.
        stage: receives durations.
    """

    destination: Destination
    progress: Progress | None = None
    kind: str | FormatChoice = "flat"
    partitions: int = 1
    key: str = "id"
    chunk_bytes: int = 1 << 20
    closing_timeout: float = 30.0
    stage: StageTimer = unmeasured
    producer: RecordingProducer = field(init=False)
    sink: KafkaSink = field(init=False)

    def __post_init__(self) -> None:
        destination = self.destination
        self.producer = RecordingProducer(destination.producer_settings(Batching()))
        facts = TopicFacts(self.partitions, False, LIMIT)
        self._encoder, self._sender = Worker("encode", 0.1), Worker("send", 0.1)
        announced = destination.transactions_topic is not None
        make = encoders(self.kind, [self.key] if destination.keyed else [], transactions=announced)
        context = DeliveryContext(
            destination,
            RecordWriter(make, self.producer, destination, facts, self.stage),
            self._encoder,
            self._sender,
            Cursor(None if self.progress is None else self.progress.position),
            self.progress,
            self.chunk_bytes,
            self.closing_timeout,
        )
        self.sink = KafkaSink(context)

    def wait_for_threads(self) -> None:
        """Return when both threads have done what was submitted."""
        self._encoder.submit(lambda: None).result(30)
        self._sender.submit(lambda: None).result(30)

    @property
    def stored(self) -> list[Progress]:
        """All progress records that were committed."""
        return [progress_of(value) for value in self.producer.values(self.destination.progress.name) if value]
