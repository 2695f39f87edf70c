"""A token endpoint of an identity provider: the grant `client_credentials` of OAuth 2.0 (RFC 6749, section 4.4)."""

import json
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

from cdfd.errors import SinkError
from cdfd.escaping import one_line
from cdfd.sinks.kafka.client.certificates import explain_untrusted
from cdfd.sinks.kafka.client.tokens import TOKEN, UNKNOWN_LIFETIME, Token, expiry
from cdfd.sinks.kafka.security import OAuth

TIMEOUT: Final = 10.0
"""Longest request, in seconds."""
_MOST_BYTES: Final = 1 << 18
_LONGEST_TEXT: Final = 300
_RETRIED: Final = frozenset({408, 425, 429})
_URL = "sink.security.oauth.token_url"
_HINTS: Final = {
    "invalid_client": "Check sink.security.oauth.client_id and client_secret. Some providers want client_authentication: post",
    "invalid_scope": "Check sink.security.oauth.scope",
    "unauthorized_client": "Allow the grant client_credentials for this client at the identity provider",
    "unsupported_grant_type": f"Check {_URL}, and that the provider has the grant client_credentials",
    "invalid_request": "Check sink.security.oauth.scope and parameters: the provider may want an audience",
}


def sent_in_the_clear(url: str) -> bool:
    """Whether requests leave this machine without TLS."""
    place = urlsplit(url)
    return place.scheme == "http" and place.hostname not in ("127.0.0.1", "::1", "localhost")


def fetch(oauth: OAuth, timeout: float = TIMEOUT) -> Token:
    """A new token.

    Raises:
        SinkError: the endpoint does not answer, or refuses. Only what may pass by itself is retriable. The text has no secret.
    """
    assert oauth.token_url is not None
    assert oauth.client_id is not None
    assert oauth.client_secret is not None
    secret = oauth.client_secret.reveal()
    asked = time.time()
    status, body = _post(oauth, oauth.token_url, oauth.client_id, secret, timeout)
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    fields = answer if isinstance(answer, dict) else {}
    if status != 200:
        raise _refusal(status, fields, oauth.token_url, secret)
    cannot, value = _cannot(oauth.token_url), fields.get("access_token")
    if not isinstance(value, str) or not TOKEN.fullmatch(value):
        raise SinkError(f"{cannot}: its answer has no access_token", hint=f"Check {_URL}: is it a token endpoint?")
    kind = fields.get("token_type", "Bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise SinkError(f"{cannot}: the token is not of the type Bearer", hint=f"Check {_URL}")
    lifetime = fields.get("expires_in")
    if isinstance(lifetime, str) and lifetime.isdecimal():  # some providers
        lifetime = int(lifetime[:12])
    if isinstance(lifetime, int | float) and 0 < lifetime < 1e12:
        # Relative to this machine's clock, unlike the token's own claim.
        return Token(value, asked + lifetime, asked)
    return Token(value, expiry(value) or asked + UNKNOWN_LIFETIME, asked)


def _post(oauth: OAuth, url: str, client: str, secret: str, timeout: float) -> tuple[int, bytes]:
    """Status and body of the answer."""
    import urllib3  # takes 4 % of a start, which needs no token

    form = {"grant_type": "client_credentials", **oauth.parameters}
    form |= {} if oauth.scope is None else {"scope": oauth.scope}
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded", "User-Agent": "cdfd"}
    if oauth.client_authentication == "post":
        form |= {"client_id": client, "client_secret": secret}
    else:
        pair = f"{quote_plus(client)}:{quote_plus(secret)}"
        headers["Authorization"] = "Basic " + b64encode(pair.encode()).decode()
    deadline = time.monotonic() + timeout
    try:
        # One pool for one request: tokens are rare, and the authority's file may have changed since the last one.
        with urllib3.PoolManager(ssl_context=_tls(oauth), retries=False) as pool:
            response = pool.request(
                "POST",
                url,
                body=urlencode(form),
                headers=headers,
                timeout=urllib3.Timeout(total=timeout),
                redirect=False,  # could lead anywhere, with the secret
                preload_content=False,
            )
            try:
                return response.status, _read_bounded(response, url, deadline)
            finally:
                response.close()
    except urllib3.exceptions.HTTPError as error:
        raise _unreachable(error, url, oauth.ca_path) from None
    except (UnicodeError, ValueError) as error:
        raise SinkError(f"{_cannot(url)}: {error}", hint=f"Check {_URL}") from None


def _tls(oauth: OAuth) -> ssl.SSLContext | None:
    if oauth.token_url is None or not oauth.token_url.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=oauth.ca_path)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or "not PEM"
        raise SinkError(
            f"sink.security.oauth.ca_path cannot be used: {reason}",
            path=oauth.ca_path,
            hint="Expected a readable file of certificates as PEM",
        ) from None


def _read_bounded(response: Any, url: str, deadline: float) -> bytes:
    body = b""
    while chunk := response.read1(1 << 16):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise SinkError(f"{_cannot(url)}: its answer is larger than {_MOST_BYTES} bytes", hint=f"Check {_URL}")
        if time.monotonic() > deadline:
            raise SinkError(f"{_cannot(url)}: its answer is too slow", hint=_REACHABLE, retriable=True)
    return body


_REACHABLE = f"Check {_URL}, and whether the identity provider runs and this machine can reach it"


def _cannot(url: str) -> str:
    return f"cannot get a token from {url}"


def _unreachable(error: Exception, url: str, authority: str | None) -> SinkError:
    reason = getattr(error, "reason", None) or error
    for cause in (error, reason, *getattr(error, "args", ()), *getattr(reason, "args", ())):
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason, hint = explain_untrusted(cause, "its certificate", _URL, "sink.security.oauth.ca_path", authority)
            return SinkError(f"{_cannot(url)}: {reason}", hint=hint)
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return SinkError(f"{_cannot(url)}: TLS failed: {cause.reason or cause}", hint=f"Check the port in {_URL}")
    text = str(reason).rpartition(": ")[2] if ">: " in str(reason) else str(reason)
    return SinkError(f"{_cannot(url)}: {_show(text)}", hint=_REACHABLE, retriable=True)


def _refusal(status: int, fields: Mapping[str, Any], url: str, secret: str) -> SinkError:
    code, text = (fields.get(name) for name in ("error", "error_description"))
    said = ": ".join(part for part in (code, text) if isinstance(part, str))
    for form in {secret, quote_plus(secret)}:
        said = said.replace(form, "***")  # a server may repeat what it was sent
    what = f"{_cannot(url)}: {status}" + (f" {_show(said)}" if said else "")
    if status >= 500 or status in _RETRIED:
        return SinkError(what, hint="The identity provider may recover. Otherwise look into its log", retriable=True)
    if 300 <= status < 400:
        return SinkError(f"{what}, a redirect", hint=f"Set {_URL} to the address that it leads to")
    default = _HINTS["invalid_client"] if status in (401, 403) else f"Check {_URL}"
    return SinkError(what, hint=_HINTS.get(code, default) if isinstance(code, str) else default)


def _show(text: str) -> str:
    return one_line(" ".join(text[:_LONGEST_TEXT].split()))
