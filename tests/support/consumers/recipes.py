"""The settings that the pages of `docs/consume` show, so that tests run what users copy."""

import json
import re
from collections.abc import Mapping

from tests.support.cache import ROOT
from tests.support.docs.pages import blocks


def block(page: str, language: str, number: int = 0) -> str:
    """A block of code of a page, counted from 0 among those of its language."""
    lines = (ROOT / "docs" / "consume" / f"{page}.md").read_text(encoding="utf-8").splitlines()
    texts = ["\n".join(code) for _, written, code in blocks(lines) if written == language]
    return texts[number]


def connector(page: str, number: int, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of a connector in a block of JSON, with a test's own values for some of them.

    Fails if the page does not show one of `own`.
    """
    settings: dict[str, str] = json.loads(block(page, "json", number))
    return settings | _known(settings, own or {})


def flink_options(number: int, own: Mapping[str, str]) -> dict[str, str]:
    """The options of a table in a block of Flink's SQL, with a test's own values for some of them."""
    options = dict(re.findall(r"^ +'([^']+)' = '([^']*)'", block("flink", "sql", number), re.MULTILINE))
    return options | _known(options, own)


def _known(settings: Mapping[str, str], own: Mapping[str, str]) -> Mapping[str, str]:
    unknown = own.keys() - settings.keys()
    assert not unknown, f"the page does not show {unknown}"
    return own
