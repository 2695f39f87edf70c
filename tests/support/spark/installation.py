"""The jars of real Spark tests: delta-spark and Spark's own Kafka connector, from Maven Central, fetched once."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.support.cache import CACHE, locked

POMS = {"4.1": Path(__file__).with_name("pom.xml"), "4.2": Path(__file__).with_name("pom-4.2.xml")}
"""The lists of jars, by the version of PySpark."""
S3A = Path(__file__).with_name("pom-s3a.xml")
"""The list for Hadoop's file system in S3, which only PySpark 4.1 has here."""
JARS = CACHE / "spark-jars"
_DOWNLOAD_SECONDS = 600


class JarsError(Exception):
    """They cannot be had, and why."""


def missing() -> str | None:
    """Why no Spark can run here, or None."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "there is no PySpark: install cdfd[spark]"
    try:
        answer = subprocess.run([_java(), "-version"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "Spark needs Java 17 or newer: there is no `java` on the PATH, and JAVA_HOME leads to none"
    version = re.search(r'version "(\d+)', answer.stderr)
    if answer.returncode != 0 or version is None or int(version[1]) < 17:
        return f"Spark needs Java 17 or newer: `java -version` says {answer.stderr.strip()[:100]!r}"
    if not (_place(_pom()) / "complete").exists() and shutil.which("mvn") is None:
        return "the jars come from Maven Central: there is no `mvn` on the PATH, and none were fetched before"
    return None


def jars(pom: Path | None = None) -> list[Path]:
    """The jars of a list, by default that of this PySpark; fetched if they are missing. Several processes may ask at once.

    Raises:
        JarsError: Maven cannot fetch them.
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
    found = POMS.get(pyspark_version())
    if found is None:
        raise JarsError(f"there is no list of jars for PySpark {pyspark_version()}, only for {', '.join(POMS)}")
    return found


def _place(pom: Path) -> Path:
    return JARS / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"


def _fetch(pom: Path, place: Path) -> None:
    print(f"fetching the jars of {pom.name} from Maven Central, once", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    command = ["mvn", "-B", "-q", "-ntp", "-f", str(pom), "dependency:copy-dependencies"]
    options = [f"-DoutputDirectory={place / 'jars'}", "-DincludeScope=runtime"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
    if done.returncode:
        raise JarsError(f"Maven failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (place / "complete").touch()
