"""Flink SQL in a JVM of its own, which reads topics to their ends."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.support.cache import locked
from tests.support.consumers.installation import FLINK, HERE, STORE, ConsumerError, jars
from tests.support.installation import compile_java, java
from tests.support.kafka.installation import LOGGING, QUICK

PROGRAM = HERE / "java" / "FlinkRows.java"
_SECONDS = 180
# Flink reads private fields of the JDK's classes.
_OPEN = [
    option
    for package in ("java.lang", "java.util", "java.time", "java.net")
    for option in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
]


def rows(script: str) -> list[list[str | None]]:
    """The rows that the changes of the last statement leave, with values as Java writes them, and bytes in hex.

    Args:
        script: statements, each with a semicolon at the end of a line. The last one is a query of bounded sources.

    Raises:
        ConsumerError: a statement fails, or a row was taken away that was never there.
    """
    with tempfile.TemporaryDirectory(prefix="cdfd-flink-") as folder:
        place = Path(folder)
        (place / "script.sql").write_text(script)
        classpath = os.pathsep.join([str(_classes()), f"{jars(FLINK)}/*"])
        options = ["-Xmx512m", *QUICK, *_OPEN, f"-Dlog4j2.configurationFile={LOGGING}", f"-Djava.io.tmpdir={folder}"]
        command = [java(), *options, "-cp", classpath, "FlinkRows", "script.sql", "rows"]
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise ConsumerError(f"Flink did not end within {_SECONDS} seconds") from None
        if done.returncode:
            raise ConsumerError(f"Flink ended with {done.returncode}:\n{_causes(done.stdout + done.stderr)}")
        result: list[list[str | None]] = []
        for line in (place / "rows").read_text(encoding="utf-8").split("\n")[:-1]:
            count, _, row = line.partition("\t")
            if int(count) < 0:
                raise ConsumerError(f"Flink took a row away that was not there: {row}")
            result += [json.loads(row)] * int(count)
        return result


def install() -> None:
    """Fetch the jars, and compile the program."""
    _classes()


def _classes() -> Path:
    """The compiled program, for its source and its jars."""
    folder = jars(FLINK)
    place = STORE / f"flink-rows-{hashlib.sha256(PROGRAM.read_bytes() + str(folder).encode()).hexdigest()[:16]}"
    with locked(STORE):
        if not (place / "FlinkRows.class").exists():
            place.mkdir(exist_ok=True)
            compile_java(PROGRAM, folder, place)
    return place


def _causes(output: str) -> str:
    """The lines of a Java trace that say what went wrong."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("\t"))[-4000:]
