"""The programs of consumers: jars from Maven Central, Debian's packages, packages of Node and Go. Each is fetched once."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.cache import CACHE, locked

HERE = Path(__file__).parent
STORE = CACHE / "consumers"
CONNECT = ("connect", "debezium-jdbc", "apicurio-avro")
"""Lists of jars: the worker, then its plugins."""
FLINK = "flink"
_DOWNLOAD_SECONDS = 900


class ConsumerError(Exception):
    """A consumer cannot be installed, does not start, or ends early; and why."""


def missing_java() -> str | None:
    """Why Kafka Connect and Flink cannot run here, or None."""
    try:
        answer = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "consumers in Java need Java 17 or newer: there is no `java` on the PATH, and JAVA_HOME leads to none"
    version = re.search(r'version "(\d+)', answer.stderr)
    if answer.returncode != 0 or version is None or int(version[1]) < 17:
        return f"consumers in Java need Java 17 or newer: `java -version` says {answer.stderr.strip()[:100]!r}"
    if shutil.which("mvn") is None and not all((_place(each) / "complete").exists() for each in (*CONNECT, FLINK)):
        return "the jars come from Maven Central: there is no `mvn` on the PATH, and none were fetched before"
    return None


def missing_package(program: str) -> str | None:
    """Why a program of a Debian package cannot run here, or None."""
    if shutil.which(program) or (shutil.which("apt-get") and os.geteuid() == 0):
        return None
    return f"there is no `{program}` on the PATH, and only root can install Debian's package"


def java(program: str = "java") -> str:
    """The path of a program of the JDK."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", program) if home else program


def jars(name: str) -> Path:
    """The folder with the jars of a list in `jars/`; fetched if they are missing. Several processes may ask at once.

    Raises:
        ConsumerError: Maven cannot fetch them.
    """
    place = _place(name)
    with locked(STORE):
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            pom = str(HERE / "jars" / f"{name}.xml")
            options = [f"-DoutputDirectory={place / 'jars'}", "-DincludeScope=runtime"]
            run(["mvn", "-B", "-q", "-ntp", "-f", pom, "dependency:copy-dependencies", *options])
            (place / "complete").touch()
    return place / "jars"


def package(program: str, debian: str) -> str:
    """The path of a program, from Debian's package where it is not installed yet."""
    with locked(STORE):
        if shutil.which(program) is None:
            install = [
                "apt-get",
                "install",
                "--yes",
                "--no-install-recommends",
                "-o",
                "DPkg::Lock::Timeout=600",
                debian,
            ]
            for command in (["apt-get", "update"], install):
                run(command)
    path = shutil.which(program)
    if path is None:
        raise ConsumerError(f"Debian's package {debian} brought no `{program}`")
    return path


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """The output of a step of an installation.

    Raises:
        ConsumerError: it fails, or takes too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, cwd=folder)
    except subprocess.TimeoutExpired:
        raise ConsumerError(f"{command[0]} did not end within {_DOWNLOAD_SECONDS} seconds") from None
    if done.returncode:
        raise ConsumerError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _place(name: str) -> Path:
    """Another list is another folder."""
    content = (HERE / "jars" / f"{name}.xml").read_bytes()
    return STORE / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
