"""Three nodes of which some die: replicas fall behind, and leaders change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faults import share, while_writing
from tests.kafka.cluster import Cluster
from tests.kafka.pipeline import Pipeline

DEATHS, ELECTIONS = share(8, 2), share(4, 2)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chaos")]


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
