"""Steps that install what tests need: the machine's JDK, jars from Maven Central, Debian's packages."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.cache import CACHE, locked

_CHECK_SECONDS = 120
_STEP_SECONDS = 1800


class InstallError(Exception):
    """A program, jars or classes cannot be had, and why."""


def java(name: str = "java") -> str:
    """The path of a program of the JDK."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", name) if home else name


def missing_java(users: str, places: Iterable[Path]) -> str | None:
    """Why there is no Java, or why jars cannot be fetched; None if they are there or can be.

    Args:
        users: who needs Java, with the verb: `Spark needs`.
        places: the folders of jars, which have a file `complete` once they are fetched.
    """
    try:
        # A Mac has a `java` that only says where to get one.
        answer = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=_CHECK_SECONDS)
    except FileNotFoundError:
        return f"{users} Java 17 or newer: there is no `java` on the PATH, and JAVA_HOME leads to none"
    version = re.search(r'version "(\d+)', answer.stderr)
    if answer.returncode != 0 or version is None or int(version[1]) < 17:
        first = (answer.stderr.strip() or "it does not run").splitlines()[0]
        return f"{users} Java 17 or newer: `java -version` says {first!r}"
    if shutil.which("mvn") is None and not all((place / "complete").exists() for place in places):
        return f"{users} jars from Maven Central: there is no `mvn` on the PATH, and none were fetched before"
    return None


def fetch_jars(pom: Path, place: Path, *options: str) -> None:
    """Fill a new folder with the jars of a list, in `place/jars`. The caller marks it `complete`.

    Raises:
        InstallError: Maven cannot fetch them.
    """
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    options = (f"-DoutputDirectory={place / 'jars'}", "-DincludeScope=runtime", *options)
    run(["mvn", "-B", "-q", "-ntp", "-f", str(pom), "dependency:copy-dependencies", *options])


def compile_java(source: Path, jars: Path, classes: Path) -> None:
    """Compile a program of one file against the jars of a folder.

    Raises:
        InstallError: it cannot be compiled.
    """
    run([java("javac"), "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(source)])


def missing_package(program: str) -> str | None:
    """Why a program of a Debian package cannot be had, or None."""
    if shutil.which(program) or (shutil.which("apt-get") and os.geteuid() == 0):
        return None
    return f"there is no `{program}` on the PATH, and only root can install Debian's package"


def package(program: str, debian: str) -> str:
    """The path of a program, from Debian's package where it is not installed yet.

    Raises:
        InstallError: it cannot be installed, or does not have the program.
    """
    with locked(CACHE / "debian"):
        if shutil.which(program) is None:
            run(["apt-get", "update"])
            options = ["--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=600"]
            run(["apt-get", "install", *options, debian])
    path = shutil.which(program)
    if path is None:
        raise InstallError(f"Debian's package {debian} brought no `{program}`")
    return path


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """The output of a step of an installation.

    Raises:
        InstallError: it fails, or takes too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_STEP_SECONDS, cwd=folder)
    except subprocess.TimeoutExpired:
        raise InstallError(f"{command[0]} did not end within {_STEP_SECONDS} seconds") from None
    if done.returncode:
        raise InstallError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
