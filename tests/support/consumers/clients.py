"""Clients in other languages, which print a topic's committed records: kafkajs and @platformatic/kafka on Node, franz-go, kcat."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.cache import locked
from tests.support.consumers.installation import HERE, STORE, ConsumerError
from tests.support.installation import missing_package, package, run
from tests.support.kafka.reading import Record

_SECONDS = 90
_NODE = HERE / "node"
_GO = HERE / "go"


def missing(client: str) -> str | None:
    """Why a client cannot run here, or None."""
    if client == "kcat":
        return missing_package("kcat")
    program = "go" if client == "franz-go" else "npm"
    return None if shutil.which(program) else f"{client} needs `{program}`, which is not on the PATH"


def kafkajs(bootstrap_servers: str, topic: str, *, lz4: bool = True) -> list[Record]:
    """With or without its codec for lz4."""
    return _node("kafkajs.mjs", bootstrap_servers, topic, *(["lz4"] if lz4 else []))


def platformatic(bootstrap_servers: str, topic: str, count: int) -> list[Record]:
    """The first `count` records that arrive."""
    return _node("platformatic.mjs", bootstrap_servers, topic, str(count))


def franz_go(bootstrap_servers: str, topic: str) -> list[Record]:
    """All records up to the topic's end."""
    return _records([str(_reader()), bootstrap_servers, topic])


def kcat(bootstrap_servers: str, topic: str) -> list[Record]:
    """All records up to the topic's end, without headers. Keys and values are texts without line feeds."""
    program = package("kcat", "kcat")
    # -1 is the size of null.
    shown = ["-f", "%p\\n%o\\n%K\\n%k\\n%S\\n%s\\n"]
    lines = _output([program, "-C", "-e", "-q", "-b", bootstrap_servers, "-t", topic, "-o", "beginning", *shown])
    rows = [iter(lines.split("\n"))] * 6
    return _sorted(
        Record(int(p), int(o), _or_null(key, key_size), _or_null(value, size), ())
        for p, o, key_size, key, size, value in zip(*rows, strict=False)
    )


def install_node() -> Path:
    """The folder with the programs and their packages."""
    files = [_NODE / name for name in ("package.json", "package-lock.json", "kafkajs.mjs", "platformatic.mjs")]
    content = b"".join(path.read_bytes() for path in files)
    place = STORE / f"node-{hashlib.sha256(content).hexdigest()[:16]}"
    with locked(STORE):
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for path in files:
                shutil.copy(path, place)
            run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], place)
            (place / "complete").touch()
    return place


def _reader() -> Path:
    """The program in Go, compiled."""
    content = b"".join((_GO / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    place = STORE / f"go-{hashlib.sha256(content).hexdigest()[:16]}"
    with locked(STORE):
        if not (place / "reader").exists():
            place.mkdir(exist_ok=True)
            run(["go", "build", "-o", str(place / "reader"), "."], _GO)
    return place / "reader"


def install_go() -> None:
    """Compile the program in Go."""
    _reader()


def _node(program: str, *arguments: str) -> list[Record]:
    return _records(["node", str(install_node() / program), *arguments])


def _records(command: Sequence[str]) -> list[Record]:
    rows = [json.loads(line) for line in _output(command).splitlines()]
    return _sorted(
        Record(p, o, _bytes(key), _bytes(value), tuple((name, bytes.fromhex(data)) for name, data in headers))
        for p, o, key, value, headers in rows
    )


def _output(command: Sequence[str]) -> str:
    """The output of a client.

    Raises:
        ConsumerError: it fails, or does not end.
    """
    name = Path(command[0]).name if command[0] != "node" else Path(command[1]).name
    environment = {**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment)
    except subprocess.TimeoutExpired as error:
        raise ConsumerError(f"{name} did not end within {_SECONDS} seconds: {error.stderr!r}") from None
    if done.returncode:
        raise ConsumerError(f"{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def _sorted(records: object) -> list[Record]:
    return sorted(records, key=lambda record: (record.partition, record.offset))  # type: ignore[call-overload, no-any-return]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _or_null(text: str, size: str) -> bytes | None:
    return None if size == "-1" else text.encode()
