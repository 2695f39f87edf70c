"""`cdfd run` with its table and its ledger on S3 into Kafka: every change exactly once, whatever the store or the process does."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdfd.runtime.clock import SystemClock
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.location import open_storage
from tests.support.kafka.daemon_process import until
from tests.support.kafka.history import Location
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import rows
from tests.support.s3.proxy import Asked, Fault, Proxy
from tests.support.s3.server import KEY_ID, SECRET, Server
from tests.support.sampling import ALL, sample

DAEMONS = 3 if ALL else 1
"""Number of daemons that are killed while a writer commits."""
DEADLINE = 2.0


@pytest.fixture
def make(
    broker: SharedBroker, moto_server: Server, bucket: str, proxy: Proxy, tmp_path: Path, name: str
) -> Callable[..., Pipeline]:
    """`make(**s3)`: a pipeline of `broker`'s whose daemon reaches the store through `proxy`; everybody else goes straight to it."""

    def made(**s3: Any) -> Pipeline:
        options = {key: str(value) for key, value in moto_server.options().items()}
        keys = {} if "profile" in s3 else {"access_key_id": KEY_ID, "secret_access_key": SECRET}
        quick = {"connect_timeout": "1s", "read_timeout": "500ms", "deadline": f"{DEADLINE:g}s"}
        reached = {"endpoint_url": proxy.url, "region": "us-east-1"} | quick | keys | s3
        return Pipeline(
            tmp_path,
            name,
            broker.bootstrap_servers,
            broker.bootstrap_servers,
            Location(f"s3://{bucket}/lake/orders", options),
            {
                "storage": {"s3": reached},
                "progress": {"ledger": f"s3://{bucket}/lake/ledger", "interval": "200ms"},
            },
        )

    return made


@pytest.fixture
def pipeline(make: Callable[..., Pipeline]) -> Pipeline:
    return make()


def recorded(pipeline: Pipeline) -> int | None:
    """The version that the ledger knows."""

    async def asked() -> int | None:
        storage = open_storage(pipeline.uri.replace("/orders", "/ledger"), pipeline.place.options)
        ledger = TableLedger(storage, SystemClock())
        try:
            position = await ledger.position(app_id(pipeline.name, "orders"))
        finally:
            await ledger.close()
        return None if position is None else position.version

    return asyncio.run(asked())


def of_the_table(asked: Asked) -> bool:
    return "orders" in asked.path + asked.query


def test_daemons_killed_while_somebody_writes(pipeline: Pipeline) -> None:
    with pipeline.writing(pause=0.3) as writer:
        for number in range(DAEMONS):
            with pipeline.daemon() as daemon:
                daemon.wait_for("at version")
                time.sleep(0.2 + 0.3 * number)
                assert daemon.running, daemon.log()
                daemon.kill()
    assert pipeline.finish() > 0
    assert recorded(pipeline) == writer.table.version


def is_read_of_version_3(asked: Asked) -> bool:
    """Not a HEAD, whose answer has no room for the code of an error."""
    return asked.method == "GET" and asked.path.endswith(f"{3:020d}.json")


def test_a_store_that_fails_while_somebody_writes(make: Callable[..., Pipeline], proxy: Proxy) -> None:
    """A fault that passes within the deadline causes no error."""
    pipeline = make(deadline="30s")
    faults = [
        Fault("answer", 4, 503, "SlowDown", concerns=is_read_of_version_3),
        Fault("answer", 2, 500, "InternalError"),
        Fault("reset", 3),
        Fault("truncate", 3),
        Fault("stall", 1),
        Fault("lost", 3),
    ]
    with pipeline.writing(pause=0.5), pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        for fault in faults:
            proxy.faults = [fault]
            until(lambda fault=fault: fault.times == 0)
        assert "SlowDown" in daemon.wait_for("retries for up to 30 s")["message"]
        daemon.stop()
    assert not daemon.has_said("retrying in"), daemon.log()
    assert pipeline.finish() > 0


