"""A schema registry with Confluent's REST interface (Confluent, Karapace, Redpanda, Apicurio's `ccompat`)."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import urllib3

from cdfd.errors import ConfigError, SchemaChangedError, SinkError

_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_MAX_ANSWER: Final = 1 << 20
_MAX_ID: Final = 2**31 - 1
_HINTS: Final = {
    401: "Check `sink.schema_registry.username` and `password`",
    403: "The user of `sink.schema_registry` needs the right to write this subject",
    404: "Check `sink.schema_registry.url`",
    422: "The registry does not understand the schema; it has to support Avro",
}


class SchemaRegistry:
    """A client that gets the ids of schemas. Ids never change, so each schema is requested once. Thread-safe.

    Calls block, for `attempts` times `timeout` seconds at most, and less than a minute between attempts.

    Args:
        url: of the registry; what is behind the host is kept.
        username: for basic authentication; None for none.
        password: of the user.
        credentials: user name and password, asked for at each request; instead of `username` and `password`.
        timeout: seconds to wait for an answer.
        attempts: how often to ask where there is no answer, or none that will last.
        backoff: seconds before the second attempt; doubled each time.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        credentials: Callable[[], tuple[str, str] | None] | None = None,
        timeout: float = 10.0,
        attempts: int = 5,
        backoff: float = 0.25,
    ) -> None:
        self._url = url.rstrip("/")
        headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE, "User-Agent": "cdfd"}
        given = None if username is None else (username, password or "")
        self._credentials: Callable[[], tuple[str, str] | None] = credentials or (lambda: given)
        # All requests are idempotent, so they can be retried. The client sets the delays, not the server.
        retries = urllib3.Retry(
            attempts - 1,
            allowed_methods=None,
            status_forcelist=_RETRIED,
            raise_on_status=False,
            respect_retry_after_header=False,
            backoff_factor=backoff / 2,
            backoff_max=10.0,
        )
        self._common = headers
        self._pool = urllib3.PoolManager(retries=retries, timeout=urllib3.Timeout(total=timeout))
        self._known: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._url!r})"

    def register(self, subject: str, schema: str) -> int:
        """The id of an Avro schema, which is registered under that subject unless it is already.

        Raises:
            SchemaChangedError: it is not compatible with the versions that the subject has.
            SinkError: the registry cannot be reached, or does not do it for another reason.
        """
        known = self._known.get((subject, schema))
        if known is not None:
            return known
        path = f"/subjects/{quote(subject, safe='')}/versions"
        status, answer = self._ask("POST", path, {"schema": schema}, f"subject {subject}")
        if status == 409:
            raise SchemaChangedError(
                f"the schema registry refuses the schema for subject {subject}: {_message(answer)}",
                hint="Give the table another topic, or set the subject's compatibility to NONE to continue in this one",
            )
        number = answer.get("id") if status == 200 and isinstance(answer, dict) else None
        if type(number) is not int or not 0 <= number <= _MAX_ID:
            raise self._error(status, answer, f"subject {subject}")
        self._known[subject, schema] = number
        return number

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
        found: dict[int, str] = {}
        for number in numbers:
            status, answer = self._ask("GET", f"{path}/{number}?deleted=true", None, f"{what}, version {number}")
            known = (answer.get("id"), answer.get("schema")) if status == 200 and isinstance(answer, dict) else (0, 0)
            if type(known[0]) is not int or not isinstance(known[1], str):
                raise self._error(status, answer, f"{what}, version {number}")
            found[known[0]] = known[1]
        return found

    def check(self) -> None:
        """`SinkError` where there is no registry that we may use and that has Avro; registers nothing."""
        status, answer = self._ask("GET", "/schemas/types", None, "its types of schemas")
        if status != 200 or not isinstance(answer, list) or "AVRO" not in answer:
            raise self._error(status, answer, "its types of schemas")

    def close(self) -> None:
        """Close connections."""
        self._pool.clear()

    def _headers(self) -> dict[str, str]:
        credentials = self._credentials()
        if credentials is None:
            return self._common
        # urllib3's own would take Latin-1; registries take UTF-8 (RFC 7617, section 2.1).
        return self._common | {"Authorization": "Basic " + b64encode(":".join(credentials).encode()).decode()}

    def _ask(self, method: str, path: str, body: Any, what: str) -> tuple[int, Any]:
        """Status and answer; the text of an answer that is not JSON."""
        data = None if body is None else json.dumps(body).encode()
        try:
            # A redirect could lead anywhere, with our credentials.
            response = self._pool.request(
                method, self._url + path, body=data, headers=self._headers(), redirect=False, preload_content=False
            )
            text = response.read(_MAX_ANSWER)
            response.release_conn()
        except (urllib3.exceptions.HTTPError, UnicodeError) as error:
            reason = getattr(error, "reason", None) or error
            raise SinkError(
                f"the schema registry {self._url} does not answer for {what}: {reason}"[:1000],
                hint="Check `sink.schema_registry.url` and whether the registry runs",
                retriable=True,
            ) from error
        try:
            return response.status, json.loads(text)
        except (ValueError, RecursionError):
            return response.status, text.decode(errors="replace")

    def _error(self, status: int, answer: Any, what: str) -> SinkError:
        return SinkError(
            f"the schema registry {self._url} answered {status} for {what}: {_message(answer)}",
            hint=_HINTS.get(status, "See the log of the registry"),
            retriable=status in _RETRIED,
        )


def _message(answer: Any) -> str:
    found = answer.get("message") if isinstance(answer, dict) else None
    return str(found if found else answer)[:500]
