"""Metrics, health and status over HTTP, and the controls of operators."""

import asyncio
import errno
import logging
import math
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import cache
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from cdfd.config.sections import Http
from cdfd.config.settings import Settings
from cdfd.config.values import Listen
from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.http import overview
from cdfd.daemon.http.access import Access
from cdfd.daemon.http.connections import AllowedHosts, close_overdue_connections, private_socket
from cdfd.daemon.http.controls import ControlRoutes
from cdfd.daemon.http.history import History
from cdfd.daemon.http.metrics import CONTENT_TYPE, OPENMETRICS_TYPE
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.tls import ServerTls
from cdfd.deliver.requests import MOST_BYTES
from cdfd.errors import ConfigError, ListenError
from cdfd.escaping import as_json
from cdfd.runtime.clock import Clock
from cdfd.runtime.tasks import background


def policy() -> str:
    """The Content-Security-Policy: the page's own script and style by their hashes, requests to the daemon, and nothing else.

    Text that gets into the markup could neither run nor load anything. The script cannot turn text into markup at all.
    """
    script, style = (
        f"'sha256-{b64encode(sha256(_text(name).encode()).digest()).decode()}'" for name in ("page.js", "page.css")
    )
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


@cache
def render_page() -> bytes:
    """The page. It is the same for everyone: the script loads the rest."""
    page = Template(_text("page.html")).substitute(style=_text("page.css"), script=_text("page.js"))
    return page.encode()


@cache
def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


logger = logging.getLogger("cdfd.http")

STOP_SECONDS = 0.5
"""How long current responses may take once the daemon stops."""
HANDSHAKE_SECONDS = 3.0
"""How long a client may take for the handshake of TLS."""


BAD_BODY_SECONDS = 60.0
"""Shortest time between two log lines about requests whose body cannot be read."""


