"""Delta Kernel for Java with its module for Unity Catalog: its jars from Maven Central, fetched once, and a process that runs it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import CACHE, locked

HERE = Path(__file__).parent / "java"
JARS = CACHE / "kernel-jars"
_DOWNLOAD_SECONDS = 600


class KernelError(Exception):
    """It cannot be had or run, or its answer is an error."""


def missing() -> str | None:
    """Why it cannot run here, or None."""
    try:
        answer = subprocess.run([_java(), "-version"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "Delta Kernel needs Java 17 or newer: there is no `java` on the PATH, and JAVA_HOME leads to none"
    version = re.search(r'version "(\d+)', answer.stderr)
    if answer.returncode != 0 or version is None or int(version[1]) < 17:
        return f"Delta Kernel needs Java 17 or newer: `java -version` says {answer.stderr.strip()[:100]!r}"
    if shutil.which("mvn") is None and not (_place() / "complete").exists():
        return "the jars come from Maven Central: there is no `mvn` on the PATH, and none were fetched before"
    return None


class Kernel:
    """A running process. Commands and answers are those of `Kernel.java`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *words: object) -> list[str]:
        """The values of an answer.

        Raises:
            KernelError: the answer is an error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        found = self._process.stdout.readline().rstrip("\n").split("\t")
        if found[0] != "ok":
            raise KernelError("\t".join(found))
        return found[1:]


@contextmanager
def kernel(address: str, token: str = "none") -> Iterator[Kernel]:
    """A process for a server at an address."""
    place = installed()
    classpath = os.pathsep.join([str(place / "classes"), *map(str, sorted((place / "jars").glob("*.jar")))])
    command = [_java(), "-Xmx512m", "-cp", classpath, "Kernel", address, token]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Kernel(process)
        finally:
            process.kill()


def installed() -> Path:
    """The folder of its jars and classes, which are there then."""
    place = _place()
    with locked(JARS):
        if not (place / "complete").exists():
            _install(place)
    return place


def _place() -> Path:
    parts = b"".join((HERE / name).read_bytes() for name in ("pom.xml", "Kernel.java"))
    return JARS / hashlib.sha256(parts).hexdigest()[:16]


def _install(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    options = [f"-DoutputDirectory={place / 'jars'}", "-DincludeScope=runtime"]
    _run(["mvn", "-B", "-q", "-ntp", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies", *options])
    jars = os.pathsep.join(map(str, (place / "jars").glob("*.jar")))
    javac = str(Path(_java()).with_name("javac")) if os.environ.get("JAVA_HOME") else "javac"
    _run([javac, "-nowarn", "-cp", jars, "-d", str(place / "classes"), str(HERE / "Kernel.java")])
    (place / "complete").touch()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
    if done.returncode:
        raise KernelError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"
