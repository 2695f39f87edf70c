"""Fixtures of the Kafka tests that the tests of pages share."""

from tests.support.kafka.fixtures import broker, needs_broker

__all__ = ["broker", "needs_broker"]
