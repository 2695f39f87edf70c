"""The reader's side of a delivery: when rows could be read, and how many they are.

Times are those of `time.monotonic`, which on Linux are the same in all processes.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from queue import Queue
from threading import Event, Thread

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from tests.support.kafka.installation import installed

PARTITIONS = 4
LOOK_SECONDS = 0.02
QUIET_SECONDS = 1.0
COUNT_SECONDS = 120


@contextmanager
def topic(servers: str) -> Iterator[str]:
    """A new topic as all get it: four partitions, everything else as the broker has it."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics({name: {"num_partitions": PARTITIONS, "replication_factor": 1}}, wait_for_metadata=True)
        try:
            yield name
        finally:
            admin.delete_topics([name])


@dataclass(frozen=True, slots=True)
class Arrival:
    """When the first row was in the topic, committed or not, and when the last one could be read by readers of committed ones."""

    first: float
    last: float


def arrival(
    servers: str,
    topic: str,
    rows: int,
    check: Callable[[], None],
    *,
    quiet: float = QUIET_SECONDS,
    timeout: float = 300.0,
) -> Arrival:
    """Watches the ends of a topic, which costs next to nothing, until `rows` rows are there and nothing more comes for `quiet` seconds.

    Ends count the markers of transactions too: that there are exactly `rows` rows is to be seen by counting.

    Raises:
        TimeoutError: they did not come.
    """
    first = last = 0.0
    seen = 0
    deadline = time.monotonic() + timeout
    with _ends(servers, topic, committed=True) as committed, _ends(servers, topic, committed=False) as written:
        while seen < rows or time.monotonic() < last + quiet:
            if not first and written():
                first = time.monotonic()
            if (end := committed()) > seen:
                seen, last = end, time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{seen} of {rows} rows within {timeout:g} s")
            check()
            time.sleep(LOOK_SECONDS)
    return Arrival(first or last, last)


@contextmanager
def _ends(servers: str, topic: str, *, committed: bool) -> Iterator[Callable[[], int]]:
    level = "read_committed" if committed else "read_uncommitted"
    with closing(KafkaConsumer(bootstrap_servers=servers, isolation_level=level)) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        yield lambda: sum(consumer.end_offsets(partitions).values())


def count(servers: str, topic: str, rows: int) -> int:
    """Number of committed rows, by Kafka's own consumer; it asks for one more than there should be."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as settings:
        settings.write("isolation.level=read_committed\n")
        settings.flush()
        arguments = ["--bootstrap-server", servers, "--topic", topic, "--messages", str(rows + 1)]
        arguments += ["--timeout", "2000", "--command-config", settings.name, "--hide-header"]
        command = installed().command("org.apache.kafka.tools.ConsumerPerformance", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=COUNT_SECONDS, check=True)
    return int(done.stdout.splitlines()[-1].split(",")[4])


@contextmanager
def stamps(servers: str, topic: str) -> Iterator[Queue[float]]:
    """When each row came out of a reader of committed rows that waits for it."""
    arrivals: Queue[float] = Queue()
    ended = Event()
    options = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with closing(KafkaConsumer(bootstrap_servers=servers, **options)) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])

        def read() -> None:
            while not ended.is_set():
                records = consumer.poll(timeout_ms=200)
                now = time.monotonic()
                for _ in range(sum(map(len, records.values()))):
                    arrivals.put(now)

        reader = Thread(target=read, daemon=True)
        reader.start()
        try:
            yield arrivals
        finally:
            ended.set()
            reader.join()
