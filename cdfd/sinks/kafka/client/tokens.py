"""Tokens for the mechanism OAUTHBEARER, shared by all connections with the same settings.

Hundreds of tables log in at the same time. One of them asks for the token, and the others wait for the answer, whether it is a token or an
error. A token is renewed after 80 % of its lifetime. If that fails, it stays in use until it expires.
"""

import json
import logging
import re
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from cdfd.config.values import Secret
from cdfd.errors import SinkError

log = logging.getLogger("cdfd.kafka")

TOKEN = re.compile(r"[\x21-\x7e]+")
"""Visible characters only: a control character would end the token in the message of a login, or its header."""
UNKNOWN_LIFETIME = 60.0
"""Lifetime in seconds of a token that does not state any."""
_RENEWED_AFTER = 0.8
_RETRY_SECONDS = 10.0
# How long an error is the answer for all tables. Each of them would ask again, and wait for a time-out.
_FAILURE_SECONDS = 1.0
_MOST_SOURCES = 16


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
        value: its text. Never show it.
        expires: end of its lifetime, in seconds since the Unix epoch.
        since: when it was issued, as `expires`.
    """

    value: str = field(repr=False)
    expires: float
    since: float


class TokenFailure(KafkaError):  # type: ignore[misc]  # kafka-python has no types
    """There is no token. kafka-python passes on only errors of its own.

    Attributes:
        error: why.
    """

    def __init__(self, error: SinkError) -> None:
        super().__init__(str(error))
        self.error = error


class Tokens:
    """The current token of a source. Thread-safe.

    Args:
        fetch: a new token, or a `SinkError`. It blocks for a limited time.
        cached: whether a token may be used again until it is renewed. Not for files, which are cheap to look at.
    """

    def __init__(self, fetch: Callable[[], Token], *, cached: bool = True) -> None:
        self._fetch = fetch
        self._cached = cached
        self._lock = Lock()
        self._token: Token | None = None
        self._failure: SinkError | None = None
        self._failed_at = float("-inf")
        self._fetched_at = float("-inf")

    def current(self) -> Token:
        """A token that is valid now.

        Raises:
            SinkError: there is none.
        """
        asked = time.monotonic()
        with self._lock:
            now, token = time.time(), self._token
            if token is not None and self._cached:
                is_young = now < token.since + (token.expires - token.since) * _RENEWED_AFTER
                waits = now < token.expires and time.monotonic() < self._failed_at + _RETRY_SECONDS
                if is_young or waits:
                    return token
            if self._failure is not None and self._failed_at >= asked - _FAILURE_SECONDS:
                raise self._failure
            try:
                self._token = self._fetch()
            except SinkError as error:
                self._failure, self._failed_at = error, time.monotonic()
                if token is None or now >= token.expires:
                    raise
                log.warning("%s. The earlier token stays in use for %d s", error, token.expires - now)
                return token
            self._failure, self._fetched_at = None, time.monotonic()
            return self._token

    def reject(self, since: float) -> bool:
        """Forget the token, because a broker refused it. Whether another one may be accepted.

        Args:
            since: start of the login, of `time.monotonic`. If the token is older, it may have been withdrawn.
        """
        with self._lock:
            self._token = None
            return self._fetched_at < since


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Tokens as kafka-python asks for them, at each login and each renewal of a session.

    Attributes:
        tokens: the source.
        mechanism: as it is configured.
    """

    def __init__(self, tokens: Tokens, mechanism: str, extensions: Mapping[str, str]) -> None:
        self.tokens = tokens
        self.mechanism = mechanism
        self._extensions = dict(extensions)

    def token(self) -> str:
        """The current token. `TokenFailure` if there is none."""
        try:
            return self.tokens.current().value
        except SinkError as error:
            raise TokenFailure(error) from error

    def extensions(self) -> dict[str, str]:
        """SASL extensions."""
        return self._extensions


_shared: dict[Hashable, Tokens] = {}
_shared_lock = Lock()


def shared_tokens(key: Hashable, make: Callable[[], Tokens]) -> Tokens:
    """The one source of tokens for these settings in this process."""
    with _shared_lock:
        tokens = _shared.get(key)
        if tokens is None:
            while len(_shared) >= _MOST_SOURCES:
                del _shared[next(iter(_shared))]
            tokens = _shared[key] = make()
        return tokens


def file_token(secret: Secret) -> Token:
    """The token of a mounted file. `SinkError` if it has expired: something else should have renewed the file."""
    value, now = secret.reveal(), time.time()
    if not TOKEN.fullmatch(value):
        # Clients name headers that they refuse, so it must not come that far.
        raise SinkError(
            "the file of sink.security.oauth.token_file has a space, a second line or another character that no token has",
            hint="Write the token alone into the file",
            retriable=True,
        )
    expires = expiry(value)
    if expires is not None and expires <= now:
        raise SinkError(
            f"the token of sink.security.oauth.token_file expired {now - expires:.0f} s ago",
            hint="Check the process that renews the file, and this machine's clock",
            retriable=True,
        )
    return Token(value, expires or now + UNKNOWN_LIFETIME, now)


def expiry(token: str) -> float | None:
    """The claim `exp` of a token, in seconds since the Unix epoch; None if it is not a JSON Web Token that has one.

    The signature is the broker's to check.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims: Any = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    expires = claims.get("exp") if isinstance(claims, dict) else None
    return float(expires) if isinstance(expires, int | float) and abs(expires) < 1e12 else None
