"""Requests to daemons over a real broker: signals and notifications, and pauses and incremental snapshots that outlive a kill."""

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from cdfd.demo.writer import TableWriter
from cdfd.model.position import ORDINAL_SPAN
from tests.support.commands import Ended, cdfd
from tests.support.kafka.daemon_process import Daemon
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.reading import Record, read_topic
from tests.support.lake import rows

Row = dict[str, Any]
EVERYTHING = ["pause", "resume", "snapshot", "stop-snapshot", "move", "log-level"]


@pytest.fixture
def table(pipeline: Pipeline) -> TableWriter:
    """Eight files, in versions 1 to 8, of a table that takes requests."""
    configure(pipeline)
    table = pipeline.table()
    for id in range(8):
        do(table.insert(rows(id)))
    return table


def configure(pipeline: Pipeline, **controls: Any) -> None:
    """Each file is a transaction of its own."""
    sections = {"signals": EVERYTHING, "notifications": True, "socket": str(pipeline.folder / "ctl.sock")}
    pipeline.configure(
        controls=sections | controls, catch_up={"max_bytes": 1}, http={"listen": None}, table={"start": "earliest"}
    )


def post(pipeline: Pipeline, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """As `cdfd ctl` does, without the time that a process takes to start."""
    data = json.dumps(body).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(pipeline.folder / "ctl.sock"))
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    document: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return document


def ctl(pipeline: Pipeline, *words: object) -> Ended:
    return cdfd("ctl", *words, "-c", pipeline.config)


def changes(pipeline: Pipeline, count: int) -> list[Row]:
    """Rows in the order of versions."""
    documents = [json.loads(record.value) for record in pipeline.read(count) if record.value is not None]
    return sorted(documents, key=lambda row: (row["_commit_version"], row["_change_ordinal"]))


def again(delivered: Sequence[Row]) -> list[Row]:
    return [row for row in delivered if row["_change_ordinal"] >= ORDINAL_SPAN]


def live(table: TableWriter) -> Counter[tuple[int, str]]:
    return Counter((row["id"], row["v"]) for row in table.rows().to_pylist())


def values(delivered: Sequence[Row]) -> Counter[tuple[int, str]]:
    return Counter((row["id"], row["v"]) for row in delivered)


@contextmanager
def sending(pipeline: Pipeline) -> Iterator[Callable[..., None]]:
    """Sends signals. The daemon must have read its topic once."""
    with closing(KafkaProducer(bootstrap_servers=pipeline.direct)) as producer:

        def send(value: Mapping[str, Any] | bytes | None, **options: Any) -> None:
            data = json.dumps(value).encode() if isinstance(value, dict) else value
            producer.send(f"_cdfd_signals.{pipeline.name}", value=data, key=b"", **options).get(30)

        yield send


def notifications(pipeline: Pipeline, count: int) -> list[dict[str, Any]]:
    records: list[Record] = read_topic(pipeline.direct, f"{pipeline.name}.notifications", at_least=count)
    return [json.loads(record.value or b"") for record in records]


def listening(daemon: Daemon, pipeline: Pipeline) -> None:
    """Wait until the daemon takes signals."""
    daemon.wait_for("signals are taken from the topic")


def test_a_pause_outlives_a_kill(pipeline: Pipeline, table: TableWriter) -> None:
    with pipeline.daemon() as daemon:
        pipeline.read(8)
        assert ctl(pipeline, "pause", "orders", "--id", "night").out == "PAUSED: orders is paused before version 9\n"
        do(table.insert(rows(8)))
        # The answer does not wait for the topic, and a kill loses notifications that are not written.
        notifications(pipeline, 1)
        daemon.kill()
    with pipeline.daemon() as daemon:
        daemon.wait_for("paused by a request")
        time.sleep(1)
        assert len(pipeline.read()) == 8
        shown = cdfd("progress", "show", "-c", pipeline.config)
        assert shown.lines()[1].split()[1] == "8"
        assert ctl(pipeline, "resume", "orders").code == 0
        assert [row["id"] for row in changes(pipeline, 9)] == list(range(9))
        daemon.stop()
    assert [each["type"] for each in notifications(pipeline, 2)] == ["PAUSED", "RESUMED"]


