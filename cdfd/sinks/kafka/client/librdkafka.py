"""The `Producer` port over confluent-kafka, which wraps librdkafka (`pip install cdfd[librdkafka]`).

It builds its batches itself, of records that are handed over one by one as Python objects: a third of the speed, with a client that very
many use.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from cdfd.encoding.records import Records
from cdfd.errors import FencedError, SinkError
from cdfd.sinks.kafka.client.failures import failure, fenced
from cdfd.sinks.kafka.client.producer import ProducerSettings
from cdfd.sinks.kafka.records.batches import Oversized, Partitions, each, rows

log = logging.getLogger("cdfd.kafka")
_client_log = logging.getLogger("kafka.librdkafka")

_NAMES = {
    "bootstrap_servers": "bootstrap.servers",
    "client_id": "client.id",
    "reconnect_backoff_max_ms": "reconnect.backoff.max.ms",
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}
# Codes of the client's own are negative. These pass, if not for this client then for the next one.
_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._PURGE_QUEUE,
        KafkaError._STATE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
    }
)
_IN_PROTOCOL = {
    KafkaError._AUTHENTICATION: KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._UNKNOWN_PARTITION: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_LEFT_OPEN = "cannot abort a transaction: %s. The next producer's start ends it, or the broker does when its time is up"
_QUEUE_RECORDS = 1_000_000
_RETRY_BACKOFF_MS = 3
_LINGER_MS = 5
# How long to wait at a time for room in the client's queue, seconds.
_POLL = 0.05


class LibrdkafkaProducer:
    """See the port, `Producer`.

    Args:
        settings: what to connect to, and how.

    Raises:
        SinkError: the client does not take the settings, or the cluster cannot be reached within the timeout.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._failed: SinkError | None = None
        self._undelivered: SinkError | None = None
        self._in_transaction = False
        self._trouble: KafkaError | None = None
        self._client: Client | None = None
        try:
            self._client = Client(_options(settings) | {"error_cb": self._note_trouble}, logger=_client_log)
            self._client.list_topics(timeout=settings.timeout)
        except KafkaException as error:
            if self._client is not None:
                self._client.poll(0)
            servers = _text(settings.connection.get("bootstrap_servers", ()))
            raise _translated(self._trouble or error.args[0], f"connect to Kafka at {servers}") from error

    def _note_trouble(self, error: KafkaError) -> None:
        """Called while answers are looked at, for what the client tries to get over. It says more than that time has run out."""
        if error.code() == KafkaError._AUTHENTICATION:
            self._trouble = error

    @property
    def _transactional(self) -> bool:
        return self._settings.transactional_id is not None

    def init_transactions(self) -> None:
        """See the port."""
        with self._attempt(f"start transactions of {self._settings.transactional_id}") as client:
            if self._transactional:
                client.init_transactions(self._settings.timeout)

    def begin(self) -> None:
        """See the port."""
        with self._attempt("begin a transaction") as client:
            if self._transactional:
                client.begin_transaction()
            self._in_transaction = True

    def send(self, topic: str, partitions: Partitions, records: Records, timestamp: int) -> Sequence[Oversized]:
        """See the port. A record's size counts before compression here."""
        oversized = []
        with self._attempt(f"deliver to topic {topic}") as client:
            found = zip(each(partitions), rows(records), strict=False)
            for number, (partition, (key, value, headers)) in enumerate(found):
                record = {
                    "key": key,
                    "value": value,
                    "headers": headers,
                    "partition": partition,
                    "timestamp": timestamp,
                }
                try:
                    self._produce(client, topic, record)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                        raise
                    oversized.append(Oversized(number, len(key or b"") + len(value or b"")))
            client.poll(0)
            self._raise_undelivered()
        return oversized

    def _produce(self, client: Client, topic: str, record: dict[str, Any]) -> None:
        deadline = None
        while True:
            try:
                return client.produce(topic, on_delivery=self._note_undelivered, **record)
            except BufferError:
                # The client's queue is full. It empties while answers are looked at.
                client.poll(_POLL)
                self._raise_undelivered()
                deadline = deadline or time.monotonic() + self._settings.timeout
                if time.monotonic() > deadline:
                    raise _late(len(client), self._settings.timeout) from None

    def _note_undelivered(self, error: KafkaError | None, _: object) -> None:
        """Called for records that were given up, while answers are looked at."""
        if error is not None and self._undelivered is None:
            self._undelivered = _translated(error, "deliver records")

    def _raise_undelivered(self) -> None:
        if self._undelivered is not None:
            raise self._undelivered

    def flush(self) -> None:
        """See the port."""
        with self._attempt("flush") as client:
            self._flush(client)

    def _flush(self, client: Client) -> None:
        left = client.flush(self._settings.timeout)
        self._raise_undelivered()
        if left:
            raise _late(left, self._settings.timeout)

    def commit(self) -> None:
        """See the port."""
        with self._attempt("commit a transaction") as client:
            self._flush(client)
            if self._transactional:
                client.commit_transaction(self._settings.timeout)
            self._in_transaction = False

    def abort(self) -> None:
        """See the port."""
        if self._client is None or not self._in_transaction:
            return
        self._in_transaction = False
        timeout = self._settings.closing_timeout
        try:
            # A transaction of which nothing has arrived yet cannot be aborted safely: EndTxn may overtake what makes it known to the broker,
            # which then answers INVALID_TXN_STATE.
            left = self._client.flush(timeout) if self._failed is None else 0
            if not self._transactional and left:
                self._failed = _late(left, timeout)
            if self._transactional and not isinstance(self._failed, FencedError):
                self._client.abort_transaction(timeout)
        except (KafkaException, SystemError) as error:
            told = _told(error, self._client)
            self._failed = self._failed or _translated(told, "abort a transaction")
            log.warning(_LEFT_OPEN, told.str())
        self._undelivered = None

    def close(self) -> None:
        """See the port."""
        if self._client is None:
            return
        self.abort()
        self._failed = self._failed or SinkError("the producer is closed")
        # Its last reference: the client ends, and what it holds is gone.
        self._client = None

    @contextmanager
    def _attempt(self, doing: str) -> Iterator[Client]:
        """Errors in our words. After the first one, nothing is tried any more."""
        if self._failed is not None or self._client is None:
            raise self._failed or SinkError("the producer is closed")
        try:
            yield self._client
        except SinkError as error:
            self._failed = error
            raise
        except (KafkaException, SystemError) as error:
            self._failed = _translated(_told(error, self._client), doing)
            raise self._failed from error


