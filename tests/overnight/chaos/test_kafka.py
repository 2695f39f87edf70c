"""Daemons, brokers and connections that fail at random moments while a writer commits: every change arrives exactly once.

`make test` has a few of each fault; `make chaos` has as many as `CDFD_CHAOS` says, with both clients, and reports on each kind.
"""

import time
from random import Random

import pytest

from tests.support.chaos.faults import CLIENTS, share, while_writing
from tests.support.kafka.broker import Broker
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.proxy import END_TXN, INIT_PRODUCER_ID, PRODUCE, Proxy

DAEMONS, CONNECTIONS, BROKERS, SUCCESSORS = share(14, 12), share(15, 8), share(6, 2), share(6, 2)


@pytest.mark.parametrize("client", CLIENTS)
def test_killed_daemons(proxied_pipeline: Pipeline, client: str) -> None:
    proxied_pipeline.configure(sink={"producer": client})
    with while_writing(f"daemons killed, {client}", DAEMONS, proxied_pipeline) as random:
        for number in range(DAEMONS):
            with proxied_pipeline.daemon() as daemon:
                if number % 4 == 3:  # wherever it may be: it takes half a second to start
                    time.sleep(random.uniform(0.3, 1.5))
                else:  # most likely on the way with what was committed meanwhile
                    daemon.wait_for("at version")
                    time.sleep(random.uniform(0, 0.5))
                assert daemon.running, daemon.log()
                daemon.kill()


def test_killed_brokers(proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker]) -> None:
    broker = proxied[1]
    # A transaction that a dead broker left open hides the position until its time is up.
    proxied_pipeline.configure(sink={"transaction_timeout": "10s"})
    with (
        broker.explaining(),
        while_writing("brokers killed, or stopped", BROKERS, proxied_pipeline) as random,
        proxied_pipeline.daemon() as daemon,
    ):
        daemon.wait_for("at version")
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
def test_failing_connections(proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker], client: str) -> None:
    proxied_pipeline.configure(sink={"producer": client})
    with (
        while_writing(f"connections that failed, {client}", CONNECTIONS, proxied_pipeline) as random,
        proxied_pipeline.daemon() as daemon,
    ):
        for number in range(CONNECTIONS):
            time.sleep(random.uniform(0.1, 1.0))
            fail(proxied[0], number, random)
            assert daemon.running, daemon.log()
        proxied[0].resume()
        daemon.wait_for("at version")  # on a busy machine it may take that long to start
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


def test_daemons_that_are_succeeded_while_they_live(proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker]) -> None:
    """One is started while another is at work, which it fences."""
    with proxied[1].explaining(), while_writing("daemons succeeded", SUCCESSORS, proxied_pipeline) as random:
        for _ in range(SUCCESSORS):
            with proxied_pipeline.daemon() as first:
                first.wait_for("at version")
                with proxied_pipeline.daemon() as second:
                    assert first.ended() == 3, first.log()
                    time.sleep(random.uniform(0, 0.5))
                    second.kill()
