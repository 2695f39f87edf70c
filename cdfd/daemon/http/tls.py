"""TLS of the daemon's HTTP server. Each new connection uses the files as they are then."""

import logging
import ssl
from typing import Any

from cdfd.config.certificates import warn_of_expiry
from cdfd.config.sections import HttpTls
from cdfd.errors import ConfigError
from cdfd.runtime.mounted import states_of

logger = logging.getLogger("cdfd.http")


class ServerTls:
    """The TLS context of a server, which follows its files.

    The context is chosen in each handshake, at the client's hello. Files that cannot be used, such as a certificate whose key is not there
    yet, do not change it: the log has one warning then.

    Args:
        settings: the section `http.tls`.

    Raises:
        ConfigError: a file cannot be used.
    """

    def __init__(self, settings: HttpTls) -> None:
        self._settings = settings
        self._paths = (settings.certificate, settings.key, settings.client_ca)
        self._states = states_of(self._paths)  # before the content: a change in between is seen at the next connection
        self._current = _context(settings)
        self.context = _context(settings)
        # A resumed session would keep a certificate or a client that is no longer valid.
        self.context.options |= ssl.OP_NO_TICKET
        self.context.num_tickets = 0
        # Despite its name, OpenSSL calls it for clients without server name indication, too.
        self.context.sni_callback = self._choose

    def warn_of_expiry(self) -> None:
        """Log a warning if the certificate has expired, or soon will."""
        warn_of_expiry("http.tls", self._settings.certificate, self._settings.key)

    def _choose(self, connection: Any, _name: str | None, _default: ssl.SSLContext) -> None:
        states = states_of(self._paths)
        if states != self._states:
            self._states = states
            try:
                self._current = _context(self._settings)
            except ConfigError as error:
                logger.warning("%s. The earlier certificate stays in use", error)
            else:
                logger.info("the files of http.tls have changed and are read again")
                self.warn_of_expiry()
        connection.context = self._current


def _context(settings: HttpTls) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _use("certificate", settings.certificate)
    _use("key", settings.key)
    try:
        # Without a password, OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(settings.certificate, settings.key, "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise _unusable(
            "key", settings.key, error, "Expected the certificate's key as PEM, without a password"
        ) from None
    if settings.client_ca is not None:
        _use("client_ca", settings.client_ca)
        try:
            context.load_verify_locations(settings.client_ca)
        except OSError as error:
            raise _unusable("client_ca", settings.client_ca, error, "Expected certificates as PEM") from None
        # Not required: probes have no certificate. `access` refuses everything else without one.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _use(name: str, path: str) -> None:
    try:
        open(path, "rb").close()
    except OSError as error:
        raise ConfigError(
            f"http.tls.{name} cannot be read: {error.strerror}", path=path, hint="Expected a readable PEM file"
        ) from None


def _unusable(name: str, path: str, error: Exception, hint: str) -> ConfigError:
    reason = (getattr(error, "reason", None) or "not PEM").replace("_", " ").lower()
    return ConfigError(f"http.tls.{name} cannot be used: {reason}", path=path, hint=hint)
