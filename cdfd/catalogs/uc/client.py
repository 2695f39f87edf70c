"""Requests to Unity Catalog: one connection pool, one rate and one token for all tables, with retries up to a deadline."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp
import orjson

from cdfd.catalogs.base import unreadable
from cdfd.catalogs.uc.options import UnityOptions
from cdfd.catalogs.uc.tokens import Tokens, read_body
from cdfd.errors import StorageError
from cdfd.escaping import one_line
from cdfd.runtime import times
from cdfd.storage.s3.loop import request_loop

CONNECTIONS = 16
MAX_ANSWER_BYTES = 32 << 20
"""Bytes of an answer. That of a table has all its columns and properties."""
FIRST_DELAY, MAX_DELAY = 0.1, 5.0
"""Seconds before the second attempt, at most, and before any later one."""
MAX_RETRY_AFTER = 300.0
"""Seconds that a catalog may ask for between two requests."""
RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class Refusal(Exception):  # callers turn it into the error of what they asked for
    """The catalog answered with an error. Its text is the status, and the kind and the message of the server, on one line.

    Attributes:
        status: of HTTP.
        kind: the type of the error, such as `NoSuchTableException`; empty if the answer has none.
        error: the same for users.
    """

    def __init__(self, text: str, status: int, kind: str, error: StorageError) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind
        self.error = error


class UnityClient:
    """A client of one Unity Catalog, for all tables of the process. It belongs to the event loop of requests."""

    def __init__(self, options: UnityOptions) -> None:
        self.options = options
        self._session: aiohttp.ClientSession | None = None
        self._tokens = Tokens(options, self._open)
        self._next_at = 0.0
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._stack = AsyncExitStack()
        request_loop().on_close(self._stack.aclose)

    async def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Any:
        """The JSON of an answer.

        Args:
            method: of HTTP.
            path: below the endpoint, with escaped names.
            parameters: of the query.
            body: as JSON.

        Raises:
            Refusal: the catalog answered with an error that is not transient.
            StorageError: no answer until the deadline, or one that is not JSON.
        """
        request = f"{method} {path}"
        sent = f"{request} to {self.options.host}"
        deadline = time.monotonic() + self.options.deadline
        delay, renewed = FIRST_DELAY, False
        while True:
            error: Exception
            wait = 0.0
            try:
                async with self._slots:
                    await self._pace(deadline)
                    status, headers, data = await self._send(method, path, parameters, body)
            except (aiohttp.ClientError, TimeoutError, OSError) as failure:
                reason = "no answer" if isinstance(failure, TimeoutError) else str(failure) or type(failure).__name__
                reason = one_line(self._tokens.redact(reason), 300)
                error = StorageError(
                    f"the catalog cannot be reached: {reason}; the request was {sent}",
                    hint="Check its address and the network. Versions that it has ratified already are delivered",
                    retriable=True,
                )
            else:
                if 200 <= status < 300:
                    try:
                        return orjson.loads(data)
                    except orjson.JSONDecodeError:
                        raise unreadable(f"{len(data)} bytes that are not JSON", sent) from None
                error = self._refusal(status, data, request)
                if status == 401 and not renewed and self._tokens.expire():
                    renewed = True
                    continue
                if status not in RETRIED:
                    raise error
                wait = _retry_after(headers)
                if status == 429:
                    # All tables share the catalog's limit.
                    self._next_at = max(self._next_at, time.monotonic() + max(wait, delay))
            pause = max(wait, delay * (0.5 + random.random() / 2))
            if time.monotonic() + pause >= deadline:
                raise error
            await asyncio.sleep(pause)
            delay = min(2 * delay, MAX_DELAY)

    async def _pace(self, deadline: float) -> None:
        """Wait for this request's turn.

        Raises:
            StorageError: it comes too late, because the catalog has asked for a long pause.
        """
        now = time.monotonic()
        turn = max(now, self._next_at)
        if turn >= deadline + self.options.deadline:
            raise StorageError(
                f"the catalog {self.options.host} has asked for a pause of {turn - now:.0f} s more, with status 429",
                hint="Poll less often: set `poll.max_interval`",
                retriable=True,
            )
        self._next_at = turn + 1 / self.options.requests_per_second
        if turn > now:
            await asyncio.sleep(turn - now)

    async def _send(
        self, method: str, path: str, parameters: Mapping[str, str] | None, body: Mapping[str, object] | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        token = await self._tokens.token()
        headers = {"Accept": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        session = await self._open()
        async with session.request(
            method,
            self.options.endpoint + path,
            params=parameters,
            data=None if body is None else orjson.dumps(body),
            headers=headers | ({} if body is None else {"Content-Type": "application/json"}),
            # A redirect would send the token to another host.
            allow_redirects=False,
        ) as response:
            data = await read_body(response.content, MAX_ANSWER_BYTES)
            return response.status, response.headers, data

    async def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            context: ssl.SSLContext | bool = True
            if self.options.ca_file is not None:
                context = await asyncio.to_thread(tls_context, self.options.ca_file)
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=context),
                timeout=aiohttp.ClientTimeout(total=self.options.timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "cdfd"},
                trust_env=True,
            )
            self._session = await self._stack.enter_async_context(session)
        return self._session

    def _refusal(self, status: int, data: bytes, request: str) -> Refusal:
        document: Any = None
        with suppress(orjson.JSONDecodeError):
            document = orjson.loads(data)
        # The error of the Delta REST API is below `error`, that of the older one at the top.
        fields = document.get("error", document) if isinstance(document, dict) else {}
        fields = fields if isinstance(fields, dict) else {}
        texts = fields.get("type", fields.get("error_code")), fields.get("message")
        kind, message = (self._tokens.redact(text) if isinstance(text, str) else "" for text in texts)
        kind, message = kind if kind.isidentifier() else "", one_line(message, 300)
        answer = f"{status}{f' {kind}' if kind else ''}{f': {message}' if message else ''}"
        hint = "Check the token, or the secret of the OAuth client" if status == 401 else None
        error = StorageError(
            f"the catalog {self.options.host} refuses {request}: {answer}",
            hint=hint,
            retriable=status in RETRIED,
        )
        return Refusal(answer, status, kind, error)


def tls_context(ca_file: str) -> ssl.SSLContext:
    """TLS that trusts authorities of a file, besides those of the system: given a file, Python's default would trust that alone."""
    context = ssl.create_default_context()
    context.load_verify_locations(ca_file)
    return context


def _retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that a server asks to wait: a number, or a time."""
    text = headers.get("Retry-After", "")
    if text.isascii() and text.isdigit() and len(text) < 10:
        return min(float(text), MAX_RETRY_AFTER)
    moment = times.of_http(text)
    seconds = 0.0 if moment is None else (moment - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
