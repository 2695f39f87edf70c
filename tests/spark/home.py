"""Spark's home as PySpark has it, but for its own Python packages: folders instead of archives.

Spark's Python processes import PySpark from an archive, without compiled files: each one compiles what it imports, for half a second of
processor time. A stream has a process of its own, and so has each planning of a read. From a folder they import what is compiled already.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
from pathlib import Path

_CACHE = Path(__file__).parents[2] / ".cache" / "spark-home"


def spark_home() -> Path:
    """For `SPARK_HOME`; made of links where it is missing. Several processes may ask at once."""
    packages = {name: _package(name) for name in ("pyspark", "py4j")}
    found = "\n".join([*map(str, packages.values()), Path(__file__).read_text()])
    place = _CACHE / hashlib.sha256(found.encode()).hexdigest()[:16]
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            partial = _CACHE / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            _link(partial, packages)
            partial.rename(place)
    return place


def _package(name: str) -> Path:
    """The folder of a package that is installed here."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed")
    return Path(found.origin).parent


def _link(place: Path, packages: dict[str, Path]) -> None:
    library = place / "python" / "lib"
    library.mkdir(parents=True)
    home = packages["pyspark"]
    for name in ("bin", "sbin", "jars", "data", "licenses"):
        os.symlink(home / name, place / name)
    for archive in (home / "python" / "lib").glob("*.zip"):
        package = archive.name.removesuffix(".zip").partition("-")[0]
        (library / archive.name).mkdir()
        os.symlink(packages[package], library / archive.name / package)
