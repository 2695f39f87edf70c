"""The `Producer` port over confluent-kafka, which wraps librdkafka (`pip install cdfd[librdkafka]`).

It takes records one by one as Python objects and builds the batches itself. That is slower, with a widely used client.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import kafka.errors
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client
from kafka import KafkaAdminClient

from cdfd.encode.records import Records
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.certificates import TlsFiles
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.failures import failure, fenced_error
from cdfd.sinks.kafka.client.login import Credentials, SecretArgument, login_hint, ready
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings, known_id
from cdfd.sinks.kafka.client.tokens import TokenProvider
from cdfd.sinks.kafka.records.batches import HEADER_BYTES, Oversized, Partitions, each, rows

log = logging.getLogger("cdfd.kafka")
_client_log = logging.getLogger("kafka.librdkafka")

LOOKUP_SECONDS = 60.0
"""Time between two lookups of a topic's id. Each has a connection of its own, so that idle tables have none; it takes 10 ms of a local
broker."""
_ANSWER_MS = 5000

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
# The client's own codes, which are negative, for transient errors. Another client may succeed.
_TRANSIENT = frozenset(
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
# The client gives records up with these after another record, or the client itself, has failed.
_PURGED = frozenset({KafkaError._FATAL, KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE})
_IN_PROTOCOL = {
    KafkaError._AUTHENTICATION: KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._UNKNOWN_PARTITION: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_QUEUE_RECORDS = 1_000_000
_RETRY_BACKOFF_MS = 3
_LINGER_MS = 5
# Seconds to wait for the error that made the client give up other records.
_CAUSE_SECONDS = 1.0
# Seconds between two checks for space in the client's queue.
_POLL = 0.05
# Seconds until the first check for a refused login.
_ATTEMPT = 0.5


class LibrdkafkaProducer(Producer):
    """See the port, `Producer`.

    Args:
        settings: the settings of the producer.

    Raises:
        SinkError: the client refuses a setting, or the cluster cannot be reached within the timeout.
    """

    errors = (KafkaException, SystemError)

    def __init__(self, settings: ProducerSettings) -> None:
        super().__init__(settings)
        self._undelivered: SinkError | None = None
        self._purged = False
        self._refusal: KafkaError | None = None
        self._client: Any = None
        self._credentials = Credentials(dict(settings.connection), time.monotonic())
        self._files = TlsFiles(settings.connection)
        self._topic_ids: dict[str, str | None] = {}
        self._next_lookup = time.monotonic() + LOOKUP_SECONDS
        doing = f"connect to Kafka at {_text(settings.connection.get('bootstrap_servers', ()))}"
        ready(settings.connection)
        try:
            self._client = Client(_options(settings) | {"error_cb": self._note_refusal}, logger=_client_log)
            self._meet_broker(settings.timeout)
        except KafkaException as error:
            cause: KafkaError = self._refusal or error.args[0]
            refusal = _translate(cause, doing)
            if cause.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
                refusal.hint = login_hint(self._credentials.mechanism)
                refusal.retriable = self._credentials.renewed()
            raise refusal from error

    def _meet_broker(self, timeout: float) -> None:
        """Wait for a response. Ends at the first refused login: further attempts may lock the account."""
        deadline, attempt = time.monotonic() + timeout, _ATTEMPT
        while True:
            left = deadline - time.monotonic()
            try:
                self._client.list_topics(timeout=max(min(left, attempt), 0.001))
            except KafkaException:
                self._client.poll(0)
                if self._refusal is not None or left < attempt:
                    raise
                attempt *= 2  # each attempt asks again, and a broker may be slow to answer
            else:
                return

    def _note_refusal(self, error: KafkaError) -> None:
        """Callback for errors that the client retries. A refused login says more than the timeout that follows."""
        if error.code() == KafkaError._AUTHENTICATION:
            self._refusal = error

    def begin(self) -> None:
        """See the port. Uses a changed password for new connections; changed certificates need a new producer."""
        if self._failure is None and self._credentials.refresh():
            self._client.set_sasl_credentials(*self._credentials.user())
        if self._failure is None and self._files.changed():
            self._failure = SinkError(
                "the files of sink.security have changed", hint="The daemon connects again with them", retriable=True
            )
        super().begin()

    def topic_id(self, topic: str) -> str | None:
        """See the port; None before the first lookup. librdkafka does not tell ids of topics to producers, but kafka-python does.

        A lookup that fails raises nothing: a commit follows, whose error says more.
        """
        if time.monotonic() >= self._next_lookup:
            self._next_lookup = time.monotonic() + LOOKUP_SECONDS
            try:
                with network(self._settings.connection) as options:
                    admin = KafkaAdminClient(**options, bootstrap_timeout_ms=_ANSWER_MS, request_timeout_ms=_ANSWER_MS)
                with closing(admin):
                    (described,) = admin.describe_topics([topic])
                self._topic_ids[topic] = known_id(described.get("topic_id"))
            except (kafka.errors.KafkaError, SinkError) as error:
                log.debug("cannot look up the id of topic %s: %s", topic, error)
        return self._topic_ids.get(topic)

    def _init_transactions(self) -> None:
        self._client.init_transactions(self._settings.timeout)

    def _send(
        self, topic: str, partitions: Partitions, records: Records, timestamp: int, *, more: bool
    ) -> Sequence[Oversized]:
        """See the port. The limit applies to a record's size before compression."""
        oversized = []
        places = zip(each(partitions), rows(records), strict=False)
        for number, (partition, (key, value, headers)) in enumerate(places):
            record = {
                "key": key,
                "value": value,
                "headers": headers,
                "partition": partition,
                "timestamp": timestamp,
            }
            try:
                self._produce(topic, record)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                oversized.append(Oversized(number, len(key or b"") + len(value or b"")))
        self._client.poll(0)
        self._raise_undelivered()
        return oversized

    def _produce(self, topic: str, record: dict[str, Any]) -> None:
        deadline = None
        client: Client = self._client
        while True:
            try:
                return client.produce(topic, on_delivery=self._note_undelivered, **record)
            except BufferError:
                # The client's queue is full. Polling empties it.
                client.poll(_POLL)
                self._raise_undelivered()
                deadline = deadline or time.monotonic() + self._settings.timeout
                if time.monotonic() > deadline:
                    raise _not_acknowledged(len(client), self._settings.timeout) from None

    def _note_undelivered(self, error: KafkaError | None, _: object) -> None:
        """Callback of `poll` for records that the client gave up."""
        if error is not None and (self._undelivered is None or (self._purged and error.code() not in _PURGED)):
            self._undelivered = _translate(error, "deliver records")
            self._purged = error.code() in _PURGED

    def _raise_undelivered(self) -> None:
        if self._undelivered is None:
            return
        if self._purged:
            self._client.flush(_CAUSE_SECONDS)  # the error of the record that failed first may still come
            if (cause := _cause(self._client)) is not None:
                raise KafkaException(cause)
        raise self._undelivered

    def _flush(self) -> None:
        left = self._client.flush(self._settings.timeout)
        self._raise_undelivered()
        if left:
            raise _not_acknowledged(left, self._settings.timeout)

    def _commit(self) -> None:
        self._flush()
        self._client.commit_transaction(self._settings.timeout)

    def _abort(self, timeout: float) -> None:
        # Flush first: EndTxn may overtake the request that adds the first partition, and the broker then answers INVALID_TXN_STATE.
        left = self._client.flush(timeout) if self._failure is None else 0
        if not self._transactional and left:
            self._failure = _not_acknowledged(left, timeout)
        if self._transactional and not self._is_forgotten:
            self._client.abort_transaction(timeout)

    def _forget_failures(self) -> None:
        self._undelivered, self._purged = None, False

    def _disconnect(self, timeout: float) -> None:
        # The last reference: the client ends, and discards its queue.
        self._client = None

    def _as_sink_error(self, error: Exception, doing: str) -> SinkError:
        return _translate(_kafka_error(error, self._client), doing)


