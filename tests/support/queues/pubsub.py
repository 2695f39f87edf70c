"""A stand-in for Google Pub/Sub: `:pull`, `:acknowledge` and `:modifyAckDeadline` of its REST interface, over real HTTP.

Google's own emulator is in its SDK alone. This one leases messages as Pub/Sub does, and answers errors in its form.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROJECT = "shop-lake"
TOKEN = "a-token-of-google"
_WAIT_SECONDS = 2.0
"""How long a pull waits for a message. Pub/Sub waits 90."""
_LEASE_SECONDS = 10.0


@dataclass
class _Held:
    message: dict[str, Any]
    visible_at: float = 0.0


@dataclass
class PubSub:
    """The service. Its subscriptions exist before they are pulled."""

    url: str = ""
    subscriptions: dict[str, dict[str, _Held]] = field(default_factory=dict)
    secured: bool = False
    tokens: int = 0
    """How many access tokens were given."""
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    """Answers to the next requests, instead of what was asked."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def create(self, name: str) -> str:
        """The address of a new subscription."""
        self.subscriptions[name] = {}
        return f"pubsub://{PROJECT}/{name}"

    def publish(self, name: str, attributes: Mapping[str, str] | None, data: bytes = b"") -> None:
        message: dict[str, Any] = {"data": base64.b64encode(data).decode(), "messageId": str(next(self._ids))}
        if attributes is not None:
            message["attributes"] = dict(attributes)
        with self._changed:
            self.subscriptions[name][f"ack-{message['messageId']}"] = _Held(message)
            self._changed.notify_all()

    def answer(self, path: str, request: Any, authorization: str) -> tuple[int, Any]:
        if self.answers:
            return self.answers.pop(0)
        if self.secured and authorization != f"Bearer {TOKEN}":
            return _error(401, "UNAUTHENTICATED")
        resource, _, method = path.rpartition(":")
        name = resource.removeprefix(f"/v1/projects/{PROJECT}/subscriptions/")
        with self._changed:
            held = self.subscriptions.get(name)
            if held is None:
                return _error(404, "NOT_FOUND")
            if method == "acknowledge":
                for each in request["ackIds"]:
                    held.pop(each, None)
            elif method == "modifyAckDeadline":
                for each in request["ackIds"]:
                    held[each].visible_at = time.monotonic() + request["ackDeadlineSeconds"]
                self._changed.notify_all()
            elif method == "pull":
                wait = 0.0 if request.get("returnImmediately") else _WAIT_SECONDS
                self._changed.wait_for(lambda: self._visible(held), wait)
                return 200, self._lease(held, request["maxMessages"])
            else:
                return _error(404, "NOT_FOUND")
        return 200, {}

    def _visible(self, held: dict[str, _Held]) -> list[str]:
        now = time.monotonic()
        return [receipt for receipt, each in held.items() if each.visible_at <= now]

    def _lease(self, held: dict[str, _Held], limit: int) -> dict[str, Any]:
        receipts = self._visible(held)[:limit]
        for receipt in receipts:
            held[receipt].visible_at = time.monotonic() + _LEASE_SECONDS
        # Without messages, the field is missing.
        received = [{"ackId": receipt, "message": held[receipt].message} for receipt in receipts]
        return {"receivedMessages": received} if received else {}


def _error(code: int, status: str) -> tuple[int, Any]:
    return code, {"error": {"code": code, "message": "in words", "status": status}}


@contextmanager
def pubsub() -> Iterator[PubSub]:
    """The service, on a free port of this machine."""
    service = PubSub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if (
                self.path == "/token"
            ):  # that of OAuth, where google-auth changes the key of a service account into a token
                service.tokens += 1
                status, answer = 200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            else:
                status, answer = service.answer(self.path, json.loads(body), self.headers.get("Authorization", ""))
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
