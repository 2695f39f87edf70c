"""Each example of a configuration on the pages loads, with what it leaves out from a small one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from tests.support.docs.pages import blocks

ROOT = Path(__file__).parents[3]
SMALL = {
    "pipeline": "shop",
    "tables": [{"uri": "/data/orders", "key": ["order_id"]}],
    "sink": {"kind": "kafka", "bootstrap_servers": "localhost:9092"},
}
# A sink of the page's own: `test_extending` installs it.
ELSEWHERE = {"extending.md"}


def examples() -> Iterator[Any]:
    """Blocks of YAML with keys of a configuration, with their places."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for first, language, lines in blocks(page.read_text().splitlines()):
            if language == "yaml" and page.name not in ELSEWHERE and is_configuration(lines):
                yield pytest.param("\n".join(lines), id=f"{page.name}:{first}")


def is_configuration(lines: list[str]) -> bool:
    """Whether a block has keys of a configuration at its top."""
    return yaml.safe_load("\n".join(lines)).keys() <= set(Settings.model_fields)


@pytest.mark.parametrize("example", list(examples()))
def test_every_configuration_of_the_pages_loads(example: str, tmp_path: Path) -> None:
    for number, path in enumerate(re.findall(r"_file: (/\S+)", example)):
        (tmp_path / f"secret-{number}").write_text("a-secret-of-some-length\n")
        example = example.replace(path, str(tmp_path / f"secret-{number}"))
    whole = completed(yaml.safe_load(example))
    parse(yaml.safe_dump(whole), {}, folder=str(tmp_path))


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """A fragment with what it leaves out. A section that names its kind is whole."""
    if "sinks" in values:
        return {name: section for name, section in SMALL.items() if name != "sink"} | values
    sink = values.get("sink", {})
    return {**SMALL, **values, "sink": sink if "kind" in sink else {**SMALL["sink"], **sink}}
