"""The demo with a broker of its own: `make demo-kafka`."""

import sys

from cdfd.demo import topic
from tests.support.kafka.broker import Broker
from tests.support.kafka.installation import missing

if __name__ == "__main__":
    if (reason := missing()) is not None:
        sys.exit(f"There is no broker: {reason}")
    print("Starting a Kafka broker; the first time, Maven fetches it.\n", flush=True)
    with Broker() as broker:
        topic.run(broker.bootstrap_servers, sys.argv[1] if len(sys.argv) > 1 else None)
