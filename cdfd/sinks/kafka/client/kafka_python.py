"""The `Producer` port over kafka-python. Complete record batches are passed to its inside: its public interface takes one record at a time.

kafka-python collects records into batches per partition, in the accumulator. Its sender thread takes each batch, assigns producer id, epoch
and sequence number, and sends it; a retry has the same numbers. Here a complete batch of ours is put into the accumulator, and is stamped
once the sender assigns the numbers. `incompatibilities` checks that these private parts are as expected. If not, no producer opens.

Known defects of kafka-python 3.0.12, and the workarounds here (others are in `kafka_python_client`):

- It commits a transaction although a batch failed. So the commit begins once every answer has come, and none is an error.
- `commit_transaction` and `abort_transaction` wait forever. Here they have deadlines.
- It buffers without a limit. `InFlight` bounds the bytes in flight.
"""

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, current_thread
from typing import Any

import kafka
import numpy as np
from kafka import KafkaProducer, TopicPartition
from kafka.errors import (
    BrokerResponseError,
    IllegalStateError,
    InvalidProducerEpochError,
    KafkaError,
    KafkaTimeoutError,
    UnknownError,
)
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import EndTxnHandler, TransactionManager
from kafka.protocol.metadata import CoordinatorType
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from cdfd.encode.records import Records
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.failures import translate
from cdfd.sinks.kafka.client.in_flight import InFlight
from cdfd.sinks.kafka.client.kafka_python_client import connect
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings, known_id
from cdfd.sinks.kafka.records.batches import BatchBuilder, Oversized, Partitions, RecordBatch

log = logging.getLogger("cdfd.kafka")

KNOWN_VERSION = "3.0."
_RECORD_FORMAT = 2
# Requests for the end of a transaction that the coordinator fails to answer, a few milliseconds apart.
_ENDINGS = 100
# Bytes of batches after which to wake the sender.
_WAKE_BYTES = 1 << 20

METADATA_SECONDS = 10.0
"""Age of metadata after which it is asked for again, to find topics that are created again. By itself the client does so after minutes."""
_ANSWER_SECONDS = 1.0
_LOOK_MS, _LONGEST_LOOK_MS = 100, 1000
"""Time after which a thread that waits for metadata looks whether a batch has failed. It doubles while there is none."""

_ACCUMULATOR_PARTS = ("_appends_in_progress", "_batches", "_closed", "_incomplete", "_tp_lock")
_MANAGER_PARTS = (
    "_enqueue_request",
    "_lookup_coordinator",
    "begin_abort",
    "begin_commit",
    "last_error",
    "maybe_add_partition_to_transaction",
)
_HANDLER_PARTS = ("handle_response", "is_retry", "reenqueue")
_METADATA_PARTS = ("request_update", "topic_id")
_SENDER_PARTS = ("force_close", "join", "wakeup")


def incompatibilities(client: KafkaProducer) -> list[str]:
    """The private parts of kafka-python that differ from the expectations of `KafkaPythonProducer`."""
    accumulator, sender = getattr(client, "_accumulator", None), getattr(client, "_sender", None)
    manager = getattr(client, "_transaction_manager", None)
    methods = {name for name in dir(MemoryRecordsBuilder) if not name.startswith("_")}
    checks = {
        f"version {kafka.__version__}": kafka.__version__.startswith(KNOWN_VERSION),
        "accumulator": isinstance(accumulator, RecordAccumulator) and _has(accumulator, _ACCUMULATOR_PARTS),
        "record format": getattr(accumulator, "config", {}).get("message_version") == _RECORD_FORMAT,
        "metadata": _has(getattr(client, "_metadata", None), _METADATA_PARTS),
        "sender": isinstance(sender, Sender) and _has(sender, _SENDER_PARTS),
        "transaction manager": isinstance(manager, TransactionManager) and _has(manager, _MANAGER_PARTS),
        "end of a transaction": _has(EndTxnHandler, _HANDLER_PARTS),
        "batch": list(inspect.signature(ProducerBatch).parameters) == ["tp", "records", "now"],
        "records of a batch": methods <= set(dir(_FinishedRecords)),
    }
    return [part for part, fits in checks.items() if not fits]


def _has(thing: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(thing, name) for name in names)


