"""Hands finished record batches to kafka-python, whose public interface takes one record at a time.

Its producer collects records into batches per partition (the accumulator). A thread of its own (the sender) takes batches from there, gives
each its producer id, epoch and sequence number, sends it, and where need be sends it again with the same numbers. The accumulator takes a
batch of ours just as well: one that is full, has all its records, and is stamped when the sender gives it its numbers.

None of this is public. `incompatibilities` looks whether it is all as it was when this was written; where it is not, `RecordSender` goes the
public way.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import kafka
from kafka import KafkaProducer, TopicPartition
from kafka.errors import BrokerResponseError, IllegalStateError, InvalidProducerEpochError, KafkaTimeoutError
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import TransactionManager
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from cdfd.encoding.records import Records
from cdfd.sinks.kafka.client.failures import translated
from cdfd.sinks.kafka.client.in_flight import InFlight
from cdfd.sinks.kafka.records.batches import Batching, Oversized, Partitions, RecordBatch, record_batches

_KNOWN_VERSION = "3.0."
_RECORD_FORMAT = 2
# Bytes of batches that the sender need not know of yet.
_WAKE_BYTES = 1 << 20

_ACCUMULATOR_PARTS = ("_appends_in_progress", "_batches", "_closed", "_incomplete", "_tp_lock")
_MANAGER_PARTS = ("begin_abort", "begin_commit", "is_transactional", "last_error", "maybe_add_partition_to_transaction")
_SENDER_PARTS = ("force_close", "join", "wakeup")


def incompatibilities(client: KafkaProducer) -> list[str]:
    """What of kafka-python's inside is not as `BatchSender` needs it; nothing where all is well."""
    accumulator, sender = getattr(client, "_accumulator", None), getattr(client, "_sender", None)
    manager = getattr(client, "_transaction_manager", None)
    asked = {name for name in dir(MemoryRecordsBuilder) if not name.startswith("_")}
    checks = {
        f"version {kafka.__version__}": kafka.__version__.startswith(_KNOWN_VERSION),
        "accumulator": isinstance(accumulator, RecordAccumulator) and _has(accumulator, _ACCUMULATOR_PARTS),
        "record format": getattr(accumulator, "config", {}).get("message_version") == _RECORD_FORMAT,
        "sender": isinstance(sender, Sender) and _has(sender, _SENDER_PARTS),
        "transaction manager": isinstance(manager, TransactionManager) and _has(manager, _MANAGER_PARTS),
        "batch": list(inspect.signature(ProducerBatch).parameters) == ["tp", "records", "now"],
        "records of a batch": asked <= set(dir(_FinishedRecords)),
    }
    return [part for part, fits in checks.items() if not fits]


def _has(thing: object, names: tuple[str, ...]) -> bool:
    return all(hasattr(thing, name) for name in names)


