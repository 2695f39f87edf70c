"""The login at a broker: user and password, or a token, as they are now.

kafka-python copies its arguments into each new connection. `Credentials.refresh` puts the current text of mounted files into them before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from cdfd.config.values import Secret, UserName
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client import token_endpoint
from cdfd.sinks.kafka.client.tokens import TokenProvider, Tokens, file_token, shared_tokens
from cdfd.sinks.kafka.security import Aws, OAuth, Security

_HINTS = {
    "OAUTHBEARER": "Check sink.security.oauth, and that the brokers trust its issuer, with this audience and scope and correct clocks",
    "AWS_MSK_IAM": "Give the role of this process kafka-cluster:Connect on the cluster, and check sink.security.aws and the clock",
}


def login_hint(mechanism: str | None) -> str:
    """A remedy for a refused login."""
    return _HINTS.get(mechanism or "", "Check sink.security.username and password")


def login_name(mechanism: str | None) -> str:
    """The credentials of a mechanism, as errors name them."""
    return "the token" if mechanism in _HINTS else "user name or password"


class SecretArgument(str):
    """The text of a secret in a client's arguments. kafka-python logs the `repr` of all of them.

    Attributes:
        secret: where the text comes from.
    """

    secret: Secret

    def __new__(cls, secret: Secret) -> Self:
        """The current text of a secret."""
        made = super().__new__(cls, secret.reveal())
        made.secret = secret
        return made

    def __repr__(self) -> str:
        return super().__repr__() if isinstance(self.secret, UserName) else "'***'"

    def __getnewargs__(self) -> tuple[Secret]:  # type: ignore[override]  # of str, whose one argument is its text
        return (self.secret,)

    def now(self) -> SecretArgument:
        """The same argument with the current text."""
        return self if self.secret.reveal() == self else SecretArgument(self.secret)


class Credentials:
    """The credentials of one of kafka-python's network clients.

    Args:
        options: its configuration, which is changed.
        since: start of its login, of `time.monotonic`.
    """

    def __init__(self, options: dict[str, Any], since: float) -> None:
        self._since = since
        self.mechanism = mechanism_of(options)
        self._options = options
        self._arguments = [name for name, value in options.items() if isinstance(value, SecretArgument)]
        self.refresh()

    def refresh(self) -> bool:
        """Use the current credentials for new connections. Whether they differ from the earlier ones."""
        changed = False
        for name in self._arguments:
            now = self._options[name].now()
            changed |= now is not self._options[name]
            self._options[name] = now
        return changed

    def user(self) -> tuple[str, str]:
        """User name and password."""
        return str(self._options["sasl_plain_username"]), str(self._options["sasl_plain_password"])

    def renewed(self) -> bool:
        """Whether a login that was refused can be tried again, with other credentials."""
        provider = self._options.get("sasl_oauth_token_provider")
        return self.refresh() if provider is None else provider.tokens.reject(self._since)


def mechanism_of(options: Mapping[str, Any]) -> str | None:
    """The configured mechanism, from a client's arguments."""
    provider = options.get("sasl_oauth_token_provider")
    return options.get("sasl_mechanism") if provider is None else str(provider.mechanism)


def login(security: Security, servers: Sequence[str]) -> dict[str, Any]:
    """The arguments of kafka-python for a login; none without SASL.

    Raises:
        ConfigError: the library for the mechanism is not installed, or the region is not known.
    """
    match security.mechanism:
        case None:
            return {}
        case "OAUTHBEARER":
            assert security.oauth is not None
            provider = TokenProvider(oauth_tokens(security.oauth), "OAUTHBEARER", security.oauth.extensions)
        case "AWS_MSK_IAM":
            from cdfd.sinks.kafka.client import msk  # botocore is slow to import, and few need it

            msk.signer()
            aws = security.aws or Aws()
            region = msk.region_of(aws, servers)
            tokens = shared_tokens((region, *_key(aws)), lambda: Tokens(partial(msk.fetch, aws, region)))
            provider = TokenProvider(tokens, "AWS_MSK_IAM", {})
        case mechanism:
            assert security.username is not None
            assert security.password is not None
            return {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": SecretArgument(security.username),
                "sasl_plain_password": SecretArgument(security.password),
            }
    return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}


def oauth_tokens(oauth: OAuth) -> Tokens:
    """The source of tokens for these settings."""
    if oauth.token is not None:
        return Tokens(partial(file_token, oauth.token), cached=False)
    return shared_tokens(_key(oauth), lambda: Tokens(partial(token_endpoint.fetch, oauth)))


def _key(settings: OAuth | Aws) -> tuple[Any, ...]:
    """The values of settings, as a key of a dictionary."""
    values = (getattr(settings, name) for name in type(settings).model_fields)
    return tuple(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values)


def ready(options: Mapping[str, Any]) -> None:
    """Get a token, if the login needs one, before a client asks for it: it would retry for long, and not say why.

    Raises:
        SinkError: there is none.
    """
    provider = options.get("sasl_oauth_token_provider")
    if provider is None:
        return
    doing = f"connect to Kafka at {', '.join(options['bootstrap_servers'])}"
    try:
        provider.tokens.current()
    except SinkError as error:
        raise SinkError(f"cannot {doing}: {error.what}", hint=error.hint, retriable=error.retriable) from error
