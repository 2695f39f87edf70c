"""A token endpoint of an identity provider on 127.0.0.1, with its keys (JWKS), whose behaviour a test sets.

It checks what a real one checks: the method, the form, the grant, id and secret.
"""

import json
import ssl
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote_plus

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT, SECRET = "cdfd", "cl1ent-s3cret+with/odd chars"
ISSUER, AUDIENCE = "https://identity.example", "kafka"

Answer = Callable[["TokenServer"], tuple[int, bytes]]


@dataclass
class TokenServer:
    """The server, from the beginning to the end of a `with`.

    Args:
        lifetime: of its tokens, in seconds.
        signed: whether tokens are signed with RS256; otherwise they are unsecured.
        secret: the client's.
        certificate: PEM file of certificate and key, for TLS.

    Attributes:
        answer: what it answers instead of a token; None: a token.
        forms: the forms that were posted, all of them.
        issued: all its tokens.
        listening: whether it hangs until it is set; see `hang`.
    """

    lifetime: float = 300.0
    signed: bool = False
    secret: str = SECRET
    certificate: Path | None = None
    audience: str = AUDIENCE
    states_lifetime: bool = True
    answer: Answer | None = None
    forms: list[dict[str, list[str]]] = field(default_factory=list)
    issued: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"tokens": self}))
        if self.certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    @property
    def address(self) -> str:
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """The token endpoint."""
        return f"{self.address}/token"

    @property
    def jwks(self) -> str:
        """The keys."""
        return f"{self.address}/jwks"

    def hang(self) -> None:
        """Answer nothing until `go_on`."""
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def wait(self) -> None:
        self._goes_on.wait(60)

    def token(self, **claims: Any) -> str:
        """A new token."""
        now = time.time()
        known = {
            "sub": CLIENT,
            "iss": ISSUER,
            "aud": self.audience,
            "iat": int(now),
            "exp": int(now + self.lifetime),
            "scope": "kafka",
            "jti": str(len(self.issued)),
        }
        header = {"alg": "RS256", "kid": "one"} if self.signed else {"alg": "none"}
        text = f"{_coded(json.dumps(header).encode())}.{_coded(json.dumps(known | claims).encode())}"
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()) if self.signed else b""
        self.issued.append(f"{text}.{_coded(signature)}")
        return self.issued[-1]

    def keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one"}
        parts = {name: _coded(_bytes(value)) for name, value in (("n", numbers.n), ("e", numbers.e))}
        return {"keys": [key | parts]}

    def answered(self, form: dict[str, list[str]], authorization: str | None) -> tuple[int, bytes]:
        self.forms.append(form)
        self.wait()
        if self.answer is not None:
            return self.answer(self)
        credentials = (form.get("client_id", [""])[0], form.get("client_secret", [""])[0])
        if authorization is not None and authorization.startswith("Basic "):
            name, _, secret = b64decode(authorization[6:]).decode().partition(":")
            credentials = (unquote_plus(name), unquote_plus(secret))
        if credentials != (CLIENT, self.secret):
            return 401, b'{"error": "invalid_client", "error_description": "no such client"}'
        if form.get("grant_type") != ["client_credentials"]:
            return 400, b'{"error": "unsupported_grant_type"}'
        document: dict[str, Any] = {"access_token": self.token(), "token_type": "Bearer"}
        if self.states_lifetime:
            document["expires_in"] = int(self.lifetime)
        return 200, json.dumps(document).encode()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.go_on()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    tokens: TokenServer

    def do_GET(self) -> None:
        self._send(200, json.dumps(self.tokens.keys()).encode()) if self.path == "/jwks" else self._send(404, b"")

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if self.path != "/token":
            return self._send(404, b"<html>not here</html>")
        return self._send(*self.tokens.answered(form, self.headers["Authorization"]))

    def _send(self, status: int, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", self.tokens.jwks)
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            return  # the client has gone

    def log_message(self, *_: object) -> None:
        pass


def _coded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8)
