"""S3-protocol servers of this machine, each a process of its own that ends with the process that started it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.cache import CACHE, locked

KEY_ID, SECRET = "cdfd-test-key", "cdfd-test-secret"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
GATEWAY = CACHE / f"versitygw-{VERSITYGW.rpartition('@')[2]}" / "versitygw"
_START_SECONDS = 60.0
_BUILD_SECONDS = 900


def s3_section(url: str) -> dict[str, str]:
    """`storage.s3` of a configuration whose daemon reaches a server, or a proxy before it, by an address."""
    return {"endpoint_url": url, "region": "us-east-1", "access_key_id": KEY_ID, "secret_access_key": SECRET}


@dataclass(frozen=True, slots=True)
class Server:
    """A server, by its address."""

    url: str

    def options(self, **more: object) -> dict[str, object]:
        """The `storage_options` that reach it."""
        return {
            "aws_endpoint_url": self.url,
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
            **more,
        }

    def environment(self) -> dict[str, str]:
        """The same as variables, for a process; nothing of the user's own configuration."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        variables = {key.upper(): str(value) for key, value in self.options().items()}
        return inherited | variables | {"AWS_CONFIG_FILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def moto(folder: Path, page: int = 1000) -> Iterator[Server]:
    """moto's server: S3 in memory, as its authors understand AWS, with so many objects on a page of a listing."""
    port = free_port()
    command = [sys.executable, "-c", _MOTO, str(port)]
    variables = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true", "MOTO_S3_DEFAULT_MAX_KEYS": str(page)}
    with run_server(command, port, folder / "moto.log", variables) as server:
        yield server


@contextmanager
def versitygw(folder: Path) -> Iterator[Server]:
    """Versity's gateway over a folder: another implementation, in another language."""
    port = free_port()
    (folder / "data").mkdir(parents=True)
    command = [str(gateway()), "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix", str(folder / "data")]
    variables = {**os.environ, "ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET}
    with run_server(command, port, folder / "versitygw.log", variables) as server:
        yield server


def missing() -> str | None:
    """Why the gateway cannot be had here, or None."""
    if GATEWAY.exists() or shutil.which("go") is not None:
        return None
    return "versitygw is built by Go: there is no `go` on the PATH, and none was built before"


def gateway() -> Path:
    """The gateway's program, built first where it is not there. Several processes may ask at once."""
    with locked(GATEWAY.parent):
        if not GATEWAY.exists():
            subprocess.run(
                ["go", "install", VERSITYGW],
                env={**os.environ, "GOBIN": str(GATEWAY.parent)},
                check=True,
                capture_output=True,
                timeout=_BUILD_SECONDS,
            )
    return GATEWAY


# It ends as soon as its standard input does, which the kernel sees to whatever becomes of the process that started it.
# Its threads look for an object and then put it. S3 does both at once, and two conditional PUTs of one name never succeed.
_MOTO = """
import sys, threading, os, logging
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
put, one_at_a_time = S3Response.put_object, threading.Lock()
def put_object(self):
    with one_at_a_time:
        return put(self)
S3Response.put_object = put_object
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False)
server.start()
sys.stdin.read()
os._exit(0)
"""
_GUARD = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
sys.stdin.read()
child.kill()
child.wait()
"""


@contextmanager
def run_server(command: list[str], port: int, log: Path, environment: Mapping[str, str]) -> Iterator[Server]:
    """A server's process, once it listens on its port."""
    guarded = command if command[0] == sys.executable else [sys.executable, "-I", "-S", "-c", _GUARD, *command]
    with log.open("wb") as out:
        process = subprocess.Popen(guarded, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment)
    try:
        _await(port, process, log)
        yield Server(f"http://127.0.0.1:{port}")
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
