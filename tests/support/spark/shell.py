"""A PySpark shell with a Delta table, a topic of its changes, and a daemon between them: `make spark`.

All of it is of this machine and goes with the shell: a broker, the table in a temporary folder, `cdfd run`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.kafka import installation as kafka
from tests.support.kafka.broker import Broker
from tests.support.spark import installation as spark

STARTUP = Path(__file__).with_name("startup.py")
STOP_SECONDS = 15

_CONFIG = """\
pipeline: shop
tables:
  - {{uri: {table}, topic: shop.orders, key: [order_id], start: earliest}}
sink: {{kind: kafka, bootstrap_servers: "{servers}"}}
progress: {{ledger: {ledger}}}
poll: {{interval: 100ms, max_interval: 1s}}
http: {{listen: null}}
"""


@contextmanager
def _daemon(config: Path, log: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "cdfd", "run", "-c", str(config)]
    with log.open("w") as said:
        # Ctrl-C is for the shell.
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run() -> int:
    """The shell, until it is left; its exit code."""
    with tempfile.TemporaryDirectory(prefix="cdfd-shell-") as name, Broker() as broker:
        folder = Path(name)
        table, config = str(folder / "orders"), folder / "shop.yaml"
        servers, ledger = broker.bootstrap_servers, json.dumps(str(folder / "ledger"))
        config.write_text(_CONFIG.format(table=json.dumps(table), servers=servers, ledger=ledger))
        told = {"folder": name, "table": table, "topic": "shop.orders", "servers": servers, "config": str(config)}
        environment = os.environ | {"CDFD_SHELL": json.dumps(told), "PYTHONPATH": str(STARTUP.parents[3])}
        environment.pop("SPARK_HOME", None)
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with _daemon(config, folder / "daemon.log"):
                command = [sys.executable, "-i", str(STARTUP)]
                return subprocess.run(command, env=environment, preexec_fn=_take_interrupts).returncode
        finally:
            signal.signal(signal.SIGINT, interrupt)


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    for reason in (kafka.missing(), spark.missing()):
        if reason is not None:
            sys.exit(f"There is no shell: {reason}")
    print("Starting a Kafka broker and Spark; the first time, Maven fetches them.\n", flush=True)
    sys.exit(run())
