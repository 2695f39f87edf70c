"""Ask whether all pods are ready, and whether one of them delivers. `helm test` runs it in a pod."""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request

URL = os.environ["CDFD_READY_URL"]
REQUESTS = 50
"""The service chooses a pod for each connection: so many reach each of a few pods, but for one in a thousand tests."""


def answer() -> tuple[int, dict]:
    """The status and the JSON document of a response. Any certificate will do, as for probes: no secret is sent."""
    context = ssl._create_unverified_context() if URL.startswith("https") else None
    try:
        with urllib.request.urlopen(URL, timeout=4, context=context) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return error.code, json.load(error)


def main() -> int:
    """The exit code. Prints what is not ready."""
    roles = set()
    for _ in range(REQUESTS):
        try:
            status, document = answer()
        except OSError as error:
            sys.stdout.write(f"{URL}: {error}\n")
            return 1
        if status != 200:
            sys.stdout.write(f"not ready: {json.dumps(document.get('not_ready', 'see /status'))}\n")
            return 1
        roles.add(document["role"])
    if roles == {"standby"}:
        sys.stdout.write("all processes stand by, and none delivers\n")
        return 1
    sys.stdout.write("ready\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