class _ClientErrors(logging.Filter):
    """Errors of clients have no traceback: anyone who reaches the port can cause them, and a port scanner would fill the log.

    Requests that are not HTTP have no line at all. Requests whose body cannot be read, such as a bad gzip, have one from time to time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record, which may change."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, web.RequestPayloadError):
            return not isinstance(error, HttpProcessingError)
        now = time.monotonic()
        if now - self._last < BAD_BODY_SECONDS:
            return False
        self._last = now
        record.msg, record.args, record.exc_info = (
            "the body of a request cannot be read: %s",
            (" ".join(str(error).split()),),
            None,
        )
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


_server_logger = logging.getLogger("cdfd.http.server")
_client_errors = _ClientErrors()
_server_logger.addFilter(_client_errors)


@asynccontextmanager
async def serve_all(
    config: Settings, status: Status, history: History, controller: Controller, clock: Clock
) -> AsyncIterator[None]:
    """Serve at the address and at the socket of controls, if they are configured, until the block ends.

    If the address is the default and in use, there is no server at it, which is logged.

    Raises:
        ConfigError: see `serve` and `serve_socket`.
    """
    async with AsyncExitStack() as stack:
        if config.controls.socket is not None:
            trusted = ControlRoutes(controller, None, clock, trusted=True)
            await stack.enter_async_context(serve_socket(config.controls.socket, status, history, trusted))
        if config.http.listen is not None:
            controls = ControlRoutes(controller, config.controls.token, clock)
            try:
                await stack.enter_async_context(serve(config.http, status, history, controls))
            except ConfigError as error:
                if "listen" in config.http.model_fields_set:
                    raise
                logger.warning("no metrics, health and status over HTTP: %s", error)
        yield


@asynccontextmanager
async def serve(settings: Http, status: Status, history: History, controls: ControlRoutes) -> AsyncIterator[Listen]:
    """Serve until the block ends. Yields the address with the actual port.

    Args:
        settings: the address, where port 0 lets the system choose a port; host names, TLS and authentication.
        history: of the tables, for the page.

    Raises:
        ListenError: another process listens at the address.
        ConfigError: the server cannot listen at the address, or its certificate cannot be used.
    """
    listen = settings.listen
    assert listen is not None
    tls = None if settings.tls is None else ServerTls(settings.tls).context
    names, access = AllowedHosts([listen.host, *settings.hosts]), Access(settings, controls.token)
    async with _application(status, history, names, access, controls) as runner:
        # aiohttp's own `TCPSite` lets a client without a handshake stay for a minute, where the limit of connections does not see it.
        handshake: dict[str, Any] = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_SECONDS}
        assert runner.server is not None
        try:
            listening = await asyncio.get_running_loop().create_server(
                runner.server, listen.host, listen.port, **handshake
            )
        except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            what, hint = (
                f"cannot listen at {listen}: {reason}",
                "Set `http.listen` to another address, or to null for no server",
            )
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                # Perhaps another daemon is about to stop, so a supervisor may restart this one.
                raise ListenError(what, hint=f"Stop the process that listens there. {hint}", retriable=True) from error
            raise ConfigError(what, hint=hint) from error
        with closing(listening):
            async with background("connections", close_overdue_connections(runner.server)):
                bound = Listen(*listening.sockets[0].getsockname()[:2])
                logger.info("metrics, health and status at %s://%s", "http" if tls is None else "https", bound)
                yield bound


@asynccontextmanager
async def serve_socket(path: str, status: Status, history: History, controls: ControlRoutes) -> AsyncIterator[None]:
    """Serve the same on a Unix socket that only this user can open, until the block ends.

    Raises:
        ConfigError: the socket cannot be made.
    """
    with private_socket(path) as listening:
        async with _application(status, history, AllowedHosts([]), Access(Http()), controls) as runner:
            await web.SockSite(runner, listening).start()
            logger.info("controls at the socket %s", path)
            yield


class Scrapes:
    """Renders `/metrics` for requests: those that wait at the same time share one text, which is read after they came.

    So at most one text is rendered and one of each format waits, however many requests there are: a request goes on if its connection ends.

    Args:
        metrics: reads the metrics, and returns a function that renders them in any thread; see `Status.metrics`.
        writer: has one thread.
    """

    def __init__(self, metrics: Callable[..., Callable[[], bytes]], writer: Executor) -> None:
        self._metrics = metrics
        self._writer = writer
        self._turn = asyncio.Lock()
        self._waiting: dict[bool, asyncio.Task[bytes]] = {}

    async def text(self, *, openmetrics: bool) -> bytes:
        """The metrics of a moment after this call. A call that is cancelled ends the others, too: only the end of the server does that."""
        if openmetrics not in self._waiting:
            self._waiting[openmetrics] = asyncio.create_task(self._render(openmetrics))
        return await self._waiting[openmetrics]

    async def _render(self, openmetrics: bool) -> bytes:
        async with self._turn:
            del self._waiting[openmetrics]
            render = self._metrics(openmetrics=openmetrics)
            return await asyncio.get_running_loop().run_in_executor(self._writer, render)


@asynccontextmanager
async def _application(
    status: Status, history: History, names: AllowedHosts, access: Access, controls: ControlRoutes
) -> AsyncIterator[web.AppRunner]:
    # In a thread of its own: rendering many tables must not delay deliveries, and the loop's threads may all wait for a broker.
    writer = ThreadPoolExecutor(1, "cdfd-http")
    scrapes = Scrapes(status.metrics, writer)

    async def metrics(request: web.Request) -> web.Response:
        # For exemplars, which only traces give.
        traces = status.config.telemetry.otel.endpoint is not None
        openmetrics = traces and "application/openmetrics-text" in request.headers.get("Accept", "")
        text = await scrapes.text(openmetrics=openmetrics)
        return web.Response(body=text, headers={"Content-Type": OPENMETRICS_TYPE if openmetrics else CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        # A daemon that answers is healthy: it ends as soon as a loop ends unexpectedly.
        return _json({"healthy": True}, 200)

    async def readiness(request: web.Request) -> web.Response:
        # Probes have no credentials: names of tables and texts of errors are only for those who have.
        not_ready = status.not_ready()
        why = {"not_ready": not_ready} if access.refusal(request) is None else {}
        return _json({"ready": not not_ready, "role": status.role, **why}, 503 if not_ready else 200)

    async def everything(_: web.Request) -> web.Response:
        # The text of two thousand tables takes as long as a tenth of a second.
        return await asyncio.get_running_loop().run_in_executor(writer, _json, status.document(), 200)

    async def for_people(_: web.Request) -> web.Response:
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy()}
        return web.Response(body=render_page(), headers=headers)

    async def tables(_: web.Request) -> web.Response:
        return _json(overview.overview(status, history, controls=controls.token is not None), 200, indent=None)

    async def table(request: web.Request) -> web.Response:
        name = request.query.get("name", "")
        monitor = next((each for each in status.tables() if each.name == name), None)
        if monitor is None:
            raise web.HTTPNotFound(text="404: there is no such table\n")
        return _json(overview.details(monitor, history), 200, indent=None)

    application = web.Application(middlewares=[names.check, access.check], client_max_size=MOST_BYTES)
    application.on_response_prepare.append(_set_headers)
    application.add_routes(
        [
            web.get("/", for_people),
            web.get("/metrics", metrics),
            web.get("/healthz", health),
            web.get("/readyz", readiness),
            web.get("/status", everything),
            web.get("/overview", tables),
            web.get("/overview/table", table),
        ]
    )
    application.add_routes(controls.routes())
    runner = web.AppRunner(application, access_log=None, logger=_server_logger, shutdown_timeout=STOP_SECONDS)
    try:
        await runner.setup()
        yield runner
    finally:
        await runner.cleanup()
        writer.shutdown(wait=False, cancel_futures=True)


async def _set_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Server"] = "cdfd"
    # One request for each connection, so that no idle connection stays open. aiohttp has made the header before this call.
    response.force_close()
    response.headers["Connection"] = "close"


def _json(document: Mapping[str, Any], status: int, indent: int | None = 2) -> web.Response:
    # ASCII, because file names may contain bytes that are not UTF-8.
    return web.Response(text=f"{as_json(document, indent)}\n", status=status, content_type="application/json")
