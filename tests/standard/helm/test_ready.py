"""The script of `helm test` that asks a service whether all pods are ready."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from typing import Any

import pytest

from tests.support.helm.chart import FOLDER

LEADER = 200, {"ready": True, "role": "leader", "not_ready": {}}
STANDBY = 200, {"ready": True, "role": "standby", "not_ready": {}}
ALONE = 200, {"ready": True, "role": "alone", "not_ready": {}}
BROKEN = 503, {"ready": False, "role": "leader", "not_ready": {"orders": "nothing is delivered yet"}}


@contextmanager
def service(*pods: tuple[int, dict[str, Any]]) -> Iterator[str]:
    """A service that leads each connection to another pod. The address of its readiness."""
    answers = cycle(pods)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = next(answers)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/readyz"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("pods", "code", "text"),
    [
        ([STANDBY, LEADER], 0, "ready"),
        ([ALONE], 0, "ready"),
        ([STANDBY, BROKEN], 1, 'not ready: {"orders": "nothing is delivered yet"}'),
        ([ALONE, ALONE, ALONE, BROKEN], 1, 'not ready: {"orders": "nothing is delivered yet"}'),
        ([STANDBY, STANDBY], 1, "all processes stand by, and none delivers"),
    ],
)
def test_all_pods_are_asked(pods: list[tuple[int, dict[str, Any]]], code: int, text: str) -> None:
    with service(*pods) as url:
        script = (FOLDER / "files" / "ready.py").read_text()
        command = [sys.executable, "-I", "-c", script]
        done = subprocess.run(
            command, env={"CDFD_READY_URL": url}, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (code, f"{text}\n"), done.stderr


def test_a_service_that_does_not_answer_is_not_ready() -> None:
    with service(ALONE) as url:
        pass
    script = (FOLDER / "files" / "ready.py").read_text()
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(command, env={"CDFD_READY_URL": url}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "refused" in done.stdout
