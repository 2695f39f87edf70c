"""The maps for developers lead to files that are there, and to every room."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md")
NAMED = [path for page in PAGES for path in re.findall(r"`((?:cdfd|tests)/[\w/.]*)`", page.read_text())]


def test_every_path_exists() -> None:
    assert not [path for path in NAMED if not (ROOT / path).exists()]


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.relative_to(ROOT).parts[1] for path in ROOT.glob("cdfd/*/__init__.py")}
    assert rooms == {path.removesuffix("/").split("/")[1] for path in NAMED if re.fullmatch(r"cdfd/\w+/", path)}


@pytest.mark.parametrize("tier", ["integration", "overnight"])
def test_the_table_of_tiers_has_each_part_that_the_makefile_offers(tier: str) -> None:
    offered = re.findall(rf"(?m)^{tier}: .*\bONLY=(\S+)", (ROOT / "Makefile").read_text())
    rows = re.findall(rf"(?m)^\|.*`make {tier} ONLY=.*", PAGES[0].read_text())
    assert set(re.findall(r"ONLY=([\w-]+)", "\n".join(rows))) == set(offered[0].split("|"))
