"""The port to a Kafka client: sends records of one table to topics, in transactions that commit only if every part is acknowledged.

    init_transactions  begin  send send ...  commit
                       begin  send ...  abort
                       begin  ...

Two implementations: `KafkaPythonProducer` and `LibrdkafkaProducer`. One thread at a time uses a producer. All methods block, each for a
limited time.

After an error a producer is unusable, because the broker's records and expected sequence numbers are unknown. `abort` and `close` it, create
another one and read the progress topic. Its `init_transactions` ends the open transaction of the first one.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa

from cdfd.encode.records import Records
from cdfd.errors import FencedError, SinkError
from cdfd.runtime.arrays import array_of
from cdfd.sinks.base import ReopenSinkError
from cdfd.sinks.kafka.records.batches import Batching, Oversized, Partitions

_NO_ID = UUID(int=0)

log = logging.getLogger("cdfd.kafka")


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of a producer.

    Attributes:
        connection: the cluster and the access to it; see `connection.arguments`.
        transactional_id: identifies the producer; a new producer with the same id fences it. None: no transactions (at least once).
        batching: compression and size of batches.
        in_flight: most bytes in flight before `send` waits.
        timeout: longest duration of any call except `close`, and of the acknowledgement of a batch, in seconds.
        closing_timeout: seconds for `abort` and for `close`.
        transaction_timeout: seconds after which the broker aborts an open transaction. Until then, the transaction of a crashed producer
            hides newer records from readers. At most the broker's `transaction.max.timeout.ms`.
    """

    connection: Mapping[str, Any] = field(repr=False)
    transactional_id: str | None
    batching: Batching = field(default_factory=Batching)
    in_flight: int = 32 << 20
    timeout: float = 30.0
    closing_timeout: float = 4.0
    transaction_timeout: float = 120.0


