"""The topic of signals: requests to the daemon, which others write.

Every writer of the topic can put anything there. The topic's settings bound what reaches the daemon, and they are checked: records
are not compressed, because a batch of a megabyte can decompress to gigabytes in the reader's memory, and batches are small. The broker
applies both to every producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.failures import translating
from cdfd.sinks.kafka.client.worker import Worker, in_worker
from cdfd.sinks.kafka.progress.records import NewestRecord, offset_of, offset_value, signals_key
from cdfd.sinks.kafka.progress.topic_admin import TopicAdmin
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION, ExistingTopic, Topic, durability, progress_topic
from cdfd.sinks.kafka.settings import Topics
from cdfd.sinks.own_topics import SIGNALS, Announce, Signal

MOST_BATCH_BYTES = 1 << 20
"""Largest batch that the topic may take."""
_CREATED_BATCH_BYTES = 128 << 10
_TIMEOUT_MS = 20_000
_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 24 * 3_600_000),
    "compression.type": "uncompressed",
    "max.message.bytes": str(_CREATED_BATCH_BYTES),
    "message.timestamp.type": "LogAppendTime",
}


def signal_topic(pipeline: str, topics: Topics) -> Topic:
    """The topic of signals of a pipeline."""
    config = {**_CONFIG, **durability(topics)}
    return Topic(f"_cdfd_signals.{pipeline}", 1, topics.replication_factor, config, keyed=False, verify=_verify)


class KafkaSignals:
    """The `Signals` port over the topic of a pipeline. All calls are made in one thread.

    The offset of the next signal is a record of the progress topic. Brokers forget the offset of a consumer after seven days in which it is
    not committed, and signals of a time without a daemon would be lost after seven days without signals.

    Args:
        connection: of `connection.arguments`.
        pipeline: its name.
        topics: settings of created topics.
        reader: see `Connector.signals`.
        announce: writes to the progress topic.
        hidden_timeout: seconds to wait for open transactions that hide the newest offset.
    """

    def __init__(
        self,
        connection: Mapping[str, Any],
        pipeline: str,
        topics: Topics,
        reader: str,
        announce: Announce,
        hidden_timeout: float,
    ) -> None:
        self._connection = connection
        self._topic = signal_topic(pipeline, topics)
        self.topic = self._topic.name
        self._group = f"cdfd.{pipeline}.signals" + (f".{reader}" if reader else "")
        self._partition = TopicPartition(self.topic, 0)
        self._progress = progress_topic(pipeline, topics)
        self._key = signals_key(pipeline, reader)
        self._announce = announce
        self._hidden_timeout = hidden_timeout
        self._worker = Worker("cdfd-signals")
        self._consumer: KafkaConsumer | None = None

    async def open(self) -> None:
        """Check or create the topic, and find the first signal. Without a known offset, signals before now are not taken.

        Raises:
            SinkError: the topic cannot be used.
        """
        if (first := await self._open()) is not None:
            await self._announce([(self._key, offset_value(first))])

    @in_worker
    def poll(self) -> Sequence[Signal]:
        """See the port."""
        consumer = self._consumer
        if consumer is None:
            raise SinkError("the topic of signals is closed")
        with translating(f"read signals from topic {self.topic}"), network(self._connection):
            records = consumer.poll(timeout_ms=200).get(self._partition, ())
        return [Signal(record.offset, f"{record.topic}-{record.offset}", record.value) for record in records]

    async def done(self, last: Signal) -> None:
        """See the port."""
        await self._announce([(self._key, offset_value(last.offset + 1))])

    def close(self) -> None:
        """Disconnect, without waiting for it."""
        self._worker.submit(self._close)
        self._worker.close()

    @in_worker
    def _open(self) -> int | None:
        """Go to the next signal; its offset, if that is not stored yet."""
        with closing(TopicAdmin(self._connection)) as admin:
            admin.ensure([self._topic, self._progress])
            end = admin.bounds(self.topic, 0, committed=True)[1]
            bounds = admin.bounds(self._progress.name, PROGRESS_PARTITION, committed=False)
        seconds = self._hidden_timeout, _TIMEOUT_MS / 1000
        with closing(NewestRecord(self._connection, self._progress.name, self._key, *seconds)) as newest:
            last_offset = newest.read(bounds, offset_of)
        with translating(f"read signals from topic {self.topic}"), network(self._connection) as options:
            self._consumer = consumer = KafkaConsumer(
                **options,
                group_id=self._group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                max_poll_records=SIGNALS,
                fetch_max_bytes=MOST_BATCH_BYTES,
                max_partition_fetch_bytes=MOST_BATCH_BYTES,
                bootstrap_timeout_ms=_TIMEOUT_MS,
                request_timeout_ms=_TIMEOUT_MS,
                metrics_enabled=False,
            )
            consumer.assign([self._partition])
            first = last_offset
            if first is None:
                first = consumer.committed(self._partition)  # by an earlier version of cdfd
            if first is None:
                first = end
            consumer.seek(self._partition, first)
        return first if last_offset is None else None

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=1000)
            self._consumer = None


def _verify(topic: ExistingTopic) -> None:
    """`SinkError` if the topic does not bound what the daemon reads."""
    if topic.partitions != 1:
        raise SinkError(
            f"topic {topic.name} has {topic.partitions} partitions", hint="Give it one, which keeps their order"
        )
    size = topic.max_message_bytes
    if size is None:
        raise SinkError(f"cannot read the settings of topic {topic.name}", hint="Give the user DescribeConfigs on it")
    if topic.config.get("compression.type") != "uncompressed":
        raise SinkError(
            f"topic {topic.name} accepts compressed records, which may be huge",
            hint="Set its compression.type to uncompressed",
        )
    if size > MOST_BATCH_BYTES:
        raise SinkError(
            f"topic {topic.name} accepts batches of {size} bytes", hint="Set its max.message.bytes to 131072"
        )
