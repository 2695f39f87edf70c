"""Answers of a broker in our words."""

import pytest
from kafka.errors import (
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTransactionTimeoutError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)

from cdfd.errors import FencedError
from cdfd.sinks.base import ReopenSinkError
from cdfd.sinks.kafka.client.failures import failure, translate


def test_an_answer_that_is_wrapped_in_the_text_of_another_error_keeps_its_hint() -> None:
    wrapped = KafkaError(f"Unexpected error in InitProducerIdResponse: {InvalidTransactionTimeoutError()}")
    error = translate(wrapped, "start transactions")
    assert error.what.startswith("cannot start transactions")
    assert "sink.transaction_timeout" in (error.hint or "")
    assert not error.retriable


def test_being_fenced_is_told_apart_however_it_is_wrapped() -> None:
    for error in (ProducerFencedError(), KafkaError(f"Unexpected error: {ProducerFencedError()}")):
        assert isinstance(translate(error, "commit a transaction"), FencedError)


def test_an_answer_that_did_not_come_in_time_may_come_the_next_time() -> None:
    text = "Could not execute transactional request for unknown reasons"
    for error in (KafkaError(f"{text}: {RequestTimedOutError('after 9999 ms')}"), KafkaError(f"{text}: None")):
        assert translate(error, "commit a transaction").retriable


@pytest.mark.parametrize(
    "answer",
    [InvalidTimestampError(), InvalidRecordError("Timestamp 1825315515796 of message with offset 0 is out of range.")],
)
def test_a_clock_that_is_wrong_is_transient(answer: KafkaError) -> None:
    error = translate(answer, "deliver")
    assert error.retriable
    assert "clock" in (error.hint or "")


def test_a_record_that_is_invalid_for_another_reason_is_not() -> None:
    error = translate(InvalidRecordError("Compacted topic cannot accept message without key"), "deliver")
    assert not error.retriable
    assert "compacted" in (error.hint or "")


def test_an_error_without_a_code() -> None:
    error = translate(ValueError("no number"), "deliver")
    assert error.what == "cannot deliver: ValueError('no number')"
    assert error.hint is None
    assert not error.retriable


def test_an_answer_without_a_text_gets_one() -> None:
    too_large = translate(MessageSizeTooLargeError(None), "deliver")
    assert too_large.what == "cannot deliver: MessageSizeTooLargeError: a batch is larger than the topic takes"
    assert "compression.type" in (too_large.hint or "")
    assert "None" not in translate(RequestTimedOutError(None), "deliver").what


def test_a_forgotten_transactional_id_is_no_fault() -> None:
    for error in (InvalidProducerIdMappingError(), KafkaError("[Error 49] InvalidProducerIdMappingError")):
        actual = translate(error, "deliver")
        assert isinstance(actual, ReopenSinkError)
        assert actual.retriable


@pytest.mark.parametrize("retriable", [False, True], ids=["librdkafka", "kafka-python"])
def test_a_topic_that_is_deleted_or_has_fewer_partitions_is_opened_again(retriable: bool) -> None:
    """librdkafka calls this answer final, and kafka-python does not."""
    code = UnknownTopicOrPartitionError.errno
    assert failure("commit", "Unknown topic or partition", code=code, retriable=retriable).retriable
