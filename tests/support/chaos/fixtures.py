"""What chaos has in common with the tests of Kafka."""

from tests.support.kafka.fixtures import broker, name, needs_broker, pipeline

__all__ = ["broker", "name", "needs_broker", "pipeline"]
