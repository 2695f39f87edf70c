"""A Kafka cluster of several nodes on this machine, for failures that one node cannot have.

with Cluster(3) as cluster:
    KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
"""

import base64
import re
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from tests.support.kafka.broker import Broker
from tests.support.kafka.node import BrokerError, free_ports

_WITHIN = 60.0


class Cluster:
    """Nodes that are all brokers. A context manager: they run from its beginning to its end.

    Args:
        count: how many nodes.
        controllers: which of them are in the quorum of controllers, by number; all of them where None.
        properties: more of each node's, as in `server.properties`.

    Attributes:
        nodes: node 1 is the first. Kill them, stop them, start them again.
    """

    def __init__(
        self, count: int = 3, *, controllers: Collection[int] | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        voting = range(1, count + 1) if controllers is None else controllers
        free = free_ports(len(voting) + count)
        ports = dict(zip(voting, free, strict=False))
        shared = {
            "controller.quorum.voters": ",".join(f"{number}@127.0.0.1:{port}" for number, port in ports.items()),
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            "transaction.state.log.min.isr": "2",
            "controller.quorum.election.timeout.ms": "500",
            "controller.quorum.fetch.timeout.ms": "1000",
            "replica.lag.time.max.ms": "3000",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            **(properties or {}),
        }
        self._stack = ExitStack()
        self.nodes: list[Broker] = []
        for number, port in enumerate(free[len(voting) :], 1):
            own = {"node.id": str(number), "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
            if number in ports:
                own["listeners"] += f",CONTROLLER://127.0.0.1:{ports[number]}"
            else:
                own["process.roles"] = "broker"
            node = Broker(port=port, properties=shared | own)
            self._stack.callback(node.close)
            _number(node, number)
            self.nodes.append(node)

    @property
    def bootstrap_servers(self) -> str:
        """All of them, so that clients find the cluster whichever is away."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    @property
    def running(self) -> str:
        """Those that run, for clients that must not begin with a dead one."""
        return ",".join(node.bootstrap_servers for node in self.nodes if node.running)

    def start(self, nodes: Sequence[Broker] | None = None) -> None:
        """Start nodes (all), side by side: the first of them is ready only once there is a majority of controllers."""
        wanted = self.nodes if nodes is None else nodes
        with ThreadPoolExecutor(len(wanted)) as pool:
            for started in [pool.submit(node.start) for node in wanted]:
                started.result()

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """An administrator's client, which needs one of the nodes."""
        with KafkaAdminClient(bootstrap_servers=self.running) as admin:
            yield admin

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """The node that leads a partition, waited for."""
        return self.nodes[self._wait(topic, partition, lambda state: state["leader_id"] > 0)["leader_id"] - 1]

    def elect_preferred(self) -> None:
        """Each partition is led by the first of its replicas that is in sync."""
        with self.admin() as admin:
            admin.elect_leaders(0, raise_errors=False)

    def place(self, topics: Collection[str], numbers: Sequence[int]) -> None:
        """Move all partitions of topics to these nodes, the first of which leads them."""
        with self.admin() as admin:
            descriptions = admin.describe_topics(list(topics))
            parts = [
                TopicPartition(each["name"], part["partition_index"])
                for each in descriptions
                for part in each["partitions"]
            ]
            admin.alter_partition_reassignments({part: list(numbers) for part in parts})
        for part in parts:
            self._wait(
                part.topic,
                part.partition,
                lambda state: sorted(state["replica_nodes"]) == sorted(numbers) == sorted(state["isr_nodes"]),
            )
        self.elect_preferred()
        for part in parts:
            self.await_leader(part.topic, self.nodes[numbers[0] - 1], part.partition)

    def await_leader(self, topic: str, node: Broker, partition: int = 0) -> None:
        """Return when a node leads a partition. The controller takes seconds to notice that the one before died."""
        number = self.nodes.index(node) + 1
        self._wait(topic, partition, lambda state: state["leader_id"] == number)

    def await_in_sync(self, topic: str, numbers: Sequence[int]) -> None:
        """Return when just these nodes have all of partition 0."""
        self._wait(topic, 0, lambda state: sorted(state["isr_nodes"]) == sorted(numbers))

    def _wait(self, topic: str, partition: int, fits: Any) -> Mapping[str, Any]:
        deadline = time.monotonic() + _WITHIN
        state: Mapping[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                with self.admin() as admin:
                    [described] = admin.describe_topics([topic])
            except KafkaError:
                time.sleep(0.2)
                continue
            state = next((each for each in described["partitions"] if each["partition_index"] == partition), {})
            if state and fits(state):
                return state
            time.sleep(0.1)
        raise BrokerError(f"partition {partition} of {topic} is not as expected within {_WITHIN:g} seconds: {state}")

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
