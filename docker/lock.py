"""Writes `docker/requirements/*.txt`: what the image installs, pinned, with the hashes of all files. `make lock` runs it.

There is one file without extras, `base.txt`, and one for each extra of `pyproject.toml` except `dev`. Each is complete. `base.txt` constrains
the others, so that several of them can be installed together. An `EXTRA.in` beside them names packages that the image needs besides.
`build.txt` has what builds wheels, and `wheels.txt` what builds those of `cdfd-native` for a release.
`cdfd-native` itself is in none of them: it is built from this source.
Pins stay as they are while they satisfy `pyproject.toml`; with `--upgrade`, they move to the newest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = Path("docker/requirements")
DEVELOPMENT = {"dev", "docs"}
_OPTIONS = [
    "--quiet",
    "--universal",
    "--python-version",
    "3.11",
    "--generate-hashes",
    "--no-emit-package",
    "cdfd-native",
]


def extras() -> list[str]:
    """The extras that an image may have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(set(project["optional-dependencies"]) - DEVELOPMENT)


def main() -> None:
    """Resolve every file."""
    upgrade = [option for option in sys.argv[1:] if option == "--upgrade"]
    for tools in ("build", "wheels"):
        _resolve(tools, [str(FOLDER / f"{tools}.in")], upgrade)
    _resolve("base", ["pyproject.toml"], upgrade)
    for extra in extras():
        more = FOLDER / f"{extra}.in"
        sources = ["pyproject.toml", *([str(more)] if (ROOT / more).exists() else [])]
        _resolve(extra, [*sources, "--extra", extra, "--constraints", str(FOLDER / "base.txt")], upgrade)


def _resolve(name: str, sources: list[str], options: list[str]) -> None:
    output = str(FOLDER / f"{name}.txt")
    command = [sys.executable, "-m", "uv", "pip", "compile", *sources, *options, "--output-file", output]
    subprocess.run(
        [*command, *_OPTIONS],
        cwd=ROOT,
        # Only what the index has: nobody else has this machine's files.
        env={key: value for key, value in os.environ.items() if key not in ("PIP_FIND_LINKS", "UV_FIND_LINKS")}
        | {"UV_CUSTOM_COMPILE_COMMAND": "make lock"},
        check=True,
    )


if __name__ == "__main__":
    main()
