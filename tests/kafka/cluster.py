"""A Kafka cluster of several nodes on this machine, for failures that one node cannot have.

with Cluster(3) as cluster:
    KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
"""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.kafka.broker import Broker
from tests.kafka.node import BrokerError, free_ports

_WITHIN = 60.0


class Cluster:
    """Nodes that are all brokers and controllers. A context manager: they run from its beginning to its end.

    Args:
        count: how many nodes.

    Attributes:
        nodes: node 1 is the first. Kill them, stop them, start them again.
    """

    def __init__(self, count: int = 3) -> None:
        free = free_ports(2 * count)
        controllers = dict(enumerate(free[:count], 1))
        shared = {
            "controller.quorum.voters": ",".join(f"{number}@127.0.0.1:{port}" for number, port in controllers.items()),
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            "transaction.state.log.min.isr": "2",
            "controller.quorum.election.timeout.ms": "500",
            "controller.quorum.fetch.timeout.ms": "1000",
            "replica.lag.time.max.ms": "3000",
        }
        self._stack = ExitStack()
        self.nodes: list[Broker] = []
        for number, port in enumerate(free[count:], 1):
            listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[number]}"
            own = {"node.id": str(number), "listeners": listeners}
            node = Broker(port=port, properties=shared | own)
            self._stack.callback(node.close)
            _number(node, number)
            self.nodes.append(node)

    @property
    def bootstrap_servers(self) -> str:
        """All of them, so that clients find the cluster whichever is away."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def start(self, nodes: Sequence[Broker] | None = None) -> None:
        """Start nodes (all), side by side: the first of them is ready only once there is a majority of controllers."""
        wanted = self.nodes if nodes is None else nodes
        with ThreadPoolExecutor(len(wanted)) as pool:
            for started in [pool.submit(node.start) for node in wanted]:
                started.result()

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """An administrator's client, which needs one of the nodes."""
        running = ",".join(node.bootstrap_servers for node in self.nodes if node.running)
        with KafkaAdminClient(bootstrap_servers=running) as admin:
            yield admin

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """The node that leads a partition, waited for."""
        return self.nodes[self._wait(topic, partition, lambda found: found["leader_id"] > 0)["leader_id"] - 1]

    def elect_preferred(self) -> None:
        """Each partition is led by the first of its replicas that is in sync."""
        with self.admin() as admin:
            admin.elect_leaders(0, raise_errors=False)

    def await_in_sync(self, topic: str, numbers: Sequence[int]) -> None:
        """Return when just these nodes have all of partition 0."""
        self._wait(topic, 0, lambda found: sorted(found["isr_nodes"]) == sorted(numbers))

    def _wait(self, topic: str, partition: int, fits: Any) -> Mapping[str, Any]:
        deadline = time.monotonic() + _WITHIN
        found: Mapping[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                with self.admin() as admin:
                    [described] = admin.describe_topics([topic])
            except KafkaError:
                time.sleep(0.2)
                continue
            found = next((each for each in described["partitions"] if each["partition_index"] == partition), {})
            if found and fits(found):
                return found
            time.sleep(0.1)
        raise BrokerError(f"partition {partition} of {topic} is not as expected within {_WITHIN:g} seconds: {found}")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()


def _number(node: Broker, number: int) -> None:
    """Make a data folder that was formatted for node 1 that of another node."""
    path = node.folder / "data" / "meta.properties"
    text = re.sub(r"(?m)^node\.id=.*$", f"node.id={number}", path.read_text())
    path.write_text(re.sub(r"(?m)^directory\.id=.*$", f"directory.id={_directory_id()}", text))


def _directory_id() -> str:
    """A random UUID as Kafka writes it, which never begins with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
