"""The files of `changelog.d` become a version of the changelog."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def _draft(folder: Path) -> str:
    run = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9", "--dir", str(folder)]
    return subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout


def test_every_file_is_in_the_next_version() -> None:
    draft = " ".join(_draft(ROOT).split())
    for path in (ROOT / "changelog.d").glob("*.md"):
        if path.name != "README.md":
            assert " ".join(path.read_text().split()) in draft, path.name


def test_files_are_grouped_by_kind(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n<!-- versions -->\n")
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "+vacuum.fixed.md").write_text("Live files stay.\n")
    (tmp_path / "changelog.d" / "+pages.security.md").write_text("Pages are checked.\n")
    draft = _draft(tmp_path)
    assert draft.index("### Security\n\n- Pages are checked.") < draft.index("### Fixed\n\n- Live files stay.")
