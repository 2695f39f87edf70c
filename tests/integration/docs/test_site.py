"""The site builds: every link and anchor leads somewhere, every page is in the navigation, and pages fetch nothing from other hosts."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run as `make site` does. Without --quiet: it drops warnings before --strict counts them."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_make_builds_as_this_test_does() -> None:
    recipe = re.search(r"(?m)^site:.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert recipe is not None
    assert recipe[1] == "$(BIN)/mkdocs build --strict"


def test_broken_links_and_anchors_and_lost_pages_are_errors(tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", root)
    for name in ("bench", "cdfd", "CHANGELOG.md", "CONTRIBUTING.md", "config", "helm"):
        (root / name).symlink_to(ROOT / name)
    (root / "docs" / "lost.md").write_text("# Lost\n")
    with (root / "docs" / "concepts.md").open("a") as page:
        page.write("\n[no page](nowhere.md) [no anchor](kafka.md#nowhere)\n")
    built = build(root, tmp_path / "site")
    assert built.returncode != 0
    assert "'nowhere.md', but the target is not found" in built.stderr
    assert "does not contain an anchor '#nowhere'" in built.stderr
    assert re.search(r'not included in the "nav" configuration:\s+- lost\.md', built.stderr)
    assert "Aborted with 3 warnings" in built.stdout  # each of the three, and no other


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")}


def test_pages_fetch_nothing_from_other_hosts(site: Path) -> None:
    fetched = {
        (page.name, address)
        for page in site.rglob("*.html")
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text())
        for address in re.findall(r'(?:src|href)="((?:https?:)?//[^"]*)"', tag)
        if 'rel="canonical"' not in tag
    }
    assert not fetched
