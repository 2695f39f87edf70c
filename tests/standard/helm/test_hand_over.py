"""The script of `helm test`, with two real daemons, and a server that answers as the API of Kubernetes does."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from cdfd.runtime.clock import SystemClock
from cdfd.storage.local import LocalStorage
from tests.support.helm.chart import FOLDER
from tests.support.http_server import http_server
from tests.support.kafka.daemon_process import Daemon
from tests.support.kafka.node import free_ports
from tests.support.lake import run, table

PODS = "/api/v1/namespaces/data/pods?labelSelector=app.kubernetes.io/name=cdfd,app.kubernetes.io/instance=shop"
TOKEN = "of-the-account"


@contextmanager
def kubernetes(pods: dict[str, tuple[str, Daemon]]) -> Iterator[str]:
    """The API, for pods with their addresses: it lists and deletes them. Its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == PODS
            self._answer({"items": [self._pod(name) for name in pods]})

        def do_DELETE(self) -> None:
            name = self.path.rpartition("/")[2]
            threading.Thread(target=pods[name][1].stop).start()
            self._answer({})

        def _pod(self, name: str) -> object:
            return {"metadata": {"name": name}, "status": {"podIP": pods[name][0]}}

        def _answer(self, document: object) -> None:
            assert self.headers["Authorization"] == f"Bearer {TOKEN}"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with http_server(Handler) as url:
        yield url


def test_helm_test_shows_a_hand_over(tmp_path: Path) -> None:
    storage, [port] = LocalStorage(tmp_path / "orders", sync=False), free_ports(1)
    run(table(storage, 2, SystemClock()))
    (tmp_path / "token").write_text(TOKEN)
    with ExitStack() as stack:
        pods: dict[str, tuple[str, Daemon]] = {}
        for number in (1, 2):
            config = tmp_path / f"{number}.yaml"
            document = {
                "pipeline": "shop",
                "tables": [{"uri": storage.uri}],
                "sink": {"kind": "files", "path": str(tmp_path / "out")},
                "http": {"listen": f"127.0.0.{number}:{port}"},
            }
            config.write_text(json.dumps(document))
            daemon = stack.enter_context(Daemon(config, "--standby"))
            daemon.wait_for("leading the pipeline" if number == 1 else "standing by")
            pods[f"shop-{number}"] = f"127.0.0.{number}", daemon
        api = stack.enter_context(kubernetes(pods))
        environment = {"CDFD_API": api, "CDFD_PODS": PODS, "CDFD_PORT": str(port), "CDFD_SCHEME": "http"}
        script = (FOLDER / "files" / "hand_over.py").read_text()
        done = subprocess.run(
            [sys.executable, "-I", "-c", script],
            env=environment | {"CDFD_ACCOUNT": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        first, second = done.stdout.splitlines()
        assert first == "shop-1 leads. It is deleted"
        assert second.startswith("shop-2 leads ")
        pods["shop-2"][1].wait_for("at version")
        assert [line for _, each in pods.values() for line in each.lines if line["level"] == "error"] == []
