"""A bare transaction: one row and one position, by the client that the daemon uses, and nothing around it.

python -m bench.delivery.transactions SERVERS TOPIC POSITIONS     one for each line of standard input
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from queue import Queue

from kafka import KafkaProducer

from bench.delivery.daemon import ROOT
from bench.latency import pause

ROW = b"x" * 287


def latencies(servers: str, topic: str, positions: str, count: int, arrivals: Queue[float]) -> list[float]:
    """Milliseconds from the request to send a row until a reader of committed rows has it, `count` times."""
    taken = list[float]()
    command = [sys.executable, "-m", __name__, servers, topic, positions]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        for number in range(count):
            pause(number)
            start = time.monotonic()
            process.stdin.write(b"\n")
            taken.append((arrivals.get(timeout=30) - start) * 1000)
        process.stdin.close()
    return taken


def main(servers: str, topic: str, positions: str) -> None:
    options = {"bootstrap_servers": servers, "transactional_id": topic, "compression_type": "lz4", "linger_ms": 0}
    with closing(KafkaProducer(**options)) as producer:
        producer.init_transactions()
        for number, _ in enumerate(sys.stdin.buffer):
            producer.begin_transaction()
            producer.send(topic, ROW, key=b"%d" % number)
            producer.send(positions, b"%d" % number, key=b"orders")
            producer.commit_transaction()


if __name__ == "__main__":
    main(*sys.argv[1:])
