"""When a certificate expires, and a warning before it does."""

import logging
import ssl
import time
from contextlib import suppress

SOON_DAYS = 14
"""Days before the end of a certificate from which on there is a warning."""
_DAY = 86_400.0
# X509_V_FLAG_NO_CHECK_TIME, which Python has no name for.
_ANY_TIME = 0x200000

logger = logging.getLogger("cdfd.config")


def expiry(certificate: str, key: str, password: str = "") -> float | None:
    """The end of a certificate's validity, in seconds since the Unix epoch; None if it is not known.

    Python shows the fields of a certificate only to those who receive it in a handshake. So two ends shake hands in memory.

    Args:
        certificate: path of a PEM file.
        key: path of its key.
        password: of the key.
    """
    for at_server in (True, False):  # a certificate may be for one side only
        try:
            received = _receive(certificate, key, password, at_server=at_server)
        except (OSError, ValueError):  # SSLError is an OSError
            continue
        ends = None if received is None else received.get("notAfter")
        if isinstance(ends, str):
            return ssl.cert_time_to_seconds(ends)
    return None


def _receive(certificate: str, key: str, password: str, *, at_server: bool) -> dict[str, object] | None:
    """A certificate as one end receives it from the other."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    for context in (server, client):
        context.load_cert_chain(certificate, key, password)
    receiver = server if at_server else client
    receiver.load_verify_locations(certificate)  # it trusts the certificate itself
    receiver.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME
    receiver.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(4):  # flights of a handshake
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    peer_certificate = ends[1 if at_server else 0].getpeercert()
    return None if peer_certificate is None else dict(peer_certificate)


def has_expired(certificate: str, key: str, password: str = "") -> bool:
    """Whether a certificate is known to have expired."""
    ends = expiry(certificate, key, password)
    return ends is not None and ends < time.time()


def warn_of_expiry(setting: str, certificate: str, key: str, password: str = "") -> None:
    """Log a warning if a certificate has expired, or soon will."""
    ends = expiry(certificate, key, password)
    if ends is None:
        return
    days = (ends - time.time()) / _DAY
    if days < 0:
        logger.warning("the certificate of %s has expired: renew %s", setting, certificate)
    elif days < SOON_DAYS:
        logger.warning("the certificate of %s expires in %.1f days: renew %s", setting, days, certificate)
