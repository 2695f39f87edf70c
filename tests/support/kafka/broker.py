"""A real Kafka broker on this machine: a node of its own, in a folder of its own, that leaves nothing behind.

    with Broker() as broker:
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

`python -m tests.support.kafka.broker` runs one in the foreground. It needs Java 17 and, the first time, Maven and the network.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from tests.support.kafka import guard
from tests.support.kafka.installation import QUICK, as_text, installed, node_properties
from tests.support.kafka.node import BrokerError, Node, free_ports, let_go

if TYPE_CHECKING:
    from tests.support.kafka.certificates import Certificates

Protocol = Literal["SSL", "SASL_PLAINTEXT", "SASL_SSL"]

_GUARD_SECONDS = 20
_COMMAND_SECONDS = 60
_COMMAND_CHARACTERS = 12_000

_DEFAULTS = {
    "auto.create.topics.enable": "false",
    # One node has everything.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The first transaction and the first group create these topics, and wait for it: 50 partitions take a second.
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "4",
    # Records of some tests have times of 1970, which the first look at retention, half a minute after the start, would delete.
    "log.retention.ms": "-1",
    "group.initial.rebalance.delay.ms": "0",
    # After `kill` the node's former self has to be given up before it may start again: by default 9 seconds.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
}


class Broker:
    """A cluster of one node. As a context manager it runs from beginning to end; else `start` it, and `close` it at last.

    Clients that connect to `bootstrap_servers`, in plain text, may do everything, even with an authorizer.

    Args:
        protocols: further listeners; `address` tells where they are. SASL takes PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512; see `users`.
            SSL alone asks for a client's certificate, SASL_SSL does not.
        users: names and passwords, for PLAIN; for SCRAM create them, as an administrator does.
        certificates: for the listeners with TLS.
        authorizer: with one, all other clients need an ACL for each operation. Users are `User:name`, and `User:CN=name` by certificate.
        properties: more of the node's, as in `server.properties`.
        port: of `bootstrap_servers`; a free one if None.
        behind: the port of a proxy. The proxy connects to one more plain-text listener, `address("BEHIND")`. It
            advertises the proxy's port to clients.
        jvm: options of the JVM besides its memory.
    """

    def __init__(
        self,
        *,
        protocols: Sequence[Protocol] = (),
        users: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
        authorizer: bool = False,
        properties: Mapping[str, str] | None = None,
        port: int | None = None,
        behind: int | None = None,
        jvm: Sequence[str] = QUICK,
    ) -> None:
        installation = installed()
        names = [*protocols, *(["BEHIND"] if behind is not None else [])]
        main_port, controller_port, *others = free_ports(2 + len(names))
        self._ports = {"PLAINTEXT": port or main_port, **dict(zip(names, others, strict=True))}
        self._closed = False
        self.folder = Path(tempfile.mkdtemp(prefix="cdfd-kafka-"))
        self._users = (self.folder / "users").open("w")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        shutil.copytree(installation.formatted, self.folder / "data")
        settings = node_properties(self.folder / "data", self._ports["PLAINTEXT"], controller_port) | _DEFAULTS
        settings |= _listeners(self._ports, controller_port, behind)
        settings |= _sasl(users or {}) if any(protocol.startswith("SASL") for protocol in protocols) else {}
        settings |= _tls(certificates) if certificates is not None else {}
        settings |= _AUTHORIZER if authorizer else {}
        (self.folder / "server.properties").write_text(as_text(settings | dict(properties or {})))
        command = installation.command("kafka.Kafka", "server.properties", jvm=jvm)
        self._node = Node(self.folder, command)

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find it."""
        return self.address("PLAINTEXT")

    def address(self, protocol: Protocol | Literal["PLAINTEXT", "BEHIND"]) -> str:
        """Where clients find it that speak `protocol`."""
        return f"127.0.0.1:{self._ports[protocol]}"

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._node.running

    @property
    def pid(self) -> int:
        """Of the node's process."""
        return self._node.pid

    def log(self) -> str:
        """The node's log: warnings and errors."""
        return self._node.log()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Errors of a `with` tell the end of its log, and its transactions."""
        try:
            yield
        except Exception as error:
            error.add_note(f"The broker's log:\n{self.log()[-4000:]}")
            error.add_note(f"The broker's transactions:\n{self.transactions()}")
            raise

    def transactions(self) -> str:
        """The records of its transaction coordinator, and of the topics that have positions, from its files."""
        dump = "org.apache.kafka.tools.DumpLogSegments"
        files = sorted((self.folder / "data").glob("__transaction_state-*/*.log"))
        answers = [_output(installed().command(dump, "--transaction-log-decoder", "--files", _names(files)))]
        files = sorted((self.folder / "data").glob("_cdfd_progress*/*.log"))
        answers.append(_output(installed().command(dump, "--files", _names(files))))
        return "\n".join(answers)

    def start(self) -> None:
        """Return when it is ready for clients; with what it had when it was stopped or killed. `BrokerError` where it is never ready."""
        self._node.start()

    def stop(self) -> None:
        """End it in good order. It may be started again."""
        self._node.stop()

    def kill(self) -> None:
        """End it as a crash does. It may be started again."""
        self._node.kill()

    def restart(self) -> None:
        """Start it again, at the same address, with what it has; stop it before if it runs."""
        if self.running:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Let it hang: connections stay open, and nothing is answered."""
        self._node.pause()

    def resume(self) -> None:
        """Resume the node after `pause`."""
        self._node.resume()

    def close(self) -> None:
        """End it and remove all that it had."""
        if self._closed:
            return
        self._closed = True
        self._node.kill()
        self._users.close()
        self._guard.wait(_GUARD_SECONDS)

    def leave(self) -> None:
        """Let it run for as long as another process holds a lock on its `users`; see `shared`."""
        self._closed = True
        self._node.leave()
        let_go(self._guard)
        self._users.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _names(files: Sequence[Path]) -> str:
    return ",".join(map(str, files))


