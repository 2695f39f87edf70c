"""What upgrades have in common with the tests of Kafka."""

from tests.support.kafka.fixtures import admin, broker, create, name, needs_broker

__all__ = ["admin", "broker", "create", "name", "needs_broker"]