def test_a_pause_outlives_a_position_that_is_set(pipeline: Pipeline, table: TableWriter) -> None:
    with pipeline.daemon() as daemon:
        pipeline.read(8)
        assert ctl(pipeline, "pause", "orders").code == 0
        daemon.stop()
    assert cdfd("progress", "set", "-c", pipeline.config, "orders", 6).code == 0
    with pipeline.daemon() as daemon:
        daemon.wait_for("paused by a request")
        assert ctl(pipeline, "resume", "orders").code == 0
        assert [row["id"] for row in changes(pipeline, 10)] == [0, 1, 2, 3, 4, 5, 6, 6, 7, 7]
        daemon.stop()


@pytest.mark.parametrize("seed", range(3))
def test_a_resnapshot_that_is_killed_publishes_each_row_once(pipeline: Pipeline, table: TableWriter, seed: int) -> None:
    random = Random(seed)
    for id in range(8, 40):
        do(table.insert(rows(id)))
    before = live(table)
    with pipeline.daemon() as daemon:
        pipeline.read(40)
        assert post(pipeline, "/tables/orders/snapshot", {"id": "again"})["type"] == "STARTED"
        time.sleep(random.random() * 0.3)
        daemon.kill()
    do(table.update(pc.field("id") == 3, {"v": pc.scalar("b")}))
    do(table.delete(pc.field("id") == 5))
    do(table.optimize())
    for _ in range(2):
        with pipeline.daemon() as daemon:
            daemon.wait_for("resuming at version")
            time.sleep(random.random() * 0.4)
            daemon.kill()
    with pipeline.daemon() as daemon:
        daemon.wait_for("resuming at version")
        actual = changes(pipeline, 40 + 40 + 2 + 1)
        time.sleep(1)
        assert len(pipeline.read()) == len(actual)
        daemon.stop()
    assert values(again(actual)) == before
    state: dict[int, str] = {}
    for row in actual:
        if row["_change_ordinal"] >= ORDINAL_SPAN:
            assert state[row["id"]] == row["v"]
        elif row["_change_type"] in ("insert", "update_postimage"):
            state[row["id"]] = row["v"]
        elif row["_change_type"] == "delete":
            del state[row["id"]]
    assert Counter(state.items()) == live(table)


def test_a_resnapshot_by_signal_while_the_table_changes(pipeline: Pipeline, table: TableWriter) -> None:
    with pipeline.daemon() as daemon, sending(pipeline) as send:
        listening(daemon, pipeline)
        pipeline.read(8)
        data = {"data-collections": ["orders"], "type": "INCREMENTAL"}
        send({"id": "s-1", "type": "execute-snapshot", "data": data})
        for id in range(8, 12):
            do(table.insert(rows(id)))
        daemon.wait_for("the incremental snapshot s-1 is complete")
        actual = changes(pipeline, 8 + 4 + 8)
        assert set(values(again(actual))) >= {(id, "a") for id in range(8)}
        told = notifications(pipeline, 2)
        assert [(each["id"], each["aggregate_type"], each["type"]) for each in told] == [
            ("s-1", "Incremental Snapshot", "STARTED"),
            ("s-1", "Incremental Snapshot", "COMPLETED"),
        ]
        daemon.stop()


def test_what_a_stranger_writes_is_refused_and_the_daemon_goes_on(pipeline: Pipeline, table: TableWriter) -> None:
    configure(pipeline, signals=["pause", "resume", "snapshot"])
    one = {"data-collections": ["orders"]}
    refused: list[tuple[Any, str]] = [
        (b"", "unknown"),
        (b"{", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 50_000, "malformed"),
        (b'"text"', "malformed"),
        (b'{"id": 7}', "malformed"),
        ({"type": ["pause"]}, "unknown"),
        ({"type": "drop", "data": one}, "unknown"),
        ({"type": "pause-snapshot", "data": one}, "unknown"),
        ({"type": "move", "data": one | {"version": 0}}, "unauthorised"),
        ({"type": "log-level", "data": {"level": "debug"}}, "unauthorised"),
        ({"type": "pause"}, "malformed"),
        ({"type": "pause", "data": "{"}, "malformed"),
        ({"type": "pause", "data": {"data-collections": "orders"}}, "malformed"),
        ({"type": "pause", "data": {"data-collections": ["orders"] * 101}}, "malformed"),
        ({"type": "pause", "data": {"data-collections": [{}]}}, "malformed"),
        ({"type": "pause", "data": {"data-collections": ["o.*"]}}, "unknown"),
        ({"type": "pause", "data": one | {"extra": 1}}, "malformed"),
        ({"type": "execute-snapshot", "data": one | {"type": "blocking"}}, "unsupported"),
        (
            {
                "type": "execute-snapshot",
                "data": one | {"additional-conditions": [{"data-collection": "orders", "filter": "1=1; DROP"}]},
            },
            "malformed",
        ),
    ]
    with pipeline.daemon() as daemon, sending(pipeline) as send:
        listening(daemon, pipeline)
        send(None)
        for value, _ in refused:
            send(value)
        send({"id": "twice", "type": "pause", "data": one})
        send({"id": "twice", "type": "resume", "data": one})
        told = notifications(pipeline, len(refused) + 2)
        actual = [each["additional_data"].get("reason") for each in told]
        assert sorted(map(str, actual)) == sorted([reason for _, reason in refused] + ["None", "duplicate"])
        assert {each["type"] for each in told} == {"REFUSED", "PAUSED"}
        send({"type": "resume", "data": one})
        do(table.insert(rows(8)))
        pipeline.read(9)
        daemon.stop()


