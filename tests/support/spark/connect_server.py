"""A Spark Connect server of this machine, from PySpark's own jars: a process of its own."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.kafka.node import free_ports
from tests.support.spark import environments
from tests.support.spark.home import spark_home
from tests.support.spark.session import SMALL_QUERIES, settings

WITHIN = 120.0  # seconds until a server counts as stuck
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(folder: Path, python: Path) -> Iterator[str]:
    """Its URL. `python` runs what clients send."""
    (port,) = free_ports(1)
    bound = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    properties = folder / "spark.properties"
    lines = (f"{name} {value}\n" for name, value in (settings(str(folder)) | SMALL_QUERIES | bound).items())
    properties.write_text("".join(lines))
    home = spark_home()
    command = [str(home / "bin" / "spark-submit"), "--properties-file", str(properties), "--class", _CLASS]
    own = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environments.variables() | own,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(port, process, folder / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WITHIN)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no Spark Connect server:\n{log.read_text()[-4000:]}")
