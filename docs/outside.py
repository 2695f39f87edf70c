"""Files outside `docs/` that belong to the site: the changelog, the benchmarks, how to contribute, and files that pages link to.

Pages link to them as they are in the repository (`../config/kafka.yaml`), so that the links work there, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
FOLDERS = ("config/*.yaml", "helm/cdfd/files/*.yaml", "helm/cdfd/dashboards/*.json", "cdfd/runtime/registry.py")
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "bench/README.md": "benchmarks.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the files."""
    for file in sorted(file for pattern in FOLDERS for file in ROOT.glob(pattern)):
        place = file.relative_to(ROOT).as_posix()
        files.append(File.generated(config, place, content=file.read_text(encoding="utf-8")))
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](").replace("](../docs/", "](")
        for other, target in PAGES.items():
            text = text.replace(f"]({other}", f"]({target}")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links at the places that the files have in the site."""
    for name, page in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    for folder in sorted({pattern.split("/")[0] for pattern in FOLDERS}):
        markdown = markdown.replace(f"](../{folder}/", f"]({folder}/")
    return markdown
