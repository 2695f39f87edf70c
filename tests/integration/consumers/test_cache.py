"""The cache of the page, and a topic that Kafka has compacted, have the rows of the Delta table."""

import json
import time
from typing import Any

import pytest

from tests.support.consumers.images import Images, difference, images
from tests.support.consumers.life import NESTED, SCALARS, Life
from tests.support.consumers.living import deliver
from tests.support.consumers.recipes import block
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.reading import Record

_SECONDS = 90.0
_COMPACTED = {
    "cleanup.policy": "compact",
    # A segment can be compacted once a record comes after it.
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
}


def living(pipeline: Pipeline, seed: int, envelope: str) -> Life:
    topics = {"prefix": f"{pipeline.name}.", "partitions": 2, "config": _COMPACTED}
    choice = {"envelope": envelope, "binary": "hex"}
    pipeline.configure(sink={"format": choice, "tombstones": "always", "topics": topics})
    life = Life(pipeline.uri, seed, columns=(*SCALARS, *NESTED))
    deliver(pipeline, life, seed)
    return life


def cached(pipeline: Pipeline, life: Life) -> Images:
    """The rows of the page's cache."""
    names: dict[str, Any] = {}
    exec(block("python-cache", "python"), names)  # the page's own code
    cache = names["Cache"](pipeline.direct, pipeline.topic)
    try:
        cache.load()
        return images(cache.rows.values(), life.schema)
    finally:
        cache.close()


def folded(records: list[Record], life: Life) -> Images:
    """The rows that are left of events, by key."""
    rows: dict[bytes | None, Any] = {}
    for record in records:
        event = json.loads(record.value) if record.value else None
        rows[record.key] = event and event["after"]
    return images([row for row in rows.values() if row is not None], life.schema)


@pytest.mark.parametrize("envelope", ["flat", "debezium"])
def test_before_and_after_compaction(envelope: str, pipeline: Pipeline) -> None:
    life = living(pipeline, 9, envelope)
    before = pipeline.read()

    def left() -> Images:
        return cached(pipeline, life) if envelope == "flat" else folded(pipeline.read(), life)

    assert not difference(left(), life.images())
    deadline = time.monotonic() + _SECONDS
    while len(pipeline.read()) >= len(before):
        assert time.monotonic() < deadline, "the topic was not compacted"
        time.sleep(1)
    assert not difference(left(), life.images())
