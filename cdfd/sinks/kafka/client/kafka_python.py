"""The `Producer` port over kafka-python.

Known defects of kafka-python 3.0.12, and the workarounds here:

- It commits a transaction although a batch failed. So the commit begins once every answer has come, and none is an error.
- `commit_transaction` and `abort_transaction` wait forever. Here they have deadlines.
- It buffers without a limit. `InFlight` bounds the bytes in flight.
- Until the markers of a transaction are written, a broker answers CONCURRENT_TRANSACTIONS to the next one, for a few milliseconds. The client
  then sleeps for `retry_backoff_ms`, which is 100 by default and shorter here.
- `close` raises and leaves the sender running while batches are in flight.
- A request for a coordinator that refuses connections is lost: the sender then spins until the batch expires (`_retrying`).
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import kafka
import numpy as np
from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from cdfd.encode.records import Records
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.batch_sender import KNOWN_VERSION, BatchSender, incompatibilities
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.failures import translate
from cdfd.sinks.kafka.client.in_flight import InFlight
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings
from cdfd.sinks.kafka.records.batches import Oversized, Partitions

log = logging.getLogger("cdfd.kafka")

IDLE_MS = 60_000
"""Time without a request after which a connection is closed. A daemon has two or more for each table, and most tables are idle."""
_RETRY_BACKOFF_MS = 3
_RECONNECT_MS = 50
_LOOK_MS = 100
"""Time after which a thread that waits for metadata looks whether a batch has failed."""
_REQUEST_BYTES = 8 << 20


class _Client(KafkaProducer):  # type: ignore[misc]  # kafka-python has no types
    """A producer that only `close` ends.

    kafka-python's own closes itself once more in its destructor and at the end of the process. If the broker hangs, that waits for a second,
    and prints a traceback.
    """

    def __del__(self) -> None:
        return

    def _cleanup_factory(self) -> Callable[[], None]:
        return lambda: None


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
        self._client = _connect(settings)
        if differences := incompatibilities(self._client):
            self._client.close(settings.closing_timeout)
            raise SinkError(
                f"cdfd cannot use kafka-python {kafka.__version__}: it differs inside ({', '.join(differences)})",
                hint=f"Install kafka-python {KNOWN_VERSION}*: cdfd hands whole batches to its private parts",
            )
        self._transport = BatchSender(self._client, settings.batching, self._in_flight)

    def _init_transactions(self) -> None:
        self._client.init_transactions()

    def _send(
        self, topic: str, partitions: Partitions, records: Records, timestamp: int, *, more: bool
    ) -> Sequence[Oversized]:
        used = [partitions] if isinstance(partitions, int) else np.flatnonzero(np.bincount(partitions)).tolist()
        unknown = set(used) - self._partitions_of(topic)
        if unknown:
            raise SinkError(f"topic {topic} has no partition {min(unknown)}")
        return self._transport.send(topic, partitions, records, timestamp, more=more)

    def _partitions_of(self, topic: str) -> set[int]:
        """Wait for the topic's metadata, but not once a batch has failed: after some failures, the client does not request any."""
        deadline = time.monotonic() + self._settings.timeout
        longest, self._client.config["max_block_ms"] = self._client.config["max_block_ms"], _LOOK_MS
        try:
            while True:
                self._in_flight.raise_failure()
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

    def topic_id(self, topic: str) -> str | None:
        """See the port."""
        return self._transport.topic_id(topic)

    def _flush(self) -> None:
        self._transport.flush()

    def _commit(self) -> None:
        self._transport.commit(self._settings.timeout)

    def _abort(self, timeout: float) -> None:
        if self._transactional and not self._is_forgotten:
            self._transport.abort(timeout)
        if not self._in_flight.settled(timeout):
            self._fail(KafkaTimeoutError(f"no answer within {timeout:g} seconds"), "abort sent records")

    def _forget_failures(self) -> None:
        self._in_flight.forget_failures()

    def _disconnect(self, timeout: float) -> None:
        self._transport.stop(timeout)
        try:
            self._client.close(timeout)
        except KafkaError as error:
            log.warning("the Kafka client did not end within %g seconds: %s", timeout, error)

    def _as_sink_error(self, error: Exception, doing: str) -> SinkError:
        return translate(self._transport.cause(error), doing)

    def _reason(self, error: Exception) -> str:
        return str(self._transport.cause(error))


def _connect(settings: ProducerSettings) -> KafkaProducer:
    """A client that has met a broker."""
    with network(settings.connection) as connection:
        made = connection.pop("kafka_client")
        options = connection | _options(settings)
        return _Client(**options, kafka_client=lambda **given: _retrying(made(**given)))


def _retrying(client: Any) -> Any:
    """A network client that says of an unreachable node that it is not ready.

    The sender loses the request that it was about to send where `await_ready` raises. Where it returns False, the sender looks the
    coordinator up again and retries the request.
    """
    connect = client.await_ready

    def await_ready(node: Any, **waiting: Any) -> bool:
        try:
            return bool(connect(node, **waiting))
        except KafkaConnectionError:
            client.poll(timeout_ms=_RECONNECT_MS)
            return False

    client.await_ready = await_ready
    return client


def _options(settings: ProducerSettings) -> dict[str, Any]:
    timeout_ms = int(settings.timeout * 1000)
    options = {
        "acks": "all",
        "enable_idempotence": True,
        "allow_auto_create_topics": False,
        "linger_ms": 0,
        "max_request_size": max(_REQUEST_BYTES, settings.batching.limit),
        "bootstrap_timeout_ms": timeout_ms,
        "max_block_ms": timeout_ms,
        "delivery_timeout_ms": timeout_ms,
        "request_timeout_ms": timeout_ms // 3,
        "retry_backoff_ms": _RETRY_BACKOFF_MS,
        "connections_max_idle_ms": IDLE_MS,
        "metrics_enabled": False,
    }
    if settings.transactional_id is not None:
        options |= {
            "transactional_id": settings.transactional_id,
            "transaction_timeout_ms": int(settings.transaction_timeout * 1000),
        }
    return options
