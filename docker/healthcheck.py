"""The image's health check: exit code 0 if the daemon answers `/healthz` with 200.

`CDFD_HEALTH_URL` is the address if `http.listen` is not at port 9464, or `none` if there is no server. With TLS, `CDFD_HEALTH_CA` is the file
of the authority's certificate, or `none` for a check that accepts any certificate. It uses the standard library only: it
runs every 30 seconds, and must not cost what an import of cdfd costs.
"""

import http.client
import os
import ssl
import sys
from urllib.parse import urlsplit

TIMEOUT = 4.0  # seconds; less than the one of HEALTHCHECK, so that the reason is printed


def main() -> int:
    """Print what is wrong, if anything is; the exit code."""
    url = os.environ.get("CDFD_HEALTH_URL", "http://127.0.0.1:9464/healthz")
    if url == "none":
        return 0
    place = urlsplit(url)
    host = place.hostname or "127.0.0.1"
    connection: http.client.HTTPConnection
    try:
        if place.scheme == "https":
            connection = http.client.HTTPSConnection(host, place.port or 443, timeout=TIMEOUT, context=tls())
        else:
            connection = http.client.HTTPConnection(host, place.port or 80, timeout=TIMEOUT)
    except OSError as error:
        sys.stdout.write(f"CDFD_HEALTH_CA: {error}\n")
        return 1
    try:
        connection.request("GET", place.path or "/")
        response = connection.getresponse()
        body = response.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        sys.stdout.write(f"{url}: {error}\n")
        return 1
    finally:
        connection.close()
    if response.status != http.client.OK:
        sys.stdout.write(f"{url}: {response.status} {body}\n")
        return 1
    return 0


def tls() -> ssl.SSLContext:
    """Of the authority in `CDFD_HEALTH_CA`, or of those that the system trusts."""
    authority = os.environ.get("CDFD_HEALTH_CA")
    if authority == "none":  # as the kubelet's probes do; no credentials are sent
        return ssl._create_unverified_context()
    return ssl.create_default_context(cafile=authority)


if __name__ == "__main__":
    sys.exit(main())
