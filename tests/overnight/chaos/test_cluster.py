"""Three nodes of which some die: replicas fall behind, leaders change, and an unclean leader loses records."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.chaos.faults import share, while_writing
from tests.support.kafka.cluster import Cluster
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.lake import rows

DEATHS, ELECTIONS, LOSSES = share(8, 2), share(4, 2), share(0.5, 1)


@pytest.fixture
def cluster(needs_broker: None) -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


def pipeline_of(cluster: Cluster, folder: Path, name: str, **topics: object) -> Pipeline:
    folder.mkdir(exist_ok=True)
    pipeline = Pipeline(folder, name, cluster.bootstrap_servers, cluster.bootstrap_servers)
    pipeline.configure(sink={"topics": {"prefix": f"{name}.", "partitions": 3, "replication_factor": 3, **topics}})
    return pipeline


def test_nodes_that_die(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """One or two of them: then too few replicas are in sync until one is back."""
    pipeline = pipeline_of(cluster, tmp_path, name, config={"min.insync.replicas": "2"})
    with (
        while_writing("nodes of three killed or stopped", DEATHS, pipeline) as random,
        pipeline.daemon() as daemon,
    ):
        daemon.wait_for("at version")
        for number in range(DEATHS):
            time.sleep(random.uniform(0.2, 1.5))
            gone = random.sample(cluster.nodes, 1 + number % 2)
            for node in gone:
                if number % 4 == 3:
                    node.stop()
                else:
                    node.kill()
            time.sleep(random.uniform(0, 3))
            cluster.start(gone)
            assert daemon.running, daemon.log()
        daemon.stop()


def test_a_coordinator_that_dies(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """The producer asks for another one and delivers, as soon as the cluster has it. No delivery fails."""
    pipeline = pipeline_of(cluster, tmp_path, name, config={"min.insync.replicas": "2"})
    table = pipeline.table()
    do(table.insert(rows(1)))
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        pipeline.read(1)
        cluster.place([pipeline.topic, f"_cdfd_progress.{name}"], (1, 2, 3))
        cluster.place(["__transaction_state"], (2, 1, 3))
        do(table.insert(rows(2)))
        pipeline.read(2)
        cluster.nodes[1].kill()
        pipeline.direct = cluster.running
        do(table.insert(rows(3)))
        assert len(pipeline.read(3)) == 3
        assert not any(line["level"] == "error" for line in daemon.lines), daemon.log()
        daemon.stop()
    assert pipeline.check() == 3


def test_leaders_that_are_elected(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """The leader of the rows, of the positions or of the transactions dies. Once it is back, it is elected again."""
    pipeline = pipeline_of(cluster, tmp_path, name, config={"min.insync.replicas": "2"})
    led = [pipeline.topic, f"_cdfd_progress.{name}", "__transaction_state"]
    with (
        while_writing("leaders elected, and elected back", ELECTIONS, pipeline) as random,
        pipeline.daemon() as daemon,
    ):
        daemon.wait_for("at version")
        for number in range(ELECTIONS):
            time.sleep(random.uniform(0.2, 1.0))
            leader = cluster.leader(led[number % 3])
            leader.kill()
            cluster.start([leader])
            cluster.await_in_sync(led[number % 3], (1, 2, 3))
            cluster.elect_preferred()
            assert daemon.running, daemon.log()
        daemon.stop()


@pytest.mark.parametrize("alive", [True, False], ids=["daemon alive", "daemon restarted"])
def test_records_that_an_unclean_leader_lost(needs_broker: None, tmp_path: Path, name: str, alive: bool) -> None:
    """One node alone had the newest rows and the position after them. Delivery goes back to the position that is left."""
    settings = {"unclean.leader.election.enable": "true", "transaction.state.log.min.isr": "1"}
    with Cluster(3, controllers=[3], properties=settings) as cluster:
        for number in range(LOSSES):
            _lose(cluster, tmp_path / str(number), f"{name}-{number}", alive=alive)


def _lose(cluster: Cluster, folder: Path, name: str, *, alive: bool) -> None:
    config = {"min.insync.replicas": "1"}
    pipeline = pipeline_of(cluster, folder, name, partitions=1, replication_factor=2, config=config)
    pipeline.configure(progress={"ledger": str(pipeline.ledger), "interval": "10ms"})
    table = pipeline.table()
    do(table.insert(rows(1, 2, 3)))
    topics = [
        pipeline.topic,
        f"_cdfd_progress.{name}",
        f"{name}.schema",
    ]  # brokers never elect unclean leaders of their own
    first, second, _ = cluster.nodes
    with ExitStack() as stack:
        daemon = stack.enter_context(pipeline.daemon())
        daemon.wait_for("at version")
        pipeline.read(3)
        cluster.place(topics, (1, 2))
        do(table.insert(rows(4)))
        pipeline.read(4)
        second.kill()
        pipeline.direct = cluster.running
        for topic in topics:
            cluster.await_in_sync(topic, [1])
        do(table.insert(rows(5)))
        do(table.insert(rows(6)))
        assert len(pipeline.read(6, timeout=60)) == 6  # a producer may try a dead coordinator for 30 seconds
        if not alive:
            daemon.stop()
        first.kill()
        second.start()
        pipeline.direct = cluster.running
        for topic in topics:
            cluster.await_leader(topic, second)
        assert len(pipeline.read(4)) == 4, "nothing was lost: this test shows nothing"
        cluster.start([first])
        pipeline.direct = cluster.running
        do(table.insert(rows(7)))
        if not alive:
            daemon = stack.enter_context(pipeline.daemon())
        daemon.wait_for(lambda line: "although the ledger" in line["message"] and line["level"] == "warning")
        pipeline.read(7, timeout=60)
        daemon.stop()
    assert pipeline.check() == 7
