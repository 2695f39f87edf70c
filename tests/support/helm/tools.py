"""The real `helm` and `promtool`, made or fetched once into the cache."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.cache import CACHE, ROOT, locked

HELM = ROOT / ".cache" / "helm" / "helm"
PROMTOOL = CACHE / "promtool" / "promtool"
_SECONDS = 2400  # Helm takes three minutes of processor time, on a busy machine much longer


def missing() -> str | None:
    """Why the tools cannot be had here, or None."""
    if not HELM.exists() and shutil.which("go") is None:
        return "helm is built by Go: there is no `go` on the PATH, and none was built before"
    if not PROMTOOL.exists() and shutil.which("apt-get") is None:
        return "promtool comes from Debian's package prometheus: there is no `apt-get`, and none was fetched before"
    return None


def helm() -> Path:
    """`make helm`, where it is not made yet."""
    with locked(HELM.parent):
        if not HELM.exists():
            subprocess.run(["make", "helm"], cwd=ROOT, check=True, capture_output=True, timeout=_SECONDS)
    return HELM


def promtool() -> Path:
    """The one of Debian's package."""
    folder = PROMTOOL.parent
    with locked(folder):
        if not PROMTOOL.exists():
            if not any(Path("/var/lib/apt/lists").glob("*Packages*")):
                subprocess.run(["apt-get", "update"], check=True, capture_output=True, timeout=_SECONDS)
            download = ["apt-get", "download", "prometheus"]
            subprocess.run(download, cwd=folder, check=True, capture_output=True, timeout=_SECONDS)
            package = next(folder.glob("prometheus_*.deb"))
            subprocess.run(["dpkg-deb", "--extract", package, folder / "files"], check=True, timeout=_SECONDS)
            (folder / "files" / "usr" / "bin" / "promtool").rename(PROMTOOL)
            shutil.rmtree(folder / "files")
            package.unlink()
    return PROMTOOL


def environment() -> dict[str, str]:
    """Variables for `helm` without the user's repositories, plugins and cluster."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HELM_", "KUBE"))}
    return inherited | {"HELM_PLUGINS": os.devnull, "KUBECONFIG": os.devnull}
