"""Files outside `docs/` that belong to the site: the examples of configurations, the changelog, and the benchmarks.

Pages link to them as they are in the repository (`../config/kafka.yaml`), so that the links work there, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "bench/README.md": "benchmarks.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the files."""
    for example in sorted((ROOT / "config").glob("*.yaml")):
        files.append(File.generated(config, f"config/{example.name}", content=example.read_text(encoding="utf-8")))
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](").replace("](../docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links at the places that the files have in the site."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown.replace("](../config/", "](config/")
