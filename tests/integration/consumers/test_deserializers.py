"""confluent-kafka's deserializers read the three encodings with a registry, and are left with the rows of the Delta table."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.support.consumers import deserializers
from tests.support.consumers.images import Images, as_numbers, difference, images
from tests.support.consumers.life import NESTED, SCALARS, Life
from tests.support.consumers.living import deliver
from tests.support.kafka.pipeline import Pipeline
from tests.support.schema_registry import Registry

_CHOICES = [
    {"envelope": "flat", "encoding": "avro"},
    {"envelope": "flat", "encoding": "json_schema", "binary": "hex"},
    {"envelope": "flat", "encoding": "protobuf"},
    {"envelope": "debezium", "encoding": "json_schema", "binary": "hex"},
    {"envelope": "debezium", "encoding": "protobuf"},
]


def folded(pairs: Iterable[deserializers.Pair]) -> list[Mapping[str, Any]]:
    """The rows that are left. Records of one key are in order."""
    rows: dict[int, Mapping[str, Any]] = {}
    for key, value in pairs:
        if value is None or value.get("_change_type") == "delete" or value.get("op") == "d":
            rows.pop(key["id"], None)
        else:
            rows[key["id"]] = value["after"] if "op" in value else value
    return list(rows.values())


def without_empty(rows: Images) -> Images:
    """Protobuf does not tell an array or a map that is empty from one that is null."""
    return {
        number: {name: None if each in ([], {}) else each for name, each in row.items()} for number, row in rows.items()
    }


@pytest.mark.parametrize("choice", _CHOICES, ids=lambda choice: f"{choice['envelope']}-{choice['encoding']}")
def test_the_rows_are_left(choice: Mapping[str, str], pipeline: Pipeline, registry: Registry) -> None:
    topics = {"prefix": f"{pipeline.name}.", "partitions": 3}
    sink = {"format": choice, "tombstones": "always", "schema_registry": {"url": registry.url}, "topics": topics}
    pipeline.configure(sink=sink)
    life = Life(pipeline.uri, 7, steps=20, columns=(*SCALARS, *NESTED))
    deliver(pipeline, life, 7)
    pairs = deserializers.pairs(pipeline.direct, pipeline.topic, registry.url, choice["encoding"])
    assert None in [value for _, value in pairs]
    found, expected = images(folded(pairs), life.schema), life.images()
    if choice["encoding"] == "json_schema":
        expected = as_numbers(expected)
    elif choice["encoding"] == "protobuf":
        found, expected = without_empty(found), without_empty(expected)
    assert not difference(found, expected)
