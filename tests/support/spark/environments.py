"""Virtual environments with other packages than the tests' own: what they lack comes from there. Made once for an installation."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.cache import CACHE, ROOT, locked

_SECONDS = 600

CONNECT = ("grpcio>=1.76", "grpcio-status>=1.76", "zstandard>=0.25", "pandas>=2.2")
"""The packages that a client of Spark Connect needs besides PySpark."""

FRAMES = ("duckdb>=1.4", "pandas>=3", "polars>=1.30")
"""Libraries of data frames that take Arrow streams. They are not among the tests' own packages: pyarrow imports pandas where it is."""

NEXT_SPARK = ("pyspark==4.2.1",)
"""The version of Spark after the one that all tests run with."""


def python(*requirements: str) -> Path:
    """The interpreter of an environment with some packages, installed first where it is missing. Several processes may ask at once."""
    own = sysconfig.get_path("purelib")
    key = hashlib.sha256("\n".join([sys.version, own, *requirements]).encode()).hexdigest()[:16]
    place = CACHE / "spark-environments" / key
    with locked(place.with_name(f"{key}-lock")):
        if not (place / "complete").exists():
            _make(place, requirements, own)
    return place / "bin" / "python"


def variables() -> dict[str, str]:
    """For its processes: they import this tree, and Spark's Python processes are of the same environment."""
    left_out = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {"PYTHONPATH": str(ROOT)}


def _make(place: Path, requirements: tuple[str, ...], own: str) -> None:
    print(f"installing {', '.join(requirements)}, once", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=_SECONDS)
    pip = [sys.executable, "-m", "pip", "--python", str(place), "install", "--quiet", "--no-compile"]
    uncompressed = {"DIST_EXTRA_CONFIG": str(ROOT / ".ci" / "wheels.cfg")}
    subprocess.run([*pip, *requirements], env=os.environ | uncompressed, check=True, timeout=_SECONDS)
    (packages,) = place.glob("lib/python*/site-packages")
    # After its own packages, and with the links of this folder.
    (packages / "_tests.pth").write_text(f"import site; site.addsitedir({own!r})\n")
    (place / "complete").touch()


if __name__ == "__main__":
    print(python(*NEXT_SPARK))
