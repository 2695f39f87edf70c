"""Fixtures of the Kafka tests that the chaos tests share."""

from tests.support.kafka.fixtures import broker, name, needs_broker, pipeline

__all__ = ["broker", "name", "needs_broker", "pipeline"]