def test_a_store_that_fails_for_longer(pipeline: Pipeline, proxy: Proxy) -> None:
    """The table backs off, reports the reason, and resumes at its position once the store answers again."""
    table = pipeline.table()
    do(table.insert(rows(1, 2)))
    with pipeline.daemon() as daemon:
        assert pipeline.check() == 2
        proxy.faults = [Fault("answer", 9999, 503, "SlowDown", concerns=of_the_table)]
        do(table.insert(rows(3)))
        line = daemon.wait_for(lambda line: "SlowDown" in line["message"] and "retrying in" in line["message"])
        for expected in (f"gave up after {DEADLINE:g} seconds", "_delta_log", "version 2"):
            assert expected in line["message"]
        assert line["level"] == "warning"
        proxy.faults = []
        assert pipeline.check() == 3
        assert daemon.has_said("resuming at version 2")
        daemon.stop()
    assert recorded(pipeline) == 2


def test_a_ledger_that_fails_keeps_no_row_waiting(pipeline: Pipeline, proxy: Proxy) -> None:
    table = pipeline.table()
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        proxy.faults = [Fault("answer", 9999, 503, "SlowDown", concerns=lambda asked: not of_the_table(asked))]
        do(table.insert(rows(1, 2)))
        assert pipeline.check() == 2
        assert "SlowDown" in daemon.wait_for("cannot record version")["message"]
        proxy.faults = []
        until(lambda: recorded(pipeline) == 1)
        daemon.stop()


def test_a_token_that_expires(
    make: Callable[..., Pipeline], proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon reads the profile again until it contains new credentials."""
    file = tmp_path / "credentials"

    def write(key: str) -> None:
        file.write_text(f"[shop]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")

    write("old-key")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    pipeline = make(profile="shop")
    table = pipeline.table()
    do(table.insert(rows(1, 2)))
    with pipeline.daemon() as daemon:
        assert pipeline.check() == 2
        proxy.faults = [Fault("answer", 9999, 400, "ExpiredToken", concerns=lambda asked: "old-key" in asked.key)]
        do(table.insert(rows(3)))
        line = daemon.wait_for("retrying in")
        assert "ExpiredToken" in line["message"]
        assert "provide new ones" in line["message"]
        write("new-key")
        assert pipeline.check() == 3
        daemon.stop()
    assert SECRET not in daemon.log()


def test_a_token_of_the_configuration_that_expires(pipeline: Pipeline, proxy: Proxy) -> None:
    """The configuration cannot provide a newer token: the daemon ends, and reports the reason."""
    table = pipeline.table()
    do(table.insert(rows(1, 2)))
    with pipeline.daemon() as daemon:
        assert pipeline.check() == 2
        proxy.faults = [Fault("answer", 9999, 400, "ExpiredToken")]
        do(table.insert(rows(3)))
        assert daemon.ended() == 1, daemon.log()
    assert "The credentials have expired" in daemon.error
    proxy.faults = []
    assert pipeline.finish() == 3


@pytest.mark.parametrize("start", sample(["earliest", "snapshot"], 1))
def test_a_version_that_is_listed_and_not_there_yet(pipeline: Pipeline, proxy: Proxy, start: str) -> None:
    """It is waited for: neither skipped nor taken for a gap, although there is one after it."""
    pipeline.configure({"start": start})
    table = pipeline.table()
    for each in range(1, 4):
        do(table.insert(rows(each)))

    def hidden(version: int, times: int) -> Fault:
        return Fault(
            "answer",
            times,
            404,
            "NoSuchKey",
            concerns=lambda asked: asked.method in ("GET", "HEAD") and asked.path.endswith(f"{version:020d}.json"),
        )

    proxy.faults = [hidden(3, 3)]
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        assert pipeline.check(3 if start == "snapshot" else 0, snapshot=start == "snapshot") == 3
        assert proxy.faults[0].times == 0
        proxy.faults = [hidden(4, 12)]
        do(table.insert(rows(4)))
        do(table.insert(rows(5)))
        assert len(pipeline.read(5)) == 5
        assert proxy.faults[0].times == 0
        daemon.stop()
