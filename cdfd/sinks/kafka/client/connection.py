"""How to reach a Kafka cluster: settings to what its clients take, and why they do not get through.

What kafka-python (3.0.12) does where it does not, and what is done about it here:

- It goes on until its time is up, with a wrong password too: each attempt counts where accounts are locked after a few. The first answer
  that time does not heal ends it here.
- Of an answer that comes together with the connection's end it takes only the end, and so it is with half of all refusals. A connection
  that ends three times while the broker looks at user and password is taken for one.
- Then it says only that its time is up. Here each connection's own failure is kept, and told.
- A broker that hangs is given 10 seconds and more to let us in, however short a request may take. Here it is not given more than that.
- It leaves a thread and sockets behind. They are closed here.

And where it does: told not to create topics by asking for them, it does so all the same. A topic that somebody deleted would be back with
the broker's settings, and with nothing in it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    KafkaError,
    KafkaProtocolError,
    NodeNotReadyError,
    RetriableError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from cdfd.config.settings import KafkaSink, Security
from cdfd.errors import ConfigError, SinkError

_RECONNECT_BACKOFF_MAX_MS = 1000
_SETUP_MS = 10_000
_UNANSWERED = 3


@dataclass(frozen=True, slots=True)
class _Failure:
    """How a connection failed.

    Attributes:
        address: of the broker.
        error: of kafka-python.
        final: whether another attempt is of no use.
        refused: whether the broker hung up on us each time when it was told who we are.
    """

    address: str
    error: Exception
    final: bool
    refused: bool = False


class _Unshown(str):
    """A password in what clients are told: kafka-python logs all of it, by `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def arguments(sink: KafkaSink) -> dict[str, Any]:
    """What every client of kafka-python takes: where the cluster is and how to talk to it. Its text shows no password.

    Raises:
        ConfigError: a certificate or key cannot be used.
    """
    security = sink.security
    check_files(security)
    told: dict[str, Any] = {
        "bootstrap_servers": list(sink.bootstrap_servers),
        "client_id": "cdfd",
        "security_protocol": security.protocol,
        "reconnect_backoff_max_ms": _RECONNECT_BACKOFF_MAX_MS,
    }
    if security.mechanism is not None and security.password is not None:
        told["sasl_mechanism"] = security.mechanism
        told["sasl_plain_username"] = security.username
        told["sasl_plain_password"] = _Unshown(security.password.reveal())
    if security.ca_path is not None:
        told["ssl_cafile"] = security.ca_path
    if security.certificate_path is not None:
        told["ssl_certfile"] = security.certificate_path
        told["ssl_keyfile"] = security.key_path
    if security.key_password is not None:
        told["ssl_password"] = _Unshown(security.key_password.reveal())
    return told


@contextmanager
def network(told: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Arguments for one client that is made inside, and an error with the reason where it cannot be.

        with network(arguments(sink)) as options:
            consumer = KafkaConsumer(**options, group_id=None)

    Raises:
        SinkError: there is no broker, or it does not let us in.
    """
    network = _Network()
    try:
        yield {**told, "kafka_client": network.client}
    except (KafkaError, OSError, ValueError) as error:
        network.close()
        raise _explained(error, network.failure, told["bootstrap_servers"]) from error


class _Network:
    """Makes kafka-python's network clients, and keeps how the last connection failed."""

    def __init__(self) -> None:
        self.failure: _Failure | None = None
        self._made: list[tuple[Any, Any]] = []
        self._watched: dict[Any, Any] = {}
        self._unanswered = 0

    def client(self, **options: Any) -> Any:
        """A network client. kafka-python asks for it, as its option `kafka_client`."""
        patience = min(_SETUP_MS, options["request_timeout_ms"])
        options |= {"socket_connection_setup_timeout_ms": patience, "socket_connection_setup_timeout_max_ms": patience}
        selector = NetworkSelector(**options)
        manager = KafkaConnectionManager(selector, **options)
        manager.cluster.config["allow_auto_create_topics"] = False
        self._watch(manager, with_user=options.get("sasl_mechanism") is not None)
        client = KafkaNetClient(net=selector, manager=manager, **options)
        self._made.append((selector, client))
        return client

    def close(self) -> None:
        for selector, client in self._made:
            selector.stop()
            client.close()

    def _watch(self, manager: Any, *, with_user: bool) -> None:
        connect = manager.get_connection

        def get_connection(node: Any, *further: Any, **options: Any) -> Any:
            if manager.bootstrapped:
                return connect(node, *further, **options)
            if self.failure is not None and self.failure.final:
                raise self.failure.error
            connection = connect(node, *further, **options)
            if self._watched.get(node) is not connection:
                self._watched[node] = connection
                broker = manager.cluster.broker_metadata(node)
                address = f"{broker.host}:{broker.port}"
                connection.close_future.add_errback(lambda error: self._keep(address, error, with_user=with_user))
            return connection

        manager.get_connection = get_connection

    def _keep(self, address: str, error: Exception, *, with_user: bool) -> None:
        if with_user and "socket disconnected" in error.args:
            self._unanswered += 1
        refused = self._unanswered >= _UNANSWERED
        self.failure = _Failure(address, error, final=refused or not _passes(error), refused=refused)


def _passes(error: Exception) -> bool:
    """Whether another attempt may succeed without anybody's doing."""
    return isinstance(error, RetriableError) and _tls_error(error) is None


def _tls_error(error: Exception) -> ssl.SSLError | None:
    """What the handshake failed of; a connection that ended in its middle is none of it."""
    for cause in (error, error.__cause__, error.__context__, *error.args):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return cause
    return None


def _explained(error: Exception, failure: _Failure | None, servers: Sequence[str]) -> SinkError:
    what = f"cannot connect to Kafka at {', '.join(servers)}"
    if failure is None:
        return SinkError(f"{what}: {error}", retriable=isinstance(error, RetriableError))
    reason, hint = _REFUSED if failure.refused else reason_of(failure.error)
    where = "" if list(servers) == [failure.address] else f"{failure.address}: "
    return SinkError(f"{what}: {where}{reason}", hint=hint, retriable=not failure.final)


_REFUSED = (
    "the connection ends as soon as user name and password are sent: they may be refused",
    "Check sink.security.username and password, and whether sink.security.protocol is the one of that port",
)


def reason_of(error: Exception) -> tuple[str, str]:
    """What a connection failed of, and what to do about it."""
    text = ", ".join(str(part) for part in error.args)
    tls = _tls_error(error)
    match error:
        case SaslAuthenticationFailedError():
            return f"user name or password is refused ({text})", "Check sink.security.username and password"
        case UnsupportedSaslMechanismError():
            return f"the mechanism is not offered ({text})", "Check sink.security.mechanism"
        case IllegalSaslStateError():
            return "that port wants no user name and password", "Check sink.security.protocol, and the port"
        case AuthorizationError():
            return f"access is refused ({text})", "Has the user of sink.security access to the cluster?"
        case KafkaProtocolError():
            return (
                f"what answers is not Kafka ({text})",
                "Check the port, and whether sink.security.protocol is its own",
            )
        case NodeNotReadyError():
            return "no broker can be reached", "Do they run, and can they be reached as their advertised.listeners say?"
    if isinstance(tls, ssl.SSLCertVerificationError):
        hint = (
            "Is sink.security.ca_path the authority of the broker's certificate, and is the certificate for that name?"
        )
        return f"the broker's certificate is not trusted: {tls.verify_message}", hint
    if tls is not None:
        return f"no TLS: {tls.reason or tls}", "Check the port, sink.security.protocol, and certificates"
    if "DNS" in text:
        return "there is no such host", "Check sink.bootstrap_servers, and advertised.listeners of the brokers"
    if "ECONNREFUSED" in text:
        return "connection refused", "Does a broker run there?"
    hint = "Does a broker run there, and is sink.security.protocol the one of that port?"
    return text or "the connection ended before anything was answered", hint


def check_files(security: Security) -> None:
    """Use certificates and keys once, where it can be told which of them is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if security.ca_path is not None:
        with _usable("ca_path", security.ca_path, "Expected certificates as PEM"):
            context.load_verify_locations(security.ca_path)
    if security.certificate_path is not None and security.key_path is not None:
        # Without a password OpenSSL would ask for one on the terminal.
        password = "" if security.key_password is None else security.key_password.reveal()
        with _usable("certificate_path", security.certificate_path, "Expected a file that can be read"):
            open(security.certificate_path, "rb").close()
        with _usable("key_path", security.key_path, "Expected the certificate's key as PEM, and its key_password"):
            open(security.key_path, "rb").close()
            context.load_cert_chain(security.certificate_path, security.key_path, password)


@contextmanager
def _usable(name: str, path: str, hint: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").replace("_", " ").lower()
        raise ConfigError(f"sink.security.{name} cannot be used: {reason}", path=path, hint=hint) from error
    except OSError as error:
        raise ConfigError(f"sink.security.{name} cannot be read: {error.strerror}", path=path, hint=hint) from error
