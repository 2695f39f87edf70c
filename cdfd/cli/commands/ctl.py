"""`cdfd ctl`: sends a request to the running daemon, over its Unix socket or over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp

from cdfd.config.parser import load
from cdfd.errors import ConfigError, StorageError
from cdfd.escaping import as_json, one_line

TIMEOUT_SECONDS = 30.0
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """The daemon that receives requests.

    Attributes:
        socket: its Unix socket; None: HTTP.
        url: the address of its HTTP server.
        token: the token for HTTP.
    """

    socket: str | None
    url: str = "http://localhost"
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, config: Path | None, socket: str | None, url: str | None, token_file: Path | None) -> Target:
        """The daemon of a configuration, or of a socket or URL.

        Raises:
            ConfigError: the options do not say which daemon, or its configuration has no controls.
        """
        if sum(each is not None for each in (config, socket, url)) != 1:
            raise ConfigError(
                "the options do not say which daemon", hint="Give one of -c FILE, --socket PATH and --url URL"
            )
        if socket is not None:
            return cls(socket)
        if url is not None:
            if token_file is None:
                raise ConfigError("--url needs --token-file", hint="Give the file that has `controls.token`")
            try:
                token = token_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read the token: {error}", hint="Check the path of --token-file") from error
            return cls(None, url.rstrip("/"), token)
        assert config is not None
        settings = load(config)
        controls, listen = settings.controls, settings.http.listen
        if controls.socket is not None:
            return cls(controls.socket)
        if controls.token is None or listen is None:
            raise ConfigError(
                "the configuration has no controls", hint="Set `controls.socket`, or `controls.token` for HTTP"
            )
        scheme = "http" if settings.http.tls is None else "https"
        return cls(None, f"{scheme}://{_reachable(listen.host)}:{listen.port}", controls.token.reveal())


def send(target: Target, path: str, body: Mapping[str, Any], *, as_document: bool = False) -> tuple[str, int]:
    """Send a request; the text to print, and the exit code: 0 if it is carried out or accepted, otherwise 1.

    Raises:
        StorageError: the daemon cannot be reached.
    """
    status, text = asyncio.run(_post(target, path, {key: value for key, value in body.items() if value is not None}))
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    code = 0 if status < 300 else 1
    if not isinstance(answer, dict):
        return f"{one_line(text.strip())}\n", code
    if as_document:
        return as_json(answer, indent=2) + "\n", code
    about = answer.get("additional_data")
    message = about.get("message") if isinstance(about, dict) else None
    return f"{one_line(str(answer.get('type')))}: {one_line(str(message))}\n", code


async def _post(target: Target, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
    connector = None if target.socket is None else aiohttp.UnixConnector(target.socket)
    headers = {} if target.token is None else {"Authorization": f"Bearer {target.token}"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    place = target.socket or target.url
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.post(target.url + path, data=json.dumps(body).encode(), headers=headers) as response,
        ):
            return response.status, (await response.content.read(_MOST_BYTES)).decode(errors="replace")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise StorageError(
            f"the daemon does not answer: {reason}", path=place, hint="Check that it runs, and that `controls` is set"
        ) from error


def _reachable(host: str) -> str:
    """The host of a URL for a host to listen at. A server that listens at all addresses also listens at localhost."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"
