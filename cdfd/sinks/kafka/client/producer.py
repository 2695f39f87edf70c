"""The port to a Kafka client: records of one table into topics, in transactions whose every part was acknowledged.

    init_transactions  begin  send send ...  commit
                       begin  send ...  abort
                       begin  ...

Two implementations: `KafkaPythonProducer` and `LibrdkafkaProducer`. One thread at a time uses a producer. All methods block, each for a
limited time.

A producer that raised is done for: what the broker has, and which sequence numbers it expects, is no longer known for certain. `abort` and
`close` it, make another one and ask the progress topic. `init_transactions` of the other one ends what this one left open.
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
    """What a producer is told.

    Attributes:
        connection: where the cluster is and how to talk to it; see `connection.arguments`.
        transactional_id: the one name under which at most one producer may write. None: no transactions (at least once).
        batching: compression and size of batches.
        in_flight: bytes that may be on their way before `send` waits.
        timeout: seconds that any call but `close` may take, and that a batch has to be acknowledged.
        closing_timeout: seconds for `abort` and for `close`.
        transaction_timeout: seconds after which the broker gives up an open transaction of ours: until then, one that was left behind hides
            newer records from readers. At most the broker's `transaction.max.timeout.ms`.
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

    All methods raise `FencedError` where another producer has taken over the transactional id, and else `SinkError`; `retriable` says
    whether another producer, made like this one, may fare better.
    """

    def init_transactions(self) -> None:
        """Fence producers of the same transactional id and wait until what they left open has ended. First of all, and once."""

    def begin(self) -> None:
        """Begin a transaction. Nothing is sent yet."""

    def send(self, topic: str, partitions: Partitions, records: Records, timestamp: int) -> Sequence[Oversized]:
        """Hand over records. Returns when they are on their way, and waits before that while too much is.

        Records for one partition arrive in the order in which they were sent.

        Args:
            topic: an existing one.
            partitions: of all records, or of each; ones that the topic has.
            records: in order. The arrays must not change afterwards.
            timestamp: of all records, milliseconds since 1970.

        Returns:
            Those that are too large for the topic. They were left out, the others were not.
        """

    def flush(self) -> None:
        """Return when all that was sent is acknowledged. Raises as soon as any part of it is known to have failed."""

    def commit(self) -> None:
        """Flush, then commit. Never commits where a part was not acknowledged. When it raises, the outcome may be unknown."""

    def abort(self) -> None:
        """Drop what was sent since `begin`. Does not raise: where the broker cannot be told, the next producer's `init_transactions` does it.

        Without transactions nothing can be dropped: it waits until all that is on its way has arrived or failed.
        """

    def close(self) -> None:
        """Abort what is open and let go of connections and threads. Does not raise; may be repeated."""


def send_record(
    producer: Producer,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes], ...] = (),
) -> None:
    """Hand over one record, with the time of now.

    Raises:
        SinkError: as `Producer.send`, or the record is too large.
    """
    records = Records(pa.array([key], pa.large_binary()), pa.array([value], pa.large_binary()), headers)
    for oversized in producer.send(topic, partition, records, time.time_ns() // 1_000_000):
        raise SinkError(
            f"a record of {oversized.size} bytes is too large for topic {topic}", hint="Raise its max.message.bytes"
        )
