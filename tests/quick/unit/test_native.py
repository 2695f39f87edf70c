"""cdfd and cdfd-native have one version, which is in several files."""

import tomllib
from pathlib import Path

import cdfd
from cdfd.runtime import native

ROOT = Path(__file__).parents[3]


def test_version_is_the_same_everywhere() -> None:
    project, of_native, crate = (
        tomllib.loads((ROOT / path).read_text())
        for path in ("pyproject.toml", "native/pyproject.toml", "native/Cargo.toml")
    )
    locked = [
        package["version"]
        for lock, name in (("uv.lock", "cdfd"), ("uv.lock", "cdfd-native"), ("native/Cargo.lock", "cdfd-native"))
        for package in tomllib.loads((ROOT / lock).read_text())["package"]
        if package["name"] == name
    ]
    assert f"cdfd-native=={cdfd.__version__}" in project["project"]["dependencies"]
    versions = [project["project"]["version"], of_native["project"]["version"], crate["package"]["version"], *locked]
    assert [native.VERSION, *versions] == [cdfd.__version__] * 7
