"""Daemons, brokers and connections that fail at random moments while a writer commits: every change arrives exactly once.

`make test` lets a dozen daemons die; `make chaos` as many as `CDFD_CHAOS` says, with either client, and tells how it went.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.kafka.broker import Broker
from tests.kafka.history import Writing
from tests.kafka.pipeline import Pipeline
from tests.kafka.proxy import END_TXN, INIT_PRODUCER_ID, PRODUCE, Proxy

FAULTS = int(os.environ.get("CDFD_CHAOS", "0"))
SEED = int(os.environ.get("CDFD_CHAOS_SEED", "1"))
CLIENTS = ["kafka-python", "librdkafka"] if FAULTS else ["kafka-python"]
DAEMONS, CONNECTIONS, BROKERS, SUCCESSORS = (FAULTS, FAULTS, FAULTS // 4, FAULTS // 4) if FAULTS else (12, 8, 2, 2)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chaos")]


@pytest.fixture
def proxied(needs_broker: None) -> Iterator[tuple[Proxy, Broker]]:
    """A broker of the test's own, behind a network of its own."""
    with Proxy() as proxy, Broker(behind=proxy.port) as broker:
        proxy.connect(broker.address("BEHIND"))
        yield proxy, broker


@pytest.fixture
def pipeline(proxied: tuple[Proxy, Broker], tmp_path: Path, name: str) -> Pipeline:
    proxy, broker = proxied
    return Pipeline(tmp_path, name, proxy.address, broker.bootstrap_servers)


@contextmanager
def while_somebody_writes(kind: str, faults: int, pipeline: Pipeline) -> Iterator[Random]:
    """Let things fail, then a last daemon deliver the rest, and say how it went to those who ask for output (`-s`)."""
    began = time.monotonic()
    # A long run is one of many faults, not of a large table.
    with writing(pipeline) as writer:
        yield Random(SEED)
    rows = pipeline.finish()
    everything = len(pipeline.read(committed=False))
    print(
        f"\n{kind}: {faults} in {time.monotonic() - began:.0f} s; {writer.table.version + 1} versions, {rows} rows, each delivered once; "
        f"{everything - rows} more were sent and taken back"
    )


def writing(pipeline: Pipeline) -> Writing:
    return pipeline.writing(SEED, pause=0.03, burst=500) if FAULTS else pipeline.writing(SEED, burst=1000)


@pytest.mark.parametrize("client", CLIENTS)
def test_killed_daemons(pipeline: Pipeline, client: str) -> None:
    pipeline.configure(sink={"producer": client})
    with while_somebody_writes(f"daemons killed, {client}", DAEMONS, pipeline) as random:
        for number in range(DAEMONS):
            with pipeline.daemon() as daemon:
                if number % 4 == 3:  # wherever it may be: it takes half a second to come to life
                    time.sleep(random.uniform(0.3, 1.5))
                else:  # most likely on the way with what was committed meanwhile
                    daemon.wait_for("at version")
                    time.sleep(random.uniform(0, 0.5))
                assert daemon.running, daemon.log()
                daemon.kill()


def test_killed_brokers(pipeline: Pipeline, proxied: tuple[Proxy, Broker]) -> None:
    broker = proxied[1]
    with (
        while_somebody_writes("brokers killed, or stopped", BROKERS, pipeline) as random,
        pipeline.daemon() as daemon,
    ):
        for number in range(BROKERS):
            time.sleep(random.uniform(0.5, 2.0))
            if number % 4 == 3:
                broker.stop()
            else:
                broker.kill()
            broker.start()
            assert daemon.running, daemon.log()
        daemon.stop()


@pytest.mark.parametrize("client", CLIENTS)
def test_failing_connections(pipeline: Pipeline, proxied: tuple[Proxy, Broker], client: str) -> None:
    pipeline.configure(sink={"producer": client})
    with (
        while_somebody_writes(f"connections that failed, {client}", CONNECTIONS, pipeline) as random,
        pipeline.daemon() as daemon,
    ):
        for number in range(CONNECTIONS):
            time.sleep(random.uniform(0.1, 1.0))
            fail(proxied[0], number, random)
            assert daemon.running, daemon.log()
        proxied[0].resume()
        daemon.stop()


def fail(proxy: Proxy, number: int, random: Random) -> None:
    match number % 8:
        case 0:
            proxy.cut()
        case 1:
            proxy.stall()
            # Clients wait ten seconds for an answer.
            time.sleep(random.uniform(0.1, 15 if number % 64 == 33 else 1.5))
            proxy.resume()
        case 2:
            proxy.refuse()
            time.sleep(random.uniform(0.1, 1.0))
            proxy.resume()
        case kind:
            api = random.choice([PRODUCE, PRODUCE, END_TXN, END_TXN, INIT_PRODUCER_ID])
            proxy.next(api, ("lost", "halved", "unanswered")[kind % 3])


def test_daemons_that_are_succeeded_while_they_live(pipeline: Pipeline) -> None:
    """One is started while another is at work, which it fences."""
    with while_somebody_writes("daemons succeeded", SUCCESSORS, pipeline) as random:
        for _ in range(SUCCESSORS):
            with pipeline.daemon() as first:
                first.wait_for("at version")
                with pipeline.daemon() as second:
                    assert first.ended() == 3, first.log()
                    time.sleep(random.uniform(0, 0.5))
                    second.kill()
