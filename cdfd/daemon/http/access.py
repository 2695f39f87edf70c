"""Rights of HTTP clients: the only place that decides.

Probes may always read `/healthz` and `/readyz`, without reasons and names of tables. With `http.authentication`, everything else needs user
and password, or the token; with `http.tls.client_ca`, it needs a client certificate. An action that changes something needs `bearer` with a
token of its own: a browser sends a stored password by itself, also if another website asks it to.
"""

import hmac
import ssl
from base64 import b64decode
from hashlib import sha256

from aiohttp import web
from aiohttp.typedefs import Handler

from cdfd.config.sections import Http
from cdfd.config.values import Secret

PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that need no authentication: the kubelet has none."""

_CHALLENGES = {"basic": 'Basic realm="cdfd", charset="UTF-8"', "bearer": 'Bearer realm="cdfd"'}


class Access:
    """The clients that may read.

    Args:
        settings: the section `http`.
        control: the token of `controls.token`, which may read, too; None: there is none.

    Attributes:
        open: paths that need no authentication.
    """

    def __init__(self, settings: Http, control: Secret | None = None) -> None:
        self._control = control
        self._authentication = settings.authentication
        self._certificates = settings.tls is not None and settings.tls.client_ca is not None
        wanted = settings.authentication
        only_token = wanted is not None and wanted.username is None and not self._certificates
        # A browser cannot send a token when it opens a page. The page has no data: its script asks for the token, and loads them with it.
        self.open = PROBES | {"/"} if only_token else PROBES

    def refusal(self, request: web.Request) -> web.HTTPException | None:
        """The answer for a client that may not read; None for one that may."""
        if self._certificates:
            # The TLS handshake has verified a certificate that is there: it refuses others.
            connection = request.get_extra_info("ssl_object")
            if not isinstance(connection, ssl.SSLObject) or connection.getpeercert() is None:
                return web.HTTPForbidden(text="403: the daemon wants a client certificate of `http.tls.client_ca`\n")
        wanted = self._authentication
        if wanted is None or (wanted.token is not None and bearer(request, wanted.token)):
            return None
        name, password = wanted.username, wanted.password
        if name is not None and password is not None and _is_user(request, name, password):
            return None
        if self._control is not None and bearer(request, self._control):
            return None
        refusal = web.HTTPUnauthorized(text="401: the daemon wants the credentials of `http.authentication`\n")
        for kind, credential in (("basic", wanted.username), ("bearer", wanted.token)):
            if credential is not None:
                refusal.headers.add("WWW-Authenticate", _CHALLENGES[kind])
        return refusal

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a client that may not read, except for probes."""
        if request.path not in self.open and (refusal := self.refusal(request)) is not None:
            raise refusal
        return await handler(request)


def bearer(request: web.Request, token: Secret) -> bool:
    """Whether a request has a token. Takes the same time for each wrong one."""
    scheme, credential = _authorization(request)
    return scheme == "bearer" and _same(credential, token)


def _is_user(request: web.Request, wanted_name: Secret, wanted_password: Secret) -> bool:
    scheme, credential = _authorization(request)
    if scheme != "basic":
        return False
    try:
        # RFC 7617: a user name has no colon. UTF-8, which the challenge asks for.
        name, colon, password = b64decode(credential, validate=True).decode().partition(":")
    except ValueError:
        return False
    # Both comparisons are made, so that the time does not tell which one failed.
    matches = [_same(name, wanted_name), _same(password, wanted_password)]
    return bool(colon) and all(matches)


def _authorization(request: web.Request) -> tuple[str, str]:
    """Scheme in lower case, and credentials; empty without the header, or with several."""
    headers = request.headers.getall("Authorization", [])
    if len(headers) != 1:
        return "", ""
    scheme, _, credential = headers[0].partition(" ")
    return scheme.lower(), credential.strip()


def _same(credential: str, wanted: Secret) -> bool:
    # Digests have one length, so that the time does not depend on the length of the secret. "surrogateescape": headers may have any bytes.
    digests = (sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (credential, wanted.reveal()))
    return hmac.compare_digest(*digests)
