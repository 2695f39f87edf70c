"""One broker for all processes of a test run. The first process starts it; it ends after the last one."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.support.kafka.broker import Broker


@dataclass(frozen=True, slots=True)
class SharedBroker:
    """A broker that other tests use too. It is never stopped, and it contains their topics."""

    bootstrap_servers: str
    folder: Path
    place: Path

    def log(self) -> str:
        """The node's log: warnings and errors."""
        return (self.folder / "broker.log").read_text(errors="replace")


@contextmanager
def shared_broker(place: Path) -> Iterator[SharedBroker]:
    """The broker of those who name the same folder. It ends when the last of them has left, or died; see `guard`."""
    with ExitStack() as stack:
        with (place / "kafka.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            shared = _joined(place / "kafka.json", stack)
            if shared is None:
                broker = Broker()
                stack.callback(broker.leave)
                broker.start()
                shared = SharedBroker(broker.bootstrap_servers, broker.folder, place)
                written = {"bootstrap_servers": shared.bootstrap_servers, "folder": str(shared.folder)}
                (place / "kafka.json").write_text(json.dumps(written))
        yield shared


def _joined(note: Path, stack: ExitStack) -> SharedBroker | None:
    """The one that is there, and from now on kept for us; None where there is none any more."""
    try:
        written = json.loads(note.read_text())
        shared = SharedBroker(written["bootstrap_servers"], Path(written["folder"]), note.parent)
        users = stack.enter_context((shared.folder / "users").open())
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return shared if _same(users, shared.folder / "users") and _lives(shared) else None
    except (FileNotFoundError, BlockingIOError):
        return None


def _same(file: TextIO, path: Path) -> bool:
    """Whether the guard has not come in between opening and locking."""
    return os.path.samestat(os.fstat(file.fileno()), path.stat())


def _lives(broker: SharedBroker) -> bool:
    host, port = broker.bootstrap_servers.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True