def _told(error: KafkaException | SystemError, client: Client) -> KafkaError:
    """What the client has to say.

    A fatal error is raised by whatever looks at answers. If there are answers for our callback, it is called all the same, with that
    exception under way, and what comes out is a `SystemError`, with or without it. Every further call tells the fatal error again.
    """
    cause = error.__cause__ if isinstance(error, SystemError) else error
    if not isinstance(cause, KafkaException):
        try:
            client.begin_transaction()
        except KafkaException as again:
            cause = again
        else:
            raise error
    told: KafkaError = cause.args[0]
    return told


def _translated(error: KafkaError, doing: str) -> SinkError:
    """An error of confluent-kafka in our words."""
    code = error.code()
    if code == KafkaError._FENCED:
        return fenced(error.str())
    reason, passing = f"{error.name()}: {error.str()}", error.retriable() or code in _PASSING
    code = _IN_PROTOCOL.get(code, code)
    return failure(doing, reason, code=code if code > 0 else None, retriable=passing)


def _late(records: int, timeout: float) -> SinkError:
    return SinkError(
        f"{records} records were not acknowledged within {timeout:g} seconds",
        hint="Are all brokers up, and all partitions led?",
        retriable=True,
    )


def _options(settings: ProducerSettings) -> dict[str, Any]:
    unknown = settings.connection.keys() - _NAMES.keys()
    if unknown:
        raise SinkError(f"librdkafka has no setting like {', '.join(sorted(unknown))}")
    timeout_ms = int(settings.timeout * 1000)
    options: dict[str, Any] = {_NAMES[name]: _text(value) for name, value in settings.connection.items()}
    options |= {
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
        "compression.type": settings.batching.compression,
        "message.max.bytes": max(settings.batching.limit, 1000),
        "batch.size": min(settings.batching.target, settings.batching.limit),
        "linger.ms": _LINGER_MS,
        "queue.buffering.max.kbytes": max(settings.in_flight // 1024, 1),
        "queue.buffering.max.messages": _QUEUE_RECORDS,
        "delivery.report.only.error": True,
        "delivery.timeout.ms": timeout_ms,
        "request.timeout.ms": timeout_ms // 3,
        "socket.timeout.ms": timeout_ms,
        "retry.backoff.ms": _RETRY_BACKOFF_MS,
    }
    if settings.transactional_id is not None:
        options["transactional.id"] = settings.transactional_id
        options["transaction.timeout.ms"] = max(int(settings.transaction_timeout * 1000), timeout_ms)
    return options


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
