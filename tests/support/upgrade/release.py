"""cdfd as of another commit, with a `cdfd-native` and dependencies of its own, on top of the tests' packages. Made once for each commit."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.cache import CACHE, ROOT, locked
from tests.support.upgrade.copies import WRITTEN_BY

COMMIT = os.environ.get("CDFD_UPGRADE_FROM", WRITTEN_BY)
"""The commit, tag or branch that is upgraded."""
_SECONDS = 1800
_LAUNCHER = Path(__file__).with_name("launcher.py")


def command() -> list[str]:
    """The command `cdfd` of `COMMIT`, which delivers versions in small parts.

    Raises:
        RuntimeError: git does not have the commit, or it cannot be installed.
    """
    commit = _run("git", "rev-parse", "--verify", f"{COMMIT}^{{commit}}").strip()
    own = sysconfig.get_path("purelib")
    place = CACHE / "releases" / f"{commit[:16]}-{sys.version_info.major}.{sys.version_info.minor}"
    with locked(place.with_name(f"{place.name}-lock")):
        if not (place / "complete").exists():
            _make(place, commit)
    # The packages that tests have come last: an installation of this checkout is among them.
    return [sys.executable, "-P", "-S", str(_LAUNCHER), str(place / "packages"), str(place / "source"), own]


def _make(place: Path, commit: str) -> None:
    print(f"installing cdfd as of {commit[:12]}, once", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    (place / "source").mkdir(parents=True)
    archive = place / "source.tar"
    _run("git", "archive", "--output", str(archive), commit, "cdfd", "native", "README.md", "LICENSE", "pyproject.toml")
    _run("tar", "-xf", str(archive), "-C", str(place / "source"))
    archive.unlink()
    (place / "packages").mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place / "packages")]
    project = tomllib.loads((place / "source" / "pyproject.toml").read_text())["project"]
    installed = {canonicalize_name(each.name) for each in distributions()}
    needed = [Requirement(each) for each in project["dependencies"]]
    missing = [str(each) for each in needed if canonicalize_name(each.name) not in {*installed, "cdfd-native"}]
    if missing:
        _run(*pip, *missing)
    if shutil.which("cargo") is not None:
        _run(*pip, str(place / "source" / "native"))
    (place / "complete").touch()


def _run(*command: str) -> str:
    settings = {
        "CARGO_TARGET_DIR": str(CACHE / "cargo"),
        "CARGO_PROFILE_RELEASE_LTO": "off",
        "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    }
    settings["DIST_EXTRA_CONFIG"] = str(ROOT / ".ci" / "wheels.cfg")
    done = subprocess.run(
        command, cwd=ROOT, env={**settings, **os.environ}, capture_output=True, text=True, timeout=_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout
