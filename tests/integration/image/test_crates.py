"""The crates of cdfd-native: from crates.io with a hash each, and under licenses that Apache 2.0 may include."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "native"
CRATES = tomllib.loads((FOLDER / "Cargo.lock").read_text())["package"]
LICENSES = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "MIT",
    "Unicode-3.0",
    "Zlib",
    "bzip2-1.0.6",
}


def allowed(expression: str) -> bool:
    """Whether one license of each alternative is in the list. `/` is an old way to write `OR`."""
    text = re.sub(r" WITH LLVM-exception", "", expression).replace("/", " OR ")
    parts = re.findall(r"\(|\)|AND|OR|[\w.+-]+", text)
    words = {"AND": "and", "OR": "or", "(": "(", ")": ")"}
    return bool(eval(" ".join(words.get(part) or str(part in LICENSES) for part in parts)))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT/Apache-2.0", True),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0 AND MIT", False),
        ("(GPL-3.0 OR MIT) AND Zlib", True),
    ],
)
def test_license_expressions(expression: str, expected: bool) -> None:
    assert allowed(expression) is expected


def test_crates_are_of_crates_io_and_have_hashes() -> None:
    others = [crate for crate in CRATES if crate["name"] != "cdfd-native"]
    assert len(others) > 50
    for crate in others:
        assert crate["source"] == "registry+https://github.com/rust-lang/crates.io-index", crate
        assert re.fullmatch(r"[0-9a-f]{64}", crate["checksum"]), crate


def test_licenses_are_known() -> None:
    if shutil.which("cargo") is None:
        assert "CI" not in os.environ, "there is no cargo"
        pytest.skip("there is no cargo")
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path", str(FOLDER / "Cargo.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    packages = json.loads(done.stdout)["packages"]
    assert len(packages) == len(CRATES)
    assert {package["name"]: package["license"] for package in packages if not allowed(package["license"])} == {}
