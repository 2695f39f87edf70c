"""Traces and run events of a real daemon, received by a real server. A daemon works without a receiver, too."""

import json
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.kafka.daemon_process import Daemon
from tests.support.lake import SCHEMA, rows, run
from tests.support.telemetry.receiver import Receiver, Span, until


class Place:
    """A table, a daemon's configuration and the files that it delivers to."""

    def __init__(self, folder: Path, telemetry: dict[str, Any]) -> None:
        self.folder = folder
        self.writer = TableWriter(LocalStorage(folder / "orders", sync=False), SCHEMA)
        run(self.writer.create())
        self.config = folder / "shop.yaml"
        document = {
            "pipeline": "shop",
            # One table that is never there: a daemon whose tables all fail ends.
            "tables": [{"uri": str(folder / name), "start": "earliest"} for name in ("orders", "missing")],
            "sink": {"kind": "files", "path": str(folder / "out")},
            "poll": {"interval": "20ms", "max_interval": "50ms"},
            "http": {"listen": "127.0.0.1:0"},
            "telemetry": telemetry,
        }
        self.config.write_text(json.dumps(document))

    def insert(self, *ids: int) -> int:
        return run(self.writer.insert(rows(*ids)))

    def delivered(self) -> int:
        files = (self.folder / "out" / "orders").glob("*.jsonl")
        return sum(len(file.read_text().splitlines()) for file in files)

    @contextmanager
    def daemon(self) -> Iterator[Daemon]:
        with Daemon(self.config) as daemon:
            yield daemon
            began = time.monotonic()
            daemon.stop()
            assert time.monotonic() - began < 9  # as long as a stop may take, whatever the receiver does


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def otel(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {"otel": {"endpoint": receiver.url, **more}}


def lineage(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {"openlineage": {"url": f"{receiver.url}/api/v1/lineage", "interval": "100ms", **more}}


def roots(receiver: Receiver) -> list[Span]:
    return [span for span in receiver.spans if not span.parent]


def metrics(daemon: Daemon, accept: str) -> tuple[str, str]:
    address = daemon.wait_for("metrics, health and status at")["message"].rpartition(" ")[2]
    request = urllib.request.Request(f"{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_a_trace_for_each_delivery(receiver: Receiver, tmp_path: Path) -> None:
    place = Place(tmp_path, otel(receiver, headers={"authorization": "Bearer let-me-in"}))
    place.insert(1, 2, 3)
    with place.daemon():
        until(lambda: place.delivered() == 3)
        place.insert(4)
        until(lambda: len(roots(receiver)) == 3)
    assert receiver.headers["authorization"] == "Bearer let-me-in"
    assert receiver.resource["service.name"] == "cdfd"
    assert receiver.resource["service.namespace"] == "shop"
    actual = {span.attributes["cdfd.version.first"]: span for span in roots(receiver)}
    assert sorted(actual) == [0, 1, 2]  # the files sink delivers each version by itself
    for version, span in actual.items():
        assert span.name == "deliver orders"
        assert not span.failed
        assert span.attributes["cdfd.version.last"] == version
        assert span.attributes["cdfd.rows"] == (0, 3, 1)[version]
        assert (span.attributes["cdfd.table"], span.attributes["messaging.destination.name"]) == ("orders", "orders")
        children = {each.name: each for each in receiver.spans if each.parent == span.id}
        assert {each.trace for each in children.values()} <= {span.trace}
        assert {"read", "commit"} <= children.keys()
        assert all(span.begin <= each.begin <= each.end <= span.end for each in children.values())
        assert children["read"].begin <= children["commit"].begin
        assert 0 < children["commit"].attributes["cdfd.busy_seconds"] < 10
        commit_ms = span.attributes["cdfd.commit_timestamp_ms"]
        assert commit_ms * 1_000_000 < span.end
    assert "discover" in {each.name for each in receiver.spans if each.parent == actual[2].id}


def test_an_error_has_a_trace_too(receiver: Receiver, tmp_path: Path) -> None:
    place = Place(tmp_path, otel(receiver))
    version = place.insert(1)
    next((tmp_path / "orders").glob("*.parquet")).unlink()
    with place.daemon():
        until(lambda: any(span.failed for span in roots(receiver)))
    failed = next(span for span in roots(receiver) if span.failed)
    assert failed.attributes["error.type"] == "data"
    assert failed.attributes["cdfd.version.first"] == version


def test_the_histogram_of_deliveries_names_a_trace(receiver: Receiver, tmp_path: Path) -> None:
    place = Place(tmp_path, otel(receiver))
    place.insert(1)
    with place.daemon() as daemon:
        until(lambda: len(roots(receiver)) == 2)
        kind, text = metrics(daemon, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        assert kind.startswith("application/openmetrics-text")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        named = [
            sample.exemplar.labels["trace_id"]
            for sample in families["cdfd_commit_to_delivery_seconds"].samples
            if sample.exemplar is not None
        ]
        assert named
        assert set(named) <= {span.trace for span in roots(receiver)}
        kind, text = metrics(daemon, "text/plain")
        assert kind.startswith("text/plain; version=0.0.4")
        assert "trace_id" not in text


def test_of_no_share_nothing_is_sent(receiver: Receiver, tmp_path: Path) -> None:
    place = Place(tmp_path, otel(receiver, sample=0.0))
    place.insert(1)
    with place.daemon() as daemon:
        until(lambda: place.delivered() == 1)
        assert "trace_id" not in metrics(daemon, "application/openmetrics-text")[1]
    assert receiver.spans == []


def test_a_run_from_its_start_to_its_end(receiver: Receiver, tmp_path: Path) -> None:
    place = Place(tmp_path, lineage(receiver, token="let-me-in", namespace="prod"))
    place.insert(1, 2)
    with place.daemon():
        until(lambda: place.delivered() == 2)
        until(lambda: any(_rows(event) == 2 for event in receiver.events))
        run(place.writer.update(pc.field("id") == 1, {"v": pc.scalar("b")}))
        until(lambda: any(_rows(event) == 4 for event in receiver.events))
    assert receiver.headers["authorization"] == "Bearer let-me-in"
    types = [event["eventType"] for event in receiver.events]
    assert (types[0], types[-1], set(types[1:-1])) == ("START", "COMPLETE", {"RUNNING"})
    assert len({event["run"]["runId"] for event in receiver.events}) == 1
    uuid.UUID(receiver.events[0]["run"]["runId"])
    times = [datetime.fromisoformat(event["eventTime"]) for event in receiver.events]
    assert times == sorted(times)
    assert all(moment.tzinfo is not None for moment in times)
    last = receiver.events[-1]
    assert last["schemaURL"].endswith("#/$defs/RunEvent")
    assert (last["job"]["namespace"], last["job"]["name"]) == ("prod", "shop.orders")
    assert last["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    (source,), (target,) = last["inputs"], last["outputs"]
    assert (source["namespace"], source["name"]) == ("file", str(tmp_path / "orders"))
    assert (target["namespace"], target["name"]) == ("file", str(tmp_path / "out" / "orders"))
    columns = [{"name": "id", "type": "long"}, {"name": "v", "type": "string"}]
    assert source["facets"]["schema"]["fields"] == target["facets"]["schema"]["fields"] == columns
    assert source["facets"]["version"]["datasetVersion"] == "2"
    assert _rows(last) == 4
    for event in receiver.events:
        for facet in _facets(event):
            assert facet["_producer"] == event["producer"]
            assert facet["_schemaURL"].startswith("https://openlineage.io/spec/facets/")


def _rows(event: dict[str, Any]) -> int:
    return int(event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"])


def _facets(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from event["run"]["facets"].values()
    yield from event["job"]["facets"].values()
    for each in (*event["inputs"], *event["outputs"]):
        for kind in ("facets", "inputFacets", "outputFacets"):
            yield from each.get(kind, {}).values()


def test_a_run_that_fails(receiver: Receiver, tmp_path: Path) -> None:
    place = Place(tmp_path, lineage(receiver))
    place.insert(1)
    (file,) = (tmp_path / "orders").glob("*.parquet")
    file.write_bytes(b"no Parquet")
    with place.daemon():
        until(lambda: any(event["eventType"] == "FAIL" for event in receiver.events))
    failed = next(event for event in receiver.events if event["eventType"] == "FAIL")
    message = failed["run"]["facets"]["errorMessage"]
    assert message["message"]
    assert message["programmingLanguage"] == "python"
    of_run = [event["eventType"] for event in receiver.events if event["run"]["runId"] == failed["run"]["runId"]]
    assert (of_run[0], of_run[-1]) == ("START", "FAIL")


@pytest.mark.parametrize("mood", ["hanging", "failing", "refusing"])
def test_a_receiver_that_fails_touches_no_delivery(receiver: Receiver, tmp_path: Path, mood: Any) -> None:
    receiver.mood = mood
    place = Place(tmp_path, otel(receiver) | lineage(receiver))
    with place.daemon() as daemon:
        for number in range(1, 21):
            place.insert(number)
        until(lambda: place.delivered() == 20)
        until(lambda: receiver.requests > 1)
        if mood != "hanging":
            daemon.wait_for("cannot send run events", timeout=20)
            daemon.wait_for("cannot send traces", timeout=20)
            receiver.mood = "good"
            place.insert(21)
            until(lambda: bool(receiver.spans and receiver.events))
    told = [line["message"] for line in daemon.lines if line["level"] in ("WARNING", "ERROR")]
    assert len(told) <= 2, told  # once each, not at each attempt
    assert place.delivered() == 20 + (mood != "hanging")


def test_nobody_listens_there(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    place = Place(tmp_path, {"otel": {"endpoint": nowhere}, "openlineage": {"url": nowhere}})
    place.insert(1)
    with place.daemon() as daemon:
        until(lambda: place.delivered() == 1)
        daemon.wait_for("cannot send run events")


def test_without_it_nothing_of_it_is_imported() -> None:
    """No cost when it is off."""
    program = "import sys, cdfd.daemon.supervision.process; print([n for n in sys.modules if 'opentelemetry' in n])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
