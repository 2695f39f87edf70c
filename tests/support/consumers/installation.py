"""The programs of consumers: lists of jars from Maven Central, each fetched once."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.support.cache import CACHE, locked
from tests.support.installation import fetch_jars, missing_java

HERE = Path(__file__).parent
STORE = CACHE / "consumers"
CONNECT = ("connect", "debezium-jdbc", "apicurio-avro")
"""Lists of jars: the worker, then its plugins."""
FLINK = "flink"


class ConsumerError(Exception):
    """A consumer does not start, or ends early; and why."""


def missing() -> str | None:
    """Why Kafka Connect and Flink cannot run here, or None."""
    return missing_java("consumers in Java need", map(_place, (*CONNECT, FLINK)))


def jars(name: str) -> Path:
    """The folder with the jars of a list in `jars/`; fetched if they are missing. Several processes may ask at once.

    Raises:
        InstallError: Maven cannot fetch them.
    """
    place = _place(name)
    with locked(STORE):
        if not (place / "complete").exists():
            fetch_jars(HERE / "jars" / f"{name}.xml", place)
            (place / "complete").touch()
    return place / "jars"


def _place(name: str) -> Path:
    """Another list is another folder."""
    content = (HERE / "jars" / f"{name}.xml").read_bytes()
    return STORE / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
