"""A PostgreSQL server on a free port of 127.0.0.1, in a temporary folder. It ends with the block."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.consumers.installation import ConsumerError
from tests.support.installation import package
from tests.support.kafka.node import free_ports

USER = "cdfd"
_PROGRAMS = Path("/usr/lib/postgresql")
_START_SECONDS = 60
_QUERY_SECONDS = 60
_ONLY_IN_MEMORY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB")


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server with one user, who needs no password, and the database `postgres`."""

    port: int

    @property
    def jdbc(self) -> str:
        """Its URL for JDBC drivers."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def execute(self, statement: str) -> str:
        """The output of `psql` for a statement.

        Raises:
            ConsumerError: the server refuses it.
        """
        options = ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-v", "ON_ERROR_STOP=1", "-qAtX"]
        done = subprocess.run(
            ["psql", *options, "-c", statement, "postgres"], capture_output=True, text=True, timeout=_QUERY_SECONDS
        )
        if done.returncode:
            raise ConsumerError(done.stderr)
        return done.stdout

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table as PostgreSQL writes them in JSON: times as text in UTC, bytes in hex. None if there is no table."""
        if self.execute(f"SELECT to_regclass('\"{table}\"')").strip() == "":
            return []
        text = self.execute(f"SET timezone = 'UTC'; SELECT row_to_json(t) FROM \"{table}\" t")
        return [json.loads(line, parse_float=Decimal) for line in text.split("\n") if line]


def install() -> str:
    """The folder of its programs, from Debian's package where there is none yet."""
    package("psql", "postgresql")
    folders = sorted(_PROGRAMS.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not folders:
        raise ConsumerError(f"there is no PostgreSQL below {_PROGRAMS}")
    return str(folders[-1].parent)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A new server without tables.

    Raises:
        ConsumerError: it does not start.
    """
    programs = install()
    folder = Path(tempfile.mkdtemp(prefix="cdfd-postgres-"))
    [port] = free_ports(1)
    try:
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(folder, "nobody", "nogroup")
        step = [f"{programs}/initdb", "-D", f"{folder}/data", "-A", "trust", "-U", USER, "-E", "UTF8", "--no-sync"]
        made = subprocess.run(
            _unprivileged([*step, "--locale=C"]), cwd=folder, capture_output=True, text=True, timeout=60
        )
        if made.returncode:
            raise ConsumerError(made.stderr)
        settings = [f"-c{setting}" for setting in (*_ONLY_IN_MEMORY, "listen_addresses=127.0.0.1")]
        command = [f"{programs}/postgres", "-D", f"{folder}/data", "-p", str(port), "-k", str(folder), *settings]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(_unprivileged(command), cwd=folder, stdout=log, stderr=log)
        try:
            _wait(process, port, folder / "log")
            yield Postgres(port)
        finally:
            process.terminate()  # it ends once no client is connected
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(command: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *command]


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            Postgres(port).execute("SELECT 1")
        except ConsumerError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ConsumerError(f"PostgreSQL did not start: {error}\n{log.read_text()[-2000:]}") from None
            time.sleep(0.1)
        else:
            return
