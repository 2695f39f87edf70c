"""Two processes of one pipeline, of which one delivers, and a writer. Whatever happens to one of them, the other one takes its place.

Every change arrives once and in order, and no line of either process is an error. With `-s`, the test prints how long take-overs took.
"""

import contextlib
import time
from pathlib import Path

import pytest

from tests.support.chaos.faults import share, while_writing
from tests.support.chaos.pair import Pair, report
from tests.support.chaos.stored import STORED, outlive
from tests.support.kafka.broker import Broker
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.proxy import Proxy

FAULTS = share(50, 8)
KINDS = ("kill", "stop", "pause", "partition", "roll", "kill standby", "pause standby", "partition standby")


def test_one_of_two_processes_delivers_whatever_fails(
    proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker]
) -> None:
    pipeline = proxied_pipeline
    pipeline.configure(sink={"transaction_timeout": "10s"})
    directly = pipeline.folder / "directly.yaml"
    directly.write_text(pipeline.config.read_text().replace(pipeline.servers, pipeline.direct))
    with contextlib.ExitStack() as stack, proxied[1].explaining():
        with while_writing("standby", FAULTS, pipeline) as random:
            pair = Pair((pipeline.config, directly), stack, proxied[0])
            for number in range(FAULTS):
                pair.strike(KINDS[number] if number < len(KINDS) else random.choice(KINDS), random)
                time.sleep(random.uniform(0, 1))
            pair.end()
        report(pair.took)
    assert not pair.errors, pair.errors


@pytest.mark.parametrize("sink", STORED)
def test_one_of_two_processes_writes_whatever_fails(sink: str, tmp_path: Path) -> None:
    kinds = ("kill", "pause", "stop", "kill standby", "pause standby")
    outlive(sink, tmp_path, kinds, share(25, len(kinds)))