class KafkaPythonProducer(Producer):
    """See the port, `Producer`.

    Args:
        settings: the settings of the producer.

    Raises:
        SinkError: the cluster cannot be reached within the timeout, or refuses access; or kafka-python is of another version.
    """

    errors = (KafkaError, ValueError)

    def __init__(self, settings: ProducerSettings) -> None:
        super().__init__(settings)
        self._in_flight = InFlight(settings.in_flight, settings.timeout)
        self._builder = BatchBuilder(settings.batching)
        self._client = connect(settings)
        if differences := incompatibilities(self._client):
            self._client.close(settings.closing_timeout)
            raise SinkError(
                f"cdfd cannot use kafka-python {kafka.__version__}: it differs inside ({', '.join(differences)})",
                hint=f"Install kafka-python {KNOWN_VERSION}*: cdfd hands whole batches to its private parts",
            )
        self._accumulator = self._client._accumulator
        self._manager = self._client._transaction_manager
        self._sender = self._client._sender
        self._metadata = self._client._metadata
        self._asked = time.monotonic()
        self._unannounced = 0
        # The manager repeats the end of a transaction that the coordinator answers with UNKNOWN_SERVER_ERROR. The coordinator gives this
        # answer if the request comes at the moment at which another producer fences this one. A new producer would fence that one in turn.
        # The next answer says whether this producer is fenced.
        enqueue = self._manager._enqueue_request

        def enqueue_asking(handler: Any) -> None:
            if isinstance(handler, EndTxnHandler) and not handler.is_retry:
                handler.handle_response = partial(
                    _on_answer, handler, handler.handle_response, iter(range(_ENDINGS - 1))
                )
            enqueue(handler)

        self._manager._enqueue_request = enqueue_asking

    def _prepare(self, topics: Sequence[str]) -> None:
        """Read the metadata, which also keeps the connection, and look up the coordinator of the transactions."""
        for topic in topics:
            self._partitions_of(topic)
            self.topic_id(topic)
        if self._transactional:
            self._manager._lookup_coordinator(CoordinatorType.TRANSACTION, self._settings.transactional_id)
            self._wake()

    def _init_transactions(self) -> None:
        self._client.init_transactions()

    def _send(
        self, topic: str, partitions: Partitions, records: Records, timestamp: int, *, more: bool
    ) -> Sequence[Oversized]:
        used = [partitions] if isinstance(partitions, int) else np.flatnonzero(np.bincount(partitions)).tolist()
        unknown = set(used) - self._partitions_of(topic)
        if unknown:
            raise SinkError(f"topic {topic} has no partition {min(unknown)}")
        oversized = []
        for partition, item in self._builder.batches(records, partitions, timestamp):
            if isinstance(item, Oversized):
                oversized.append(item)
                continue
            size = len(item.data)
            # Waking the sender switches threads, so it is not done for each batch. But it must send before more bytes may be in flight.
            if self._unannounced >= _WAKE_BYTES or not self._in_flight.has_room(size):
                self._wake()
            self._in_flight.add(size)
            try:
                self._append(TopicPartition(topic, partition), item)
            except Exception:
                self._in_flight.settle(size, None)
                raise
            self._unannounced += size
        if not more:
            self._wake()
        return oversized

    def _partitions_of(self, topic: str) -> set[int]:
        """Wait for the topic's metadata, but not once a batch has failed: after some failures, the client does not request any."""
        deadline = time.monotonic() + self._settings.timeout
        longest, look = self._client.config["max_block_ms"], _LOOK_MS
        try:
            while True:
                self._in_flight.raise_failure()
                self._client.config["max_block_ms"], look = look, min(2 * look, _LONGEST_LOOK_MS)
                try:
                    with suppress(KafkaTimeoutError):
                        return set(self._client.partitions_for(topic))
                except RuntimeError as error:
                    # The client's thread has ended, after an error that the batches under way have, too: that this producer is fenced.
                    self._in_flight.settled(self._settings.timeout)
                    self._in_flight.raise_failure()
                    raise KafkaError(str(error)) from error
                if time.monotonic() >= deadline:
                    raise KafkaTimeoutError(f"no metadata within {self._settings.timeout:g} seconds")
        finally:
            self._client.config["max_block_ms"] = longest

    def _append(self, partition: TopicPartition, batch: RecordBatch) -> None:
        """Does what `RecordAccumulator.append` does for a new batch."""
        if self._transactional:
            self._manager.maybe_add_partition_to_transaction(partition)
        finished = _FinishedBatch(partition, _FinishedRecords(batch))
        finished.produce_future.add_both(partial(self._settle, partition, batch))
        self._accumulator._appends_in_progress.increment()
        try:
            with self._accumulator._tp_lock(partition):
                if self._accumulator._closed:
                    raise IllegalStateError("the producer is closed")
                self._accumulator._batches[partition].append(finished)
                self._accumulator._incomplete.add(finished)
        finally:
            self._accumulator._appends_in_progress.decrement()

    def _settle(self, partition: TopicPartition, batch: RecordBatch, answer: Any) -> None:
        """Callback of the sender thread for an acknowledged or failed batch. `answer`: an error, or a tuple with the records' errors."""
        error = answer if isinstance(answer, Exception) else None
        if error is None and answer[2] is not None:
            # The broker may report an error for some of the records, which makes the others fail too.
            errors: list[Exception] = [answer[2](number) for number in range(batch.count)]
            error = next((each for each in errors if isinstance(each, BrokerResponseError)), errors[0])
        doing = f"deliver to partition {partition.partition} of topic {partition.topic}"
        self._in_flight.settle(len(batch.data), None if error is None else translate(error, doing))
        if isinstance(error, InvalidProducerEpochError) and self._transactional:
            # The client would now request a new epoch, and brokers before 2.7 grant it. That would fence the producer that fenced this one.
            self._sender.force_close()

    def _wake(self) -> None:
        """Tell the sender to look for work."""
        self._unannounced = 0
        self._sender.wakeup()

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic that records were sent to; see the port. Waits for newer metadata if it has not asked for some seconds."""
        if time.monotonic() - self._asked > METADATA_SECONDS:
            self._asked = time.monotonic()
            answered = Event()
            self._metadata.request_update().add_both(lambda _: answered.set())
            self._sender.wakeup()
            answered.wait(_ANSWER_SECONDS)
        return known_id(self._metadata.topic_id(topic))

    def _flush(self) -> None:
        self._wake()
        self._in_flight.wait_for_all()

    def _commit(self) -> None:
        # The sender begins the commit when it gets the last answer.
        ending: list[Any] = []
        self._wake()
        self._in_flight.wait_for_all(lambda: ending.append(self._begin_commit()))
        (begun,) = ending
        if isinstance(begun, Exception):
            raise begun
        _wait(begun, self._settings.timeout)

    def _begin_commit(self) -> Any:
        """Begin the commit, in the sender's thread or in that of the caller. The result to wait for, or an error."""
        try:
            return self._manager.begin_commit()
        except KafkaError as error:
            return error
        finally:
            if current_thread() is not self._sender:
                self._wake()

    def _abort(self, timeout: float) -> None:
        if self._transactional and not self._is_forgotten:
            begun = self._manager.begin_abort()
            self._wake()
            _wait(begun, timeout)
        if not self._in_flight.settled(timeout):
            self._fail(KafkaTimeoutError(f"no answer within {timeout:g} seconds"), "abort sent records")

    def _forget_failures(self) -> None:
        self._in_flight.forget_failures()

    def _disconnect(self, timeout: float) -> None:
        # The sender does not wait for responses: batches in flight fail.
        self._sender.force_close()
        self._sender.join(timeout)
        try:
            self._client.close(timeout)
        except KafkaError as error:
            log.warning("the Kafka client did not end within %g seconds: %s", timeout, error)

    def _as_sink_error(self, error: Exception, doing: str) -> SinkError:
        # Every call after a fatal error fails with a text about it.
        last: Exception | None = self._manager.last_error
        return translate(error if last is None or isinstance(error, BrokerResponseError) else last, doing)


