"""The image installs the requirements of `pyproject.toml`. If a test here fails, run `make lock`."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docker" / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = ["build", "wheels"]
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"dev", "docs"})  # the image has neither


def pins(name: str) -> dict[str, list[Requirement]]:
    """The pins of a file by package; several where they have markers."""
    by_name = defaultdict(list)
    for line in re.findall(r"^([a-z][^\\#]*==[^\\#]*?) *\\$", (FOLDER / f"{name}.txt").read_text(), re.MULTILINE):
        pin = Requirement(line)
        by_name[canonicalize_name(pin.name)].append(pin)
    return by_name


def asked(name: str) -> list[Requirement]:
    """The requirements from which a lock file is resolved."""
    lines = [] if name in TOOLS else [line for line in PROJECT["dependencies"] if not line.startswith("cdfd-native")]
    lines += PROJECT["optional-dependencies"].get(name, [])
    more = FOLDER / f"{name}.in"
    lines += more.read_text().splitlines() if more.exists() else []
    return [Requirement(line.partition("#")[0]) for line in lines if line.partition("#")[0].strip()]


def test_there_is_a_file_for_each_extra() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.txt")) == sorted(["base", *TOOLS, *EXTRAS])


@pytest.mark.parametrize("name", ["base", *TOOLS, *EXTRAS])
def test_the_pins_satisfy_what_is_asked_for(name: str) -> None:
    locked = pins(name)
    for requirement in asked(name):
        those = locked[canonicalize_name(requirement.name)]
        assert those, requirement
        for pin in those:
            assert requirement.specifier.contains(str(pin.specifier).removeprefix("==")), (requirement, pin)


@pytest.mark.parametrize("name", ["base", *EXTRAS])
def test_what_is_no_longer_asked_for_is_gone(name: str) -> None:
    """uv notes next to each pin which packages require it."""
    text = (FOLDER / f"{name}.txt").read_text()
    direct = set()
    for package, origins in re.findall(
        r"^([a-z0-9][\w.-]*)==(?:.*\n)(?:    --hash.*\n)+((?: +#.*\n)+)", text, re.MULTILINE
    ):
        if "cdfd (pyproject.toml)" in origins or f"-r docker/requirements/{name}.in" in origins:
            direct.add(canonicalize_name(package))
    assert direct == {canonicalize_name(requirement.name) for requirement in asked(name)}


@pytest.mark.parametrize("name", ["base", *TOOLS, *EXTRAS])
def test_every_pin_has_hashes_and_no_index(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    for block in re.split(r"\n(?=[a-z])", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block
    assert not re.search(r"://|--index|--find-links", text)


@pytest.mark.parametrize("name", EXTRAS)
def test_extras_can_be_installed_together(name: str) -> None:
    versions = {package: sorted(map(str, those)) for package, those in pins("base").items()}
    for other in ("base", *EXTRAS):
        versions |= {
            package: sorted(map(str, those)) for package, those in pins(other).items() if package not in versions
        }
    for package, those in pins(name).items():
        assert sorted(map(str, those)) == versions[package], package
