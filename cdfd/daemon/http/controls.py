"""Requests of operators over HTTP: `POST` only, with a token, or over the Unix socket."""

from collections.abc import Mapping
from functools import partial

from aiohttp import web

from cdfd.config.values import Secret
from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.http.access import bearer
from cdfd.deliver.requests import (
    MOST_BYTES,
    Kind,
    Notification,
    Refused,
    document_of,
    parse_id,
    parse_request,
)
from cdfd.escaping import as_json
from cdfd.runtime.clock import Clock

ANSWER_SECONDS = 10.0
"""How long a response waits for the table. After that it is 202, and a notification follows."""
_UNAUTHORISED_SECONDS = 10.0
_CODES: Mapping[Kind, int] = {
    "malformed": 400,
    "unauthorised": 401,
    "unknown": 404,
    "conflict": 409,
    "duplicate": 409,
    "too_large": 413,
    "unsupported": 422,
    "busy": 429,
}


class ControlRoutes:
    """The routes of controls.

    Args:
        token: the token that requests must have; None: this server has no controls.
        trusted: whether the server itself keeps others out, as a Unix socket does.
    """

    def __init__(self, controller: Controller, token: Secret | None, clock: Clock, *, trusted: bool = False) -> None:
        self._controller = controller
        self.token = token
        self._trusted = trusted
        self._clock = clock
        self._last_unauthorised = -_UNAUTHORISED_SECONDS

    def routes(self) -> list[web.RouteDef]:
        """The routes. No other method than `POST` has an effect."""
        return [
            web.post("/tables/{table}/snapshot/stop", partial(self._respond, action="stop-snapshot")),
            web.post("/tables/{table}/{action}", self._respond),
            web.post("/log-level", partial(self._respond, action="log-level")),
        ]

    async def _respond(self, request: web.Request, action: str | None = None) -> web.Response:
        try:
            if not self._trusted:
                if self.token is None:
                    raise Refused("unknown", "controls over HTTP are off: set `controls.token`")
                if not bearer(request, self.token):
                    what = "the token is missing or wrong: send `Authorization: Bearer <controls.token>`"
                    raise Refused("unauthorised", what)
            if action is None:
                action = request.match_info["action"]
                if action not in ("pause", "resume", "snapshot", "move"):
                    raise web.HTTPNotFound
            notification = await self._carry_out(request, action)
        except Refused as error:
            now = self._clock.monotonic()
            notification = Notification("", "Access", "REFUSED", error.reason, refusal=error.kind)
            # Few of these are sent: anyone who reaches the port can cause them.
            if now - self._last_unauthorised >= _UNAUTHORISED_SECONDS:
                self._last_unauthorised = now
                self._controller.notify(notification)
        code = 202 if notification.type == "ACCEPTED" else 200
        headers = {}
        if notification.refusal is not None:
            code = _CODES[notification.refusal]
            if code == 401:
                headers["WWW-Authenticate"] = 'Bearer realm="cdfd"'
        text = as_json(self._controller.document(notification), indent=2) + "\n"
        return web.Response(text=text, status=code, headers=headers, content_type="application/json")

    async def _carry_out(self, request: web.Request, action: str) -> Notification:
        table, id = request.match_info.get("table"), ""
        try:
            try:
                body = await request.read()  # of bounded size: see `client_max_size` of the application
            except web.HTTPRequestEntityTooLarge:
                raise Refused(
                    "too_large", f"the request is too large: at most {MOST_BYTES} bytes are allowed"
                ) from None
            except web.RequestPayloadError as error:
                raise Refused("malformed", f"the body cannot be read: {' '.join(str(error).split())}") from error
            document = document_of(body)
            id = parse_id(document)
            parsed = parse_request(action, table, id, document)
        except Refused as error:
            return self._controller.refuse(error, id, action, table)
        return await self._controller.submit(parsed, ANSWER_SECONDS)
