"""Spark's home as PySpark has it, but for its own Python packages: folders instead of archives.

Spark's Python processes import PySpark from an archive, without compiled files: each one compiles what it imports, for half a second of
processor time. A stream has a process of its own, and so has each planning of a read. From a folder they import what is compiled already.

It is a copy outside the checkout, at the same path for all checkouts: the archive of classes (`archive`) fits one class path only.
"""

import hashlib
import importlib.util
import shutil
from importlib import metadata
from pathlib import Path

from tests.support.cache import CACHE, locked

_HOME = ("bin", "sbin", "jars", "data", "licenses")


def spark_home() -> Path:
    """For `SPARK_HOME`; copied once. Several processes may ask at once."""
    versions = [f"{name} {metadata.version(name)}" for name in ("pyspark", "py4j")]
    key = hashlib.sha256("\n".join([*versions, Path(__file__).read_text()]).encode()).hexdigest()[:16]
    with locked(CACHE / "spark-home") as folder:
        place = folder / f"{metadata.version('pyspark')}-{key}"
        if not place.exists():
            partial = folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            _copy(partial)
            partial.rename(place)
    return place


def _copy(place: Path) -> None:
    packages = {name: _package(name) for name in ("pyspark", "py4j")}
    home = packages["pyspark"]
    for name in _HOME:
        shutil.copytree(home / name, place / name)
    for archive in (home / "python" / "lib").glob("*.zip"):
        package = archive.name.removesuffix(".zip").partition("-")[0]
        own = shutil.ignore_patterns(*_HOME) if package == "pyspark" else None
        shutil.copytree(packages[package], place / "python" / "lib" / archive.name / package, ignore=own)


def _package(name: str) -> Path:
    """The folder of a package that is installed here."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed")
    return Path(spec.origin).parent
