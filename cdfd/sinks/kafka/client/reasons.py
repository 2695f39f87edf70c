"""The reasons of failed connections to Kafka, with hints that name settings and files."""

import ssl
from collections.abc import Mapping
from typing import Any

from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    KafkaProtocolError,
    NodeNotReadyError,
    SaslAuthenticationFailedError,
    UnknownBrokerIdError,
    UnsupportedSaslMechanismError,
)

from cdfd.config.certificates import has_expired
from cdfd.sinks.kafka.client.certificates import explain_untrusted
from cdfd.sinks.kafka.client.login import login_hint, login_name, mechanism_of
from cdfd.sinks.kafka.client.tokens import TokenFailure


def hangup(options: Mapping[str, Any]) -> tuple[str, str | None]:
    """The reason and a hint, if a broker ends each connection during the login."""
    mechanism = mechanism_of(options)
    return (
        f"the broker closes the connection during the login, and may have refused {login_name(mechanism)}",
        f"{login_hint(mechanism)}, and whether sink.security.protocol fits the port",
    )


def reason_of(error: Exception, options: Mapping[str, Any] | None = None) -> tuple[str, str | None]:
    """The reason of a failed connection, and a hint.

    Args:
        error: of kafka-python.
        options: the client's arguments, if they are known.
    """
    options = options or {}
    mechanism = mechanism_of(options)
    text = ", ".join(str(part) for part in error.args)
    tls = tls_error(error)
    match error:
        case TokenFailure():
            return error.error.what, error.error.hint
        case SaslAuthenticationFailedError():
            return f"the broker refused {login_name(mechanism)} ({text})", login_hint(mechanism)
        case UnsupportedSaslMechanismError():
            return f"the broker does not support the mechanism ({text})", "Check sink.security.mechanism"
        case IllegalSaslStateError():
            return "the port does not use a login", "Check sink.security.protocol, and the port"
        case AuthorizationError():
            return f"access is denied ({text})", "Give the user of sink.security access to the cluster"
        case KafkaProtocolError():
            return (
                f"the server is not a Kafka broker ({text})",
                "Check the port, and whether sink.security.protocol fits it",
            )
        case UnknownBrokerIdError():
            return "a partition has no leader", "Check that all brokers run"
        case NodeNotReadyError():
            return "no broker is reachable", "Check that brokers run, and that their advertised.listeners are reachable"
    if tls is not None:
        return tls_reason(tls, options)
    if "DNS" in text:
        return "the host does not exist", "Check sink.bootstrap_servers, and advertised.listeners of the brokers"
    if "ECONNREFUSED" in text:
        return "connection refused", "Check that a broker runs there"
    hint = "Check that a broker runs there, and that sink.security.protocol fits the port"
    return text or "the connection ended without a response", hint


def tls_error(error: Exception) -> ssl.SSLError | None:
    """The error of the TLS handshake. A connection that ended during the handshake is not one."""
    for cause in (error, error.__cause__, error.__context__, *error.args):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return cause
    return None


def tls_reason(error: ssl.SSLError, options: Mapping[str, Any]) -> tuple[str, str]:
    """The reason of a failed handshake with a broker, and a hint."""
    if isinstance(error, ssl.SSLCertVerificationError):
        names = "sink.bootstrap_servers and the brokers' advertised.listeners"
        return explain_untrusted(
            error, "the broker's certificate", names, "sink.security.ca_path", options.get("ssl_cafile")
        )
    reason = error.reason or str(error)
    # Brokers say little: a Java broker refuses a missing certificate as bad, and an expired one as unknown.
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
        if certificate is None or key is None:
            return (
                f"the broker wants a client certificate ({reason})",
                "Set sink.security.certificate_path and key_path, or use a port without client certificates",
            )
        if has_expired(certificate, key, str(options.get("ssl_password") or "")):
            return (
                f"the broker refused the client's certificate, which has expired ({reason})",
                f"Renew sink.security.certificate_path, {certificate}",
            )
        return (
            f"the broker refused the client's certificate ({reason})",
            f"Check that the brokers trust the authority that issued sink.security.certificate_path, {certificate}",
        )
    return f"TLS failed: {reason}", "Check the port, sink.security.protocol, and certificates"
