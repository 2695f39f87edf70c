"""The port to a Kafka client: sends records of one table to topics, in transactions that commit only if every part is acknowledged.

    init_transactions  begin  send send ...  commit
                       begin  send ...  abort
                       begin  ...

Two implementations: `KafkaPythonProducer` and `LibrdkafkaProducer`. One thread at a time uses a producer. All methods block, each for a
limited time.

After an error a producer is unusable, because the broker's records and expected sequence numbers are unknown. `abort` and `close` it, create
another one and read the progress topic. Its `init_transactions` ends the open transaction of the first one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from cdfd.encoding.records import Records
from cdfd.errors import SinkError
from cdfd.sinks.kafka.records.batches import Batching, Oversized, Partitions


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


class Producer(Protocol):
    """Writes records to Kafka.

    All methods raise `FencedError` if another producer has taken over the transactional id, and otherwise `SinkError`. `retriable` tells
    whether a new producer with the same settings may succeed.
    """

    def init_transactions(self) -> None:
        """Fence producers with the same transactional id and wait until their transactions have ended. Call it first, and once."""

    def begin(self) -> None:
        """Begin a transaction. Sends nothing yet."""

    def send(self, topic: str, partitions: Partitions, records: Records, timestamp: int) -> Sequence[Oversized]:
        """Send records. Waits while too many bytes are in flight, and returns once these are in flight.

        Records for one partition arrive in the order in which they were sent.

        Args:
            topic: an existing one.
            partitions: existing partitions, one for all records or one for each.
            records: in order. Do not change their arrays afterwards.
            timestamp: of all records, in milliseconds since 1970.

        Returns:
            The records that are too large for the topic, which were not sent.
        """

    def flush(self) -> None:
        """Wait until all sent records are acknowledged. Raises as soon as any of them has failed."""

    def commit(self) -> None:
        """Flush, then commit. Never commits unless every part is acknowledged. If it raises, the outcome may be unknown."""

    def abort(self) -> None:
        """Abort the transaction. Does not raise: if the broker is unreachable, the next producer's `init_transactions` aborts it.

        Without transactions, sent records cannot be aborted: it waits until all of them are acknowledged or failed.
        """

    def close(self) -> None:
        """Abort the open transaction, and release connections and threads. Does not raise. Further calls do nothing."""


def send_record(
    producer: Producer,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes], ...] = (),
) -> None:
    """Send one record with the current time.

    Raises:
        SinkError: as `Producer.send`, or the record is too large.
    """
    records = Records(pa.array([key], pa.large_binary()), pa.array([value], pa.large_binary()), headers)
    for oversized in producer.send(topic, partition, records, time.time_ns() // 1_000_000):
        raise SinkError(
            f"a record of {oversized.size} bytes is too large for topic {topic}", hint="Raise its max.message.bytes"
        )
