"""The jars of real Spark tests: delta-spark and Spark's own Kafka connector, from Maven Central, fetched once."""

import hashlib
import sys
from importlib import metadata
from pathlib import Path

from tests.support.cache import CACHE, locked
from tests.support.installation import fetch_jars, missing_java

POMS = {"4.1": Path(__file__).with_name("pom.xml"), "4.2": Path(__file__).with_name("pom-4.2.xml")}
"""The lists of jars, by the version of PySpark."""
S3A = Path(__file__).with_name("pom-s3a.xml")
"""The list for Hadoop's file system in S3, which only PySpark 4.1 has here."""
JARS = CACHE / "spark-jars"


class JarsError(Exception):
    """They cannot be had, and why."""


def missing() -> str | None:
    """Why no Spark can run here, or None."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "there is no PySpark: install cdfd[spark]"
    return missing_java("Spark needs", [_place(_pom())])


def jars(pom: Path | None = None) -> list[Path]:
    """The jars of a list, by default that of this PySpark; fetched if they are missing. Several processes may ask at once.

    Raises:
        InstallError: Maven cannot fetch them.
    """
    pom = pom or _pom()
    place = _place(pom)
    with locked(JARS):
        if not (place / "complete").exists():
            _fetch(pom, place)
    return sorted((place / "jars").glob("*.jar"))


def pyspark_version() -> str:
    """Major and minor version of the PySpark that is installed."""
    return ".".join(metadata.version("pyspark").split(".")[:2])


def _pom() -> Path:
    pom = POMS.get(pyspark_version())
    if pom is None:
        raise JarsError(f"there is no list of jars for PySpark {pyspark_version()}, only for {', '.join(POMS)}")
    return pom


def _place(pom: Path) -> Path:
    return JARS / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]


def _fetch(pom: Path, place: Path) -> None:
    print(f"fetching the jars of {pom.name} from Maven Central, once", file=sys.stderr, flush=True)
    fetch_jars(pom, place)
    (place / "complete").touch()
