"""Generated pages are as the code is. If a page differs, run `make docs`."""

import re
import shutil
from pathlib import Path

import pytest

from cdfd.config import values
from cdfd.config.fields import Section, Text
from cdfd.config.sections import Standby
from tests.support.docs import reference, reference_settings

PAGES = (
    "reference-configuration.md",
    "cli.md",
    "reference-errors.md",
    "metrics.md",
    "performance.md",
    "sizing.md",
    "cdfd.schema.json",
)


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    return reference.generated()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_code_generates(name: str, generated: dict[Path, str]) -> None:
    page = reference.DOCS / name
    assert page.is_file(), f"{name} does not exist: run `make docs`"
    assert page.read_text(encoding="utf-8") == generated[page], f"{name} differs from the code: run `make docs`"


def test_writing_restores_pages_and_keeps_the_text_around_generated_parts(tmp_path: Path) -> None:
    written = (reference.DOCS / "metrics.md").read_text(encoding="utf-8")
    (tmp_path / "metrics.md").write_text(written.replace("| `cdfd_up` | gauge |", "| `cdfd_up` | counter |"))
    for page in ("performance.md", "sizing.md"):
        shutil.copy(reference.DOCS / page, tmp_path)
    reference.write(tmp_path)
    assert (tmp_path / "metrics.md").read_text(encoding="utf-8") == written
    assert {page.name for page in tmp_path.iterdir()} == set(PAGES)


def test_a_page_without_its_markers_is_an_error(tmp_path: Path) -> None:
    shutil.copy(reference.DOCS / "errors.md", tmp_path / "metrics.md")
    for page in ("performance.md", "sizing.md"):
        shutil.copy(reference.DOCS / page, tmp_path)
    with pytest.raises(AssertionError, match="0 parts gauges"):
        reference.generated(tmp_path)


def test_a_setting_without_a_description_is_an_error() -> None:
    class Undescribed(Section):
        known: Text
        """Its description."""

        forgotten: Text

    assert reference_settings.key(Undescribed, "known", "").description == "Its description."
    with pytest.raises(AssertionError, match=r"Undescribed\.forgotten has no docstring"):
        reference_settings.key(Undescribed, "forgotten", "")


def test_a_time_with_a_fraction_of_a_second_is_in_seconds() -> None:
    shown = reference_settings.key(Standby, "takeover_after", "standby.").default
    assert (shown, values.seconds(shown.strip("`"))) == ("`2.5s`", 2.5)


def test_causes_and_actions_are_those_of_known_families_and_classes() -> None:
    known = {kind.__name__: kind.family for kind in reference.error_classes()}
    rows = re.findall(r"(?m)^\| `(\w+)` \| `(\w+)` \|", (reference.DOCS / "errors.md").read_text(encoding="utf-8"))
    assert {(family, name) for family, name in rows} <= {(family, name) for name, family in known.items()}
    # The root, two answers of stores that callers handle, and a configuration's problems, which `ConfigError` covers.
    assert known.keys() - {name for _, name in rows} == {"CdfdError", "NotFoundError", "ExistsError", "ConfigProblems"}