class BatchSender:
    """The fast way through a `KafkaProducer`.

    Args:
        client: the producer; `incompatibilities` found nothing.
        batching: how records become batches.
        in_flight: counts what is on its way.
    """

    def __init__(self, client: KafkaProducer, batching: Batching, in_flight: InFlight) -> None:
        self._client = client
        self._accumulator = client._accumulator
        self._manager = client._transaction_manager
        self._sender = client._sender
        self._batching = batching
        self._in_flight = in_flight

    def send(self, topic: str, partitions: Partitions, records: Records, timestamp: int) -> list[Oversized]:
        """Hand over records; returns those that are too large."""
        oversized, unknown = [], 0
        for partition, item in record_batches(records, partitions, timestamp, self._batching):
            if isinstance(item, Oversized):
                oversized.append(item)
                continue
            size = len(item.data)
            # To wake the sender is to change threads, so not for each batch; but there is only room once it has sent what is there.
            if unknown >= _WAKE_BYTES or not self._in_flight.has_room(size):
                self._sender.wakeup()
                unknown = 0
            self._send(TopicPartition(topic, partition), item)
            unknown += size
        self._sender.wakeup()
        return oversized

    def _send(self, place: TopicPartition, batch: RecordBatch) -> None:
        size = len(batch.data)
        self._in_flight.add(size)
        try:
            if self._manager.is_transactional():
                self._manager.maybe_add_partition_to_transaction(place)
            self._append(place, batch)
        except Exception:
            self._in_flight.settle(size, None)
            raise

    def _append(self, place: TopicPartition, batch: RecordBatch) -> None:
        """What `RecordAccumulator.append` does where it begins a batch."""
        finished = _FinishedBatch(place, _FinishedRecords(batch))
        finished.produce_future.add_both(partial(self._settle, place, batch))
        self._accumulator._appends_in_progress.increment()
        try:
            with self._accumulator._tp_lock(place):
                if self._accumulator._closed:
                    raise IllegalStateError("the producer is closed")
                self._accumulator._batches[place].append(finished)
                self._accumulator._incomplete.add(finished)
        finally:
            self._accumulator._appends_in_progress.decrement()

    def _settle(self, place: TopicPartition, batch: RecordBatch, answer: Any) -> None:
        """Called by the sender's thread when a batch is acknowledged or given up: with an error, or with what tells each record's."""
        error = answer if isinstance(answer, Exception) else _error_of(answer[2], batch.count)
        doing = f"deliver to partition {place.partition} of topic {place.topic}"
        self._in_flight.settle(len(batch.data), None if error is None else translated(error, doing))
        if isinstance(error, InvalidProducerEpochError) and self._manager.is_transactional():
            # The client would now ask for an epoch of its own, and brokers before 2.7 let it: that would fence the producer which fenced us.
            self._sender.force_close()

    def end(self, timeout: float, *, commit: bool) -> None:
        """End the transaction. The public methods would wait for ever."""
        result = self._manager.begin_commit() if commit else self._manager.begin_abort()
        self._sender.wakeup()
        if not result.wait(timeout_ms=timeout * 1000):
            raise KafkaTimeoutError(f"no answer within {timeout:g} seconds")

    def cause(self, error: Exception) -> Exception:
        """The error that an error is about: every call after a fatal one fails with a text about it."""
        last: Exception | None = self._manager.last_error
        return error if last is None or isinstance(error, BrokerResponseError) else last

    def stop(self, timeout: float) -> None:
        """End the sender's thread without waiting for answers; what is not acknowledged fails."""
        self._sender.force_close()
        self._sender.join(timeout)


def _error_of(errors_by_record: Any, count: int) -> Exception | None:
    """Why a batch failed. The broker may blame some of its records, and the others then only fail with them."""
    if errors_by_record is None:
        return None
    errors: list[Exception] = [errors_by_record(number) for number in range(count)]
    return next((error for error in errors if isinstance(error, BrokerResponseError)), errors[0])


class _FinishedBatch(ProducerBatch):  # type: ignore[misc]  # kafka-python has no types
    """A batch that nothing can be appended to."""

    @property
    def record_count(self) -> int:
        """One: it is not to be taken apart.

        The sender would halve a batch that the broker finds too large, and put its records into batches of its own, whose fate we would
        never learn. What counts records for sequence numbers asks the records.
        """
        return 1


class _FinishedRecords:
    """What the accumulator and the sender ask of a batch's records: the interface of `MemoryRecordsBuilder`."""

    producer_id = producer_epoch = base_sequence = -1

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch
        self._closed = False

    def append(self, *_: Any) -> None:
        """There is no room."""

    def skip(self, offsets_to_skip: int) -> None:
        """For kafka-python's own tests."""
        raise IllegalStateError("a finished batch cannot be changed")

    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        """Called once, before the batch is sent for the first time. Sent again, it must be the same, or it would be taken for another."""
        if self._closed:
            raise IllegalStateError("the batch was sent before")
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence
        self._batch.stamp(producer_id, producer_epoch, base_sequence, transactional=is_transactional)

    def close(self) -> None:
        """Called each time before it is sent, and when it is given up."""
        self._closed = True

    def is_full(self) -> bool:
        """So it is sent at once."""
        return True

    def next_offset(self) -> int:
        """How far sequence numbers advance."""
        return self._batch.count

    def size_in_bytes(self) -> int:
        """Of the batch, as it is sent."""
        return len(self._batch.data)

    def compression_rate(self) -> float:
        """For metrics, which are off."""
        return 1.0

    def buffer(self) -> bytearray:
        """The batch, as it is sent."""
        return self._batch.data

    def records(self) -> MemoryRecords:
        """To be iterated over."""
        return MemoryRecords(self._batch.data)
