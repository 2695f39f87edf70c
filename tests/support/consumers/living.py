"""A daemon that delivers a table while the table lives: the daemon is killed in the middle, and restarted in good order later.

Other producers abort transactions in the topic meanwhile, so that a consumer that does not leave them out cannot be right.
"""

import json
import time
from collections.abc import Callable
from random import Random

from kafka import KafkaProducer

from tests.support.consumers.life import Life
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.reading import read_topic, wait_for_markers

ABORTED = b"never committed"
"""The value of records that no consumer may see."""
_SECONDS = 120.0


def deliver(pipeline: Pipeline, life: Life, seed: int, before_step: Callable[[], None] | None = None) -> None:
    """Live the rest of the life, and return once all of it is delivered and committed.

    Args:
        pipeline: the one whose table it is.
        life: of its table.
        seed: decides at which steps the daemon is killed and restarted.
        before_step: called before each step.
    """
    kill, restart = sorted(Random(seed).sample(range(2, life.steps - 1), 2))
    step = 0
    alive = True
    for last in (kill, restart, life.steps):
        with pipeline.daemon() as daemon:
            while alive and step < last:
                if before_step is not None:
                    before_step()
                alive = life.step()
                step += 1
            if last == kill:
                daemon.wait_for("at version")
                daemon.kill()
            else:
                _wait_until_delivered(pipeline, life.version)
                _abort(pipeline)
                daemon.stop()
    assert wait_for_markers(pipeline.direct, pipeline.topic, 30.0)


def _abort(pipeline: Pipeline) -> None:
    """Write a record into each partition, in a transaction that is aborted."""
    with KafkaProducer(bootstrap_servers=pipeline.direct, transactional_id=f"{pipeline.name}-other") as other:
        other.init_transactions()
        other.begin_transaction()
        for partition in other.partitions_for(pipeline.topic):
            other.send(pipeline.topic, ABORTED, partition=partition)
        other.flush()
        other.abort_transaction()


def _wait_until_delivered(pipeline: Pipeline, version: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while _next_version(pipeline) <= version:
        if time.monotonic() > deadline:
            raise TimeoutError(f"version {version} was not delivered within {_SECONDS:g} seconds")
        time.sleep(0.1)


def _next_version(pipeline: Pipeline) -> int:
    records = read_topic(pipeline.direct, f"_cdfd_progress.{pipeline.name}")
    values = [json.loads(record.value) for record in records if record.value]
    return int(values[-1]["version"]) if values else -1
