"""The topic of signals: requests to the daemon, which others write.

Every writer of the topic can put anything there. The topic's settings bound what reaches the daemon, and they are checked: records
are not compressed, because a batch of a megabyte can decompress to gigabytes in the reader's memory, and batches are small. The broker
applies both to every producer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.failures import translating
from cdfd.sinks.kafka.client.worker import Worker, in_worker
from cdfd.sinks.kafka.progress.records import NewestRecord, NextSignal, offset_of, offset_value, signals_key
from cdfd.sinks.kafka.progress.topic_admin import TopicAdmin
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION, ExistingTopic, Topic, durability, progress_topic
from cdfd.sinks.kafka.settings import Topics
from cdfd.sinks.own_topics import SIGNALS, Announce, Signal

MOST_BATCH_BYTES = 1 << 20
"""Largest batch that the topic may take."""
_CREATED_BATCH_BYTES = 128 << 10
_TIMEOUT_MS = 20_000
_CHECK_SECONDS = 10.0
"""How often to check that the topic is still the same one while no signals come."""
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

    A topic that was deleted and created again repeats offsets. It is read from its start, and its id is part of its signals' places.

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
        self._admin: TopicAdmin | None = None
        self._next = NextSignal(0)
        self._checked = 0.0

    async def open(self) -> None:
        """Check or create the topic, and find the first signal. Without a known offset, signals before now are not taken.

        Raises:
            SinkError: the topic cannot be used.
        """
        if await self._open():
            await self._announce([(self._key, offset_value(self._next))])

    @in_worker
    def poll(self) -> Sequence[Signal]:
        """See the port."""
        consumer, admin, known = self._consumer, self._admin, self._next
        if consumer is None or admin is None:
            raise SinkError("the topic of signals is closed")
        with translating(f"read signals from topic {self.topic}"), network(self._connection):
            records = consumer.poll(timeout_ms=200).get(self._partition, ())
        # The consumer asks for offsets of a name, whichever topic has it. So the topic is checked after the records were fetched.
        if records or time.monotonic() - self._checked > _CHECK_SECONDS:
            if admin.topic_id(self.topic) != known.topic:
                raise SinkError(f"topic {self.topic} was deleted or created again", retriable=True)
            self._checked = time.monotonic()
        suffix = f"@{known.topic}" if known.recreated else ""
        return [Signal(record.offset, f"{record.topic}-{record.offset}{suffix}", record.value) for record in records]

    async def done(self, last: Signal) -> None:
        """See the port."""
        await self._announce([(self._key, offset_value(replace(self._next, offset=last.offset + 1)))])

    def close(self) -> None:
        """Disconnect, without waiting for it."""
        self._worker.submit(self._close)
        self._worker.close()

    @in_worker
    def _open(self) -> bool:
        """Go to the next signal. Returns whether its place is not stored yet."""
        self._admin = admin = TopicAdmin(self._connection)
        topic = admin.ensure([self._topic, self._progress])[self.topic].id
        start, end = admin.bounds(self.topic, 0, committed=True)
        bounds = admin.bounds(self._progress.name, PROGRESS_PARTITION, committed=False)
        seconds = self._hidden_timeout, _TIMEOUT_MS / 1000
        with closing(NewestRecord(self._connection, self._progress.name, self._key, *seconds)) as newest:
            stored = newest.read(bounds, offset_of)
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
            if stored is None:
                committed = consumer.committed(self._partition)  # by an earlier version of cdfd
                self._next = NextSignal(end if committed is None else committed, topic)
            elif None in (stored.topic, topic) or stored.topic == topic:
                self._next = replace(stored, topic=topic)
            else:
                self._next = NextSignal(start, topic, recreated=True)
            consumer.seek(self._partition, self._next.offset)
        return self._next != stored

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=1000)
            self._consumer = None
        if self._admin is not None:
            self._admin.close()
            self._admin = None


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
