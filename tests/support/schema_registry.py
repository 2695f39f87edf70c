"""A schema registry on a local port that keeps the rules of Confluent's: ids, subjects, versions, BACKWARD compatibility.

Apicurio's deserializers find schemas by the same ids, at paths of Apicurio's own interface.
"""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import fastavro
import jsonschema

from tests.support.protobuf import described as described_file
from tests.support.protobuf import message_type
from tests.support.schema_compatibility import READABLE


@dataclass
class Registry:
    """The state of the registry, and the behaviour that a test sets.

    Attributes:
        schemas: by id, counted from 1.
        subjects: ids of the versions of each subject.
        authorization: the header that requests need.
        failures: answers to give first, instead of doing anything: a status, or None to hang up.
        requests: method and path of each request that came.
    """

    url: str = ""
    schemas: dict[int, str] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    authorization: str | None = None
    failures: list[int | None] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)

    def require(self, username: str, password: str) -> None:
        self.authorization = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.partition("?")[0].split("/")[1:]]
        serialized = "format=serialized" in path
        match method, parts:
            case "GET", ["schemas", "types"]:
                return 200, ["JSON", "PROTOBUF", "AVRO"]
            case "GET", ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, self._described(int(number), serialized=serialized)
            case "GET", ["apis", "registry", "v2", "ids", "globalIds" | "contentIds", number, *more]:
                return self._content(int(number), more)
            case "GET", ["subjects", subject, "versions", "latest"] if subject in self.subjects:
                newest = self.subjects[subject][-1]
                return 200, {
                    "subject": subject,
                    "version": len(self.subjects[subject]),
                    "id": newest,
                    **self._described(newest, serialized=serialized),
                }
            case "GET", ["subjects", _, "versions", "latest"]:
                return 404, {"error_code": 40401, "message": "Subject not found."}
            case "POST", ["subjects", subject] if subject not in self.subjects:
                return 404, {"error_code": 40401, "message": "Subject not found."}
            case "POST", ["subjects", subject]:
                return self._looked_up(subject, body["schema"])
            case "GET", ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case "GET", ["subjects", subject, "versions", number] if subject in self.subjects:
                schema_id = self.subjects[subject][int(number) - 1]
                described = self._described(schema_id, serialized=serialized)
                return 200, {"subject": subject, "version": int(number), "id": schema_id, **described}
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, body["schema"], body.get("schemaType", "AVRO"))
        return 404, {"error_code": 40401, "message": "HTTP 404 Not Found"}

    def _content(self, number: int, more: list[str]) -> tuple[int, Any]:
        """A schema as Apicurio gives it: the text alone. None of ours refers to others."""
        if number not in self.schemas:
            return 404, {"error_code": 404, "message": f"No content with id/hash 'contentId-{number}' was found."}
        return 200, [] if more == ["references"] else self.schemas[number]

    def _described(self, number: int, *, serialized: bool = False) -> dict[str, str]:
        kind, text = self.kinds[number], self.schemas[number]
        if kind == "PROTOBUF" and serialized:
            text = base64.b64encode(described_file(text).SerializeToString()).decode()
        return {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})

    def _looked_up(self, subject: str, schema: str) -> tuple[int, Any]:
        for version, number in enumerate(self.subjects[subject], 1):
            # Of Protobuf, clients ask by the descriptor that they got.
            if schema in (self.schemas[number], self._described(number, serialized=True)["schema"]):
                return 200, {"subject": subject, "version": version, "id": number, **self._described(number)}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _register(self, subject: str, schema: str, kind: str) -> tuple[int, Any]:
        try:
            if kind == "AVRO":
                fastavro.parse_schema(json.loads(schema))
            elif kind == "JSON":
                jsonschema.Draft7Validator.check_schema(json.loads(schema))
            else:
                message_type(schema)
        except (ValueError, fastavro.schema.SchemaParseException, jsonschema.SchemaError, AssertionError) as error:
            return 422, {"error_code": 42201, "message": f"Invalid schema: {error}"}
        versions = self.subjects.get(subject, [])
        known = next((number for number, text in self.schemas.items() if text == schema), None)
        if known in versions:
            return 200, {"id": known}
        newest = self.schemas[versions[-1]] if versions else schema
        if newest != schema and not READABLE[kind](schema, newest):
            message = "Schema being registered is incompatible with an earlier schema for subject"
            return 409, {"error_code": 409, "message": f'{message} "{subject}"'}
        number = known or len(self.schemas) + 1
        self.schemas[number], self.kinds[number] = schema, kind
        self.subjects.setdefault(subject, []).append(number)
        return 200, {"id": number}


@contextmanager
def serving(path: str = "", tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    """A registry behind `path` on a free port, with TLS if there is a context for it."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            self.respond()

        def respond(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            registry.requests.append(f"{self.command} {self.path}")
            failure = registry.failures.pop(0) if registry.failures else 200
            if failure is None:
                self.close_connection = True
                return
            if failure != 200:
                self.send(failure, {"error_code": failure * 100 + 1, "message": "as told"})
            elif registry.authorization not in (None, self.headers["Authorization"]):
                self.send(401, {"error_code": 401, "message": "HTTP 401 Unauthorized"})
            elif not self.path.startswith(path + "/"):
                self.send(404, "<html>nothing here</html>")
            else:
                body = json.loads(data) if data else None
                self.send(*registry.answer(self.command, self.path.removeprefix(path), body))

        def send(self, status: int, answer: Any) -> None:
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if status in (301, 307):
                self.send_header("Location", "/elsewhere")
            if status == 429:
                self.send_header("Retry-After", "3600")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            # A client that breaks off its handshake must not hold up the others.
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        registry.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}{path}"
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join(10)
