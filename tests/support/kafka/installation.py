"""Kafka itself: its jars from Maven Central, fetched once, and what makes a broker start faster.

Beside the jars there are a formatted, empty data folder and an archive of the classes that a broker loads: with them it starts in one
second instead of three.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.cache import CACHE, locked
from tests.support.installation import InstallError, fetch_jars, java, missing_java
from tests.support.kafka.node import BrokerError, Node, free_ports

_HERE = Path(__file__).parent
JARS = CACHE / "kafka-jars"
POM = _HERE / "java" / "pom.xml"
LOGGING = _HERE / "java" / "log4j2.properties"

QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For brokers that live for seconds: no compiler that takes longer than it saves."""

_CLUSTER_ID = "Y2RmZC10ZXN0LWJyb2tlcg"
_STEP_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Installation:
    """Where everything is."""

    folder: Path

    @property
    def formatted(self) -> Path:
        """An empty data folder, to be copied."""
        return self.folder / "formatted"

    @property
    def archive(self) -> Path:
        """Classes in the form that the JVM has them in memory."""
        return self.folder / "classes.jsa"

    def command(self, main: str, *arguments: str, jvm: Sequence[str] = QUICK) -> list[str]:
        """A command line that runs a class of Kafka."""
        shared = [f"-XX:SharedArchiveFile={self.archive}", "-Xshare:auto"] if self.archive.exists() else []
        logging = f"-Dlog4j2.configurationFile={LOGGING}"
        jars = f"{self.folder / 'jars'}/*"
        return [java(), "-Xmx512m", *jvm, *shared, logging, "-cp", jars, main, *arguments]


def missing() -> str | None:
    """Why no broker can be started here, or None."""
    return missing_java("a Kafka broker needs", [_place()])


def installed() -> Installation:
    """The installed broker, which is fetched and prepared first if it is missing. Several processes may call this at once.

    Raises:
        BrokerError: it cannot be had.
    """
    if (reason := missing()) is not None:
        raise BrokerError(reason)
    place = _place()
    if not _complete(place):
        with locked(JARS):
            if not _complete(place):
                _install(place)
    return Installation(place)


def as_text(properties: Mapping[str, str]) -> str:
    """A `.properties` file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def node_properties(data: Path, port: int, controller_port: int) -> dict[str, str]:
    """The properties of a cluster of one node."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "log.dirs": str(data),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _place() -> Path:
    """Another list of jars or another Java is another installation."""
    content = POM.read_bytes() + os.path.realpath(shutil.which(java()) or "").encode()
    return JARS / hashlib.sha256(content).hexdigest()[:16]


def _complete(place: Path) -> bool:
    return (place / "complete").exists()


def _install(place: Path) -> None:
    print("fetching Kafka from Maven Central, once", file=sys.stderr, flush=True)
    try:
        fetch_jars(POM, place)
    except InstallError as error:
        raise BrokerError(str(error)) from None
    _prepare(Installation(place), place / "preparation")
    shutil.rmtree(place / "preparation")
    (place / "complete").touch()


def _prepare(installation: Installation, folder: Path) -> None:
    folder.mkdir()
    file = folder / "server.properties"
    file.write_text(as_text(node_properties(installation.formatted, 0, 1)))
    _run(installation.command("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(file)), _STEP_SECONDS)
    _archive_classes(installation, folder)


def _archive_classes(installation: Installation, folder: Path) -> None:
    """Run a broker once: the JVM writes down which classes it has loaded. Where it cannot, brokers only start slower."""
    data, file = folder / "data", folder / "server.properties"
    shutil.copytree(installation.formatted, data)
    file.write_text(as_text(node_properties(data, *free_ports(2))))
    flags = (*QUICK, f"-XX:ArchiveClassesAtExit={installation.archive}")
    node = Node(folder, installation.command("kafka.Kafka", str(file), jvm=flags), timeout=_STEP_SECONDS)
    node.start()
    node.stop()


def _run(command: list[str], seconds: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise BrokerError(f"{command[0]} did not end within {seconds:g} seconds") from None
    if done.returncode != 0:
        raise BrokerError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-4000:]}")
