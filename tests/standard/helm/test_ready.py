"""The script of `helm test` that asks a service whether all pods are ready."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from itertools import cycle
from typing import Any

import pytest

from tests.support.helm.chart import FOLDER
from tests.support.http_server import http_server

LEADER = 200, {"ready": True, "role": "leader", "not_ready": {}}
STANDBY = 200, {"ready": True, "role": "standby", "not_ready": {}}
ALONE = 200, {"ready": True, "role": "alone", "not_ready": {}}
BROKEN = 503, {"ready": False, "role": "leader", "not_ready": {"orders": "nothing is delivered yet"}}

CLOSED = 503, {"ready": False, "role": "leader"}
"""The answer with `http.authentication`, without credentials."""


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

    with http_server(Handler) as url:
        yield f"{url}/readyz"


def run(url: str) -> subprocess.CompletedProcess[str]:
    """The script, as the pod of the test runs it."""
    command = [sys.executable, "-I", "-c", (FOLDER / "files" / "ready.py").read_text()]
    return subprocess.run(command, env={"CDFD_READY_URL": url}, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("pods", "code", "text"),
    [
        ([STANDBY, LEADER], 0, "ready"),
        ([ALONE], 0, "ready"),
        ([STANDBY, BROKEN], 1, 'not ready: {"orders": "nothing is delivered yet"}'),
        ([ALONE, ALONE, ALONE, BROKEN], 1, 'not ready: {"orders": "nothing is delivered yet"}'),
        ([CLOSED], 1, 'not ready: "see /status"'),
        ([STANDBY, STANDBY], 1, "all processes stand by, and none delivers"),
    ],
)
def test_all_pods_are_asked(pods: list[tuple[int, dict[str, Any]]], code: int, text: str) -> None:
    with service(*pods) as url:
        done = run(url)
    assert (done.returncode, done.stdout) == (code, f"{text}\n"), done.stderr


def test_a_service_that_does_not_answer_is_not_ready() -> None:
    with service(ALONE) as url:
        pass
    done = run(url)
    assert done.returncode == 1
    assert "refused" in done.stdout
