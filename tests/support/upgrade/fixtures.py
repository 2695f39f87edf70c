"""Fixtures of the Kafka tests that the tests of upgrades share."""

from tests.support.kafka.fixtures import admin, broker, create, name, needs_broker

__all__ = ["admin", "broker", "create", "name", "needs_broker"]
