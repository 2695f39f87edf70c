"""Which HTTP requests the daemon answers, and how long a connection may last.

A web page can make its own host name resolve to the daemon's address (DNS rebinding). The browser then lets the page read the daemon's
responses. Such a request has the page's host name, so the daemon answers only to its own names. It always answers to IP addresses, which
an attacker cannot redirect.
"""

import asyncio
import os
import re
import socket
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler

from cdfd.errors import ConfigError, ListenError

CONNECTION_SECONDS = 30.0
"""How long a connection may last. It has one request, and a scrape takes a fraction of a second."""
MOST_CONNECTIONS = 100
"""Approximate limit of open connections. Above it, the daemon closes the oldest ones."""
_SWEEP_SECONDS = 0.5
LONGEST_PATH = 103 if sys.platform == "darwin" else 107
"""Bytes of the path of a Unix socket."""

_LONGEST_HOST = 300
"""Characters of a `Host` header. A name in DNS has at most 253."""
_HOST = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]*)(?::[0-9]*)?")


class AllowedHosts:
    """Host names that the daemon accepts, besides IP addresses, `localhost`, and the machine's own name.

    Args:
        names: `cdfd.example.com`, `*.example.com` for all names of a domain, `*` for all names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in (*names, "localhost", socket.gethostname()))

    def __contains__(self, host: str) -> bool:
        """Whether a `Host` header, with or without a port, is accepted."""
        # Checked first, because the time for the labels below grows with the square of their number.
        matched = _HOST.fullmatch(host) if len(host) <= _LONGEST_HOST else None
        if matched is None:
            return False
        name = matched[1].strip("[]").lower().rstrip(".")
        if name in self._names or "*" in self._names:
            return True
        with suppress(ValueError):
            ip_address(name)
            return True
        labels = name.split(".")
        return any(f"*.{'.'.join(labels[start:])}" in self._names for start in range(1, len(labels)))

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request with another `Host` header: 421. The server itself refuses HTTP/1.1 requests without one."""
        if any(host not in self for host in request.headers.getall("Host", [])):
            raise web.HTTPMisdirectedRequest(
                text="421: the daemon does not answer to this host name; see `http.hosts`\n"
            )
        return await handler(request)


@contextmanager
def private_socket(path: str) -> Iterator[socket.socket]:
    """A Unix socket that only this user can open, removed at the end of the block. A socket without a server is replaced.

    Raises:
        ListenError: another process serves the socket.
        ConfigError: the socket cannot be made.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            _remove_unused(path)
            # The mode of the file decides who may connect, from its first moment on.
            before = os.umask(0o177)
            try:
                listening.bind(path)
            finally:
                os.umask(before)
            inode = os.stat(path).st_ino
        except OSError as error:
            what = f"cannot make the socket {path}: {error.strerror or error}"
            raise ConfigError(what, hint="Set `controls.socket` to another path") from error
        try:
            yield listening
        finally:
            with suppress(OSError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)


def check_socket_path(path: str) -> None:
    """Check what is known before a socket is made.

    Raises:
        ConfigError: the path is too long, or another file is there.
    """
    if (size := len(os.fsencode(path))) > LONGEST_PATH:
        what = f"the path of the socket has {size} bytes, and at most {LONGEST_PATH} are possible: {path}"
        raise ConfigError(what, hint="Set `controls.socket` to a shorter path")
    with suppress(OSError):  # nothing is there, or only the daemon's user can see it
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(f"{path} exists and is not a socket", hint="Set `controls.socket` to another path")


def _remove_unused(path: str) -> None:
    check_socket_path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ListenError(
        f"another process serves the socket {path}", hint="Stop it, or set `controls.socket`", retriable=True
    )


async def close_overdue_connections(server: web.Server) -> None:
    """Close connections that last too long, forever: their clients send or read slowly, or not at all."""
    time = asyncio.get_running_loop().time
    since = dict[web.RequestHandler, float]()
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        now = time()
        since = {connection: since.get(connection, now) for connection in server.connections}
        by_age = sorted(since, key=since.__getitem__)
        late = {connection for connection in by_age if now - since[connection] > CONNECTION_SECONDS}
        for connection in late.union(by_age[: max(0, len(by_age) - MOST_CONNECTIONS)]):
            transport = connection.transport
            connection.force_close()
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()  # unread data would keep it open
