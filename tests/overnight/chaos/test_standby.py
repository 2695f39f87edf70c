"""Two processes of one pipeline, of which one delivers, and a writer. Whatever happens to one of them, the other one takes its place.

Every change arrives once and in order, and no line of either process is an error. With `-s`, the test prints how long take-overs took.
"""

import contextlib
import time
from pathlib import Path

import pytest

import cdfd
from tests.support.chaos.faults import share, while_writing
from tests.support.chaos.pair import Pair, report
from tests.support.chaos.stored import STORED, outlive, told
from tests.support.kafka.broker import Broker
from tests.support.kafka.daemon_process import until
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.proxy import Proxy

FAULTS = share(50, 8)
KINDS = ("kill", "stop", "pause", "partition", "roll", "kill standby", "pause standby", "partition standby")


def test_one_of_two_processes_delivers_whatever_fails(
    proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker]
) -> None:
    proxied_pipeline.configure(sink={"transaction_timeout": "10s"})
    strike("standby", FAULTS, proxied_pipeline, proxied)


def test_both_sinks_of_two_processes_get_everything_whatever_fails(
    proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker]
) -> None:
    """A process that loses Kafka, which has the lease, leaves the Delta table to the other process, too."""
    pipeline, copies = proxied_pipeline, proxied_pipeline.folder / "copies"
    pipeline.configure(sink={"transaction_timeout": "10s"})
    pipeline.add_sinks(copy={"kind": "delta", "path": str(copies)})
    strike("two sinks", share(20, len(KINDS)), pipeline, proxied)
    expected = sorted(told(row) for row in cdfd.changes(pipeline.uri, 0, key="id").read_all().to_pylist())
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")  # earlier, a signal may come before the daemon handles it
        until(lambda: len(STORED["delta"](copies / pipeline.topic)) >= len(expected))
        daemon.stop()
    assert STORED["delta"](copies / pipeline.topic) == expected


def strike(name: str, faults: int, pipeline: Pipeline, proxied: tuple[Proxy, Broker]) -> None:
    """Let each kind of fault happen, then random ones, while a thread commits. Every change must be in the topic once."""
    directly = pipeline.folder / "directly.yaml"
    directly.write_text(pipeline.config.read_text().replace(pipeline.servers, pipeline.direct))
    with contextlib.ExitStack() as stack, proxied[1].explaining():
        with while_writing(name, faults, pipeline) as random:
            pair = Pair((pipeline.config, directly), stack, proxied[0])
            for number in range(faults):
                pair.strike(KINDS[number] if number < len(KINDS) else random.choice(KINDS), random)
                time.sleep(random.uniform(0, 1))
            pair.end()
        report(pair.took)
    assert not pair.errors, pair.errors


@pytest.mark.parametrize("sink", STORED)
def test_one_of_two_processes_writes_whatever_fails(sink: str, tmp_path: Path) -> None:
    kinds = ("kill", "pause", "stop", "kill standby", "pause standby")
    outlive(sink, tmp_path, kinds, share(25, len(kinds)))
