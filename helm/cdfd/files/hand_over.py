"""Delete the pod that leads, and wait until another one does. `helm test` runs it in a pod that may do so."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = os.environ.get("CDFD_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount")
API, PODS, PORT, SCHEME = (os.environ[f"CDFD_{name}"] for name in ("API", "PODS", "PORT", "SCHEME"))
WITHIN_SECONDS = 60.0


def answer(url: str, method: str = "GET", token: str | None = None, authorities: str | None = None) -> dict:
    """The JSON document of a response, whatever its status. Without `authorities`, any certificate will do: no secret is sent."""
    request = urllib.request.Request(url, method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=authorities)
    if authorities is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(
            request, timeout=5, context=context if url.startswith("https") else None
        ) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return json.load(error)


def kubernetes(path: str, method: str = "GET") -> dict:
    """An answer of the API of Kubernetes."""
    with open(f"{ACCOUNT}/token") as file:
        token = file.read()
    return answer(API + path, method, token, f"{ACCOUNT}/ca.crt" if API.startswith("https") else None)


def roles() -> dict[str, str]:
    """The role of each pod that answers, by its name."""
    found = {}
    for pod in kubernetes(PODS)["items"]:
        address = pod["status"].get("podIP")
        if address and "deletionTimestamp" not in pod["metadata"]:
            host = f"[{address}]" if ":" in address else address
            try:
                found[pod["metadata"]["name"]] = answer(f"{SCHEME}://{host}:{PORT}/readyz")["role"]
            except OSError:
                continue  # it starts, or ends
    return found


def wait_for_leader(after: str | None = None) -> str:
    """The name of the pod that leads while another one stands by; not the pod `after`."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while time.monotonic() < deadline:
        known = roles()
        leaders = [name for name, role in known.items() if role == "leader" and name != after]
        if leaders and (after is not None or "standby" in known.values()):
            return leaders[0]
        time.sleep(0.05)
    sys.exit(f"no pod leads while another one stands by, within {WITHIN_SECONDS:g} s: {known}")


first = wait_for_leader()
sys.stdout.write(f"{first} leads. It is deleted\n")
sys.stdout.flush()
kubernetes(f"{PODS.partition('?')[0]}/{first}", "DELETE")
began = time.monotonic()
second = wait_for_leader(first)
sys.stdout.write(f"{second} leads {time.monotonic() - began:.2f} s later\n")
