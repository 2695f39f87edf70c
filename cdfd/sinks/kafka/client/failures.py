"""Translation of Kafka's errors. All clients share the error codes of the protocol."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kafka.errors import BrokerResponseError, KafkaError, RetriableError, UnknownBrokerIdError, for_code

from cdfd.errors import FencedError, SinkError
from cdfd.sinks.base import ReopenSinkError

_INVALID_PRODUCER_EPOCH, _PRODUCER_FENCED = 47, 90
_INVALID_PRODUCER_ID_MAPPING = 49
_INVALID_TIMESTAMP, _INVALID_RECORD = 32, 87
_FENCED = frozenset({_INVALID_PRODUCER_EPOCH, _PRODUCER_FENCED})

TRANSIENT = (RetriableError, UnknownBrokerIdError)
"""Errors of kafka-python after which another attempt may succeed. A broker is unknown if a partition has no leader, whose id is then -1."""

# The broker disagrees with this producer on its state or on topics, which a new producer resolves, or on the time, which a corrected clock
# resolves.
_RETRIABLE_WITH_NEW_PRODUCER = frozenset(
    {
        3,  # UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted, and may have been created again with fewer partitions
        45,  # OUT_OF_ORDER_SEQUENCE_NUMBER
        46,  # DUPLICATE_SEQUENCE_NUMBER
        48,  # INVALID_TXN_STATE
        51,  # CONCURRENT_TRANSACTIONS
        59,  # UNKNOWN_PRODUCER_ID
        _INVALID_TIMESTAMP,
        120,  # TRANSACTION_ABORTABLE
    }
)
_TOO_LARGE = "The topic's max.message.bytes or compression.type may have changed since the daemon started: restart it, or raise the first."
# For errors without any text of their own.
_REASONS = {10: "a batch is larger than the topic takes", 18: "a batch is larger than the topic's segment.bytes"}
# kafka-python puts unexpected error codes into the text of an error without a code.
_WRAPPED = re.compile(r"\[Error (\d+)\]")
_ACCESS = "Give the daemon's user access."
_HINTS = {
    3: "Check that the topic exists, and its number of partitions.",
    10: _TOO_LARGE,
    17: "Topic names have at most 249 letters, digits, '.', '_' and '-'.",
    18: _TOO_LARGE,
    29: _ACCESS + " It needs Write and Describe on the topic.",
    31: _ACCESS + " It needs IdempotentWrite on the cluster.",
    32: "Check this machine's clock: the topic's message.timestamp.*.max.ms bounds the timestamps of records.",
    50: "Set sink.transaction_timeout to no more than the broker's transaction.max.timeout.ms.",
    53: _ACCESS + " It needs Write and Describe on the transactional id.",
    58: "Check the credentials in sink.security.",
    87: "A compacted topic does not accept records without a key.",
}


def failure(doing: str, reason: str, *, code: int | None, retriable: bool) -> SinkError:
    """An error with the operation, the reason and a hint.

    Args:
        doing: the operation, as in "cannot ...".
        reason: the text of the client.
        code: error code of the protocol, if there is one.
        retriable: whether the client considers the error transient.
    """
    if code in _FENCED:
        return fenced_error(reason)
    if code == _INVALID_PRODUCER_ID_MAPPING:
        return ReopenSinkError(
            f"cannot {doing}: the cluster has forgotten the transactional id, which was idle for long",
            hint="transactional.id.expiration.ms of the brokers says for how long",
            retriable=True,
        )
    if code == _INVALID_RECORD and "Timestamp" in reason:
        code = _INVALID_TIMESTAMP  # newer brokers report this for one record, older ones for the whole batch
    retriable = retriable or code in _RETRIABLE_WITH_NEW_PRODUCER
    return SinkError(f"cannot {doing}: {reason}", hint=None if code is None else _HINTS.get(code), retriable=retriable)


def fenced_error(reason: str) -> FencedError:
    """Another producer has taken the transactional id, or the broker has aborted the transaction. Kafka reports both alike."""
    return FencedError(
        f"another daemon has taken over this table of the pipeline: {reason}",
        hint="Check for a second daemon with this pipeline name. A pause longer than sink.transaction_timeout has the same effect",
    )


def translate(error: Exception, doing: str) -> SinkError:
    """An error of kafka-python as an error of ours.

    If a request that begins or ends a transaction fails without an error code, for example by a timeout, kafka-python raises a plain
    `KafkaError`. Such an error is retriable, because another producer may succeed.
    """
    code = getattr(error, "errno", None)
    reason = str(error) if isinstance(error, KafkaError) else repr(error)
    if isinstance(error, BrokerResponseError) and all(part is None for part in error.args):
        # Answers of a broker may have no text, which shows as None.
        reason = f"{type(error).__name__}: {_REASONS.get(error.errno) or error.description}"
    retriable = isinstance(error, TRANSIENT)
    if code is None and (wrapped := _WRAPPED.search(reason)) is not None:
        code = int(wrapped[1])
        retriable = issubclass(for_code(code), RetriableError)
    return failure(doing, reason, code=code, retriable=retriable or (code is None and type(error) is KafkaError))


@contextmanager
def translating(doing: str) -> Iterator[None]:
    """Raise errors of kafka-python in the block as errors of ours."""
    try:
        yield
    except KafkaError as error:
        raise translate(error, doing) from error
