"""The sink that `docs/extending.md` shows, built from the page."""

import re
import tomllib
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE.read_text())


def module() -> ModuleType:
    """The sink's module, imported."""
    made = ModuleType("sqlite_sink")
    exec(compile("\n\n".join(blocks("python")), str(PAGE), "exec"), made.__dict__)
    return made


def install(folder: Path) -> None:
    """Write the page's package as an installer does: the module, and its metadata next to it."""
    (folder / "sqlite_sink.py").write_text("\n\n".join(blocks("python")))
    project = tomllib.loads(blocks("toml")[0])["project"]
    metadata = folder / f"sqlite_sink-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    lines = [line for group, entries in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))]
    (metadata / "entry_points.txt").write_text("\n".join([*lines, ""]))
