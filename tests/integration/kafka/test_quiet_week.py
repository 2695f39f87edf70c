"""A week of ordinary events, without the time between them: nothing of it wakes a person."""

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import pytest

from cdfd.demo.writer import TableWriter
from tests.support.axes import under_test
from tests.support.chaos.pair import Pair
from tests.support.helm.alarm import QUIET_SECONDS, Tape, firing
from tests.support.helm.fixtures import needs_tools, promtool
from tests.support.kafka.broker import Broker
from tests.support.kafka.daemon_process import until
from tests.support.kafka.history import Location
from tests.support.kafka.node import free_ports
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.token_server import CLIENT, SECRET, TokenServer
from tests.support.lake import rows
from tests.support.s3.fixtures import bucket, moto_server, proxy
from tests.support.s3.proxy import Asked, Fault, Proxy
from tests.support.s3.server import SECRET as STORE_SECRET
from tests.support.s3.server import Server

__all__ = ["bucket", "moto_server", "needs_tools", "promtool", "proxy"]

LIFETIME = 15.0
"""Seconds of a token, and nearly of an idle transactional id."""
LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
PROPERTIES = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": LOGIN,
    "listener.name.sasl_plaintext.oauthbearer.connections.max.reauth.ms": "3600000",
    "transactional.id.expiration.ms": "10000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": "10000",
}


class Watch:
    """Scrapes a daemon each second, and asks far more often whether it is ready.

    Args:
        port: where it listens.

    Attributes:
        tape: the scrapes, with quiet hours between the events.
        refusals: the answers of `/readyz` that are not 200, with the event.
    """

    def __init__(self, port: int) -> None:
        self.tape = Tape()
        self.refusals: list[tuple[str, int, str]] = []
        self.event = "start"
        self._port = port
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()

    @contextmanager
    def during(self, event: str) -> Iterator[None]:
        """One event, after which nothing happens for a while."""
        self.event = event
        yield
        time.sleep(2.0)
        with self._lock:
            self.tape.add(get(self._port, "/metrics")[1], QUIET_SECONDS)

    def _run(self) -> None:
        scraped = -1.0
        while not self._ends.wait(0.1):
            code, body = get(self._port, "/readyz")
            if code != 200:
                self.refusals.append((self.event, code, body))
            if time.monotonic() - scraped >= 1.0:
                scraped = time.monotonic()
                scrape = get(self._port, "/metrics")[1]
                with self._lock:
                    self.tape.add(scrape)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Week:
    """A table on S3 and its topic, the credentials of both, and what happens to them.

    Args:
        shop: the pipeline.
        broker: of the topic.
        tokens: the identity provider of the broker.
        store: the network in front of the store.
        credentials: the file of the store's keys.
    """

    def __init__(self, shop: Pipeline, broker: Broker, tokens: TokenServer, store: Proxy, credentials: Path) -> None:
        self.shop, self.broker, self.tokens, self.store = shop, broker, tokens, store
        self.credentials = credentials
        self.table: TableWriter = shop.table()
        self.rows = 0

    def commit(self) -> None:
        """A version, which arrives."""
        do(self.table.insert(rows(self.rows)))
        self.rows += 1
        self.shop.read(self.rows)

    def a_silent_week(self) -> None:
        """The broker forgets the transactional id, and tokens expire."""
        time.sleep(LIFETIME + 5)
        self.commit()

    def a_broker_that_restarts(self) -> None:
        self.broker.stop()
        do(self.table.insert(rows(self.rows)))
        self.rows += 1
        time.sleep(3)
        self.broker.start()
        self.shop.read(self.rows)

    def a_broker_that_crashes(self) -> None:
        self.broker.kill()
        time.sleep(3)
        self.broker.start()
        self.commit()

    def an_identity_provider_that_fails_while_tokens_expire(self) -> None:
        self.tokens.answer = lambda _: (503, b'{"error": "temporarily_unavailable"}')
        time.sleep(LIFETIME)
        do(self.table.insert(rows(self.rows)))
        self.rows += 1
        time.sleep(3)
        self.tokens.answer = None
        self.shop.read(self.rows)

    def a_store_that_throttles(self) -> None:
        """For longer than a request is retried. The ledger is there too."""
        fault = Fault("answer", 99999, 503, "SlowDown")
        self.store.faults = [fault]
        do(self.table.insert(rows(self.rows)))
        self.rows += 1
        time.sleep(8)
        assert fault.times < 99995
        self.store.faults = []
        self.shop.read(self.rows)

    def keys_of_the_store_that_expire(self) -> None:
        def signed_by_old_key(asked: Asked) -> bool:
            return "old-key" in asked.key

        self.store.faults = [Fault("answer", 99999, 400, "ExpiredToken", concerns=signed_by_old_key)]
        do(self.table.insert(rows(self.rows)))
        self.rows += 1
        time.sleep(6)
        write_keys(self.credentials, "new-key")
        self.shop.read(self.rows)
        self.store.faults = []

    def a_configuration_with_another_table(self) -> None:
        other = self.shop.folder / "returns"
        document = json.loads(self.shop.config.read_text())
        document["tables"].append({"uri": str(other), "key": ["id"], "start": "earliest"})
        self.shop.config.write_text(json.dumps(document)[:-20])  # as an editor that is not done
        time.sleep(0.05)
        self.shop.config.write_text(json.dumps(document))
        time.sleep(3)  # the table does not exist yet
        table = TableWriter(Location(str(other)).storage(), self.table.schema)
        do(table.create())
        self.commit()


