"""Records of the daemon itself, such as heartbeats: written apart from all deliveries, without transactions."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from cdfd.encode.records import Records
from cdfd.errors import SinkError
from cdfd.runtime.arrays import array_of
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings
from cdfd.sinks.kafka.client.worker import Worker, in_worker
from cdfd.sinks.kafka.destination import MakeProducer
from cdfd.sinks.kafka.progress.topic_admin import TopicAdmin
from cdfd.sinks.kafka.progress.topics import Topic
from cdfd.sinks.kafka.records.batches import Batching, Compression

CLOSING_SECONDS = 1.0


class Announcer:
    """Writes records to one topic. Connects at the first records, and again after an error.

    Args:
        connection: of `connection.arguments`.
        topic: receives the records, in its only partition.
        make: the configured producer.
        compression: of record batches.
    """

    def __init__(
        self, connection: Mapping[str, Any], topic: Topic, make: MakeProducer, compression: Compression
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._make = make
        self._settings = ProducerSettings(connection, None, Batching(compression), closing_timeout=CLOSING_SECONDS)
        self._producer: Producer | None = None
        self._worker = Worker("cdfd-announcements")

    @in_worker
    def write(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """See `Announce`."""
        keys, values = zip(*records, strict=True)
        batch = Records(array_of(keys, pa.large_binary()), array_of(values, pa.large_binary()))
        try:
            if self._producer is None:
                with closing(TopicAdmin(self._connection)) as admin:
                    admin.ensure([self._topic])
                self._producer = self._make(self._settings)
            self._producer.begin()
            oversized = self._producer.send(self._topic.name, 0, batch, time.time_ns() // 1_000_000)
            self._producer.commit()
        except SinkError:
            self._disconnect()  # a producer is unusable after an error
            raise
        if oversized:
            raise SinkError(f"a record of {oversized[0].size} bytes is too large for topic {self._topic.name}")

    def close(self) -> None:
        """Disconnect, without waiting for it."""
        self._worker.submit(self._disconnect)
        self._worker.close()

    def _disconnect(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None
