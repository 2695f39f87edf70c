"""Connections to a Kafka cluster: the arguments of its clients, and the reasons of failed connections.

Known defects of kafka-python 3.0.12 during a connection, and the workarounds here:

- It retries until its timeout, even with a wrong password, which may lock the account. Here the first permanent error ends the connection.
- It ignores a response that arrives together with the end of the connection, which happens for half of all refused logins. Here three
  connections that end during the login count as a refusal.
- It then reports only the timeout. Here the error of each connection is kept and reported.
- It gives a broker at least 10 seconds for the connection, even if the request timeout is shorter. Here the request timeout applies.
- It leaks a thread and sockets. Here they are closed.
- It waits 100 ms between two requests for metadata, whatever its option `retry_backoff_ms` says. Here that applies.

After a connection it creates topics by asking for them, although `allow_auto_create_topics` is off. A deleted topic would come back empty,
with the broker's default settings.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka.errors import KafkaError, SaslAuthenticationFailedError
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.certificates import check_files
from cdfd.sinks.kafka.client.failures import TRANSIENT
from cdfd.sinks.kafka.client.login import Credentials, SecretArgument, login, ready
from cdfd.sinks.kafka.client.reasons import hangup, reason_of, tls_error
from cdfd.sinks.kafka.client.tokens import TokenFailure
from cdfd.sinks.kafka.settings import KafkaSettings

_RECONNECT_BACKOFF_MAX_MS = 3000
"""Each table has connections of its own, and an attempt takes 4 ms of processor time: one a second for 500 tables would take two cores."""
_SETUP_MS = 10_000
_MOST_HANGUPS = 3


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed connection.

    Attributes:
        address: of the broker.
        error: of kafka-python.
        final: whether the error is permanent.
        refused: whether the broker closed each connection during the login.
    """

    address: str
    error: Exception
    final: bool
    refused: bool = False


def arguments(sink: KafkaSettings) -> dict[str, Any]:
    """The connection arguments of every client of kafka-python. Their `repr` shows no password.

    Raises:
        ConfigError: a certificate or key cannot be used, or the library for the mechanism is not installed.
    """
    security = sink.security
    check_files(security)
    options: dict[str, Any] = {
        "bootstrap_servers": list(sink.bootstrap_servers),
        "client_id": "cdfd",
        "security_protocol": security.protocol,
        "reconnect_backoff_max_ms": _RECONNECT_BACKOFF_MAX_MS,
    }
    options |= login(security, sink.bootstrap_servers)
    if security.ca_path is not None:
        options["ssl_cafile"] = security.ca_path
    if security.certificate_path is not None:
        options["ssl_certfile"] = security.certificate_path
        options["ssl_keyfile"] = security.key_path
    if security.key_password is not None:
        options["ssl_password"] = SecretArgument(security.key_password)
    return options


@contextmanager
def network(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Arguments for one client that is created in the block. A failed connection raises an error with its reason.

        with network(arguments(sink)) as options:
            consumer = KafkaConsumer(**options, group_id=None)

    Raises:
        SinkError: the cluster cannot be reached, or refuses access.
    """
    network = _ClientFactory()
    ready(options)
    try:
        yield {**options, "kafka_client": network.client}
    except (KafkaError, OSError, ValueError) as error:
        network.close()
        servers = options["bootstrap_servers"]
        what = f"cannot connect to Kafka at {', '.join(servers)}"
        if network.failure is None:
            problem = SinkError(f"{what}: {error}", retriable=isinstance(error, TRANSIENT))
        else:
            reason, hint = hangup(options) if network.failure.refused else reason_of(network.failure.error, options)
            where = "" if list(servers) == [network.failure.address] else f"{network.failure.address}: "
            problem = SinkError(f"{what}: {where}{reason}", hint=hint, retriable=not network.failure.final)
        raise problem from error


class _ClientFactory:
    """Creates kafka-python's network clients, and keeps the error of the last failed connection."""

    def __init__(self) -> None:
        self.failure: _Failure | None = None
        self._begun = time.monotonic()
        self._clients: list[tuple[Any, Any]] = []
        self._watched: dict[Any, Any] = {}
        self._hangups = 0

    def client(self, **options: Any) -> Any:
        """A network client. kafka-python calls this as its option `kafka_client`."""
        setup_timeout = min(_SETUP_MS, options["request_timeout_ms"])
        options |= {
            "socket_connection_setup_timeout_ms": setup_timeout,
            "socket_connection_setup_timeout_max_ms": setup_timeout,
        }
        selector = NetworkSelector(**options)
        manager = KafkaConnectionManager(selector, **options)
        manager.cluster.config["allow_auto_create_topics"] = False
        manager.cluster.config["retry_backoff_ms"] = options["retry_backoff_ms"]
        credentials, connect = Credentials(manager.config, self._begun), manager.get_connection

        def get_connection(node: Any, *further: Any, **options: Any) -> Any:
            credentials.refresh()  # a new connection is made with them
            if manager.bootstrapped:
                return connect(node, *further, **options)
            if self.failure is not None and self.failure.final:
                raise self.failure.error
            connection = connect(node, *further, **options)
            if self._watched.get(node) is not connection:
                self._watched[node] = connection
                broker = manager.cluster.broker_metadata(node)
                address = f"{broker.host}:{broker.port}"
                connection.close_future.add_errback(lambda error: self._note_failure(address, error, credentials))
            return connection

        manager.get_connection = get_connection
        client = KafkaNetClient(net=selector, manager=manager, **options)
        self._clients.append((selector, client))
        return client

    def close(self) -> None:
        for selector, client in self._clients:
            selector.stop()
            client.close()

    def _note_failure(self, address: str, error: Exception, credentials: Credentials) -> None:
        if credentials.mechanism is not None and "socket disconnected" in error.args:
            self._hangups += 1
        refused = self._hangups >= _MOST_HANGUPS
        transient = (
            error.error.retriable
            if isinstance(error, TokenFailure)
            else isinstance(error, TRANSIENT) and tls_error(error) is None
        )
        if refused or isinstance(error, SaslAuthenticationFailedError):
            transient = credentials.renewed()
        self.failure = _Failure(address, error, final=not transient, refused=refused)
