"""The reference implementation in Java: its jars from Maven Central, fetched once, and a program that runs it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.cache import CACHE, locked
from tests.support.installation import compile_java, fetch_jars, java, missing_java

HERE = Path(__file__).parent / "java"
JARS = CACHE / "trevni-jars"
VERSIONS = ("1.7.7", "1.11.3")
_RUN_SECONDS = 300


class ReferenceError(Exception):
    """It ends, and why."""


def missing() -> str | None:
    """Why it cannot run here, or None."""
    return missing_java("the reference needs", map(_place, VERSIONS))


def answers(version: str, commands: Sequence[Sequence[object]], options: Sequence[str] = ()) -> list[str]:
    """The answers to commands; see `Reference.java`.

    Raises:
        ReferenceError: it ends.
    """
    place = _installed(version)
    lines = "".join("\t".join(map(str, each)) + "\n" for each in commands)
    classpath = os.pathsep.join([str(place / "classes"), *map(str, sorted((place / "jars").glob("*.jar")))])
    # The oldest version loads Snappy's native library in a way that Java no longer allows by itself.
    command = [java(), "--add-opens", "java.base/java.lang=ALL-UNNAMED", *options, "-cp", classpath, "Reference"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=_RUN_SECONDS, encoding="utf-8")
    replies = done.stdout.splitlines()
    if done.returncode or len(replies) != len(commands):
        raise ReferenceError(f"Java ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return replies


def installed() -> None:
    """All versions are there."""
    for version in VERSIONS:
        _installed(version)


def _installed(version: str) -> Path:
    place = _place(version)
    with locked(JARS):
        if not (place / "complete").exists():
            fetch_jars(HERE / "pom.xml", place, f"-Dtrevni.version={version}")
            compile_java(HERE / "Reference.java", place / "jars", place / "classes")
            (place / "complete").touch()
    return place


def _place(version: str) -> Path:
    parts = b"".join((HERE / name).read_bytes() for name in ("pom.xml", "Reference.java"))
    return JARS / f"{version}-{hashlib.sha256(parts).hexdigest()[:16]}"
