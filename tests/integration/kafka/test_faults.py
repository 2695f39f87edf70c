"""Failures of topics, record sizes and processes. The log states the failure and the daemon's reaction."""

import json
import random
import signal
import string
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.axes import under_test
from tests.support.commands import cdfd
from tests.support.kafka.broker import Broker
from tests.support.kafka.daemon_process import configure, until
from tests.support.kafka.node import free_ports
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.proxy import PRODUCE, Proxy
from tests.support.kafka.reading import Record, read_topic
from tests.support.lake import SCHEMA, rows


def noisy(ids: Iterable[int], length: int) -> pa.Table:
    """Rows that are as large when they are compressed."""
    source = random.Random(1)
    texts = ["".join(source.choices(string.printable[:94], k=length)) for _ in ids]
    return pa.table({"id": list(ids), "v": texts}, schema=SCHEMA)


def ids(records: list[Record]) -> list[int]:
    return sorted(json.loads(record.value or b"")["id"] for record in records)


def set_limit(admin: KafkaAdminClient, topic: str, bytes: int) -> None:
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": str(bytes)})])


def test_topics_deleted(pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient, tmp_path: Path) -> None:
    """Of rows: what was in it is gone, and what comes goes into a new one. Of positions: only its owner knows what else is gone.

    Two pipelines at once: clients wait half a minute for a topic that is gone.
    """
    (tmp_path / "other").mkdir()
    other = Pipeline(tmp_path / "other", f"{pipeline.name}-other", pipeline.servers, pipeline.direct)
    also = other.table()
    do(also.insert(rows(0, 1, 2)))
    with pipeline.daemon() as without_rows, other.daemon() as without_positions:
        assert pipeline.check() == other.check() == 3
        until((other.ledger / "_delta_log").exists)
        admin.delete_topics([pipeline.topic, f"_cdfd_progress.{other.name}"])
        do(table.insert(rows(3, 4)))
        do(also.insert(rows(3, 4)))

        line = without_rows.wait_for("was deleted and has been created again", timeout=60)
        assert line["level"] == "warning"
        assert pipeline.topic in line["message"]
        assert "that the topic still exists" in without_rows.wait_for("retrying in")["message"]
        assert ids(pipeline.read(2)) == [3, 4]
        without_rows.stop()

        assert without_positions.ended(60) == 1, without_positions.log()
        assert "--recover-from-ledger" in without_positions.error
    assert len(pipeline.read()) == 2
    with other.daemon("--recover-from-ledger") as daemon:
        daemon.wait_for("at version")
        assert other.check() == 5
        daemon.stop()


def test_a_topic_that_somebody_creates_again(pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient) -> None:
    """No request fails. The rows before are lost, until they are published again."""
    pipeline.configure(controls={"socket": str(pipeline.folder / "ctl.sock")})
    with pipeline.daemon() as daemon:
        assert pipeline.check() == 3
        admin.delete_topics([pipeline.topic])
        new = {"num_partitions": 2, "replication_factor": 1, "configs": {}}
        admin.create_topics({pipeline.topic: new}, wait_for_metadata=True)
        number = 3
        while not daemon.has_said("was deleted and has been created again"):
            do(table.insert(rows(number)))
            number += 1
            time.sleep(0.5)
        warning = daemon.wait_for("was deleted and has been created again")
        assert warning["level"] == "warning"
        assert "cdfd ctl snapshot orders" in warning["message"]
        assert cdfd("ctl", "snapshot", "orders", "-c", pipeline.config).code == 0
        until(lambda: set(ids(pipeline.read())) == set(range(number)))
        daemon.stop()


@pytest.mark.parametrize("producer", under_test("producer", ["kafka-python", "librdkafka"]))
def test_a_transactional_id_that_has_expired_is_no_error(
    needs_broker: None, tmp_path: Path, name: str, producer: str
) -> None:
    """By default, brokers forget it after seven days without a transaction."""
    forgetful = {
        "transactional.id.expiration.ms": "1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "producer.id.expiration.ms": "1000",
    }
    with Broker(properties=forgetful) as broker:
        pipeline = Pipeline(tmp_path, name, broker.bootstrap_servers, broker.bootstrap_servers)
        pipeline.configure(sink={"producer": producer})
        table = pipeline.table()
        with pipeline.daemon() as daemon:
            do(table.insert(rows(0, 1, 2)))
            pipeline.read(3)
            number = 3
            while not daemon.has_said("opening the sink again"):
                time.sleep(5)
                do(table.insert(rows(number)))
                number += 1
                pipeline.read(number)
            assert pipeline.check() == number
            assert {line["level"] for line in daemon.lines} == {"info"}
            daemon.stop()


def test_a_broker_that_hangs_leaves_one_object_a_line(proxied: Pipeline, proxy: Proxy) -> None:
    """Also while the process ends, and libraries close what they have."""
    proxied.configure(heartbeat={"interval": "200ms"})
    table = proxied.table()
    with proxied.daemon() as daemon:
        do(table.insert(rows(0, 1, 2)))
        proxied.read(3)
        read_topic(proxied.direct, f"_cdfd_heartbeat.{proxied.name}", at_least=3)
        proxy.stall()
        do(table.insert(rows(3)))
        time.sleep(2)
        daemon.signal(signal.SIGTERM)
        daemon.ended()
        assert daemon.said == []