def test_signals_of_before_are_not_taken_and_those_of_a_downtime_are(pipeline: Pipeline, table: TableWriter) -> None:
    one = {"data-collections": ["orders"]}
    with pipeline.daemon() as daemon:
        listening(daemon, pipeline)
        pipeline.read(8)
        daemon.kill()
    with sending(pipeline) as send:
        send({"id": "down", "type": "pause", "data": one})
    with pipeline.daemon() as daemon:
        daemon.wait_for("orders is paused")
        daemon.kill()
    with pipeline.daemon() as daemon:
        daemon.wait_for("paused by a request")
        listening(daemon, pipeline)
        assert ctl(pipeline, "resume", "orders").code == 0
        do(table.insert(rows(8)))
        pipeline.read(9)
        daemon.stop()


def test_signals_of_a_downtime_are_taken_when_the_offset_of_the_consumer_has_expired(
    pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient
) -> None:
    """Brokers forget it after seven days without a signal, whether the daemon runs or not."""
    with pipeline.daemon() as daemon:
        listening(daemon, pipeline)
        daemon.kill()
    admin.delete_groups([f"cdfd.{pipeline.name}.signals"])
    for id in ("one", "two"):
        with sending(pipeline) as send:
            send({"id": id, "type": "pause", "data": {"data-collections": ["orders"]}})
        with pipeline.daemon() as daemon:
            notifications(pipeline, 1 if id == "one" else 2)
            daemon.stop()
    assert list(dict.fromkeys(each["id"] for each in notifications(pipeline, 2))) == ["one", "two"]


@pytest.mark.parametrize(
    ("config", "partitions", "problem"),
    [
        ({}, 1, "accepts compressed records"),
        ({"compression.type": "uncompressed", "max.message.bytes": "2000000"}, 1, "accepts batches of 2000000 bytes"),
        ({"compression.type": "uncompressed"}, 2, "has 2 partitions"),
    ],
)
def test_a_topic_that_does_not_bound_its_records_is_not_read(
    pipeline: Pipeline,
    table: TableWriter,
    admin: KafkaAdminClient,
    config: dict[str, str],
    partitions: int,
    problem: str,
) -> None:
    topic = NewTopic(f"_cdfd_signals.{pipeline.name}", partitions, 1, topic_configs=config)
    admin.create_topics([topic])
    with pipeline.daemon() as daemon:
        daemon.wait_for(problem)
        pipeline.read(8)
        daemon.stop()


def test_the_broker_bounds_what_is_decompressed(pipeline: Pipeline, table: TableWriter) -> None:
    """A batch of a few kilobytes that would be megabytes in the reader's memory. The broker of the tests has little memory itself."""
    with pipeline.daemon() as daemon:
        listening(daemon, pipeline)
        bomb = KafkaProducer(bootstrap_servers=pipeline.direct, compression_type="gzip", max_request_size=16 << 20)
        with closing(bomb) as producer, pytest.raises(Exception, match=r"(?i)too.?large"):
            producer.send(f"_cdfd_signals.{pipeline.name}", value=b" " * (8 << 20)).get(60)
        assert ctl(pipeline, "pause", "orders").code == 0
        daemon.stop()


def test_a_daemon_without_an_answer(tmp_path: Path, pipeline: Pipeline, table: TableWriter) -> None:
    ended = ctl(pipeline, "pause", "orders")
    assert ended.code == 1
    assert "the daemon does not answer" in ended.err
