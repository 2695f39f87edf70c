"""Who is answered over HTTP, and for how long.

A web page in a browser can have its own host name resolve to the daemon's address (DNS rebinding). The browser then lets it read what the
daemon says. The request still has the page's host name: so the daemon answers only to names that are its own. It always answers to addresses:
nobody can make them mean another machine.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

CONNECTION_SECONDS = 30.0
"""How long a connection may last. Each has one request: a scrape takes a fraction of a second."""
MOST_CONNECTIONS = 100
"""Connections at once, about; the oldest ones are closed."""
_SWEEP_SECONDS = 0.5

_HOST = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]*)(?::[0-9]*)?")


class Names:
    """Host names that the daemon answers to, besides addresses, `localhost`, and the machine's own name.

    Args:
        names: `cdfd.example.com`, `*.example.com` for all below a domain, `*` for all there are.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in (*names, "localhost", socket.gethostname()))

    def __contains__(self, host: str) -> bool:
        """Whether a `Host` header, with or without a port, is one of them."""
        matched = _HOST.fullmatch(host)
        if matched is None:
            return False
        name = matched[1].strip("[]").lower().rstrip(".")
        if name in self._names or "*" in self._names or _is_address(name):
            return True
        labels = name.split(".")
        return any(f"*.{'.'.join(labels[start:])}" in self._names for start in range(1, len(labels)))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def answering_to(names: Names) -> Middleware:
    """Refuses requests that are meant for others: 421. The server itself refuses those of HTTP/1.1 that do not say for whom they are."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if any(host not in names for host in request.headers.getall("Host", [])):
            raise web.HTTPMisdirectedRequest(
                text="421: the daemon does not answer to this host name; see `http.hosts`\n"
            )
        return await handler(request)

    return check


async def close_late_ones(server: web.Server) -> None:
    """Close connections that last too long, for ever: those of clients that send or read slowly, or nothing at all."""
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
                transport.abort()  # what its client does not read would keep it open
