"""Passes records to kafka-python one by one, with its public interface only. Used for unknown versions of kafka-python."""

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from threading import Thread

from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from cdfd.encode.records import Records
from cdfd.sinks.kafka.client.failures import translated
from cdfd.sinks.kafka.client.in_flight import InFlight
from cdfd.sinks.kafka.client.topic_ids import TopicIds
from cdfd.sinks.kafka.records.batches import Oversized, Partitions, each, rows


class RecordSender:
    """Sends single records with a `KafkaProducer`, which is slower than `BatchSender`.

    Args:
        client: the producer. Its `max_request_size` is the topic's limit.
        in_flight: counts records in flight.
        topic_ids: looks up ids of topics, which the public interface of a producer has not.
    """

    def __init__(self, client: KafkaProducer, in_flight: InFlight, topic_ids: TopicIds) -> None:
        self._client = client
        self._in_flight = in_flight
        self._topic_ids = topic_ids

    def send(
        self, topic: str, partitions: Partitions, records: Records, timestamp: int, *, more: bool
    ) -> list[Oversized]:
        """Send records; the oversized ones, by their size before compression, which are not sent. `more` changes nothing."""
        oversized = []
        for number, (partition, (key, value, headers)) in enumerate(zip(each(partitions), rows(records), strict=False)):
            size = len(key or b"") + len(value or b"")
            self._in_flight.add(size)
            try:
                sent = self._client.send(topic, value, key, headers, partition=partition, timestamp_ms=timestamp)
            except MessageSizeTooLargeError:
                self._in_flight.settle(size, None)
                oversized.append(Oversized(number, size))
            except Exception:
                self._in_flight.settle(size, None)
                raise
            else:
                sent.add_both(partial(self._settle, TopicPartition(topic, partition), size))
        return oversized

    def _settle(self, partition: TopicPartition, size: int, answer: object) -> None:
        doing = f"deliver to partition {partition.partition} of topic {partition.topic}"
        self._in_flight.settle(size, translated(answer, doing) if isinstance(answer, Exception) else None)

    def flush(self) -> None:
        """Wait until all records are acknowledged. Raises the error of the first that failed."""
        self._in_flight.wait_for_all()

    def commit(self, timeout: float) -> None:
        """Flush, then commit the transaction."""
        self.flush()
        self._end(self._client.commit_transaction, timeout)

    def abort(self, timeout: float) -> None:
        """Abort the transaction."""
        self._end(self._client.abort_transaction, timeout)

    def _end(self, call: Callable[[], None], timeout: float) -> None:
        """End the transaction. The client has no timeout for that, so another thread waits for it, possibly forever."""
        ended: Future[None] = Future()
        Thread(target=_run, args=(call, ended), name="kafka-transaction-end", daemon=True).start()
        try:
            ended.result(timeout)
        except FutureTimeoutError as error:
            raise KafkaTimeoutError(f"no answer within {timeout:g} seconds") from error

    def cause(self, error: Exception) -> Exception:
        """The original error, which the public interface provides only as an argument."""
        return next((argument for argument in error.args if isinstance(argument, Exception)), error)

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic; see the port."""
        return self._topic_ids.topic_id(topic)

    def stop(self, timeout: float) -> None:
        """Does nothing: the public interface cannot cancel records in flight."""


def _run(call: Callable[[], None], ended: Future[None]) -> None:
    try:
        call()
    except KafkaError as error:
        ended.set_exception(error)
    else:
        ended.set_result(None)
