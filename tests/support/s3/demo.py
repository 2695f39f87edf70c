"""The demo with its table and ledger on S3 and a broker, both started for it: `make demo-s3`."""

import os
import sys
import tempfile
from pathlib import Path

from cdfd.demo import topic
from tests.support.kafka.broker import Broker
from tests.support.kafka.installation import missing
from tests.support.s3.fixtures import new_bucket
from tests.support.s3.server import moto

if __name__ == "__main__":
    if (reason := missing()) is not None:
        sys.exit(f"There is no broker: {reason}")
    print("Starting an S3 server (moto) and a Kafka broker; the first time, Maven fetches it.\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="cdfd-demo-") as folder, moto(Path(folder)) as server, Broker() as broker:
        os.environ |= {name: value for name, value in server.environment().items() if name.startswith("AWS_")}
        topic.run(broker.bootstrap_servers, f"s3://{new_bucket(server)}/demo")
