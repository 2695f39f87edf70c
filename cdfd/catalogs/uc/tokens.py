"""Tokens for requests to Unity Catalog: a fixed one, one in a file that changes, or those of OAuth client credentials."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote_plus as quote

import aiohttp
import orjson

from cdfd.catalogs.uc.options import UnityOptions
from cdfd.errors import StorageError
from cdfd.runtime.mounted import MountedText, read_secret

FILE_SECONDS = 10.0
"""Time for which the text of a file is used, before it is read again."""
RENEW_SHARE = 0.8
"""Share of a token's life after which a new one is asked for."""
MAX_FILE_BYTES = 64 << 10
MAX_ANSWER_BYTES = 1 << 20


class Tokens:
    """The token of one client. It belongs to the event loop of requests.

    Args:
        options: of the client.
        session: of HTTP.
    """

    def __init__(self, options: UnityOptions, session: Callable[[], Awaitable[aiohttp.ClientSession]]) -> None:
        self._options = options
        self._session = session
        self._lock = asyncio.Lock()
        self._token: str | None = None
        self._until = self._ends = 0.0
        self._files: dict[str, MountedText] = {}

    async def token(self) -> str | None:
        """The token for a request now; None if none is configured.

        Raises:
            StorageError: the file cannot be read, or the server for tokens gives none.
        """
        options = self._options
        if options.client_id is None and options.token_file is None:
            return options.token
        async with self._lock:
            if self._token is None or time.monotonic() >= self._until:
                if options.token_file is not None:
                    # Executors of a cluster have no such file: they get its text.
                    self._token = await self._text(options.token_file, options.token, "token_file")
                    self._until = time.monotonic() + FILE_SECONDS
                else:
                    asked = time.monotonic()
                    try:
                        self._token, life = await self._of_client()
                    except StorageError:
                        # The last one stays in use until it ends.
                        if self._token is None or asked >= self._ends:
                            raise
                        self._until = min(asked + FILE_SECONDS, self._ends)
                    else:
                        self._until, self._ends = asked + RENEW_SHARE * life, asked + life
            return self._token

    def expire(self) -> bool:
        """Forget the token, because the catalog refused it. Returns whether another one may be had."""
        self._token = None
        return (self._options.client_id or self._options.token_file) is not None

    def redact(self, text: str) -> str:
        """A text from elsewhere, with all secrets masked."""
        for secret in (self._token, self._options.token, self._options.client_secret):
            if secret:
                text = text.replace(secret, "***")
        return text

    async def _text(self, path: str, first: str | None, option: str) -> str:
        """The text of a mounted secret; the `first`, if the file has had none yet, as on executors."""
        try:
            return await asyncio.to_thread(self._mounted, path)
        except ValueError as error:
            if first is None:
                what = f"the file of {option} cannot be read: {error}"
                raise StorageError(what, path=path, retriable=True) from None
            return first

    def _mounted(self, path: str) -> str:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = MountedText(path, _read)
        return file.read()

    async def _of_client(self) -> tuple[str, float]:
        """A token of OAuth client credentials, and its life in seconds."""
        options = self._options
        assert options.client_id is not None
        assert options.token_url is not None
        secret = options.client_secret
        if options.client_secret_file is not None:
            secret = await self._text(options.client_secret_file, secret, "client_secret_file")
        assert secret is not None
        form = {"grant_type": "client_credentials", "scope": options.scope}
        login = base64.b64encode(f"{quote(options.client_id)}:{quote(secret)}".encode()).decode()  # RFC 6749, 2.3.1
        headers = {"Authorization": f"Basic {login}"}
        session = await self._session()
        try:
            async with session.post(options.token_url, data=form, headers=headers, allow_redirects=False) as response:
                body = await read_body(response.content, MAX_ANSWER_BYTES)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            what = f"the server for tokens cannot be reached: {type(error).__name__}"
            raise StorageError(what, path=options.token_url, retriable=True) from None
        token, life = _parse(body)
        if status != 200 or token is None:
            raise StorageError(
                f"the server for tokens gives none: its status is {status}",
                path=options.token_url,
                hint="Check client_id and client_secret, and that the service principal exists",
                retriable=status == 429 or status >= 500,
            )
        return token, life


async def read_body(content: aiohttp.StreamReader, most: int) -> bytes:
    """All bytes of a body, in however many pieces they arrive.

    Raises:
        ClientError: there are more than `most`.
    """
    parts, size = [], 0
    async for part in content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            raise aiohttp.ClientPayloadError(f"the answer has more than {most >> 20} MiB")
    return b"".join(parts)


def _parse(body: bytes) -> tuple[str | None, float]:
    try:
        answer = orjson.loads(body)
        token, life = answer.get("access_token"), answer.get("expires_in", 3600)
    except (orjson.JSONDecodeError, AttributeError):
        return None, 0
    usable = isinstance(token, str) and token.isprintable() and token.isascii() and isinstance(life, int | float)
    return (token, min(max(float(life), 1.0), 86_400.0)) if usable else (None, 0)


def _read(path: str) -> str:
    text = read_secret(path).strip()
    if len(text) > MAX_FILE_BYTES or not text.isprintable() or not text.isascii():
        raise ValueError("its text is no token")
    return text
