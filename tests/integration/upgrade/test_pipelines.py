"""The current daemon resumes where a release stopped: every change arrives once, whether the sink or the ledger keeps the position."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

import cdfd
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker
from tests.support.upgrade.copies import lines
from tests.support.upgrade.pipelines import (
    NEWEST,
    PIPELINE,
    TABLE,
    Change,
    changes,
    configure,
    deliver,
    resumed,
    wanted,
)


def test_changelog_goes_on(lake: Path, tmp_path: Path) -> None:
    rows = pa.table(DeltaTable(resumed("changelog", tmp_path)).scan()).to_pylist()
    assert sorted(changes(rows)) == sorted(wanted(lake))


def test_mirror_goes_on(lake: Path, tmp_path: Path) -> None:
    target = DeltaTable(resumed("mirror", tmp_path))
    rows = pa.table(target.scan()).to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == sorted(folded(wanted(lake)).items())
    assert target.transaction_version(f"cdfd/{PIPELINE}/{TABLE}") == NEWEST


def folded(history: Iterable[Change]) -> dict[int, str]:
    """The rows that are left."""
    rows: dict[int, str] = {}
    for _, _, kind, key, value in history:
        if kind in ("delete", "update_preimage"):
            rows.pop(key)
        else:
            rows[key] = value
    return rows


RECORDS = {each["name"]: each["records"] for each in map(orjson.loads, lines("kafka/pipelines.jsonl"))}


def left_of_job(number: int) -> list[int]:
    """The ordinals of the parts of a golden job that are not delivered."""
    deliveries = orjson.loads(lines("jobs.jsonl")[number])["deliveries"].values()
    return [each for place, (first, last, _) in enumerate(deliveries) if place % 2 for each in range(first, last + 1)]


@pytest.mark.parametrize(
    ("state", "version", "ordinals"),
    [
        ("files of a version", 18, [1, 2, 3]),
        ("job", 18, left_of_job(1)),
        ("job of a snapshot", 20, left_of_job(6)),
    ],
)
def test_kafka_goes_on(
    state: str,
    version: int,
    ordinals: list[int],
    broker: SharedBroker,
    name: str,
    create: Callable[..., str],
    lake: Path,
    tmp_path: Path,
) -> None:
    """The topic of positions is golden, under another name of the pipeline: the broker is that of other tests, too."""
    positions = create(f"_cdfd_progress.{name}", cleanup_policy="compact")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retries=5)
    for key, value in RECORDS[state]:
        own = {**json.loads(key), "pipeline": name}
        producer.send(positions, value.encode(), json.dumps(own, separators=(",", ":")).encode(), partition=0)
    producer.close()
    sink = {"kind": "kafka", "bootstrap_servers": broker.bootstrap_servers, "topics": {"prefix": f"{name}."}}
    config = configure(tmp_path, sink, pipeline=name, topic=f"{name}.orders")
    deliver(config, NEWEST)
    actual = [json.loads(record.value or b"{}") for record in read_topic(broker.bootstrap_servers, f"{name}.orders")]
    if state == "job of a snapshot":
        begun = changes(cdfd.snapshot(lake / "feed", version).read_all().to_pylist())
    else:
        begun = [row for row in wanted(lake, version) if row[0] == version]
    left = [row for row in begun if row[1] in ordinals]
    assert 0 < len(left) < len(begun)
    assert sorted(changes(actual)) == [*left, *wanted(lake, version + 1)]
