"""The `Producer` port over kafka-python.

What is known of its ways (3.0.12) and done about them here:

- A transaction commits although a batch failed: each answer is waited for and looked at before a commit.
- `commit_transaction` and `abort_transaction` wait for ever: they have deadlines here.
- It holds whatever it is given: what is on its way is bounded here.
- After a transaction a broker answers CONCURRENT_TRANSACTIONS to the next one until the last one's markers are written, a few milliseconds;
  the client then sleeps for `retry_backoff_ms`, 100 by default.
- `close` raises and leaves the sender running where something is still on its way.
- A request for a coordinator that refuses connections is lost: the sender then spins until the batch expires (`_retrying`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from kafka import KafkaProducer
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from cdfd.encoding.records import Records
from cdfd.errors import FencedError, SinkError
from cdfd.sinks.kafka.client.batch_sender import BatchSender, incompatibilities
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.failures import translated
from cdfd.sinks.kafka.client.in_flight import InFlight
from cdfd.sinks.kafka.client.producer import ProducerSettings
from cdfd.sinks.kafka.client.record_sender import RecordSender
from cdfd.sinks.kafka.records.batches import Oversized, Partitions
from cdfd.sinks.kafka.records.compression import Compression

log = logging.getLogger("cdfd.kafka")

_LEFT_OPEN = "cannot abort a transaction: %s. The next producer's start ends it, or the broker does when its time is up"
_RETRY_BACKOFF_MS = 3
_RECONNECT_MS = 50
_REQUEST_BYTES = 8 << 20
_CODECS = {"gzip": has_gzip, "snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}


class _Way(Protocol):
    """How records get into a `KafkaProducer`, and what it does not offer in public."""

    def send(self, topic: str, partitions: Partitions, records: Records, timestamp: int) -> list[Oversized]: ...

    def end(self, timeout: float, *, commit: bool) -> None: ...

    def cause(self, error: Exception) -> Exception: ...

    def stop(self, timeout: float) -> None: ...


class KafkaPythonProducer:
    """See the port, `Producer`.

    Args:
        settings: what to connect to, and how.
        whole_batches: hand over whole batches where the installed kafka-python allows it.

    Raises:
        SinkError: the cluster cannot be reached within the timeout, or does not let us in.
    """

    def __init__(self, settings: ProducerSettings, *, whole_batches: bool = True) -> None:
        self._settings = settings
        self._in_flight = InFlight(settings.in_flight, settings.timeout)
        self._failed: SinkError | None = None
        self._in_transaction = False
        self._closed = False
        self._client = _connected(settings, whole_batches=whole_batches)
        if whole_batches and (missing := incompatibilities(self._client)):
            log.warning("kafka-python has changed inside (%s): records are sent one by one", ", ".join(missing))
            self._client.close(settings.closing_timeout)
            self._client, whole_batches = _connected(settings, whole_batches=False), False
        self._way: _Way = (
            BatchSender(self._client, settings.batching, self._in_flight)
            if whole_batches
            else RecordSender(self._client, self._in_flight)
        )

    @property
    def _transactional(self) -> bool:
        return self._settings.transactional_id is not None

    def init_transactions(self) -> None:
        """See the port."""
        with self._attempt(f"start transactions of {self._settings.transactional_id}"):
            if self._transactional:
                self._client.init_transactions()

    def begin(self) -> None:
        """See the port."""
        with self._attempt("begin a transaction"):
            if self._transactional:
                self._client.begin_transaction()
            self._in_transaction = True

    def send(self, topic: str, partitions: Partitions, records: Records, timestamp: int) -> Sequence[Oversized]:
        """See the port."""
        with self._attempt(f"deliver to topic {topic}"):
            unknown = set(np.unique(partitions).tolist()) - self._client.partitions_for(topic)
            if unknown:
                raise SinkError(f"topic {topic} has no partition {min(unknown)}")
            return self._way.send(topic, partitions, records, timestamp)

    def flush(self) -> None:
        """See the port."""
        with self._attempt("flush"):
            self._in_flight.wait_for_all()

    def commit(self) -> None:
        """See the port."""
        with self._attempt("commit a transaction"):
            self._in_flight.wait_for_all()
            if self._transactional:
                self._way.end(self._settings.timeout, commit=True)
            self._in_transaction = False

    def abort(self) -> None:
        """See the port."""
        if not self._in_transaction:
            return
        self._in_transaction = False
        timeout = self._settings.closing_timeout
        try:
            if self._transactional and not isinstance(self._failed, FencedError):
                self._way.end(timeout, commit=False)
            if not self._in_flight.settled(timeout):
                self._fail(KafkaTimeoutError(f"no answer within {timeout:g} seconds"), "drop what was sent")
        except KafkaError as error:
            self._fail(error, "abort a transaction")
            log.warning(_LEFT_OPEN, self._way.cause(error))
        self._in_flight.forget_failures()

    def close(self) -> None:
        """See the port."""
        if self._closed:
            return
        self.abort()
        self._closed = True
        timeout = self._settings.closing_timeout
        self._failed = self._failed or SinkError("the producer is closed")
        self._way.stop(timeout)
        try:
            self._client.close(timeout)
        except KafkaError as error:
            log.warning("the Kafka client did not end within %g seconds: %s", timeout, error)

    @contextmanager
    def _attempt(self, doing: str) -> Iterator[None]:
        """Errors in our words. After the first one, nothing is tried any more."""
        if self._failed is not None:
            raise self._failed
        try:
            yield
        except SinkError as error:
            self._failed = error
            raise
        except (KafkaError, ValueError) as error:
            raise self._fail(error, doing) from error

    def _fail(self, error: Exception, doing: str) -> SinkError:
        self._failed = self._failed or translated(self._way.cause(error), doing)
        return self._failed


def _connected(settings: ProducerSettings, *, whole_batches: bool) -> KafkaProducer:
    """A client that has met a broker."""
    with network(settings.connection) as connection:
        made = connection.pop("kafka_client")
        options = connection | _options(settings, whole_batches=whole_batches)
        return KafkaProducer(**options, kafka_client=lambda **given: _retrying(made(**given)))


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


def _options(settings: ProducerSettings, *, whole_batches: bool) -> dict[str, Any]:
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
        "metrics_enabled": False,
    }
    if not whole_batches:
        options |= {
            "batch_size": min(settings.batching.target, settings.batching.limit) // 4,
            "linger_ms": 5,
            "max_request_size": settings.batching.limit,
            "compression_type": _available(settings.batching.compression),
        }
    if settings.transactional_id is not None:
        options |= {
            "transactional_id": settings.transactional_id,
            "transaction_timeout_ms": int(settings.transaction_timeout * 1000),
        }
    return options


def _available(compression: Compression) -> str | None:
    """What kafka-python calls it, if it has the library that it uses for it."""
    if compression == "none":
        return None
    if not _CODECS[compression]():
        log.warning("kafka-python has no library for %s: records are sent without compression", compression)
        return None
    return compression