EVENTS: list[Callable[[Week], None]] = [
    Week.a_silent_week,
    Week.a_broker_that_restarts,
    Week.a_store_that_throttles,
    Week.an_identity_provider_that_fails_while_tokens_expire,
    Week.keys_of_the_store_that_expire,
    Week.a_configuration_with_another_table,
    Week.a_broker_that_crashes,
]


def write_keys(file: Path, key: str) -> None:
    written = file.with_suffix(".new")
    written.write_text(f"[shop]\naws_access_key_id = {key}\naws_secret_access_key = {STORE_SECRET}\n")
    written.replace(file)


@pytest.fixture
def week(
    needs_broker: None,
    moto_server: Server,
    bucket: str,
    proxy: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Week]:
    credentials = tmp_path / "credentials"
    write_keys(credentials, "old-key")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    options = {key: str(value) for key, value in moto_server.options().items()}
    quick = {"connect_timeout": "1s", "read_timeout": "1s", "deadline": "2s"}
    with (
        TokenServer(lifetime=LIFETIME) as tokens,
        Broker(protocols=("SASL_PLAINTEXT",), properties=PROPERTIES) as broker,
    ):
        oauth = {"token_url": tokens.url, "client_id": CLIENT, "client_secret": SECRET}
        security = {"protocol": "SASL_PLAINTEXT", "mechanism": "OAUTHBEARER", "oauth": oauth}
        sections: dict[str, Any] = {
            "storage": {"s3": {"endpoint_url": proxy.url, "region": "us-east-1", "profile": "shop"} | quick},
            "progress": {"ledger": f"s3://{bucket}/lake/ledger", "interval": "500ms"},
            "http": {"listen": f"127.0.0.1:{free_ports(1)[0]}"},
            "sink": {"security": security, "producer": request.param, "topics": {"prefix": "week.", "partitions": 2}},
        }
        place = Location(f"s3://{bucket}/lake/orders", options)
        direct = broker.bootstrap_servers
        shop = Pipeline(tmp_path, "week", broker.address("SASL_PLAINTEXT"), direct, place, sections)
        yield Week(shop, broker, tokens, proxy, credentials)


@pytest.mark.parametrize("week", under_test("producer", ["kafka-python", "librdkafka"]), indirect=True)
def test_nothing_of_a_week_wakes_a_person(week: Week, promtool: Path, tmp_path: Path) -> None:
    """No line of the log is an error, the daemon is always ready, and no alert fires before the daemon is gone."""
    port = int(json.loads(week.shop.config.read_text())["http"]["listen"].rpartition(":")[2])
    with week.shop.daemon() as daemon:
        week.commit()
        until(lambda: get(port, "/readyz")[0] == 200)
        with Watch(port) as watch:
            for event in EVENTS:
                with watch.during(event.__name__):
                    event(week)
        assert week.shop.check() == week.rows
        errors = [line for line in daemon.lines if line["level"] in ("error", "critical")]
        retries = [
            line for line in daemon.lines if re.search(r"; retrying in \d|opening the sink again", line["message"])
        ]
        daemon.stop()
    assert errors == []
    assert watch.refusals == []
    assert len(retries) >= len(EVENTS) // 2, "the events have not reached the daemon"
    end = watch.tape.seconds
    watch.tape.add(None, 300)
    alerts = firing(promtool, tmp_path, watch.tape)
    assert {name for _, name in alerts} == {"CdfdDown"}
    assert min(second for second, _ in alerts) > end


def scrape(port: int) -> str | None:
    """The metrics of a process; None if it does not run."""
    try:
        return get(port, "/metrics")[1]
    except urllib.error.URLError:
        return None


def test_election_and_hand_over_wake_no_person(pipeline: Pipeline, promtool: Path, tmp_path: Path) -> None:
    """Two processes stand by for each other. One is killed and comes back, and another one hands over: no error, and no alert."""
    ports, configs, table = free_ports(2), [], pipeline.table()
    for port in ports:
        pipeline.configure(http={"listen": f"127.0.0.1:{port}"})
        configs.append(pipeline.config.rename(tmp_path / f"{port}.yaml"))
    tape, ends = Tape(), threading.Event()
    lock = threading.Lock()

    def look(seconds: int = 1) -> None:
        scrapes = {str(port): scrape(port) for port in ports}
        with lock:
            tape.add(scrapes, seconds)

    def watch() -> None:
        while not ends.wait(1.0):
            look()

    watching = threading.Thread(target=watch, name="watch")
    count = 0
    with ExitStack() as stack:
        pair = Pair((configs[0], configs[1]), stack)
        watching.start()
        stack.callback(watching.join)
        stack.callback(ends.set)
        for kind in ("kill", "stop"):
            do(table.insert(rows(count := count + 1)))
            pair.strike(kind, Random(1))
            do(table.insert(rows(count := count + 1)))
            pipeline.read(count)
            time.sleep(2.0)
            look(QUIET_SECONDS)
        ends.set()
        watching.join()
        pair.end()
    assert pipeline.check() == count
    assert len(pair.took) == 2
    assert pair.errors == []
    assert len([name for name in tape.series if name.startswith("cdfd_leader{")]) == 2
    assert firing(promtool, tmp_path, tape) == []
