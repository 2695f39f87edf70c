"""What pages have in common with the tests of Kafka."""

from tests.kafka.conftest import broker, needs_broker

__all__ = ["broker", "needs_broker"]
