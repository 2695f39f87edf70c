"""What Kafka answers, in our words. Codes are those of the protocol, which all clients share."""

from __future__ import annotations

import re

from kafka.errors import KafkaError, RetriableError, for_code

from cdfd.errors import FencedError, SinkError

_INVALID_PRODUCER_EPOCH, _PRODUCER_FENCED = 47, 90
_INVALID_TIMESTAMP, _INVALID_RECORD = 32, 87
_FENCED = frozenset({_INVALID_PRODUCER_EPOCH, _PRODUCER_FENCED})

# The broker and this producer disagree on what was sent, which ends with a new producer; or on the time, which ends with a corrected clock.
_RETRIABLE_WITH_ANOTHER = frozenset(
    {
        45,  # OUT_OF_ORDER_SEQUENCE_NUMBER
        46,  # DUPLICATE_SEQUENCE_NUMBER
        48,  # INVALID_TXN_STATE
        49,  # INVALID_PRODUCER_ID_MAPPING
        51,  # CONCURRENT_TRANSACTIONS
        59,  # UNKNOWN_PRODUCER_ID
        _INVALID_TIMESTAMP,
        120,  # TRANSACTION_ABORTABLE
    }
)
_TOO_LARGE = "Is the topic's max.message.bytes lower than when the daemon started? Restart it, or raise the topic's."
# Answers that it does not expect, kafka-python puts into the text of an error without a code.
_WRAPPED = re.compile(r"\[Error (\d+)\]")
_ACCESS = "Give the daemon's user access."
_HINTS = {
    3: "Does the topic exist, and has it that many partitions?",
    10: _TOO_LARGE,
    17: "Kafka's topic names have letters, digits, '.', '_' and '-', 249 at most.",
    18: _TOO_LARGE,
    29: _ACCESS + " It needs Write and Describe on the topic.",
    31: _ACCESS + " It needs IdempotentWrite on the cluster.",
    32: "Is this machine's clock right? Records carry the time of their delivery, and the topic's message.timestamp.*.max.ms bounds it.",
    50: "Set sink.transaction_timeout to no more than the broker's transaction.max.timeout.ms.",
    53: _ACCESS + " It needs Write and Describe on the transactional id.",
    58: "Are sink.security.username and password right?",
    87: "A compacted topic takes no records without a key.",
}


def failure(doing: str, reason: str, *, code: int | None, retriable: bool) -> SinkError:
    """An error that says what was tried, what the answer was, and what to do.

    Args:
        doing: what was tried, as in "cannot ...".
        reason: what the client says.
        code: of the protocol, where there is one.
        retriable: whether the client takes it for something that passes.
    """
    if code in _FENCED:
        return fenced(reason)
    if code == _INVALID_RECORD and "Timestamp" in reason:
        code = _INVALID_TIMESTAMP  # newer brokers answer so for one record, older ones for the whole batch
    retriable = retriable or code in _RETRIABLE_WITH_ANOTHER
    return SinkError(f"cannot {doing}: {reason}", hint=None if code is None else _HINTS.get(code), retriable=retriable)


def fenced(reason: str) -> FencedError:
    """Another producer has our transactional id, or the broker gave up our transaction: the two cannot be told apart."""
    return FencedError(
        f"another daemon has taken over this table of the pipeline: {reason}",
        hint="Two daemons with one pipeline name? Or was the daemon held up for longer than a transaction may take?",
    )


def translated(error: Exception, doing: str) -> SinkError:
    """An error of kafka-python in our words.

    Where a request that begins or ends a transaction fails for another reason than the broker's, such as an answer that does not come in
    time, it makes a plain `KafkaError` with a text, and says no more of it. Another producer may fare better.
    """
    code = getattr(error, "errno", None)
    reason = str(error) if isinstance(error, KafkaError) else repr(error)
    retriable = isinstance(error, RetriableError)
    if code is None and (wrapped := _WRAPPED.search(reason)) is not None:
        code = int(wrapped[1])
        retriable = issubclass(for_code(code), RetriableError)
    return failure(doing, reason, code=code, retriable=retriable or (code is None and type(error) is KafkaError))
