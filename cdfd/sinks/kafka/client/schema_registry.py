"""A schema registry with Confluent's REST interface (Confluent, Karapace, Redpanda, Apicurio's `ccompat`)."""

import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import urllib3

from cdfd.encode.registered import Kind
from cdfd.errors import ConfigError, SchemaChangedError, SinkError
from cdfd.sinks.kafka.client.certificates import load_files
from cdfd.sinks.kafka.client.login import oauth_tokens
from cdfd.sinks.kafka.settings import SchemaRegistry as Settings

_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_MAX_ANSWER: Final = 1 << 20
_UNKNOWN: Final = (40401, 40402, 40403)
"""Error codes of subjects, versions and schemas that the registry does not have. A server that is no registry has none."""
_OF_KAFKA, _OF_REGISTRY = "sink.security.oauth", "sink.schema_registry.oauth"
_MAX_ID: Final = 2**31 - 1
_HINTS: Final = {
    401: "Check `sink.schema_registry.username` and `password`",
    403: "The user of `sink.schema_registry` needs the right to write this subject",
    404: "Check `sink.schema_registry.url`",
    422: "The registry does not understand the schema; it has to support this kind",
}


class SchemaRegistry:
    """A client that gets the ids of schemas. Ids never change, so each schema is requested once. Thread-safe.

    Nothing is kept over a restart: a registry that was lost and made again gets all schemas again, under ids of its own.

    Calls block, for `attempts` times `timeout` seconds for each URL at most, and less than a minute between attempts.

    Args:
        url: of the registry, or several of the same one; what is behind the host is kept.
        login: the header `Authorization`, asked for at each request; None for none.
        tls: how to verify the registry's certificate, and the client's own; None for the system's authorities.
        timeout: seconds to wait for an answer.
        attempts: how often to ask where there is no answer, or none that will last.
        backoff: seconds before the second attempt; doubled each time.
        auto_register: whether schemas are registered; otherwise they are looked up.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        login: Callable[[], str | None] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        attempts: int = 5,
        backoff: float = 0.25,
        auto_register: bool = True,
    ) -> None:
        urls = [url] if isinstance(url, str) else url
        self._urls = [each.rstrip("/") for each in urls]
        self._url = self._urls[0]
        self._login: Callable[[], str | None] = login or (lambda: None)
        self._headers = {
            "Accept": f"{_MEDIA_TYPE}, application/json",
            "Content-Type": _MEDIA_TYPE,
            "User-Agent": "cdfd",
        }
        self._attempts, self._backoff, self._timeout = attempts, backoff, timeout
        self._auto_register = auto_register
        self._pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=timeout), ssl_context=tls)
        self._known: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(map(repr, self._urls))})"

    def register(self, subject: str, schema: str, kind: Kind = "AVRO") -> int:
        """The id of a schema, which is registered under that subject unless it is already.

        Raises:
            SchemaChangedError: it is not compatible with the versions that the subject has; or the registry does not have it, and
                `auto_register` is off.
            SinkError: the registry cannot be reached, or does not do it for another reason.
        """
        number = self._known.get((subject, schema))
        if number is not None:
            return number
        path = f"/subjects/{quote(subject, safe='')}" + ("/versions" if self._auto_register else "")
        body = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
        status, answer = self._ask("POST", path, body, f"subject {subject}")
        if status == 409:
            raise SchemaChangedError(
                f"the schema registry refuses the schema for subject {subject}: {_message(answer)}",
                hint="Give the table another topic, or set the subject's compatibility to NONE to continue in this one",
            )
        unknown = isinstance(answer, dict) and answer.get("error_code") in _UNKNOWN
        if status == 404 and not self._auto_register and unknown:
            raise SchemaChangedError(
                f"the schema registry does not have the schema for subject {subject}, and auto_register is false",
                hint="Register the schema that `cdfd sample` prints",
            )
        number = answer.get("id") if status == 200 and isinstance(answer, dict) else None
        if type(number) is not int or not 0 <= number <= _MAX_ID:
            raise self._error(status, answer, f"subject {subject}")
        self._known[subject, schema] = number
        return number

    def history(self, subject: str) -> list[str]:
        """The schemas that a subject has or had, the newest last; none if it has none. `SinkError` as `register` says."""
        try:
            return list(self.versions(subject).values())
        except ConfigError:
            return []

    def versions(self, subject: str) -> dict[int, str]:
        """The schemas that are or were registered under a subject, by id, in the order in which they were.

        Raises:
            ConfigError: the registry does not know the subject.
            SinkError: it cannot be reached, or returns an error.
        """
        path, what = f"/subjects/{quote(subject, safe='')}/versions", f"subject {subject}"
        # A deleted schema is only hidden, and records may still refer to it.
        status, numbers = self._ask("GET", f"{path}?deleted=true", None, what)
        if status == 404:
            raise ConfigError(
                f"the schema registry {self._url} has no subject {subject}",
                hint="The daemon registers it with the first rows of the table that it delivers in the format avro",
            )
        if status != 200 or not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise self._error(status, numbers, what)
        schemas: dict[int, str] = {}
        for number in numbers:
            status, answer = self._ask("GET", f"{path}/{number}?deleted=true", None, f"{what}, version {number}")
            fields = (answer.get("id"), answer.get("schema")) if status == 200 and isinstance(answer, dict) else (0, 0)
            if type(fields[0]) is not int or not isinstance(fields[1], str):
                raise self._error(status, answer, f"{what}, version {number}")
            schemas[fields[0]] = fields[1]
        return schemas

    def check(self, kind: Kind = "AVRO") -> None:
        """`SinkError` where there is no registry that we may use and that has schemas of this kind; registers nothing."""
        status, answer = self._ask("GET", "/schemas/types", None, "its types of schemas")
        if status != 200 or not isinstance(answer, list) or kind not in answer:
            raise self._error(status, answer, "its types of schemas")

    def close(self) -> None:
        """Close connections."""
        self._pool.clear()

    def _ask(self, method: str, path: str, body: Any, what: str) -> tuple[int, Any]:
        """Status and answer; the text of an answer that is not JSON. The URL that answered is asked first from then on."""
        data = None if body is None else json.dumps(body).encode()
        failure: SinkError | None = None
        for attempt in range(self._attempts):
            if attempt:
                # The client sets the delays, not the server. All requests are idempotent, so they can be repeated.
                time.sleep(min(self._backoff * 2 ** (attempt - 1), 10.0))
            first = self._urls.index(self._url)
            for url in (*self._urls[first:], *self._urls[:first]):
                self._url = url
                try:
                    status, answer = self._request(method, url + path, data, what)
                except SinkError as error:
                    failure = error
                    continue
                if status not in _RETRIED:
                    return status, answer
                failure = self._error(status, answer, what)
        assert failure is not None
        raise failure

    def _request(self, method: str, url: str, data: bytes | None, what: str) -> tuple[int, Any]:
        login = self._login()
        headers = self._headers if login is None else self._headers | {"Authorization": login}
        deadline = time.monotonic() + self._timeout
        try:
            # A redirect could lead anywhere, with our credentials.
            response = self._pool.request(
                method, url, body=data, headers=headers, redirect=False, preload_content=False
            )
            try:
                text = b""
                while chunk := response.read1(1 << 16):
                    text += chunk
                    if len(text) > _MAX_ANSWER or time.monotonic() > deadline:
                        raise self._silent(what, "its answer is too long or too slow")
            finally:
                # It is free for the next request if the answer was read whole, and is closed otherwise.
                response.close()
        except (urllib3.exceptions.HTTPError, UnicodeError) as error:
            raise self._silent(what, str(getattr(error, "reason", None) or error)) from error
        except ValueError:
            # Its text has the header, which may be a secret.
            raise self._silent(what, "a header of the request has a character that HTTP does not allow") from None
        try:
            return response.status, json.loads(text)
        except (ValueError, RecursionError):
            return response.status, text.decode(errors="replace")

    def _silent(self, what: str, reason: str) -> SinkError:
        return SinkError(
            f"the schema registry {self._url} does not answer for {what}: {reason}"[:1000],
            hint="Check `sink.schema_registry.url` and whether the registry runs",
            retriable=True,
        )

    def _error(self, status: int, answer: Any, what: str) -> SinkError:
        return SinkError(
            f"the schema registry {self._url} answered {status} for {what}: {_message(answer)}",
            hint=_HINTS.get(status, "See the log of the registry"),
            retriable=status in _RETRIED,
        )


def basic(username: str, password: str) -> str:
    """The header of basic authentication. urllib3's own would take Latin-1; registries take UTF-8 (RFC 7617, section 2.1)."""
    return "Basic " + b64encode(f"{username}:{password}".encode()).decode()


