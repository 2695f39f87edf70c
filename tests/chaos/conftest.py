"""What chaos has in common with the tests of Kafka."""

from tests.kafka.conftest import name, needs_broker

__all__ = ["name", "needs_broker"]
