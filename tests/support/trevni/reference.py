"""The reference implementation in Java: its jars from Maven Central, fetched once, and a program that runs it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.cache import CACHE, locked

HERE = Path(__file__).parent / "java"
JARS = CACHE / "trevni-jars"
VERSIONS = ("1.7.7", "1.11.3")
_DOWNLOAD_SECONDS = 600
_RUN_SECONDS = 300


class ReferenceError(Exception):
    """It cannot be had or run, and why."""


def missing() -> str | None:
    """Why it cannot run here, or None."""
    try:
        answer = subprocess.run([_java(), "-version"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "the reference needs Java 17 or newer: there is no `java` on the PATH, and JAVA_HOME leads to none"
    version = re.search(r'version "(\d+)', answer.stderr)
    if answer.returncode != 0 or version is None or int(version[1]) < 17:
        return f"the reference needs Java 17 or newer: `java -version` says {answer.stderr.strip()[:100]!r}"
    if shutil.which("mvn") is None and not all((_place(each) / "complete").exists() for each in VERSIONS):
        return "the jars come from Maven Central: there is no `mvn` on the PATH, and none were fetched before"
    return None


def answers(version: str, commands: Sequence[Sequence[object]], options: Sequence[str] = ()) -> list[str]:
    """The answers to commands; see `Reference.java`.

    Raises:
        ReferenceError: it cannot be had, or ends.
    """
    place = _installed(version)
    lines = "".join("\t".join(map(str, each)) + "\n" for each in commands)
    classpath = os.pathsep.join([str(place / "classes"), *map(str, sorted((place / "jars").glob("*.jar")))])
    # The oldest version loads Snappy's native library in a way that Java no longer allows by itself.
    command = [_java(), "--add-opens", "java.base/java.lang=ALL-UNNAMED", *options, "-cp", classpath, "Reference"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=_RUN_SECONDS, encoding="utf-8")
    found = done.stdout.splitlines()
    if done.returncode or len(found) != len(commands):
        raise ReferenceError(f"Java ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return found


def installed() -> None:
    """All versions are there."""
    for version in VERSIONS:
        _installed(version)


def _installed(version: str) -> Path:
    place = _place(version)
    with locked(JARS):
        if not (place / "complete").exists():
            _install(place, version)
    return place


def _place(version: str) -> Path:
    parts = b"".join((HERE / name).read_bytes() for name in ("pom.xml", "Reference.java"))
    return JARS / f"{version}-{hashlib.sha256(parts).hexdigest()[:16]}"


def _install(place: Path, version: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    options = [f"-DoutputDirectory={place / 'jars'}", f"-Dtrevni.version={version}", "-DincludeScope=runtime"]
    _run(["mvn", "-B", "-q", "-ntp", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies", *options])
    jars = os.pathsep.join(map(str, (place / "jars").glob("*.jar")))
    javac = str(Path(_java()).with_name("javac")) if os.environ.get("JAVA_HOME") else "javac"
    _run([javac, "-nowarn", "-cp", jars, "-d", str(place / "classes"), str(HERE / "Reference.java")])
    (place / "complete").touch()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
    if done.returncode:
        raise ReferenceError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"