def _output(command: Sequence[str]) -> str:
    """The end of what a command of Kafka prints; or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS)
    except subprocess.TimeoutExpired as error:
        return str(error)
    return (done.stdout + done.stderr)[-_COMMAND_CHARACTERS:]


_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def _listeners(ports: Mapping[str, int], controller_port: int, behind: int | None) -> dict[str, str]:
    addresses = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    told = ports | ({"BEHIND": behind} if behind is not None else {})
    protocols = [f"{name}:{'PLAINTEXT' if name == 'BEHIND' else name}" for name in ports]
    return {
        "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{controller_port}"]),
        "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in told.items()),
        "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
    }


def _sasl(users: Mapping[str, str]) -> dict[str, str]:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    known = "".join(f' user_{name}="{password}"' for name, password in users.items())
    settings = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"}
    for listener in ("sasl_plaintext", "sasl_ssl"):
        place = f"listener.name.{listener}"
        settings[f"{place}.plain.sasl.jaas.config"] = f"{plain}{known};"
        settings[f"{place}.scram-sha-256.sasl.jaas.config"] = f"{scram};"
        settings[f"{place}.scram-sha-512.sasl.jaas.config"] = f"{scram};"
    return settings


def _tls(certificates: Certificates) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        "listener.name.ssl.ssl.client.auth": "required",
    }


def main() -> None:
    """Run one in the foreground until it is interrupted."""
    parser = argparse.ArgumentParser(prog="tests.support.kafka.broker", description="A Kafka broker until Ctrl-C.")
    parser.add_argument("--port", type=int, default=9092, help="of the listener (default 9092)")
    port = parser.parse_args().port
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Broker(port=port, properties={"auto.create.topics.enable": "true"}, jvm=()) as broker:
            print(f"bootstrap_servers: {broker.bootstrap_servers}\nCtrl-C ends it and removes its topics", flush=True)
            while broker.running:
                time.sleep(0.2)
            sys.exit(f"the broker has ended. Its last words:\n{broker.log()[-4000:]}")
    except BrokerError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
