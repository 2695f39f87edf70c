"""The site builds: every link and anchor leads somewhere, every page is in the navigation, and pages fetch nothing from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {page.stem for page in site.glob("*.html")}


def test_pages_fetch_nothing_from_other_hosts(site: Path) -> None:
    fetched = {
        (page.name, address)
        for page in site.glob("*.html")
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text())
        for address in re.findall(r'(?:src|href)="((?:https?:)?//[^"]*)"', tag)
        if 'rel="canonical"' not in tag
    }
    assert not fetched
