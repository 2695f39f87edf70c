"""Passes complete record batches to kafka-python, whose public interface takes one record at a time.

Its producer collects records into batches per partition, in the accumulator. Its sender thread takes each batch, assigns producer id, epoch
and sequence number, and sends it; a retry has the same numbers. Here a complete batch of ours is put into the accumulator, and is stamped
once the sender assigns the numbers.

These parts of kafka-python are private. `incompatibilities` checks that they are as expected. If not, no producer opens.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event, current_thread
from typing import Any

import kafka
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
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from cdfd.encode.records import Records
from cdfd.sinks.kafka.client.failures import translate
from cdfd.sinks.kafka.client.in_flight import InFlight
from cdfd.sinks.kafka.client.producer import known_id
from cdfd.sinks.kafka.records.batches import Batching, Oversized, Partitions, RecordBatch, record_batches

KNOWN_VERSION = "3.0."
_RECORD_FORMAT = 2
# Requests for the end of a transaction that the coordinator fails to answer, a few milliseconds apart.
_ENDINGS = 100
# Bytes of batches after which to wake the sender.
_WAKE_BYTES = 1 << 20

METADATA_SECONDS = 10.0
"""Age of metadata after which it is asked for again, to find topics that are created again. By itself the client does so after minutes."""
_ANSWER_SECONDS = 1.0

_ACCUMULATOR_PARTS = ("_appends_in_progress", "_batches", "_closed", "_incomplete", "_tp_lock")
_MANAGER_PARTS = (
    "_enqueue_request",
    "begin_abort",
    "begin_commit",
    "is_transactional",
    "last_error",
    "maybe_add_partition_to_transaction",
)
_HANDLER_PARTS = ("handle_response", "is_retry", "reenqueue")
_METADATA_PARTS = ("request_update", "topic_id")
_SENDER_PARTS = ("force_close", "join", "wakeup")


def incompatibilities(client: KafkaProducer) -> list[str]:
    """The private parts of kafka-python that differ from the expectations of `BatchSender`."""
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


class BatchSender:
    """Sends complete batches with a `KafkaProducer`.

    Args:
        client: a producer without `incompatibilities`.
        batching: how records become batches.
        in_flight: counts batches in flight.
    """

    def __init__(self, client: KafkaProducer, batching: Batching, in_flight: InFlight) -> None:
        self._client = client
        self._accumulator = client._accumulator
        self._manager = client._transaction_manager
        self._sender = client._sender
        self._metadata = client._metadata
        self._asked = time.monotonic()
        self._batching = batching
        self._in_flight = in_flight
        self._unannounced = 0
        if self._manager is not None:
            _ask_again(self._manager)

    def send(
        self, topic: str, partitions: Partitions, records: Records, timestamp: int, *, more: bool
    ) -> list[Oversized]:
        """Send records; the oversized ones, which are not sent. With `more`, the last ones wait for what follows."""
        oversized = []
        for partition, item in record_batches(records, partitions, timestamp, self._batching):
            if isinstance(item, Oversized):
                oversized.append(item)
                continue
            size = len(item.data)
            # Waking the sender switches threads, so it is not done for each batch. But it must send before more bytes may be in flight.
            if self._unannounced >= _WAKE_BYTES or not self._in_flight.has_room(size):
                self._wake()
            self._send(TopicPartition(topic, partition), item)
            self._unannounced += size
        if not more:
            self._wake()
        return oversized

    def flush(self) -> None:
        """Wait until all batches are acknowledged. Raises the error of the first that failed."""
        self._wake()
        self._in_flight.wait_for_all()

    def commit(self, timeout: float) -> None:
        """Flush and commit the transaction. The sender begins the commit when it gets the last answer."""
        ending: list[Any] = []
        self._wake()
        self._in_flight.wait_for_all(lambda: ending.append(self._begin_commit()))
        (begun,) = ending
        if isinstance(begun, Exception):
            raise begun
        _wait(begun, timeout)

    def abort(self, timeout: float) -> None:
        """Abort the transaction."""
        begun = self._manager.begin_abort()
        self._wake()
        _wait(begun, timeout)

    def _send(self, partition: TopicPartition, batch: RecordBatch) -> None:
        size = len(batch.data)
        self._in_flight.add(size)
        try:
            if self._manager.is_transactional():
                self._manager.maybe_add_partition_to_transaction(partition)
            self._append(partition, batch)
        except Exception:
            self._in_flight.settle(size, None)
            raise

    def _append(self, partition: TopicPartition, batch: RecordBatch) -> None:
        """Does what `RecordAccumulator.append` does for a new batch."""
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
        error = answer if isinstance(answer, Exception) else _error_of(answer[2], batch.count)
        doing = f"deliver to partition {partition.partition} of topic {partition.topic}"
        self._in_flight.settle(len(batch.data), None if error is None else translate(error, doing))
        if isinstance(error, InvalidProducerEpochError) and self._manager.is_transactional():
            # The client would now request a new epoch, and brokers before 2.7 grant it. That would fence the producer that fenced this one.
            self._sender.force_close()

    def _begin_commit(self) -> Any:
        """Begin the commit, in the sender's thread or in that of the caller. The result to wait for, or an error."""
        try:
            return self._manager.begin_commit()
        except KafkaError as error:
            return error
        finally:
            if current_thread() is not self._sender:
                self._wake()

    def _wake(self) -> None:
        """Tell the sender to look for work."""
        self._unannounced = 0
        self._sender.wakeup()

    def cause(self, error: Exception) -> Exception:
        """The original error. Every call after a fatal error fails with a text about it."""
        last: Exception | None = self._manager.last_error
        return error if last is None or isinstance(error, BrokerResponseError) else last

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic that records were sent to; see the port. Waits for newer metadata if it has not asked for some seconds."""
        if time.monotonic() - self._asked > METADATA_SECONDS:
            self._asked = time.monotonic()
            answered = Event()
            self._metadata.request_update().add_both(lambda _: answered.set())
            self._sender.wakeup()
            answered.wait(_ANSWER_SECONDS)
        return known_id(self._metadata.topic_id(topic))

    def stop(self, timeout: float) -> None:
        """End the sender thread without waiting for responses. Batches in flight fail."""
        self._sender.force_close()
        self._sender.join(timeout)


def _ask_again(manager: TransactionManager) -> None:
    """Let the manager repeat the end of a transaction that the coordinator answers with UNKNOWN_SERVER_ERROR.

    The coordinator gives this answer if the request comes at the moment at which another producer fences this one. A new producer would
    fence that one in turn. The next answer says whether this producer is fenced.
    """
    enqueue = manager._enqueue_request

    def enqueue_asking(handler: Any) -> None:
        if isinstance(handler, EndTxnHandler) and not handler.is_retry:
            handler.handle_response = partial(_on_answer, handler, handler.handle_response, iter(range(_ENDINGS - 1)))
        enqueue(handler)

    manager._enqueue_request = enqueue_asking


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


def _error_of(errors_by_record: Any, count: int) -> Exception | None:
    """The error of a batch. The broker may report an error for some of its records, which makes the others fail too."""
    if errors_by_record is None:
        return None
    errors: list[Exception] = [errors_by_record(number) for number in range(count)]
    return next((error for error in errors if isinstance(error, BrokerResponseError)), errors[0])


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