def _kafka_error(error: Exception, client: Client) -> KafkaError:
    """The error of the client in an exception.

    Every call that polls raises a fatal error. If the poll also calls our callback, that happens with the exception pending, and the result
    is a `SystemError`, with or without the exception as its cause. Calls that do not poll say only that there is a fatal error,
    or that the transaction has failed.
    """
    cause = error.__cause__ if isinstance(error, SystemError) else error
    reason: KafkaError | None = cause.args[0] if isinstance(cause, KafkaException) else None
    if reason is None or reason.code() in (KafkaError._FATAL, KafkaError._STATE):
        reason = _cause(client) or reason
    if reason is None:
        raise error
    return reason


def _cause(client: Client) -> KafkaError | None:
    """The error of a client, or of its transaction, that every call about transactions raises again; None if there is none."""
    try:
        client.begin_transaction()
    except KafkaException as raised:
        error: KafkaError = raised.args[0]
        return error if error.fatal() or error.txn_requires_abort() else None
    return None


def _translate(error: KafkaError, doing: str) -> SinkError:
    """An error of confluent-kafka as an error of ours."""
    code = error.code()
    if code == KafkaError._FENCED:
        return fenced_error(error.str())
    reason, retriable = f"{error.name()}: {error.str()}", error.retriable() or code in _TRANSIENT
    code = _IN_PROTOCOL.get(code, code)
    return failure(doing, reason, code=code if code > 0 else None, retriable=retriable)


def _not_acknowledged(records: int, timeout: float) -> SinkError:
    return SinkError(
        f"{records} records were not acknowledged within {timeout:g} seconds",
        hint="Check that all brokers run and that all partitions have a leader",
        retriable=True,
    )


def _options(settings: ProducerSettings) -> dict[str, Any]:
    connection = dict(settings.connection)
    provider = connection.pop("sasl_oauth_token_provider", None)
    unknown = connection.keys() - _NAMES.keys()
    if unknown:
        raise SinkError(f"librdkafka has no setting for {', '.join(sorted(unknown))}")
    timeout_ms = int(settings.timeout * 1000)
    options: dict[str, Any] = {_NAMES[name]: _text(value) for name, value in connection.items()}
    if provider is not None:
        options["oauth_cb"] = partial(_token, provider)
    options |= {
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
        "compression.type": settings.batching.compression,
        # The client compares a record alone with it, without the header of a batch.
        "message.max.bytes": max(settings.batching.limit - HEADER_BYTES, 1000),
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


def _token(provider: TokenProvider, _: object) -> tuple[str, float, str, dict[str, str]]:
    """Callback for a token, in a thread of the client. If it fails, the client asks again after 10 seconds."""
    token = provider.tokens.current()
    return token.value, token.expires, "cdfd", provider.extensions()


def _text(argument: Any) -> str:
    """An argument as it is now: secrets may have changed since it was made."""
    if isinstance(argument, SecretArgument):
        return str(argument.now())
    return ",".join(argument) if isinstance(argument, list) else str(argument)
