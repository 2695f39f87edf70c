"""Files for a cluster's Python processes: a relocatable archive of a virtual environment, and a wheel of cdfd.

The archive contains the dependencies of cdfd without cdfd itself, so it is built once. `spark-submit` sends both to executors:
`--archives environment.tar.gz#environment --py-files cdfd.zip`. PySpark comes from the cluster.
"""

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from cdfd.runtime import native
from tests.support.cache import CACHE, ROOT, locked

OWN = "cdfd-native"
_BUILD_SECONDS = 300
# Nothing imports these; they are a third of the bytes that each executor unpacks.
_LEFT_OUT = re.compile(r"(^|/)(tests?|include|__pycache__)/|libarrow_flight|\.(pyx|pxd|a)$|^\.\./")


def archive() -> Path:
    """The archive; made where there is none for the distributions that are installed here. Several processes may ask at once."""
    distributions = _distributions()
    versions = "\n".join([sys.version, *sorted(f"{name}=={one.version}" for name, one in distributions.items())])
    if OWN in distributions:  # it changes more often than its version
        versions += str(distributions[OWN].read_text("RECORD"))
    key = hashlib.sha256((versions + Path(__file__).read_text()).encode()).hexdigest()[:16]
    with locked(CACHE / "spark-environment") as folder:
        place = folder / key
        if not (place / "environment.tar.gz").exists():
            for old in folder.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            _build(place, distributions)
    return place / "environment.tar.gz"


def wheel(folder: Path) -> Path:
    """A wheel of this tree as `cdfd.zip`. It has no machine code, which Python would not import from an archive.

    Of `--py-files`, executors of Spark 4.1 import `.zip`, `.egg` and `.jar`, and ignore `.whl` without a word.
    """
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=_BUILD_SECONDS)
    return next(folder.glob("cdfd-*.whl")).rename(folder / "cdfd.zip")


def unpack(folder: Path) -> Path:
    """The environment in `folder / "environment"`, as Spark unpacks it in the working directory of an executor."""
    with tarfile.open(archive()) as packed:
        packed.extractall(folder / "environment", filter="fully_trusted")
    return folder / "environment"


def _build(place: Path, distributions: dict[str, importlib.metadata.Distribution]) -> None:
    print("packing an environment for executors, once", file=sys.stderr, flush=True)
    made = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=_BUILD_SECONDS)
    (packages,) = made.glob("lib/python*/site-packages")
    for one in distributions.values():
        for source, name in _files(one):
            (packages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, packages / name)
    # Compressed: of a plain `.tar`, Spark 4.1 loses the permission to run Python.
    with tarfile.open(place / "partial", "w:gz", compresslevel=1) as packed:
        packed.add(made, ".")
    (place / "partial").rename(place / "environment.tar.gz")
    shutil.rmtree(made)


def _files(one: importlib.metadata.Distribution) -> Iterator[tuple[Path, str]]:
    for name in one.files or []:
        source = Path(str(one.locate_file(name)))
        if not _LEFT_OUT.search(str(name)) and source.is_file():
            yield source, str(name)


def _distributions() -> dict[str, importlib.metadata.Distribution]:
    """The direct and transitive dependencies of cdfd, by name."""
    distributions: dict[str, importlib.metadata.Distribution] = {}
    waiting = _needed(importlib.metadata.distribution("cdfd"))
    while waiting:
        name = waiting.pop()
        if name not in distributions and not (name == OWN and not native.built):
            distributions[name] = importlib.metadata.distribution(name)
            waiting += _needed(distributions[name])
    return distributions


def _needed(one: importlib.metadata.Distribution) -> list[str]:
    requirements = map(Requirement, one.requires or [])
    return [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
