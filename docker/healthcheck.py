"""The image's health check: exit code 0 if the daemon answers `/healthz` with 200.

`CDFD_HEALTH_URL` is the address if `http.listen` is not at port 9464, or `none` if there is no server. It uses the standard library only: it
runs every 30 seconds, and must not cost what an import of cdfd costs.
"""

import http.client
import os
import sys
from urllib.parse import urlsplit

TIMEOUT = 4.0  # seconds; less than the one of HEALTHCHECK, so that the reason is printed


def main() -> int:
    """Print what is wrong, if anything is; the exit code."""
    url = os.environ.get("CDFD_HEALTH_URL", "http://127.0.0.1:9464/healthz")
    if url == "none":
        return 0
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "127.0.0.1", place.port or 80, timeout=TIMEOUT)
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


if __name__ == "__main__":
    sys.exit(main())
