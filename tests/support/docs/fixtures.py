"""What pages have in common with the tests of Kafka."""

from tests.support.kafka.fixtures import broker, needs_broker

__all__ = ["broker", "needs_broker"]