class Producer(ABC):
    """Writes records to Kafka. A subclass has the calls of a client.

    All methods raise `FencedError` if another producer has taken over the transactional id, and otherwise `SinkError`. `retriable` tells
    whether a new producer with the same settings may succeed.

    Attributes:
        errors: the exceptions of the client; they are translated into `SinkError`.

    Args:
        settings: the settings of the producer.
    """

    errors: tuple[type[Exception], ...]
    _client: Any

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._failure: SinkError | None = None
        self._in_transaction = False
        self._closed = False

    def init_transactions(self) -> None:
        """Fence producers with the same transactional id and wait until their transactions have ended. Call it first, and once."""
        with self._attempt(f"start transactions of {self._settings.transactional_id}"):
            if self._transactional:
                self._init_transactions()

    def prepare(self, topics: Sequence[str]) -> None:
        """Read what the start and the first sends need, if the client can, so that they are quick. Call it again to follow changes.

        Args:
            topics: existing ones.
        """
        with self._attempt("prepare to deliver"):
            self._prepare(topics)

    def begin(self) -> None:
        """Begin a transaction. Sends nothing yet."""
        with self._attempt("begin a transaction"):
            if self._transactional:
                self._client.begin_transaction()
            self._in_transaction = True

    def send(
        self, topic: str, partitions: Partitions, records: Records, timestamp: int, *, more: bool = False
    ) -> Sequence[Oversized]:
        """Send records. Waits while too many bytes are in flight, and returns once these are in flight.

        Records for one partition arrive in the order in which they were sent.

        Args:
            topic: an existing one.
            partitions: existing partitions, one for all records or one for each.
            records: in order. Do not change their arrays afterwards.
            timestamp: of all records, in milliseconds since 1970.
            more: whether further records or `commit` follow at once. These records may then wait for them, to go into the same requests.

        Returns:
            The records that are too large for the topic, which were not sent.
        """
        with self._attempt(f"deliver to topic {topic}"):
            return self._send(topic, partitions, records, timestamp, more=more)

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic, up to a minute old; None if the client does not know it. A topic that is created again has another one."""
        return None

    def flush(self) -> None:
        """Wait until all sent records are acknowledged. Raises as soon as any of them has failed."""
        with self._attempt("flush"):
            self._flush()

    def commit(self) -> None:
        """Flush, then commit. Never commits unless every part is acknowledged. If it raises, the outcome may be unknown."""
        with self._attempt("commit a transaction"):
            if self._transactional:
                self._commit()
            else:
                self._flush()
            self._in_transaction = False

    def abort(self) -> None:
        """Abort the transaction. Does not raise: if the broker is unreachable, the next producer's `init_transactions` aborts it.

        Without transactions, sent records cannot be aborted: it waits until all of them are acknowledged or failed.
        """
        if not self._in_transaction:
            return
        self._in_transaction = False
        try:
            self._abort(self._settings.closing_timeout)
        except self.errors as error:
            failure = self._as_sink_error(error, "abort a transaction")
            self._failure = self._failure or failure
            log.warning("%s. The next producer's start ends it, or the broker does after its timeout", failure.what)
        self._forget_failures()

    def close(self) -> None:
        """Abort the open transaction, and release connections and threads. Does not raise. Further calls do nothing."""
        if self._closed:
            return
        self.abort()
        self._closed = True
        self._failure = self._failure or SinkError("the producer is closed")
        self._disconnect(self._settings.closing_timeout)

    @property
    def _transactional(self) -> bool:
        return self._settings.transactional_id is not None

    @property
    def _is_forgotten(self) -> bool:
        """Whether the cluster takes no more requests of this producer. It has ended its transaction."""
        return isinstance(self._failure, FencedError | ReopenSinkError)

    @contextmanager
    def _attempt(self, doing: str) -> Iterator[None]:
        """Translate errors. After the first error, every call raises that error."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except SinkError as error:
            self._failure = error
            raise
        except self.errors as error:
            raise self._fail(error, doing) from error

    def _fail(self, error: Exception, doing: str) -> SinkError:
        self._failure = self._failure or self._as_sink_error(error, doing)
        return self._failure

    def _prepare(self, topics: Sequence[str]) -> None:
        return

    @abstractmethod
    def _init_transactions(self) -> None: ...

    @abstractmethod
    def _send(
        self, topic: str, partitions: Partitions, records: Records, timestamp: int, *, more: bool
    ) -> Sequence[Oversized]: ...

    @abstractmethod
    def _flush(self) -> None:
        """Wait until all records are acknowledged. Raise the error of any that failed."""

    @abstractmethod
    def _commit(self) -> None:
        """Flush, and commit once all records are acknowledged. Raise the error of any that failed, without a commit."""

    @abstractmethod
    def _abort(self, timeout: float) -> None:
        """Abort the transaction, unless the producer is forgotten. Without transactions, wait for all records."""

    @abstractmethod
    def _forget_failures(self) -> None:
        """Forget the errors of records that were aborted."""

    @abstractmethod
    def _disconnect(self, timeout: float) -> None:
        """Release connections and threads."""

    @abstractmethod
    def _as_sink_error(self, error: Exception, doing: str) -> SinkError:
        """A client's exception as an error of ours."""


def known_id(id: UUID | str | None) -> str | None:
    """The id of a topic in metadata, as text. Brokers before 2.8 have none, and a topic that is not there has 0."""
    return None if not id or UUID(str(id)) == _NO_ID else str(id)


def send_record(
    producer: Producer,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    *,
    more: bool = False,
    limited_by: str | None = None,
) -> None:
    """Send one record with the current time.

    Args:
        producer: sends it.
        topic, partition: where it goes.
        key, value: of the record.
        more: as for `Producer.send`.
        limited_by: the topic whose limit the producer has for all topics; None: `topic`.

    Raises:
        SinkError: as `Producer.send`, or the record is too large.
    """
    records = Records(array_of([key], pa.large_binary()), array_of([value], pa.large_binary()))
    for oversized in producer.send(topic, partition, records, time.time_ns() // 1_000_000, more=more):
        raise oversized_error(oversized.size, topic, limited_by or topic)


def oversized_error(size: int, topic: str, limited_by: str) -> SinkError:
    """The error of a record of so many bytes for a topic, by the limit of that topic or of another one."""
    if topic == limited_by:
        return SinkError(f"a record of {size} bytes is too large for topic {topic}", hint="Raise its max.message.bytes")
    return SinkError(
        f"a record of {size} bytes for topic {topic} is too large: the limit of topic {limited_by} holds for it too",
        hint=f"Raise max.message.bytes of topic {limited_by}. The limit of topic {topic} must be as high",
    )