def _on_answer(handler: Any, handle: Callable[[Any], None], attempts: Iterator[int], response: Any) -> None:
    """Callback of the sender thread for the answer to the end of a transaction."""
    if response.error_code == UnknownError.errno and next(attempts, None) is not None:
        handler.reenqueue()
    else:
        handle(response)


def _wait(ending: Any, timeout: float) -> None:
    """Wait for the end of a transaction. The public methods would wait forever."""
    if not ending.wait(timeout_ms=timeout * 1000):
        raise KafkaTimeoutError(f"no answer within {timeout:g} seconds")


class _FinishedBatch(ProducerBatch):  # type: ignore[misc]  # kafka-python has no types
    """A complete batch."""

    @property
    def record_count(self) -> int:
        """Always 1, so that the sender does not split the batch.

        If the broker finds a batch too large, the sender splits it into batches of its own, whose results would be unknown here. Sequence
        numbers come from `_FinishedRecords`.
        """
        return 1


class _FinishedRecords:
    """The records of a complete batch, with the interface of `MemoryRecordsBuilder` that the accumulator and the sender use."""

    producer_id = producer_epoch = base_sequence = -1

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch
        self._closed = False

    def append(self, *_: Any) -> None:
        """Refuses the record, as a full batch does."""

    def skip(self, offsets_to_skip: int) -> None:
        """Only kafka-python's own tests call this."""
        raise IllegalStateError("a finished batch cannot be changed")

    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        """Called once, before the batch is first sent. A retry must send the same bytes, so that the broker detects the duplicate."""
        if self._closed:
            raise IllegalStateError("the batch was sent before")
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence
        self._batch.stamp(producer_id, producer_epoch, base_sequence, transactional=is_transactional)

    def close(self) -> None:
        """Called before each attempt to send, and when the batch fails."""
        self._closed = True

    def is_full(self) -> bool:
        """Always true, so that the sender sends the batch at once."""
        return True

    def next_offset(self) -> int:
        """The number of sequence numbers that the batch uses."""
        return self._batch.count

    def size_in_bytes(self) -> int:
        """The size of the batch on the wire."""
        return len(self._batch.data)

    def compression_rate(self) -> float:
        """Used for metrics, which are off."""
        return 1.0

    def buffer(self) -> bytearray:
        """The batch on the wire."""
        return self._batch.data

    def records(self) -> MemoryRecords:
        """The records, for iteration."""
        return MemoryRecords(self._batch.data)
