"""Certificates and keys of the connections to Kafka. Both clients read the files themselves; here they are checked first."""

import ssl
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cdfd.errors import ConfigError
from cdfd.runtime.mounted import FileState, states_of
from cdfd.sinks.kafka.security import Security

# Codes of OpenSSL's verification.
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAMES = frozenset({62, 63, 64})


class TlsFiles:
    """The files of a client that reads them only once.

    Args:
        options: the client's arguments, of `connection.arguments`. Make it before the client reads the files.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._paths = [options.get(f"ssl_{name}file") for name in ("ca", "cert", "key")]
        self._password = options.get("ssl_password")
        self._states = states_of(self._paths)

    def changed(self) -> bool:
        """Whether there are other files than the client has read, that fit together."""
        states = states_of(self._paths)
        if states == self._states:
            return False
        authority, certificate, key = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if authority is not None:
                context.load_verify_locations(authority)
            if certificate is not None:
                context.load_cert_chain(certificate, key, "" if self._password is None else str(self._password.now()))
        except OSError:  # SSLError is one
            return False
        self._states = states
        return True


_loaded: dict[Hashable, tuple[tuple[FileState, ...], ssl.SSLContext]] = {}


def load_files(key: Hashable, paths: Sequence[str | None], load: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """The result of `load`, the same until files change: each table that is opened asks, and a file of authorities takes 25 ms.

    Args:
        key: of the result.
        paths: of the files.
        load: reads them. Its errors are raised, and it is called again the next time.
    """
    states = states_of(paths)  # before the content: a change in between is seen at the next call
    if key not in _loaded or _loaded[key][0] != states:
        _loaded[key] = states, load()
    return _loaded[key][1]


def check_files(security: Security) -> None:
    """Load certificates and keys, unless that was done. The error names the setting that is wrong.

    Raises:
        ConfigError: a file cannot be used.
    """
    # Without a password, OpenSSL would prompt for one on the terminal.
    password = "" if security.key_password is None else security.key_password.reveal()

    def load() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if security.ca_path is not None:
            with _usable("ca_path", security.ca_path, "Expected certificates as PEM"):
                context.load_verify_locations(security.ca_path)
        if security.certificate_path is not None and security.key_path is not None:
            with _usable("certificate_path", security.certificate_path, "Expected a readable file"):
                open(security.certificate_path, "rb").close()
            with _usable("key_path", security.key_path, "Expected the certificate's key as PEM, and its key_password"):
                open(security.key_path, "rb").close()
                context.load_cert_chain(security.certificate_path, security.key_path, password)
        return context

    paths = security.ca_path, security.certificate_path, security.key_path
    load_files(("sink.security", *paths, password), paths, load)


@contextmanager
def _usable(name: str, path: str, hint: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        reason = (error.reason or "not PEM").replace("_", " ").lower()
        raise ConfigError(f"sink.security.{name} cannot be used: {reason}", path=path, hint=hint) from error
    except OSError as error:
        raise ConfigError(f"sink.security.{name} cannot be read: {error.strerror}", path=path, hint=hint) from error


def explain_untrusted(
    error: ssl.SSLCertVerificationError, whose: str, names: str, setting: str, authority: str | None
) -> tuple[str, str]:
    """The reason why the certificate of a server is not accepted, and a hint.

    Args:
        error: of the handshake.
        whose: the certificate, in a sentence.
        names: the settings that have the server's name.
        setting: the key for the file of authorities.
        authority: that file; None: the system's authorities.
    """
    if error.verify_code == _EXPIRED:
        return (
            f"{whose} is not trusted: it has expired",
            "Renew it, or its authority's certificate, and check this machine's clock",
        )
    if error.verify_code == _NOT_YET_VALID:
        return f"{whose} is not trusted: it is not valid yet", "Check this machine's clock"
    reason = f"{whose} is not trusted: {error.verify_message.rstrip('.')}"
    if error.verify_code in _OTHER_NAMES:
        return reason, f"Use a name of the certificate in {names}"
    if authority is None:
        return reason, f"Set {setting} to the file of the authority that issued it: this system does not know it"
    return reason, f"Check that {setting}, {authority}, has the authority that issued it"