def login_of(settings: Settings) -> Callable[[], str | None]:
    """The header `Authorization` as it is now: of a token, of user name and password, or of nothing.

    The call raises `SinkError` where there is no token.
    """
    oauth = settings.oauth
    if oauth is not None:
        tokens = oauth_tokens(oauth)

        def bearer() -> str:
            try:
                return f"Bearer {tokens.current().value}"
            except SinkError as error:
                what, hint = (text.replace(_OF_KAFKA, _OF_REGISTRY) for text in (error.what, error.hint or ""))
                raise SinkError(what, hint=hint, retriable=error.retriable) from None

        return bearer
    username, password = settings.username, settings.password
    if username is None or password is None:
        return lambda: None
    return lambda: basic(username.reveal(), password.reveal())


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """How connections are secured; None without TLS, or as the system has it. `ConfigError` where a file cannot be used."""
    paths = settings.ca_path, settings.certificate_path, settings.key_path

    def load() -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=settings.ca_path)
            if settings.certificate_path is not None:
                context.load_cert_chain(settings.certificate_path, settings.key_path)
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or "not PEM"
            raise ConfigError(
                f"the certificates of sink.schema_registry cannot be used: {reason}",
                hint="Check ca_path, certificate_path and key_path: expected readable files as PEM, a key without a password",
            ) from error
        return context

    return load_files(("sink.schema_registry", *paths), paths, load) if any(paths) else None


def _message(answer: Any) -> str:
    message = answer.get("message") if isinstance(answer, dict) else None
    return str(message if message else answer)[:500]
