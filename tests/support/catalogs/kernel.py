"""Delta Kernel for Java with its module for Unity Catalog: its jars from Maven Central, fetched once, and a process that runs it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import CACHE, locked
from tests.support.installation import compile_java, fetch_jars, java, missing_java

HERE = Path(__file__).parent / "java"
JARS = CACHE / "kernel-jars"


class KernelError(Exception):
    """Its answer is an error."""


def missing() -> str | None:
    """Why it cannot run here, or None."""
    return missing_java("Delta Kernel needs", [_place()])


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
        fields = self._process.stdout.readline().rstrip("\n").split("\t")
        if fields[0] != "ok":
            raise KernelError("\t".join(fields))
        return fields[1:]


@contextmanager
def kernel(address: str, token: str = "none") -> Iterator[Kernel]:
    """A process for a server at an address."""
    place = installed()
    classpath = os.pathsep.join([str(place / "classes"), *map(str, sorted((place / "jars").glob("*.jar")))])
    command = [java(), "-Xmx512m", "-cp", classpath, "Kernel", address, token]
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
            fetch_jars(HERE / "pom.xml", place)
            compile_java(HERE / "Kernel.java", place / "jars", place / "classes")
            (place / "complete").touch()
    return place


def _place() -> Path:
    parts = b"".join((HERE / name).read_bytes() for name in ("pom.xml", "Kernel.java"))
    return JARS / hashlib.sha256(parts).hexdigest()[:16]