class TestRecordTooLarge:
    LIMIT = 2000

    @pytest.fixture
    def small(self, pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient) -> Pipeline:
        """One that has delivered three rows to a topic that takes no large records, and has two more to deliver."""
        assert pipeline.finish() == 3
        set_limit(admin, pipeline.topic, self.LIMIT)
        do(table.insert(noisy([3], 5000)))
        do(table.insert(rows(4)))
        return pipeline

    def test_fail(self, small: Pipeline, admin: KafkaAdminClient) -> None:
        with small.daemon() as daemon:
            assert daemon.ended() == 1, daemon.log()
        for what in (small.topic, "table orders", "version 2", '{"id":3}', str(self.LIMIT)):
            assert what in daemon.error
        assert len(small.read()) == 3
        set_limit(admin, small.topic, 1 << 20)
        assert small.finish() == 5

    def test_skip(self, small: Pipeline) -> None:
        small.configure(sink={"oversized": "skip"})
        with small.daemon() as daemon:
            line = daemon.wait_for(lambda line: line["level"] == "warning" and "large" in line["message"])
            assert ids(small.read(4)) == [0, 1, 2, 4]
            daemon.stop()
        assert '{"id":3}' in json.dumps(line).replace("\\", "")

    def test_dlq(self, small: Pipeline) -> None:
        small.configure(sink={"oversized": "dlq"})
        with small.daemon() as daemon:
            assert len(small.read(4)) == 4
            daemon.stop()
        [told] = read_topic(small.direct, f"{small.topic}.dlq")
        assert b'{"id":3}' in (told.key or b"") + (told.value or b"").replace(b"\\", b"")

    def test_of_a_topic_that_took_it_before(
        self, pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient
    ) -> None:
        with pipeline.daemon() as daemon:
            assert pipeline.check() == 3
            set_limit(admin, pipeline.topic, self.LIMIT)
            do(table.insert(noisy(range(3, 15), 800)))
            assert daemon.ended() == 1, daemon.log()
        assert "max.message.bytes" in daemon.error
        # The next one knows the limit: that many records go into several batches.
        assert pipeline.finish() == 15


class TestSigterm:
    ROWS = 15_000

    @pytest.fixture
    def large(self, proxied: Pipeline) -> Pipeline:
        """One with a version of a few files to deliver."""
        table = proxied.table()
        each = self.ROWS // 3
        files = [noisy(range(first, first + each), 40) for first in range(0, self.ROWS, each)]

        async def commit() -> int:
            return await table.commit("WRITE", [await table._add(file) for file in files])

        do(commit())
        return proxied

    def test_while_much_is_delivered(self, large: Pipeline, proxy: Proxy) -> None:
        with large.daemon() as daemon:
            proxy.wait_for(PRODUCE, 3)
            daemon.signal(signal.SIGTERM)
            assert daemon.ended(10) == 0, daemon.log()
        assert large.finish() == self.ROWS

    def test_while_the_broker_does_not_answer(self, large: Pipeline, proxy: Proxy) -> None:
        with large.daemon() as daemon:
            proxy.wait_for(PRODUCE)
            proxy.stall()
            daemon.signal(signal.SIGTERM)
            assert daemon.ended(15) == 0, daemon.log()
        proxy.resume()
        assert large.finish() == self.ROWS

    def test_while_the_broker_cannot_be_reached(self, large: Pipeline, proxy: Proxy) -> None:
        proxy.refuse()
        with large.daemon() as daemon:
            daemon.wait_for(f"pipeline {large.name}")
            daemon.signal(signal.SIGTERM)
            assert daemon.ended(10) == 0, daemon.log()
        proxy.resume()
        assert large.finish() == self.ROWS


class TestExitCodes:
    def test_wrong_configuration(self, pipeline: Pipeline) -> None:
        pipeline.configure(sink={"no_such_key": 1})
        with pipeline.daemon() as daemon:
            assert daemon.ended() == 2
        assert "no_such_key" in daemon.error

    def test_interrupted(self, pipeline: Pipeline, table: TableWriter) -> None:
        with pipeline.daemon() as daemon:
            assert pipeline.check() == 3
            daemon.signal(signal.SIGINT)
            assert daemon.ended() == 130


class TestSeveralTables:
    def test_one_that_fails_keeps_no_other_waiting(
        self, pipeline: Pipeline, table: TableWriter, tmp_path: Path
    ) -> None:
        other = TableWriter(LocalStorage(tmp_path / "broken", sync=False), SCHEMA)
        do(other.create())
        do(other.insert(rows(1, 2)))
        [data_file] = (tmp_path / "broken").glob("*.parquet")
        whole = data_file.read_bytes()
        data_file.write_bytes(whole[:-20])
        [port] = free_ports(1)
        pipeline.config = configure(
            tmp_path,
            pipeline.name,
            pipeline.servers,
            [{"uri": pipeline.uri}, {"uri": str(tmp_path / "broken")}],
            http={"listen": f"127.0.0.1:{port}"},
        )
        with pipeline.daemon() as daemon:
            line = daemon.wait_for("retrying in")
            assert data_file.name in line["message"]
            assert pipeline.check() == 3
            code, ready = get(port, "/readyz")
            assert (code, list(ready["not_ready"])) == (503, ["broken"])
            code, status = get(port, "/status")
            assert code == 200
            broken = status["tables"]["broken"]
            assert broken["state"] == "backing_off"
            assert data_file.name in broken["last_error"]["path"]
            assert broken["last_error"]["retry_in"] > 0
            assert get(port, "/healthz")[0] == 200
            do(table.insert(rows(3)))
            assert pipeline.check() == 4
            daemon.stop()
        data_file.write_bytes(whole)
        with pipeline.daemon() as daemon:
            assert len(read_topic(pipeline.direct, f"{pipeline.name}.broken", at_least=2)) == 2
            until(lambda: get(port, "/readyz")[0] == 200)
            daemon.stop()
        assert pipeline.check() == 4


def get(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
